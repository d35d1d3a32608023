"""`farm plan`: show what a matrix would run, without a device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from farm import atomic_files
from farm.cli import common
from farm.cli.text import counted, duration, printable, sentence
from farm.errors import StoreError, UsageError
from farm.matrix import Plan, plan
from farm.matrix.plan import Count

#: Until the first cell of a run: imports, the plan, the child that opens the device (2 to 5 s on this project's hosts).
START_SECONDS = 3.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "plan",
        help="show cells, counts and estimated time per backend (no device needed)",
        description="Expand matrices into cells and show what would run. No device is opened.",
        epilog="example: farm plan matrices/rms_norm.yaml --backend cuda",
    )
    common.matrix_options(p, needed=False)
    common.subject_options(p)
    p.add_argument("--a", metavar="KEY=VALUE,..", help="plan a comparison: its first arm, as for farm ab")
    p.add_argument("--b", metavar="KEY=VALUE,..", help="the second arm of a comparison")
    p.add_argument(
        "--json", action="store_true", help="print the complete plan as JSON, with the ID and key of every cell"
    )
    p.add_argument(
        "--out",
        metavar="PLAN",
        type=Path,
        help="write the plan to this file (for farm run --plan) and print only the counts",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    if args.out:
        _check_out(args.out)
    asked = common.named_backends(args)
    common.use_contracts(args)
    subject, arms = None, dict[str, dict[str, Any]]()
    if args.a or args.b:
        found, arms, calls = _of_arms(args, asked)
    else:
        subject = common.subject(args)
        matrices = common.matrices(args, subject)
        found = plan(matrices, asked, select=args.select)
        calls = {**common.own_providers(args), **common.declared_calls(matrices)}
    text = ""
    if not (args.out or args.json):
        _check_calls(calls)
    else:
        from farm.sites import planfile

        providers, _ = common.packed(calls)
        text = planfile.write(found, providers, subject.packed.described() if subject else {}, arms)
    if args.out:
        try:
            atomic_files.write(args.out, text)  # an older plan is not lost to a full disk
        except OSError as error:
            what = f"--out {args.out}: cannot be written ({error.strerror}); name a file in a folder with space"
            raise StoreError(what, id="plan-out-unwritable") from None
    if args.json:
        sys.stdout.write(text)
        return 0
    if not args.out:
        for cell in found.cells:
            note = f"   skipped: {cell.skip_reason}" if cell.skip_reason else ""
            print(f"{cell.cell_id}{note}")
        print()
    for backend, count in found.backends.items():
        print(_line(backend, count))
        for target, its in found.targets.items():
            if target.partition(":")[0] == backend:
                print(f"  {_line(target, its)}")
    if args.out:
        print(f"plan: {args.out}; to run one part at each site: farm run --plan {args.out} --target BACKEND")
    return 0


def _of_arms(args: argparse.Namespace, asked: list[str]) -> tuple[Plan, dict[str, dict[str, Any]], dict[str, str]]:
    """(the cells of both arms, what each is, the providers that both have)."""
    from farm.cli import ab

    for option in ("wheel", "release"):
        if getattr(args, option) is not None:
            raise UsageError(
                f"--{option} would be both arms; say it of one: --a {'version' if option == 'release' else option}=...",
                id="arm-option",
            )
    arms, planned, providers = ab.planned_arms(args)
    for line in arms.lines():
        print(printable(line), file=sys.stderr)
    return planned(asked), arms.described(), providers


def _check_calls(calls: Mapping[str, str]) -> None:
    """UsageError for a call that its module does not define.  A module that is not here may be where the run is."""
    for name, path in calls.items():
        try:
            common.packed({name: path})
        except UsageError as error:
            if error.id != "shipping-provider-module":
                raise
            print(f"farm plan: {sentence(error)}", file=sys.stderr)


def _check_out(path: Path) -> None:
    """StoreError for a file that is there and is no plan: its content would be lost."""
    with suppress(OSError):
        with path.open("rb") as file:
            begin = file.read(16)
        if begin and not begin.startswith(b'{"sha256": "') and path.is_file():
            raise StoreError(
                f"--out {path}: this file exists and is not a plan; name another file, or remove this one",
                id="plan-out-not-a-plan",
            )


def _line(place: str, count: Count) -> str:
    begins = START_SECONDS if count.cells > count.skipped else 0.0
    return (
        f"{place}: {counted(count.cells, 'cell')}, {count.skipped} skipped by a rule, "
        f"about {duration(begins + count.seconds)} on one device"
    )
