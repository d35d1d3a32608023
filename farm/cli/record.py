"""`farm record`: watch one run of a program, and write the matrix of the ops that it called."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from farm.cli import common
from farm.cli.text import counted, printable
from farm.contracts import discovery
from farm.errors import FarmError, StoreError, UsageError
from farm.matrix import builtin_providers, load_all
from farm.process.group import describe_exit
from farm.record import matrix_text, watch
from farm.record.calls import Run
from farm.record.targets import KNOWN, Target, asked
from farm.subject import command_line

MAX_SHOWN = 20
DEFAULT_SECONDS = 3600.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "record",
        help="run a program once, and write the matrix of the ops that it called",
        description=(
            "Run a command once. In each of its Python processes, watch the PyTorch functions that ops of the farm "
            "describe, its own kernels, and every --function. Then write a matrix of the shapes, dtypes, layouts and "
            "parameters that they were called with. Exit code 4: nothing was recorded; 3: the command failed or was "
            "stopped, and the matrix has what it called before."
        ),
        epilog="example: farm record -- python train.py --steps 1",
    )
    p.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION=OP",
        help="also watch this function, which does OP, for example my_model.norms:RMSNorm.forward=rms_norm; "
        "may be given several times",
    )
    p.add_argument("--out", type=Path, default="recorded.yaml", metavar="FILE", help="matrix to write (%(default)s)")
    p.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="N",
        help="stop the command after this time (default: %(default)g)",
    )
    common.contracts_option(p)
    p.add_argument("words", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command to run, with its arguments")


def run(args: argparse.Namespace) -> int:
    """Run it, write, and say what was left out."""
    common.use_contracts(args)
    command = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not command:
        raise UsageError(
            "there is no command; write it after --, for example farm record -- python train.py", id="record-no-words"
        )
    if not 0 < args.seconds <= 7 * 86400:
        raise UsageError(f"--seconds {args.seconds:g}: must be between 0 and 604800", id="record-seconds")
    _check_out(args.out)
    command_line.know([f.rpartition("=")[2] for f in args.function], args.contracts)
    own = asked(args.function, discovery.known_ops())
    targets = [*own, *(t for t in KNOWN if t.path not in {o.path for o in own})]
    contracts = {t.op: discovery.contract(t.op) for t in targets}
    with tempfile.TemporaryDirectory(prefix="farm-record-") as place:
        folder = Path(place)
        folder.joinpath("settings.json").write_text(json.dumps(watch.settings(targets, contracts)), encoding="utf-8")
        code = watch.run(command, folder, args.seconds, os.environ)
        found = watch.collect(folder, targets, contracts)
    ended = "was stopped at its deadline" if code is None else f"ended with {describe_exit(code)}"
    print(f"the command {ended}")
    _say_left(found, own)
    if not found.calls:
        print(f"nothing was recorded: {_why_nothing(found, targets)}")
        return 4 if code == 0 else 3
    _write(args.out, found, shlex.join(command))
    return 0 if code == 0 else 3


def _check_out(out: Path) -> None:
    """Refuse to write over what is not a recorded matrix, before the command runs."""
    try:
        head = out.open(encoding="utf-8", errors="replace").read(len(matrix_text.HEAD)) if out.exists() else None
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be read ({error.strerror}); name a file", id="record-out") from None
    if head is not None and head != matrix_text.HEAD:
        raise UsageError(
            f"--out {out}: exists and is not a recorded matrix; name another file, or remove it", id="record-out-exists"
        )
    if not out.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.resolve().parent}; make it", id="record-out-folder")


def _write(out: Path, found: Run, command: str) -> None:
    builtin = builtin_providers()

    def providers(op: str) -> list[str]:
        return ["torch"] if builtin["torch"].does(op) else [n for n, info in builtin.items() if info.does(op)][:1]

    documents, many = matrix_text.texts(found, discovery.contract, providers, printable(command)[:200])
    kept = []
    for text in documents:
        why = _refused(text)
        if why:
            print(f"left out, because farm plan would refuse it: {printable(why)}", file=sys.stderr)
        else:
            kept.append(text)
    if many:
        print(f"{counted(many, 'shape')} left out: a file has the {matrix_text.MOST_SHAPES} that were called most")
    if not kept:
        raise UsageError("farm plan would refuse each recorded matrix; see above", id="record-all-refused")
    try:
        out.write_text("---\n".join(kept), encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"--out {out}: cannot be written ({error.strerror}); name a file in a folder with space",
            id="record-out-unwritable",
        ) from None
    calls = sum(c.calls for c in found.calls.values())
    ops = ", ".join(sorted({call.op for call in found.calls}))
    print(f"wrote {out}: {counted(calls, 'call')} of {ops}; next: farm plan {shlex.quote(str(out))}")


def _refused(text: str) -> str:
    """Why a matrix cannot be loaded; "" if it can."""
    with tempfile.TemporaryDirectory(prefix="farm-record-") as place:
        file = Path(place, "m.yaml")
        file.write_text(text, encoding="utf-8")
        try:
            load_all(file, extra_providers={"recorded": "module:function"})
        except FarmError as error:
            return str(error).removeprefix(f"{file}:")
    return ""


def _say_left(found: Run, own: list[Target]) -> None:
    unfit = sorted(found.unfit.items(), key=lambda item: -item[1])
    for (function, why), calls in unfit[:MAX_SHOWN]:
        print(f"not recorded: {counted(calls, 'call')} of {function}: {printable(why)}")
    if len(unfit) > MAX_SHOWN:
        print(f"not recorded: {counted(sum(n for _, n in unfit[MAX_SHOWN:]), 'call')} more, for other reasons")
    if found.lost:
        print(f"not recorded: {counted(found.lost, 'call')} beyond the different ones that a process may keep")
    for target in own:
        if target.path in found.missing:
            print(f"--function {target.path}: cannot be watched ({printable(found.missing[target.path])})")
        elif target.path not in found.imported:
            print(f"--function {target.path}: no process imported {target.module}")


def _why_nothing(found: Run, targets: list[Target]) -> str:
    if not found.processes:
        return "no Python process was watched; the command must start Python without -I, -E and -S, and keep PYTHONPATH"
    if not found.imported:
        return (
            "no process imported torch or a module of --function; name your function with --function MODULE:FUNCTION=OP"
        )
    if found.unfit:
        return "no call was one of an op as its contract has it; see above"
    watched = ", ".join(t.path for t in targets if t.path in found.imported)
    return f"none of the watched functions was called ({watched}); name yours with --function MODULE:FUNCTION=OP"
