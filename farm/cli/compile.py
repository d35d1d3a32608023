"""`farm compile`: every cell's kernels built for targets that are not here, with what they take of a core."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from farm import revision
from farm.cell import Cell
from farm.cli import common, progress
from farm.cli.progress import Live, Plain
from farm.cli.text import printable
from farm.compile import ascend_environment
from farm.compile.planning import plan_for, target_of
from farm.compile.run import CompileRequest, Outcome, chains_exist, execute
from farm.compile.targets import TARGETS, parse
from farm.errors import UsageError
from farm.shipping import providers as shipping
from farm.store import Store

MAX_FINDINGS = 10
MAX_WORKERS = 64
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "compile",
        help="build every cell's kernels for targets that are not here",
        description="Compiles the cells of subjects for each target, without a device: registers, spills, shared "
        "memory or Unified Buffer, occupancy. A kernel that does not compile is a finding; so is a spill in what auto "
        "chooses.",
        epilog="example: farm compile matrices/rms_norm.yaml --target sm_90,gfx942",
    )
    common.matrix_options(p, backend=False, needed=False)
    common.store_option(p)
    p.add_argument("--target", metavar="T,..", help=f"what to compile for: {', '.join(TARGETS)}")
    p.add_argument("--diff", nargs=2, metavar="REV", help="two git revisions (. is the working tree): what changed")
    p.add_argument("--setup", choices=("ascend",), help="make the tool chain's own environment, once per host")
    p.add_argument("--workers", type=int, metavar="N", help="processes at a time (default: one a processor, up to 8)")
    p.add_argument("--run-id", metavar="ID", help="a name for the run (default: made from the time)")
    p.add_argument("--json", action="store_true", help="print the finished run's run.json, or the whole difference")
    p.add_argument("--no-page", action="store_true", help="do not build the page")


def run(args: argparse.Namespace) -> int:
    """Plan, compile, say how it went."""
    if args.setup:
        if args.matrices or args.target or args.diff:
            raise UsageError("--setup stands alone; compile with a second command")
        ascend_environment.setup(lambda line: print(line, file=sys.stderr, flush=True))
        return 0
    if not args.matrices:
        raise UsageError("there is no MATRIX; name one, for example matrices/rms_norm.yaml")
    if not args.target:
        raise UsageError(f"--target is missing; name some of {', '.join(TARGETS)}")
    if args.workers is not None and not 1 <= args.workers <= MAX_WORKERS:
        raise UsageError(f"--workers {args.workers}: between 1 and {MAX_WORKERS} processes can be asked for")
    if args.run_id is not None and not _RUN_ID.fullmatch(args.run_id):
        raise UsageError(
            f"--run-id {args.run_id!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
            "at most 100, and begin with a letter or a digit"
        )
    targets = parse(args.target)
    own = common.own_providers(args)
    request = CompileRequest(
        plan_for(common.matrices(args), targets, args.select),
        targets,
        "farm " + shlex.join(args.argv),
        args.argv,
        revision.of(),
        {name: {"path": path} for name, path in own.items()},
        shipping.pack(own.values()),
        workers=args.workers or 0,
    )
    chains_exist(targets)
    if args.diff:
        return _difference(args, request)
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    store.probe()
    with _Telling(request.plan.cells) as telling:
        telling.line(f"run {run_id}: {len(request.plan.cells)} cells for {', '.join(t.name for t in targets)}")
        for name, planned in request.plan.backends.items():
            if not planned.cells:
                telling.line(f"  {name}: nothing is left to compile; the matrix or --select leaves it no cell")
        outcome = execute(request, store.create(run_id), telling)
    _tell(args, store, run_id, outcome)
    if args.json and not outcome.interrupted:
        print(json.dumps(store.run(run_id).head, indent=1))
    return 3 if outcome.interrupted else outcome.exit_code


class _Telling:
    """The progress of `farm run`, a line per target where that has one per backend."""

    def __init__(self, cells: Iterable[Cell]):
        shown: Any = Live if sys.stderr.isatty() else Plain
        self._shown = shown([SimpleNamespace(backend=target_of(c)) for c in cells])

    def __enter__(self) -> _Telling:
        self._shown.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._shown.__exit__(*exc)

    def line(self, text: str) -> None:
        self._shown.line(text)

    def cell(self, row: Mapping[str, Any]) -> None:
        self._shown.cell({**row, "backend": str(row["cell_id"]).rpartition("@")[2]})


def _tell(args: argparse.Namespace, store: Store, run_id: str, outcome: Outcome) -> None:
    """The summary, and the page's address."""
    err = sys.stderr
    print("", file=err)
    for line in progress.summary(outcome.rows, outcome.seconds):
        print(line, file=err)
    for line in progress.unsupported(outcome.rows):
        print(f"  {printable(line)}"[:300], file=err)
    for name in dict.fromkeys(target for target, _ in outcome.kernels):
        having = [r for r in outcome.rows if r["cell_id"].endswith(f"@{name}") and r["resources"] not in ("", "[]")]
        partly = sum(r["status"] != "built" for r in having)  # a forward whose backward is unsupported, say
        text = f"{name}: {sum(t == name for t, _ in outcome.kernels)} kernels serve {len(having)} cells"
        print(text + (f", of which {partly} built in part only" if partly else ""), file=err)
    bad = [r for r in outcome.rows if progress.needs_a_look(r, False) and r["status"] != "lost"]
    if bad:
        print(f"{len(bad)} cell{'s need' if len(bad) > 1 else ' needs'} a look; the first:", file=err)
        for row in bad[:MAX_FINDINGS]:
            print(f"  {printable(progress.told(row))}"[:400], file=err)
            if row["log"]:
                print(f"    log: {store.path / 'runs' / run_id / row['log']}", file=err)
    if outcome.interrupted:
        lost = sum(r["status"] == "lost" for r in outcome.rows)
        print(f"interrupted: {lost} cells were not compiled; what finished is in the journal", file=err)
    if args.no_page:
        return
    common.tell_page(args, store, run_id)


def _difference(args: argparse.Namespace, request: CompileRequest) -> int:
    from farm.compile import revisions

    found = revisions.between(request, *args.diff)
    if args.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        for line in found.lines():
            print(printable(line))
    return found.exit_code
