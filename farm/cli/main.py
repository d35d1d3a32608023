"""Read the command line, run one command, and turn every refusal into one sentence and an exit code."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from farm import __version__
from farm.cli.streams import open_missing, surviving
from farm.cli.text import printable, sentence
from farm.errors import FarmError, Message
from farm.process import supervisor

#: Command -> what it does.  Each has a module in farm.cli with `add(subparsers)` and `run(args) -> int`, which is
#: imported only for the command that is given: all of them together take a second.
COMMANDS = {
    "run": "run matrices on every accelerator",
    "plan": "show cells, counts and estimated time per backend (no device needed)",
    "kit": "pack cells, kernels and the farm into one archive for a site without a farm",
    "merge": "merge the runs of one plan, made at several sites, into one run",
    "resume": "continue an interrupted run: run the cells that have no result",
    "show": "show one cell: verdict, times, peers, earlier results, log",
    "profile": "profile the kernels of one cell, or show their compiled code",
    "repro": "write a script that shows one cell again without the farm",
    "ls": "list the runs of a store, newest first",
    "ab": "compare two arms on the same devices: revisions, versions, environments, providers, modes",
    "sweep": "measure ops at randomly drawn shapes, and show the distribution against the best peer",
    "tune": "search the fastest launches of our kernels for given shapes, and write a table that the kernels use",
    "confirm": "measure both sides of a suspected slowdown in turn, and record whether it is one",
    "pr": "say what a pull request does to kernels, and publish it",
    "compare": "compare two runs: broken, fixed, new, lost, slower, faster",
    "compile": "build every cell's kernels for the given targets (no device needed)",
    "judge": "judge a run again from the run's stored metrics (no device needed)",
    "index": "bring the index of a store up to date, or check it",
    "night": "show what is new in the newest night of a store, and notify somebody",
    "prune": "delete old runs that nothing refers to",
    "dashboard": "build or serve the pages of a store",
    "export": "write a run as JUnit XML, Markdown, JSON, CSV, Liger-Kernel's CSV, or a table of speeds",
    "import": "take benchmark results that others have published into a store",
    "contract": "check the contract of an op: is it sound, and which faults does it find?",
    "calibrate": "measure each device's roof",
    "nodes": "list, join, drain and restore the nodes of a cluster",
    "doctor": "check this host; show each problem and how to solve it",
    "init": "write a first farm.yaml for a repository, with adapters and small matrices",
    "record": "run a program once, and write the matrix of the ops that it called",
    "schema": "print the JSON Schema of a matrix file, a farm.yaml, or the result of a pull request",
}
#: Commands that are done in a fork under a supervisor, since Ray could end their process with an exit code of its own,
#: and what they start could outlive them -> the module that explains an end which such a process did not announce.
SUPERVISED = {
    **dict.fromkeys(("run", "resume", "sweep", "tune", "ab", "pr", "confirm"), "run_command"),
    "calibrate": "calibrate",
    "compile": "compile",
    "profile": "profile",
}
#: Commands whose modules have other names, since Python has them for itself.
MODULES = {"import": "import_"}
SECRETS = ("RAY_AUTH_TOKEN",)


class _Parser(argparse.ArgumentParser):
    """Refuse in one sentence.  argparse itself would print the complete usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)}; {self.prog} --help shows an example\n")


def _module(command: str) -> ModuleType:
    return import_module(f"farm.cli.{MODULES.get(command, command)}")


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The complete command line.  With `only` the options of that command alone, or of none: the other commands are
    names with their help, and their modules are not imported."""
    top = _Parser(
        prog="farm",
        description="Test kernels over a matrix of shapes, dtypes and modes, on every accelerator of a cluster.",
        epilog="example: farm run matrices/smoke.yaml --- "
        "exit codes: 0 passed, 1 findings, 2 invalid command line or matrix, 3 infrastructure failure or "
        "interrupt, 4 inconclusive (nothing was proven)",
    )
    top.add_argument("--version", action="version", version=f"kernel-farm {__version__}")
    top.add_argument("--debug", action="store_true", help="print the Python traceback with every error")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in COMMANDS.items():
        if only is None or name == only:
            _module(name).add(commands)
        else:
            commands.add_parser(name, help=what)
    return top


def _not_importable(error: Exception) -> str:
    """`/clone/farm/store/runs.py:25 cannot be imported (RuntimeError: boom)`: the innermost line in a file."""
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else ("the farm", 0)
    why = error.msg if isinstance(error, SyntaxError) else error
    return printable(f"{file}:{line} cannot be imported ({type(error).__name__}: {why})")[:400]


def _not_text(word: str) -> str:
    """Why an argument is not text: because of its bytes, or of what this Python takes them for."""
    try:
        name = os.fsencode(word).decode()
    except UnicodeError:
        return f"{word!r} is not UTF-8 text: rename the file, or correct the argument"
    return (
        f"{name!a} is UTF-8 text, but this Python reads arguments as {sys.getfilesystemencoding()}: unset "
        "PYTHONUTF8 and PYTHONCOERCECLOCALE, or set LC_ALL=C.UTF-8"
    )


def main(argv: list[str] | None = None) -> int:
    """The exit code of one command line; with `argv`, within this process."""
    open_missing()
    if argv is not None:
        return _command(argv)
    arguments = sys.argv[1:]
    command = _named(arguments)
    if command not in SUPERVISED:
        return _command(arguments)
    return supervisor.run(lambda: _ahead(command, arguments), lambda outcome: _explain(command, outcome), SECRETS)


def _ahead(command: str, arguments: list[str]) -> int:
    """Do it in the fork; of a run, the first child starts at once."""
    if command != "run":
        return _command(arguments)
    from farm.cli import ahead

    with ahead.child(arguments):
        return _command(arguments)


def _explain(command: str, outcome: supervisor.Outcome) -> None:
    """What a command that could not tell its end itself has left."""
    with surviving():
        import_module(f"farm.cli.{SUPERVISED[command]}").explain(command, outcome)


def _named(arguments: list[str]) -> str:
    """The command, of which there is one before any option of its own; "" for none."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _unwritten(error: Exception) -> Message | None:
    """The refusal where standard output cannot be written (its disk is full); None for another error.  What it still
    holds is discarded, so that the interpreter's end does not fail on it."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in full:
        return None  # an error of a file has its name
    with suppress(OSError, ValueError):  # within a test it may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    text = f"standard output cannot be written ({error.strerror or error}); write to another file or disk"
    return Message(text, id="cli-output-unwritable")


def _refuse(top: argparse.ArgumentParser, command: str, unknown: list[str]) -> NoReturn:
    """End as argparse would for arguments that a command does not have, but name the command and a near miss."""
    (actions,) = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    asked = actions.choices[command]
    options = [o for action in asked._actions for o in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0][:100], options, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    asked.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    raise SystemExit(2)  # `error` has ended the command


def _command(arguments: list[str]) -> int:
    try:
        Path.cwd()
    except OSError:
        gone = Message("the working folder does not exist any more; change to another folder", id="cli-folder-gone")
        print(f"farm: {sentence(gone)}", file=sys.stderr)
        return 2
    try:
        top = parser(_named(arguments))
    except Exception as error:  # in a module of the farm, or in a package that it needs
        if "--debug" in arguments:
            traceback.print_exc()
        broken = Message(f"{_not_importable(error)}; correct that file, or see farm --debug", id="cli-import-failed")
        print(f"farm: {sentence(broken)}", file=sys.stderr)
        return 3
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:  # the run, its page and the store's list would contain it
            top.error(_not_text(word))
    args, unknown = top.parse_known_args(arguments)
    if unknown:
        _refuse(top, args.command, unknown)
    args.argv = list(arguments)
    try:
        with surviving() if args.command in ("run", "resume", "ab", "compile") else nullcontext():
            code: int = _module(args.command).run(args)
            sys.stdout.flush()
        return code
    except FarmError as error:
        if args.debug:
            traceback.print_exc()
        print(f"farm {args.command}: {sentence(error)}", file=sys.stderr)
        if error.last_line:
            print(error.last_line, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"farm {args.command}: interrupted", file=sys.stderr)
        return 3
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # 1 would mean findings
        if unwritten := _unwritten(error):
            print(f"farm {args.command}: {sentence(unwritten)}", file=sys.stderr)
            return 3
        if args.debug:
            traceback.print_exc()
        cause = printable(f"{type(error).__name__}: {error}")[:300]
        failed = f"the farm itself failed ({cause}); farm --debug {args.command} prints the traceback"
        print(f"farm {args.command}: {sentence(Message(failed, id='cli-internal-error'))}", file=sys.stderr)
        return 3
