"""`farm calibrate`: measure the best speed of each device, which is the roof of later runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from typing import Any

from farm import backends
from farm.calibration import report
from farm.cli import common, run_command
from farm.cli.text import counted, printable, sentence
from farm.coordinator.calibrate import DeviceCalibration, calibrate
from farm.errors import BackendError, InfraError, Message, UsageError
from farm.guard.telemetry import complaint
from farm.process import supervisor
from farm.shipping import revision

SECONDS = 40.0
MIN_SECONDS, MAX_SECONDS = 1.0, 600.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "calibrate",
        help="measure each device's roof",
        description="Measure each device's roof and store it: the rate of the best of several copy kernels that move "
        "1 MiB to 8 GiB, the rate of matrix products per dtype, the time of an empty launch, and the device's drift "
        "during the measurement. Later runs in the same store report each cell's share of this roof.",
        epilog="example: farm calibrate --backend cuda --out farm-results",
    )
    p.add_argument(
        "--backend", metavar="B,..", help="calibrate only these backends (default: every available accelerator)"
    )
    common.store_option(p)
    run_command.address_option(p)
    p.add_argument(
        "--devices", type=int, metavar="N", help="use N devices per backend and node (default: all; for sim: 2)"
    )
    p.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=(
            "measure for S seconds, on all devices in parallel; with less time, fewer sizes are measured (default: "
            f"{SECONDS:g})"
        ),
    )
    p.add_argument("--json", action="store_true", help="print the calibrations as a JSON list")
    p.set_defaults(
        sandbox=False, environment=None, wait_for_devices=None, wait=None
    )  # options of a run that run_command.connect reads


def run(args: argparse.Namespace) -> int:
    """Measure, store and report."""
    common.check_devices(args.devices)
    run_command.resolve_address(args)
    if not MIN_SECONDS <= args.seconds <= MAX_SECONDS:  # NaN is refused too
        raise UsageError(
            f"--seconds {args.seconds:g}: must be between {MIN_SECONDS:g} and {MAX_SECONDS:g} seconds",
            id="calibrate-seconds-range",
        )
    asked = common.named_backends(args)
    for name in asked:
        _has_a_roof(name)
    store = common.store(args)
    store.probe()
    begun = time.monotonic()
    name = f"calibrate-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    cluster, slots, _ = run_command.connect(args, name, lambda has, _: _wanted(asked, has), list)
    rev = revision.of()

    def report_step(device: str, text: str) -> None:
        print(f"  {device}: {printable(text)}", file=sys.stderr, flush=True)

    ended = calibrate(slots, cluster, args.seconds, rev["name"], report_step)
    records = []
    for one in ended:
        if one.found is None:
            continue
        path = store.keep_calibration(_record(one, rev))
        records.append(json.loads(path.read_text(encoding="utf-8")))
        out = sys.stderr if args.json else sys.stdout
        print(f"{one.slot.device}: {printable(str(one.up['name']))}", file=out)
        for line in report.lines(records[-1]):
            print(f"  {printable(line)}", file=out)
        print(f"  stored in {path}", file=out)
    if args.json:
        print(json.dumps(records, indent=1))
    seconds = time.monotonic() - begun
    print(f"{len(records)} of {counted(len(ended), 'device')} calibrated in {seconds:.0f} s", file=sys.stderr)
    failed = [one for one in ended if one.found is None]
    for one in failed:
        if one.log:
            print(printable(one.log[-2000:]), file=sys.stderr)
    if failed:
        raise InfraError(
            "; ".join(f"{one.slot.device} was not calibrated: {one.reason}" for one in failed), id="calibrate-failed"
        )
    return 0


def explain(command: str, outcome: supervisor.Outcome) -> None:
    """Report the end of a calibration that its own process did not report."""
    how = "it was interrupted" if outcome.kind == "interrupted" else f"its process ended with {outcome.how}"
    told = Message(f"{how}, and the devices were not calibrated; repeat the command", id="calibrate-ended-early")
    print(f"farm {command}: {sentence(told)}", file=sys.stderr)


def _record(one: DeviceCalibration, rev: dict[str, Any]) -> dict[str, Any]:
    assert one.found is not None
    return report.record(
        one.found,
        up=one.up,
        policy=one.policy,
        # what the child reports comes first: a fake may simulate a device of this backend
        evidence=str(one.up.get("evidence") or backends.get(one.slot.backend).EVIDENCE),
        revision=rev,
        made=datetime.now(timezone.utc),
        telemetry=one.telemetry,
        complaint=complaint(one.telemetry) if one.telemetry else "",
    )


def _has_a_roof(backend: str) -> None:
    if backends.usable(backend).DEFAULT_TIMING == "none":
        raise BackendError(
            f"--backend {backend}: a backend that runs in an interpreter is never timed, so it has no roof; name an "
            "accelerator",
            id="calibrate-backend-untimed",
        )


def _wanted(asked: list[str], has: run_command.Has) -> list[str]:
    wanted = asked or [b for b in backends.accelerators() if has(b)]
    absent = [b for b in asked if not has(b)]
    if absent:
        raise BackendError(
            f"--backend {absent[0]}: no device of this backend was found; farm doctor lists what was checked",
            id="calibrate-backend-absent",
        )
    if not wanted:
        raise BackendError(
            "no accelerator was found, so there is nothing to calibrate (the CPU's interpreter has no roof); "
            "farm doctor lists what was checked",
            id="calibrate-no-accelerator",
        )
    return wanted
