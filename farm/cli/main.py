"""Reads the command line, runs one command, turns every refusal into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import nullcontext
from importlib import import_module
from typing import NoReturn

from farm import __version__
from farm.cli.streams import open_missing, surviving
from farm.cli.text import printable
from farm.errors import FarmError

#: Command -> module in farm.cli with `add(subparsers)` and `run(args) -> int`.
COMMANDS = (
    "run",
    "plan",
    "merge",
    "resume",
    "compile",
    "judge",
    "dashboard",
    "export",
    "calibrate",
    "nodes",
    "doctor",
    "schema",
)


class _Parser(argparse.ArgumentParser):
    """Refuses in one sentence; argparse's own way is the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)}; {self.prog} --help has an example\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="farm",
        description="Kernels through a matrix of shapes, dtypes and modes, on every accelerator of a cluster.",
        epilog="example: farm run matrices/smoke.yaml --- "
        "exit codes: 2 wrong usage or matrix, 3 the farm's own fault or an interrupt, 1 findings, 4 nothing proven, "
        "0 all well",
    )
    top.add_argument("--version", action="version", version=f"kernel-farm {__version__}")
    top.add_argument("--debug", action="store_true", help="show tracebacks of refusals too")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"farm.cli.{name}").add(commands)
    return top


def _not_importable(error: Exception) -> str:
    """`/clone/kernels/__init__.py:25 cannot be imported (RuntimeError: boom)`: the innermost line of a file."""
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else ("the farm", 0)
    why = error.msg if isinstance(error, SyntaxError) else error
    return printable(f"{file}:{line} cannot be imported ({type(error).__name__}: {why})")[:400]


def main(argv: list[str] | None = None) -> int:
    """Exit code of one command line."""
    open_missing()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        top = parser()
    except Exception as error:  # of our own modules, or of the kernels whose contracts they read
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"farm: {_not_importable(error)}; correct it, farm --debug shows where", file=sys.stderr)
        return 3
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:  # it would be written into the run, its page and the store's list
            top.error(f"{word!r} is not UTF-8 text: rename the file, or type it again")
    args = top.parse_args(arguments)
    args.argv = list(arguments)
    try:
        with surviving() if args.command in ("run", "resume", "compile") else nullcontext():
            code: int = import_module(f"farm.cli.{args.command}").run(args)
            sys.stdout.flush()
        return code
    except FarmError as error:
        if args.debug:
            traceback.print_exc()
        print(f"farm {args.command}: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"farm {args.command}: interrupted", file=sys.stderr)
        return 3
    except BrokenPipeError:  # the reader of our output left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # 1 would mean findings
        if args.debug:
            traceback.print_exc()
        told = printable(f"{type(error).__name__}: {error}")[:300]
        print(f"farm {args.command}: the farm itself failed ({told}); farm --debug {args.command} shows where",
              file=sys.stderr)  # fmt: skip
        return 3
