"""`farm calibrate`: what each device can do at best, for the roof of later runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from typing import Any

from farm import address, backends, revision
from farm.calibration import report
from farm.cli import common
from farm.cli.text import printable
from farm.coordinator.calibrate import Calibrated, calibrate
from farm.coordinator.clusters import InlineCluster
from farm.coordinator.ray_cluster import RayCluster
from farm.errors import BackendError, FarmError, InfraError, UsageError

MAX_DEVICES = 256
SECONDS = 40.0
MIN_SECONDS, MAX_SECONDS = 1.0, 600.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "calibrate",
        help="measure what each device can do at best",
        description="Measures each device's roof (the best of a handful of copy kernels from 1 MiB to 8 GiB moved, "
        "products of matrices per dtype, the time of an empty launch, and its drift meanwhile) and keeps it in the "
        "store. Runs into the same store then say which share of the roof each cell reaches.",
        epilog="example: farm calibrate --backend cuda --out farm-results",
    )
    p.add_argument("--backend", metavar="B,..", help="backends by name (default: every accelerator that is there)")
    common.store_option(p)
    p.add_argument(
        "--address",
        default="local",
        metavar="local|inline|auto|HOST:PORT",
        help="local: an own Ray on this host (default); inline: no Ray; auto or HOST:PORT: join a cluster",
    )
    p.add_argument("--devices", type=int, metavar="N", help="devices per backend and node (default: all; sim: 2)")
    p.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S",
        help=f"time for each device, all at once; a shorter one leaves sizes out (default: {SECONDS:g})",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="print the calibrations as a JSON list")


def run(args: argparse.Namespace) -> int:
    """Measure, store, tell."""
    if args.devices is not None and not 1 <= args.devices <= MAX_DEVICES:
        raise UsageError(f"--devices {args.devices}: between 1 and {MAX_DEVICES} devices can be asked for")
    if not MIN_SECONDS <= args.seconds <= MAX_SECONDS:  # also what is not a number
        raise UsageError(f"--seconds {args.seconds:g}: between {MIN_SECONDS:g} and {MAX_SECONDS:g} can be asked for")
    asked = common.named_backends(args)
    for name in asked:
        _has_a_roof(name)
    store = common.store(args)
    store.probe()
    address.check(args.address)
    begun = time.monotonic()
    cluster, wanted = _cluster(args, asked)
    try:
        slots = cluster.slots(wanted)
    except BaseException:
        cluster.close()
        raise
    rev = revision.of()

    def tell(device: str, text: str) -> None:
        print(f"  {device}: {printable(text)}", file=sys.stderr, flush=True)

    ended = calibrate(slots, cluster, args.seconds, rev["name"], tell)
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
        print(f"  kept: {path}", file=out)
    if args.json:
        print(json.dumps(records, indent=1))
    print(f"{len(records)} of {len(ended)} devices calibrated in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    failed = [one for one in ended if one.found is None]
    for one in failed:
        if one.log:
            print(printable(one.log[-2000:]), file=sys.stderr)
    if failed:
        raise InfraError("; ".join(f"{one.slot.device} was not calibrated: {one.reason}" for one in failed))
    return 0


def _record(one: Calibrated, rev: dict[str, Any]) -> dict[str, Any]:
    assert one.found is not None
    return report.record(
        one.found,
        up=one.up,
        policy=one.policy,
        # the child's own word first: a fake may play a device of this backend
        evidence=str(one.up.get("evidence") or getattr(backends.get(one.slot.backend), "EVIDENCE", "")),
        revision=rev,
        made=datetime.now(timezone.utc),
        telemetry=one.telemetry,
    )


def _has_a_roof(backend: str) -> None:
    if backends.usable(backend).DEFAULT_TIMING == "none":
        raise BackendError(
            f"--backend {backend}: nothing is timed there (an interpreter proves numerics, never speed), so it has no "
            "roof; name an accelerator"
        )


def _cluster(args: argparse.Namespace, asked: list[str]) -> tuple[Any, list[str]]:
    """(the cluster, the backends to calibrate there)."""
    name = f"calibrate-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    if args.address in ("local", "inline"):
        wanted = _wanted(asked, lambda b: bool(backends.usable(b).detect()))
        if args.address == "inline":
            return InlineCluster(args.devices, name), wanted
        return RayCluster(args.address, args.devices, name, wanted), wanted
    cluster = RayCluster(args.address, args.devices, name)
    has = cluster.available()
    try:
        return cluster, _wanted(asked, lambda b: has.get(b, 0) > 0)
    except FarmError:
        cluster.close()
        raise


def _wanted(asked: list[str], has: Any) -> list[str]:
    wanted = asked or [b for b in backends.accelerators() if has(b)]
    absent = [b for b in asked if not has(b)]
    if absent:
        raise BackendError(f"--backend {absent[0]}: no such device here; farm doctor says what was looked for")
    if not wanted:
        raise BackendError(
            "there is no accelerator here to calibrate (the CPU's interpreter has no roof); "
            "farm doctor says what was looked for"
        )
    return wanted
