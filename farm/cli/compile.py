"""`farm compile`: build the kernels of every cell for targets without a device, and report the resources they use."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from farm.cell import Cell
from farm.cli import common, progress
from farm.cli.progress import Live, Plain
from farm.cli.text import counted, printable, sentence
from farm.compile import ascend_environment
from farm.compile.planning import plan_for, target_of
from farm.compile.run import CompileOutcome, CompileRequest, chains_exist, execute
from farm.compile.targets import TARGETS, parse
from farm.errors import Message, UsageError
from farm.process import supervisor
from farm.shipping import providers as shipping
from farm.shipping import revision
from farm.store import Store
from farm.subject import command_line

MAX_WORKERS = 64


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "compile",
        help="build every cell's kernels for the given targets (no device needed)",
        description="Compile the subjects' cells for each target, without a device, and report registers, spills, "
        "occupancy, and shared memory or Unified Buffer. A kernel that does not compile is a finding, and so "
        "is a spill in a kernel that mode auto chooses.",
        epilog="example: farm compile matrices/rms_norm.yaml --target sm_90,gfx942",
    )
    common.matrix_options(p, backend=False, needed=False)
    common.subject_options(p)
    common.store_option(p)
    p.add_argument(
        "--target", metavar="T,..", help=f"targets to compile for (comma-separated list): {', '.join(TARGETS)}"
    )
    p.add_argument(
        "--diff", nargs=2, metavar="REV", help="compare the kernels of two git revisions (. means the working tree)"
    )
    p.add_argument(
        "--setup", choices=("ascend",), help="set up the environment of this tool chain (needed once per host)"
    )
    p.add_argument(
        "--workers", type=int, metavar="N", help="compile in N parallel processes (default: one per processor, up to 8)"
    )
    p.add_argument("--run-id", metavar="ID", help="name the run (default: a timestamped name)")
    p.add_argument(
        "--json",
        action="store_true",
        help="print run.json of the finished run; with --diff, print the complete comparison",
    )
    p.add_argument("--no-page", action="store_true", help="do not build the run's page")


def run(args: argparse.Namespace) -> int:
    """Plan, compile and print the summary."""
    if args.setup:
        if args.matrices or args.target or args.diff:
            raise UsageError(
                "--setup cannot be combined with MATRIX, --target or --diff; compile with a second command",
                id="compile-setup-with-more",
            )
        ascend_environment.setup(lambda line: print(line, file=sys.stderr, flush=True))
        return 0
    if args.diff and any(getattr(args, o) not in (None, command_line.NONE) for o in command_line.OPTIONS):
        raise UsageError(
            "--diff compares the farm's own kernels, but --repo, --subject, --wheel and --release name others; omit "
            "these options",
            id="compile-diff-subject",
        )
    common.use_contracts(args)
    subject = None if args.diff else common.subject(args)
    if not args.matrices and not (subject and subject.subject.matrices):
        raise UsageError(
            "no MATRIX is given; name one, for example matrices/rms_norm.yaml", id="compile-matrix-missing"
        )
    if not args.target:
        raise UsageError(f"--target is missing; choose from {', '.join(TARGETS)}", id="compile-target-missing")
    if args.workers is not None and not 1 <= args.workers <= MAX_WORKERS:
        raise UsageError(f"--workers {args.workers}: must be between 1 and {MAX_WORKERS}", id="compile-workers-range")
    common.check_run_id(args.run_id)
    targets = parse(args.target)
    matrices = common.matrices(args, subject)
    own = {**common.own_providers(args), **common.declared_calls(matrices)}
    request = CompileRequest(
        plan_for(matrices, targets, args.select),
        targets,
        "farm " + shlex.join(args.argv),
        args.argv,
        revision.of(),
        {**{name: {"path": path} for name, path in own.items()}, **(subject.calls if subject else {})},
        shipping.pack(own.values()),
        subject=subject.packed if subject else None,
        workers=args.workers or 0,
    )
    chains_exist(targets)
    if args.diff:
        return _difference(args, request)
    store = common.store(args)
    run_id = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    store.probe()
    with _Telling(request.plan.cells) as telling:
        cells = counted(len(request.plan.cells), "cell")
        telling.line(f"run {run_id}: {cells} for {', '.join(t.name for t in targets)}")
        for name, planned in request.plan.backends.items():
            if not planned.cells:
                telling.line(f"  {name}: no cell to compile; the matrix or --select excludes every cell")
        supervisor.running(run=run_id)
        writer = store.create(run_id)
        common.keep_contracts(writer)
        outcome = execute(request, writer, telling)
        code = 3 if outcome.interrupted else outcome.exit_code
        supervisor.concluded(code, complete=not outcome.interrupted)
    _tell(args, store, run_id, outcome)
    if args.json and not outcome.interrupted:
        print(json.dumps(store.run(run_id).head, indent=1))
    return code


def explain(command: str, outcome: supervisor.Outcome) -> None:
    """Report the end of a compilation that its own process did not report."""
    run = outcome.facts.get("run")
    kept = f"finished results are in the journal of {run}" if run else "nothing was stored"
    told = {
        "interrupted": Message(f"interrupted; {kept}; repeat the command", id="compile-interrupted"),
        "unannounced": Message(
            f"its process ended with {outcome.how} (it was killed, or the host ran out of memory); {kept}; repeat the "
            "command",
            id="compile-ended-unannounced",
        ),
        "page missing": Message(
            f"the run is complete, but its page was not built; to build it, run farm dashboard build {run}",
            id="run-page-missing",
        ),
    }[outcome.kind]
    print(f"\nfarm {command}: {sentence(told)}", file=sys.stderr)


class _Telling:
    """The progress of `farm run`, but with one line per target instead of one per backend."""

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


def _tell(args: argparse.Namespace, store: Store, run_id: str, outcome: CompileOutcome) -> None:
    """Print the summary and the path of the page."""
    err = sys.stderr
    print("", file=err)
    for line in progress.summary(outcome.rows, outcome.seconds):
        print(line, file=err)
    for line in progress.unsupported(outcome.rows):
        print(f"  {printable(line)}"[:300], file=err)
    for name in dict.fromkeys(target for target, _ in outcome.kernels):
        having = [r for r in outcome.rows if r["cell_id"].endswith(f"@{name}") and r["resources"] not in ("", "[]")]
        partly = sum(r["status"] != "built" for r in having)  # a forward whose backward is unsupported, say
        kernels = counted(sum(t == name for t, _ in outcome.kernels), "kernel")
        rest = f", {partly} of them only partly built" if partly else ""
        print(f"{name}: {kernels} for {counted(len(having), 'cell')}{rest}", file=err)
    bad = [r for r in outcome.rows if progress.needs_a_look(r, False) and r["status"] != "lost"]
    if bad:
        progress.print_findings(bad, store.path / "runs" / run_id)
    if outcome.interrupted:
        lost = sum(r["status"] == "lost" for r in outcome.rows)
        left = counted(lost, "cell")
        print(f"interrupted: {left} did not compile; finished results are in the journal", file=err)
    if args.no_page:
        return
    common.tell_page(args, store, run_id)


def _difference(args: argparse.Namespace, request: CompileRequest) -> int:
    from farm.compile import revisions

    supervisor.running()
    found = revisions.between(request, *args.diff)
    if args.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        for line in found.lines():
            print(printable(line))
    return found.exit_code
