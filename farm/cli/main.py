"""Reads the command line, runs one command, turns every refusal into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from importlib import import_module

from farm import __version__
from farm.errors import FarmError

#: Command -> module in farm.cli with `add(subparsers)` and `run(args) -> int`.
COMMANDS = ("run", "plan", "dashboard", "export", "doctor", "schema")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="farm",
        description="Kernels through a matrix of shapes, dtypes and modes, on every accelerator of a cluster.",
        epilog="Exit codes: 2 wrong usage or matrix, 3 the farm's own fault, 1 findings, 0 all well.",
    )
    top.add_argument("--version", action="version", version=f"kernel-farm {__version__}")
    top.add_argument("--debug", action="store_true", help="show tracebacks of refusals too")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"farm.cli.{name}").add(commands)
    return top


def main(argv: list[str] | None = None) -> int:
    """Exit code of one command line."""
    arguments = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(arguments)
    args.argv = list(arguments)
    try:
        code: int = import_module(f"farm.cli.{args.command}").run(args)
        sys.stdout.flush()
        return code
    except FarmError as error:
        if args.debug:
            traceback.print_exc()
        print(f"farm {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"farm {args.command}: interrupted", file=sys.stderr)
        return 3
    except BrokenPipeError:  # the reader of our output left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
