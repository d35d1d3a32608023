"""`farm ls`: list the runs of a store."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from farm.cli import common
from farm.cli.text import printable
from farm.errors import StoreError
from farm.report import run_list
from farm.report.run_lines import run_line, unreadable
from farm.store import Run

MAX_RUNS = 10_000


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "ls",
        help="list the runs of a store, newest first",
        description="List the runs of a store, newest first: ID, time, matrices, verdict, counts by status, devices.",
        epilog="example: farm ls --limit 50",
    )
    p.add_argument("--limit", type=int, default=20, metavar="N", help="list at most N runs (default: 20)")
    p.add_argument("--json", action="store_true", help="print a JSON list")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    common.check_range("--limit", args.limit, 1, MAX_RUNS)
    store = common.store(args)
    runs = store.runs()
    entries = [_entry(r) for r in reversed(runs[-args.limit :])]
    if args.json:
        print(json.dumps(entries, indent=1))
        return 0
    for line in run_list.lines(entries):
        print(printable(line))
    if not runs:
        print(f"{store.path}: no runs; start one with farm run, or name another store with --out", file=sys.stderr)
    elif len(runs) > len(entries):
        more = f"the newest {len(entries)} of {len(runs)} runs; --limit {len(runs)} lists them all"
        print(f"{store.path}: {more}", file=sys.stderr)
    return 0


def _entry(found: Run) -> dict[str, Any]:
    try:
        with common.readable(found):
            line = run_line(found.head, found.id, lambda: found)
            return run_list.entry(line, found.head, found.devices())
    except StoreError as error:
        return run_list.entry(unreadable(found.id, str(error)), {}, [])
