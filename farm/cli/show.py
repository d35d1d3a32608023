"""`farm show`: everything that a store knows of one cell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress

from farm.cli import common
from farm.cli.text import printable
from farm.errors import StoreError
from farm.report import cell_facts
from farm.report.queries import Row, as_shown
from farm.store import Run, Store
from farm.store.results import place

MAX_RUNS = 30  # other runs that are searched for the cell, newest first
MAX_EARLIER = 5  # of these, shown
MAX_LOG_LINES = 10_000


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "show",
        help="show one cell: verdict, times, peers, earlier results, log",
        description="Show everything that the store knows of one cell: its status and reason, accuracy, output hash, "
        "times with statistics of their samples, the same cell of other providers, the last runs of the cell, "
        "resources, and the end of its log.",
        epilog="example: farm show cpu/rms_norm/mine/auto/forward/fp16/8x4096",
    )
    p.add_argument("cell", metavar="CELL", help="cell to show: an ID, a key, or the beginning of one")
    p.add_argument("--run", metavar="RUN", default="last", help="show the cell of this run (default: the newest run)")
    p.add_argument("--log-lines", type=int, default=40, metavar="N", help="show the last N lines of the log")
    p.add_argument("--json", action="store_true", help="print JSON, with every column and every sample")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the cell."""
    common.check_range("--log-lines", args.log_lines, 0, MAX_LOG_LINES)
    store = common.store(args)
    found = store.run(args.run)
    common.refuse_newer(found, "shows cells of")
    with common.readable(found):
        shown = as_shown(found)
        row = cell_facts.find(shown.rows, args.cell, found.id)
        samples = found.samples_of(row["cell_key"])
    log = ""
    if row.get("log"):
        with suppress(StoreError):
            log = found.log_text(str(row["log"]))
    facts = cell_facts.facts(shown, row, samples, _earlier(store, found, row), log)
    if args.json:
        print(cell_facts.as_json(facts))
        return 0
    for line in cell_facts.lines(facts, str(found.dir / str(row.get("log") or "")), args.log_lines):
        print(printable(line))
    return 0


def _earlier(store: Store, shown: Run, row: Row) -> Iterator[tuple[Run, Row]]:
    """The cell in the other runs of the store, newest first; a run that cannot be read is left out."""
    number = 0
    for other in [r for r in reversed(store.runs()) if r.id != shown.id][:MAX_RUNS]:
        with suppress(StoreError), common.readable(other):
            for its in other.rows_of(str(row["cell_key"])):
                if place(its) == place(row) and its["status"] != "lost" and number < MAX_EARLIER:
                    number += 1
                    yield other, its
        if number >= MAX_EARLIER:
            return
