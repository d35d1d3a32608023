"""Stage 0 of `farm ab`: what can be said of two arms without a device."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import common
from farm.cli.text import counted, printable
from farm.compare.arms import differences
from farm.compile.run import chains_exist
from farm.compile.targets import TARGETS, parse
from farm.contracts import discovery
from farm.errors import UsageError
from farm.matrix import Plan
from farm.process import supervisor
from farm.stage_zero import run as stage_zero
from farm.stage_zero.answer import Answer
from farm.subject import arms

MAX_WORKERS = 64
#: Options that say something of a run on devices alone.
OF_DEVICES = ("address", "wait", "wait_for_devices", "stop_at_first", "sanitize", "strict_peers", "write", "known")


def options(p: argparse.ArgumentParser) -> None:
    """Add what stage 0 alone takes."""
    group = p.add_argument_group("without a device")
    group.add_argument(
        "--stage-0",
        action="store_true",
        help="use no device: compare kernels, machine code (--target) and interpreted results, and exit",
    )
    group.add_argument(
        "--target",
        metavar="T,..",
        help=f"compile both arms for these targets (comma-separated list): {', '.join(TARGETS)}",
    )
    group.add_argument("--no-interpreter", action="store_true", help="do not run the cells on the CPU")
    group.add_argument(
        "--workers", type=int, metavar="N", help="compile in N parallel processes (default: one per processor, up to 8)"
    )


def refuse_options(args: argparse.Namespace) -> None:
    """UsageError for an option of stage 0 without it."""
    given = {"--target": args.target, "--no-interpreter": args.no_interpreter, "--workers": args.workers is not None}
    for name in (name for name, there in given.items() if there):
        raise UsageError(f"{name} is an option of stage 0; add --stage-0, or omit it", id="stage-0-option")


def run(args: argparse.Namespace) -> int:
    """Compare the arms without a device and print the answer; the exit code."""
    found = answered(args)
    if found is None:
        return 0
    if args.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        for line in found.lines():
            print(printable(line))
    return found.summary.for_bisect if args.bisect else found.exit_code


def answered(args: argparse.Namespace) -> Answer | None:
    """What stage 0 says; None, and a sentence on standard output, where both arms hold the same files.

    Of `args`: a, b, repo, subject, matrices, select, overrides, provider, contracts, target, no_interpreter, workers,
    devices, environment, sandbox, out, run_id, json, argv, command, and OF_DEVICES.
    """
    if args.workers is not None and not 1 <= args.workers <= MAX_WORKERS:
        raise UsageError(f"--workers {args.workers}: must be between 1 and {MAX_WORKERS}", id="compile-workers-range")
    if args.backend is not None:
        raise UsageError(
            "--backend names devices, and --stage-0 uses none; name what to compile for with --target, for example "
            "--target sm_90,gfx942",
            id="stage-0-backend",
        )
    common.check_devices(args.devices)
    common.check_run_id(args.run_id)
    for name in OF_DEVICES:
        value = getattr(args, name)
        if value is not None and value is not False and value != []:
            option = "-x" if name == "stop_at_first" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for runs on devices, which --stage-0 makes none of", id="stage-0-device")
    common.use_contracts(args)
    targets = parse(args.target) if args.target else []
    chains_exist(targets)
    pair = arms.pair(args.a, args.b)
    rules = getattr(args, "rules", "")  # of a what-if: base's
    a, b = arms.contents(*pair, repo=args.repo or "", subject=args.subject or "", sandbox=args.sandbox, rules=rules)
    if a.digest == b.digest and not differences(*pair).keys() - {"files"}:
        _same(args, a.digest)
        return None
    described = a.subject or b.subject
    for folder in described.subject.contracts if described else ():
        discovery.add(Path(folder))
    matrices = common.matrices(args, a.subject), common.matrices(args, b.subject)
    own = {**common.own_providers(args), **common.declared_calls(matrices[0])}
    providers, shipped = common.packed(own)
    stage = stage_zero.Stage(
        (a, b),
        matrices,
        targets,
        not args.no_interpreter,
        args.select,
        providers,
        shipped,
        args.workers or 0,
        args.devices,
        args.environment or "",
        args.sandbox,
        "farm " + shlex.join(args.argv),
        args.argv,
        common.names_cells(args.argv),
    )
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    if stage.interpret:
        store.probe()
        for arm in "ab":
            store.refuse_existing(f"{run_id}-{arm}")
    supervisor.running()
    return stage_zero.run(stage, store, run_id, _Telling, _Telling)


def _same(args: argparse.Namespace, digest: str) -> None:
    told = f"a and b hold the same files (digest {digest}) and nothing else differs: nothing was compared"
    print(json.dumps({"same": digest, "exit_code": 0}, indent=1) if args.json else told)


class _Telling:
    """Counts the cells of one arm on standard error."""

    def __init__(self, what: str, plan: Plan):
        print(f"{what}: {counted(len(plan.cells), 'cell')}", file=sys.stderr)

    def cell(self, row: Any) -> None:
        pass

    def device(self, text: str) -> None:
        pass

    def eta(self, seconds: Any) -> None:
        pass
