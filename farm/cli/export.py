"""`farm export`: a run for other tools."""

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
        help="a run as JUnit XML or Markdown",
        description="Writes a run for other tools: JUnit XML for CI, Markdown for a comment.",
        epilog="example: farm export junit last --to report.xml",
    )
    p.add_argument("format", choices=FORMATS)
    p.add_argument("run", metavar="RUN", help="a run id, its beginning, or `last`")
    p.add_argument("--to", type=Path, metavar="FILE", help="write there instead of to standard output")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Print or write it."""
    found = common.store(args).run(args.run)
    with common.readable(found):
        made = getattr(import_module(f"farm.export.{args.format}"), args.format)(found)
    if args.to is None:
        print(made)
        return 0
    try:
        args.to.write_text(made, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"--to {args.to}: cannot be written ({error.strerror})") from None
    return 0
