"""`farm index`: bring the index of a store up to date, or check it."""

from __future__ import annotations

import argparse
import sys

from farm.cli import common
from farm.cli.text import counted, printable, sentence


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "index",
        help="bring the index of a store up to date, or check it",
        description="Bring the index of a store up to date: slim cells of all complete runs, from which pages across "
        "runs are made. Pages do so themselves; the index may be deleted at any time. Runs that cannot be in it "
        "(unfinished, damaged, of a later schema) are listed with the reason.",
        epilog="example: farm index --check",
    )
    p.add_argument(
        "--check", action="store_true", help="change nothing; exit code 3 if the index is missing, stale or damaged"
    )
    p.add_argument("--rebuild", action="store_true", help="make the index anew")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Update or check."""
    from farm.store import index

    store = common.store(args)
    if args.check:
        found = index.check(store)
        for message in found:
            print(sentence(message))
        return 3 if found else 0
    if args.rebuild:
        index.remove(store)
    made = index.opened(store)
    for name, why in made.left_out.items():
        print(f"farm index: run {name} is left out: {printable(why)}", file=sys.stderr)
    print(
        f"{counted(len(made.runs), 'run')}, {counted(made.cells, 'result')} in {counted(made.parts, 'file')}; "
        f"{made.added} added, {made.removed} removed"
    )
    return 0
