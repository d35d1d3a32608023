"""`farm export`: write a run for other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from farm.cli import common
from farm.errors import UsageError

FORMATS = common.FORMATS
TABLE_FORMATS = ("markdown", "csv", "json")  # the keys of farm.report.speed_text.WRITERS
UNITS = ("gbps", "us")  # farm.report.speed_table.UNITS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "export",
        help="write a run as JUnit XML, Markdown, JSON, CSV, Liger-Kernel's CSV, or a table of speeds",
        description="Write a run for other tools: JUnit XML with the logs of the cells for CI, Markdown for a comment, "
        "JSON and CSV for programs, the CSV that Liger-Kernel's plotting script reads; or table: a line per shape, "
        "operation and dtype, a column per provider, with the best peer, the ratio to it and the share of the roof. "
        "farm run --write does the same at the end of a run.",
        epilog="example: farm export table last --losses --to table.md",
    )
    p.add_argument("format", choices=FORMATS, help="output format")
    p.add_argument("run", metavar="RUN", help="run to export: a run ID, an ID prefix, or `last`")
    p.add_argument("--as", dest="written_as", choices=TABLE_FORMATS, help="of a table: its format (default: markdown)")
    p.add_argument(
        "--unit", choices=UNITS, help="of a table: gbps (1e9 bytes per second of the op's model, the default) or us"
    )
    p.add_argument(
        "--losses", action="store_true", help="of a table: first the lines in which the best peer is fastest by most"
    )
    p.add_argument(
        "--of",
        metavar="PROVIDER",
        help="of a table: compare this provider, or provider/mode, with the peers (default: the first subject)",
    )
    p.add_argument("--to", type=Path, metavar="FILE", help="write to this file instead of standard output")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the run, or write it to a file."""
    from farm.report import liger
    from farm.store.results import IMPORTED

    given = {"--as": args.written_as, "--unit": args.unit, "--losses": args.losses, "--of": args.of}
    wrong = next((option for option, value in given.items() if value), "")
    if args.format != "table" and wrong:
        raise UsageError(
            f"{wrong} is only for a table of speeds; write farm export table {args.run} {wrong} ...",
            id="export-table-option",
        )
    found = common.store(args).run(args.run)
    common.refuse_newer(found, "exports")
    if args.format == "liger" and found.head.get("kind") != IMPORTED:
        with common.readable(found):
            if left := liger.left_out(found):
                what = ", ".join(f"{count:,} {why}" for why, count in left.items())
                print(f"farm export: Liger's format has no place for cells without a time: {what}", file=sys.stderr)
    options = {"unit": args.unit or "gbps", "losses_first": args.losses, "of": args.of or ""}
    options |= {"written_as": args.written_as or "markdown"}
    table = options if args.format == "table" else {}
    if args.to is not None:
        common.write_export(found, args.format, args.to, "--to", **table)
        return 0
    print(common.export(found, args.format, **table), end="" if args.format in ("table", "liger") else "\n")
    return 0
