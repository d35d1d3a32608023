"""`farm profile`: what limits the kernels of one cell, by the vendor's profiler; or their compiled code."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farm.actor import tools
from farm.cli import common, failed
from farm.cli import run as running
from farm.cli.text import printable, sentence
from farm.compile.planning import plan_for
from farm.compile.run import CompileRequest, chains_exist, execute
from farm.compile.targets import TARGETS, CompileTarget, parse
from farm.errors import InfraError, Message, UsageError
from farm.process import supervisor
from farm.profile import kernels, msprof, ncu, rocprof
from farm.profile.kernels import KernelProfile
from farm.report import cell_facts
from farm.report.format import number
from farm.report.queries import Row
from farm.shipping import providers as shipping
from farm.store import Run, Store

#: Kinds of compiled code, the last first: what is shown of a kernel unless a kind is named.
KINDS = ("sass", "amdgcn", "ptx", "llir", "ttgir", "ttadapter", "ttir")
LAST = "last"
WAIT_SECONDS = 60.0  # for a device that another run uses
MOST = 64 << 20  # bytes of a profiler's output that are read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "profile",
        help="profile the kernels of one cell, or show their compiled code",
        description="Run one cell of a run again, on this host, under the profiler of its device's vendor (Nsight "
        "Compute, rocprofv3, msprof), and show of each kernel of one call: bytes moved, occupancy, what limits it "
        "first, beside what the run measured. With --asm, show the compiled code instead; no device is needed then.",
        epilog="example: farm profile cuda/rms_norm/mine/auto/forward/bf16/4096x4096",
    )
    p.add_argument("cell", metavar="CELL", help="cell to profile: an ID, a key, or the beginning of one")
    p.add_argument("--run", metavar="RUN", default="last", help="take the cell of this run (default: the newest run)")
    p.add_argument(
        "--asm",
        nargs="?",
        const=LAST,
        choices=(*KINDS, LAST),
        help="show the compiled code of the cell's kernels, of this kind (default: the machine code)",
    )
    p.add_argument(
        "--target", metavar="T", help=f"with --asm, compile for this target: {', '.join(TARGETS)} (default: the cell's)"
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    common.store_option(p)


#: What of a run's options is not the cell's.
_ALONE: dict[str, Any] = {
    "address": "inline",
    "devices": 1,
    "select": None,
    "failed": None,
    "run_id": None,
    "no_page": True,
    "json": False,
    "write": [],
    "sanitize": None,
    "stop_at_first": False,
    "wait": WAIT_SECONDS,
}


def run(args: argparse.Namespace) -> int:
    """Find the cell, profile it, and print what was seen."""
    if args.target is not None and args.asm is None:
        raise UsageError("--target is for --asm; a profile is taken on this host's device", id="profile-target")
    store = common.store(args)
    found = store.run(args.run)
    with common.readable(found):
        row = cell_facts.find(found.rows, args.cell, found.id)
        first = failed.options(store, found)
    if first.plan:
        raise UsageError(
            f"{found.id} is a part of a plan; run the cell from its matrix, then profile it in that run",
            id="profile-of-plan",
        )
    if args.asm is not None:
        return _asm(args, first, row)
    passes = tools.profilers(str(row["backend"]))
    if not passes:
        raise UsageError(
            f"{row['cell_id']}: there is no profiler for cells of {row['backend']}; with --asm --target T, farm "
            "profile shows compiled code without a device",
            id="profile-backend",
        )
    seen = [_seen(first, row, tool) for tool in passes]
    _tell(args, found, row, passes[0].program, kernels.merged(seen))
    return 0


def _run_cell(first: Any, row: Row, tool: tools.Tool, folder: Path) -> Row:
    """Run the cell with the options of its run, under the tool, which writes into `folder`; its row."""
    listed = folder / "cells.txt"
    listed.write_text(f"{row['cell_id']}\n", encoding="utf-8")
    args = argparse.Namespace(
        **{**vars(first), **_ALONE, "backend": row["backend"], "cells": listed, "tool": tool.name}
    )
    args.out, args.tool_out = str(folder / "store"), str(folder)
    args.argv = failed.words(args)
    print(f"farm profile: {row['cell_id']} runs under {tool.program}", file=sys.stderr, flush=True)
    with contextlib.redirect_stderr(io.StringIO()):  # a verdict that is not this command's
        running.run(args)
    (found,) = Store(args.out).run("last").rows
    return found


def _seen(first: Any, row: Row, tool: tools.Tool) -> list[KernelProfile]:
    """The kernels of the cell's call in one pass.  InfraError says why there are none."""
    with _folder() as folder:
        done = _run_cell(first, row, tool, folder)
        text = _output(tool, folder)
        found = READERS[tool.program](text)
        launched = json.loads(done.get("launch") or "{}")
        names = [
            str(k.get("kernel") or k.get("name") or "") for k in launched.get("kernels", []) if isinstance(k, dict)
        ]
        names += list(launched.get("seen", {}))
        if found:
            return found if tool.program == "ncu" else kernels.of_call(found, [n for n in names if n])
        why = ncu.refusal(text) if tool.program == "ncu" else None
        if why is None and done["status"] not in ("passed", "inaccurate"):
            why = Message(f"the cell did not run: {done['status']}: {done['reason']}", id="profile-not-run")
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        why = why or Message(
            f"{tool.program} measured no kernel (its last words: {last[:200]}); run it by hand on a small program",
            id="profile-nothing",
        )
        raise InfraError(f"{row['cell_id']}: {why}", id=why.id)


READERS: Mapping[str, Any] = {"ncu": ncu.parse, "rocprofv3": rocprof.parse, "msprof": msprof.parse}
#: Program -> the files of its folder that hold the table.
FILES = {"rocprofv3": "*counter_collection.csv", "msprof": "op_summary_*.csv"}


def _output(tool: tools.Tool, folder: Path) -> str:
    """What the tool wrote of the last child that ran under it."""
    made = sorted(folder.glob("tool-*"), key=lambda path: path.stat().st_mtime)
    files = (
        made[-1:] if tool.program not in FILES else [f for m in made[-1:] for f in sorted(m.rglob(FILES[tool.program]))]
    )
    for file in files:
        with file.open("rb") as opened:
            return opened.read(MOST).decode("utf-8", "replace")
    return ""


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="farm-profile-")
    supervisor.removes(path)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _tell(args: argparse.Namespace, found: Run, row: Row, program: str, seen: list[KernelProfile]) -> None:
    needed = number(row.get("bytes_moved"))
    if args.json:
        told = [{**k.__dict__, "limiter": kernels.limiter(k)} for k in seen]
        kept = ("time_us_p50", "bandwidth_gbps", "share_of_roof", "timing_method", "timing_quality")
        run_facts = {"run": found.id, **{name: row.get(name) for name in kept}}
        print(
            json.dumps(
                {"cell": row["cell_id"], "by": program, "kernels": told, "needed": needed, **run_facts}, indent=1
            )
        )
        return
    print(printable(f"{row['cell_id']}: {len(seen)} of the call's kernels, by {program}"))
    for line in kernels.lines(seen, needed):
        print(printable(line))
    time, rate, share = (number(row.get(n)) for n in ("time_us_p50", "bandwidth_gbps", "share_of_roof"))
    if time is None:
        print(f"roof        {found.id} has no time of this cell")
        return
    of = "" if share is None else f", {share:.2f} of the roof"
    print(f"roof        {found.id}: {time:.2f} us" + ("" if rate is None else f", {rate:.0f} GB/s") + of)


def _asm(args: argparse.Namespace, first: Any, row: Row) -> int:
    """Compile the cell for a target, and print the code of its kernels."""
    target = _target(args.target, row)
    chains_exist([target])
    common.use_contracts(first)
    subject = common.subject(first)
    matrices = common.matrices(first, subject)
    own = {**common.own_providers(first), **common.declared_calls(matrices)}
    name = str(row["cell_id"]).partition("@")[0].partition("/")[2]
    with _folder() as folder:
        request = CompileRequest(
            plan_for(matrices, [target], ids=[f"{target.backend}/{name}"]),
            [target],
            providers={**{n: {"path": path} for n, path in own.items()}, **(subject.calls if subject else {})},
            shipped=shipping.pack(own.values()),
            subject=subject.packed if subject else None,
            asm=str(folder),
            workers=1,
        )
        outcome = execute(request, None)
        (built,) = outcome.rows
        files = sorted(f for f in folder.iterdir() if f.is_file())
        kind = next((k for k in KINDS if any(f.suffix == f".{k}" for f in files)), "") if args.asm == LAST else args.asm
        texts = {f.stem: f.read_text(encoding="utf-8") for f in files if f.suffix == f".{kind}"}
    if not texts:
        made = ", ".join(dict.fromkeys(f.suffix[1:] for f in files)) or "nothing"
        why = f"{built['status']}: {built['reason']}" if built["reason"] else f"the compiler made {made}"
        raise UsageError(f"{built['cell_id']}: no code of kind {kind or 'sass'} ({why})", id="profile-no-code")
    if args.json:
        print(json.dumps({"cell": built["cell_id"], "kind": kind, "kernels": texts}, indent=1))
        return 0
    for name, text in texts.items():
        print(f"// {name} for {target.name}: {kind}")
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    return 0


def _target(asked: str | None, row: Row) -> CompileTarget:
    """The target to compile for.  UsageError if it is not given, and the cell's device is not one of them."""
    if asked is not None:
        found = parse(asked)
        if len(found) != 1:
            raise UsageError("--target: --asm shows the code for one target; name one", id="profile-one-target")
        return found[0]
    model = str(row.get("target") or "").upper()
    for target in TARGETS.values():
        parts = [part.split()[0].upper() for part in target.part.split(", ")]
        if target.backend == row["backend"] and any(part in model for part in parts):
            return target
    raise UsageError(
        f"{row['cell_id']}: no target is known for its device; name one with --target: {', '.join(TARGETS)}",
        id="profile-target-missing",
    )


def explain(command: str, outcome: supervisor.Outcome) -> None:
    """Report the end of a profile that its own process did not report."""
    how = "it was interrupted" if outcome.kind == "interrupted" else f"its process ended with {outcome.how}"
    told = Message(f"{how}; nothing of it is kept; repeat the command", id="profile-ended")
    print(f"\nfarm {command}: {sentence(told)}", file=sys.stderr)
