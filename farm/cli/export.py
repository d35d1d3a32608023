"""`farm export`: write a run for other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from farm.cli import common

FORMATS = common.FORMATS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "export",
        help="write a run as JUnit XML, Markdown, JSON, CSV, or Liger-Kernel's CSV",
        description="Write a run for other tools: JUnit XML with the logs of the cells for CI, Markdown for a comment, "
        "JSON and CSV for programs, and the CSV that Liger-Kernel's plotting script reads. "
        "farm run --write does the same at the end of a run.",
        epilog="example: farm export junit last --to report.xml",
    )
    p.add_argument("format", choices=FORMATS, help="output format")
    p.add_argument("run", metavar="RUN", help="run to export: a run ID, an ID prefix, or `last`")
    p.add_argument("--to", type=Path, metavar="FILE", help="write to this file instead of standard output")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the run, or write it to a file."""
    from farm.report import liger
    from farm.store.results import IMPORTED

    found = common.store(args).run(args.run)
    if args.format == "liger" and found.head.get("kind") != IMPORTED:
        with common.readable(found):
            if left := liger.left_out(found):
                what = ", ".join(f"{count:,} {why}" for why, count in left.items())
                print(f"farm export: Liger's format has no place for cells without a time: {what}", file=sys.stderr)
    if args.to is not None:
        common.write_export(found, args.format, args.to, "--to")
        return 0
    text = common.export(found, args.format)
    print(text, end="" if args.format == "liger" else "\n")
    return 0
