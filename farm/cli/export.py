"""`farm export`: write a run for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from farm.cli import common

FORMATS = common.FORMATS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "export",
        help="write a run as JUnit XML, Markdown, JSON or CSV",
        description="Write a run for other tools: JUnit XML with the logs of the cells for CI, Markdown for a comment, "
        "JSON and CSV for programs. farm run --write does the same at the end of a run.",
        epilog="example: farm export junit last --to report.xml",
    )
    p.add_argument("format", choices=FORMATS, help="output format")
    p.add_argument("run", metavar="RUN", help="run to export: a run ID, an ID prefix, or `last`")
    p.add_argument("--to", type=Path, metavar="FILE", help="write to this file instead of standard output")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the run, or write it to a file."""
    found = common.store(args).run(args.run)
    if args.to is not None:
        common.write_export(found, args.format, args.to, "--to")
        return 0
    print(common.export(found, args.format))
    return 0
