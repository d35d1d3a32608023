"""`farm judge`: the verdicts of a run given again from its stored metrics, without a device."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import ops, rejudge, results, revision
from farm.cell import Cell, Status
from farm.cli import common, progress
from farm.cli.text import printable
from farm.errors import FarmError, InfraError, StoreError, UsageError
from farm.matrix import Tolerance, load_tolerances
from farm.matrix.rules import lookup
from farm.store import Run, Store
from kernels.contract import Contract

MAX_CHANGES = 40
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ANEW = ("schema", "run_id", "complete", "argv", "command", "created", "finished", "seconds")  # of the derived run


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "judge",
        help="a run's verdicts again from its stored metrics, without a device",
        description="Judges the stored metrics of a run by today's gates, shows which cells change status, and writes "
        "a run of its own; the run that was judged stays as it is.",
        epilog="example: farm judge last --strict-peers",
    )
    p.add_argument("run", metavar="RUN", help="a run id, its beginning, or `last`")
    p.add_argument(
        "--tolerances",
        type=Path,
        metavar="FILE",
        help="a YAML file with the one key tolerances, as a matrix has it: gates over the contract's and the matrix's",
    )
    p.add_argument("--strict-peers", action="store_true", help="failures of peers are findings too")
    p.add_argument("--run-id", metavar="ID", help="a name for the derived run (default: made from the time)")
    p.add_argument("--json", action="store_true", help="print the derived run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the page")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Judge again, write the derived run, say what changed."""
    if args.run_id is not None and not _RUN_ID.fullmatch(args.run_id):
        raise UsageError(
            f"--run-id {args.run_id!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
            "at most 100, and begin with a letter or a digit"
        )
    begun = time.monotonic()
    store = common.store(args)
    source = store.run(args.run)
    with common.readable(source):
        head, rows, cells = source.head, source.rows, source.cells()
        samples = source.samples()
        stored = _stored_rules(head)
    written = head.get("schema")
    if isinstance(written, int) and written > results.SCHEMA:  # its columns may mean what this farm does not know
        raise StoreError(
            f"{source.dir}: the run was written with schema {written}, this farm judges up to {results.SCHEMA}; "
            "use the farm that wrote it"
        )
    if head.get("kind") == "compile":
        raise UsageError(f"{source.id} was compiled, not run: there is nothing to judge in it")
    asked = load_tolerances(args.tolerances, cells) if args.tolerances else ()
    with common.readable(source):
        judged, changes = rejudge.judge_run(rows, cells, _contract, lambda cell: [*stored(cell), *_of(asked, cell)])
    strict = args.strict_peers or "--strict-peers" in head.get("argv", [])
    verdict, code = results.verdict(judged, strict_peers=strict)
    kept = {k: v for k, v in head.items() if k not in _ANEW}
    plan = {
        **kept,
        "kind": "judged",
        "derived_from": source.id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "farm " + shlex.join(args.argv),
        "argv": args.argv,
        "judged_by": revision.of(),
        "tolerances": [t.to_dict() for t in asked],
    }
    name = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    run_id = _write(store, name, source, plan, cells, judged, samples, begun, verdict, code)
    _tell(head, source.id, run_id, changes, judged, time.monotonic() - begun)
    if not args.no_page:
        common.tell_page(args, store, run_id)
    if args.json:
        print(json.dumps(store.run(run_id).head, indent=1))
    return code


def _contract(op: str) -> Contract | None:
    return ops.contract(op) if op in ops.known_ops() else None


def _stored_rules(head: Mapping[str, Any]) -> Callable[[Cell], list[dict[str, Any]]]:
    """The tolerances of the run's own matrices, as the run stored them."""
    of = {m["name"]: [Tolerance.from_dict(t) for t in m.get("tolerances", [])] for m in head.get("matrices", [])}
    return lambda cell: _of(of.get(cell.matrix, []), cell)


def _of(tolerances: Sequence[Tolerance], cell: Cell) -> list[dict[str, Any]]:
    get = lookup(cell)
    return [t.override() for t in tolerances if t.rule.holds(get)]


def _write(
    store: Store, run_id: str, source: Run, plan: dict[str, Any], cells: list[Cell], rows: list[dict[str, Any]],
    samples: list[dict[str, Any]], begun: float, verdict: str, code: int,
) -> str:  # fmt: skip
    """The derived run, whole: plan, results, tables, run.json."""
    writer = store.create(run_id)
    try:
        writer.plan({k: v for k, v in plan.items() if k not in ("backends", "counts", "verdict", "exit_code")}, cells)
        writer.take_logs(source)
        for row in rows:
            if row["status"] == Status.INACCURATE.value and not row["log"]:
                row["log"] = writer.log(f"{row['index']:05d}-{row['cell_id']}-{row['attempt']}", rejudge.report(row))
            writer.append({"event": "result", "row": row})
        writer.append({"event": "finished", "time": round(time.time(), 3)})
        used = plan.get("backends") or {}
        foot = {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - begun, 3),
            "backends": {b: {**of, "counts": _counts(rows, b)} for b, of in used.items()},
            "counts": results.counts(rows),
            "verdict": verdict,
            "exit_code": code,
        }
        writer.finish(rows, samples, {**plan, **foot})
    except BaseException as error:  # a part of it would be the store's last run
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        if isinstance(error, FarmError):
            why = str(error).partition(";")[0]
            raise InfraError(f"{why}; {source.id} is as it was, make room there and judge it again") from None
        raise
    writer.close()
    return writer.id


def _counts(rows: list[dict[str, Any]], backend: str) -> dict[str, int]:
    return results.counts(r for r in rows if r["backend"] == backend)


def _tell(
    head: Mapping[str, Any], source: str, run_id: str, changes: list[rejudge.Change], rows: list[dict[str, Any]],
    seconds: float,
) -> None:  # fmt: skip
    err = sys.stderr
    if any("tolerances" not in m for m in head.get("matrices", [])):
        print(f"{source} does not hold its matrices' tolerances: only the contracts' gates and --tolerances are used",
              file=err)  # fmt: skip
    print(f"run {run_id}: {source} judged again", file=err)
    for line in progress.summary(rows, seconds):
        print(line, file=err)
    if not changes:
        print("no cell changes its status", file=err)
        return
    print(f"{len(changes)} cell{'s change' if len(changes) > 1 else ' changes'} status: "
          f"{', '.join(rejudge.tally(changes))}", file=err)  # fmt: skip
    for change in changes[:MAX_CHANGES]:
        peer = " (peer)" if change.role == "peer" else ""
        told = f"{change.cell_id}{peer}: {change.before} -> {change.after}: {change.reason}"
        print(f"  {printable(told)}"[:300], file=err)
    if len(changes) > MAX_CHANGES:
        print(f"  and {len(changes) - MAX_CHANGES} more", file=err)
