"""`farm compare`: compare statuses and times of two runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from farm.cli import common
from farm.cli.text import printable
from farm.errors import UsageError
from farm.report import status_changes, time_changes

MAX_SHOWN = 100_000


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "compare",
        help="compare two runs: broken, fixed, new, lost, slower, faster",
        description="Compare run B with run A, cell by cell and target by target: what broke, what was fixed, what is "
        "new or lost, what fails in both, what is suspected to be slower or faster. Two runs that were not made in "
        "turn on one device also differ in time where nothing has changed, so times do not count for the exit code. "
        "Exit code 1: a subject's cell is broken, or newly fails; 3: infrastructure failures hide a result that A has; "
        "4: inconclusive.",
        epilog="example: farm compare 20261122T1107 last --page changes.html",
    )
    p.add_argument("before", metavar="A", help="earlier run: a run ID, an ID prefix, or `last`")
    p.add_argument("after", metavar="B", help="run to compare with A")
    p.add_argument(
        "--limit",
        type=int,
        default=status_changes.MAX_SHOWN,
        metavar="N",
        help=f"show at most N cells of each kind (default: {status_changes.MAX_SHOWN})",
    )
    p.add_argument(
        "--unlike",
        action="store_true",
        help="compare times even where target, timing method or kind of evidence differ",
    )
    p.add_argument("--page", metavar="FILE", help="also write the comparison as a page, and as JSON beside it")
    p.add_argument("--json", action="store_true", help="print JSON, with every cell that changed")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    common.check_range("--limit", args.limit, 0, MAX_SHOWN)
    store = common.store(args)
    a, b = store.run(args.before), store.run(args.after)
    for one in (a, b):
        common.refuse_newer(one, "compares")
    with common.readable(a):
        _ = a.rows, a.head
    for one in (a, b):
        if one.head.get("arms"):
            raise UsageError(
                f"{one.id} is itself a comparison of two arms, whose result farm ab printed; name runs of farm run",
                id="compare-run-arms",
            )
    with common.readable(b):
        found = status_changes.compare(a, b)
    timed = time_changes.times(found, unlike=args.unlike)
    if timed.unlike and not args.unlike:
        raise UsageError(time_changes.refusal(timed.unlike), id="compare-unlike")
    if args.page:
        from farm.dashboards.build import write_comparison

        write_comparison(a, b, found, timed, Path(args.page))
    if args.json:
        print(json.dumps({**found.to_dict(), "compares": "statuses and times", "times": timed.to_dict()}, indent=1))
    else:
        for line in status_changes.lines(found, args.limit):
            print(printable(line))
        for line in time_changes.lines(timed, args.limit):
            print(printable(line))
        print(status_changes.ending(found))
    return found.exit_code
