"""`farm export`: write a run for other tools."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from farm.cli import common
from farm.errors import StoreError

FORMATS = ("junit", "markdown")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "export",
        help="write a run as JUnit XML or Markdown",
        description="Write a run for other tools: JUnit XML for CI, Markdown for a comment.",
        epilog="example: farm export junit last --to report.xml",
    )
    p.add_argument("format", choices=FORMATS, help="output format")
    p.add_argument("run", metavar="RUN", help="run to export: a run ID, an ID prefix, or `last`")
    p.add_argument("--to", type=Path, metavar="FILE", help="write to this file instead of standard output")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print the run, or write it to a file."""
    found = common.store(args).run(args.run)
    with common.readable(found):
        made = getattr(import_module(f"farm.report.{args.format}"), args.format)(found)
    if args.to is None:
        print(made)
        return 0
    try:
        args.to.write_text(made, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"--to {args.to}: cannot be written ({error.strerror}); name another file", id="export-unwritable"
        ) from None
    return 0
