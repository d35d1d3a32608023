"""`farm judge`: judge a run again from its stored metrics, without a device."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cell import Cell, Status
from farm.cli import common, progress
from farm.cli.text import printable, sentence
from farm.compare.summary import Summary
from farm.contracts import discovery
from farm.errors import FarmError, InfraError, Message, UsageError
from farm.judge import rejudge
from farm.judge.digest import judging_digest
from farm.matrix import Tolerance, load_tolerances, tolerances_for
from farm.matrix.known import KnownFailure, applied
from farm.report import pairs_again, pairs_text
from farm.shipping import revision
from farm.store import Run, Store, known, results
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS

MAX_CHANGES = 40
_ANEW = (
    "utilisation",
    "schema",
    "run_id",
    "complete",
    "argv",
    "command",
    "created",
    "finished",
    "seconds",
)  # the derived run has its own


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "judge",
        help="judge a run again from the run's stored metrics (no device needed)",
        description="Judge the stored metrics of a run with the current tolerances, show which cells change status, "
        "and write a derived run. The original run stays unchanged.",
        epilog="example: farm judge last --strict-peers",
    )
    p.add_argument("run", metavar="RUN", help="run to judge: a run ID, an ID prefix, or `last`")
    p.add_argument(
        "--tolerances",
        type=Path,
        metavar="FILE",
        help="override tolerances with this YAML file, which has one key, tolerances:, written as in a matrix",
    )
    p.add_argument("--strict-peers", action="store_true", help="count failures of peers as findings, too")
    p.add_argument("--run-id", metavar="ID", help="name the derived run (default: a timestamped name)")
    p.add_argument("--json", action="store_true", help="print the derived run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the run's page")
    common.store_option(p)
    common.contracts_option(p)


def run(args: argparse.Namespace) -> int:
    """Judge again, write the derived run, print what changed."""
    common.check_run_id(args.run_id)
    begun = time.monotonic()
    store = common.store(args)
    source = store.run(args.run)
    common.refuse_newer(source, "judges")
    unpacked = tempfile.TemporaryDirectory(prefix="farm-contracts-")
    if args.contracts:
        common.use_contracts(args)
    else:
        common.use_kept_contracts(source, unpacked.name)
    with common.readable(source):
        head, rows, cells = source.head, source.rows, source.cells()
        samples = source.samples()
        stored = _stored_rules(head)
    if head.get("kind") == "compile":
        raise UsageError(
            f"{source.id} was compiled, not executed, so there is nothing to judge", id="judge-run-compiled"
        )
    if head.get("kind") == results.IMPORTED:
        raise UsageError(
            f"{source.id} was imported: its outputs were not published, so there is nothing to judge",
            id="judge-run-imported",
        )
    if head.get("arms") and not head.get("comparison"):
        raise UsageError(
            f"{source.id} is an interrupted comparison of two arms; run farm resume {source.id}, then judge it",
            id="judge-arms-interrupted",
        )
    asked = load_tolerances(args.tolerances, cells) if args.tolerances else ()
    with common.readable(source):
        judged, changes = rejudge.judge_run(
            rows, cells, discovery.find, lambda cell: [*stored(cell), *tolerances_for(asked, cell)]
        )
        strict = _strict(args, head)
        told = _known(head, cells, judged)
        covered = known.covered(told)
        tables, again = _comparison(source, head, judged, strict, covered)
    verdict, code = results.verdict(judged, strict_peers=strict, known=covered, stale=bool(known.fixed(told)))
    kept = {k: v for k, v in head.items() if k not in _ANEW}
    plan = {
        **kept,
        "kind": "judged",
        "derived_from": source.id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "farm " + shlex.join(args.argv),
        "argv": args.argv,
        "judged_by": {**revision.of(), "digest": judging_digest()},
        "tolerances": [t.to_dict() for t in asked],
        **({"comparison": again[0]} if again else {}),
        **({"known": told} if told else {}),
    }
    name = args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    run_id = _write(store, name, source, plan, cells, judged, samples, begun, verdict, code, tables)
    _tell(head, source.id, run_id, changes, judged, time.monotonic() - begun)
    if not args.no_page:
        common.tell_page(args, store, run_id)
    if args.json:
        print(json.dumps(store.run(run_id).head, indent=1))
    elif again:
        for line in pairs_text.lines(head["arms"], tables["pairs"][0], again[1], kernels=again[0].get("kernels", ())):
            print(printable(line))
    return again[1].exit_code if again else code


def _strict(args: argparse.Namespace, head: Mapping[str, Any]) -> bool:
    return args.strict_peers or "--strict-peers" in head.get("argv", [])


def _comparison(
    source: Run, head: Mapping[str, Any], judged: list[dict[str, Any]], strict: bool, covered: Collection[str]
) -> tuple[dict[str, Any], tuple[dict[str, Any], Summary] | None]:
    """(the tables of a run of two arms beside those of any run, its `comparison` and verdict); nothing for others."""
    if not head.get("arms"):
        return {}, None
    rounds = source.table("rounds")
    pairs = pairs_again.rejudged(source.table("pairs"), rounds, judged)
    found = head["comparison"]
    same, kernels = bool(found.get("same")), found.get("kernels") or ()
    told = pairs_again.comparison(pairs, kernels, strict_peers=strict, identical=same, known=covered)
    return {"rounds": (rounds, ROUND_COLUMNS), "pairs": (pairs, PAIR_COLUMNS)}, told


def _known(head: Mapping[str, Any], cells: list[Cell], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What becomes of the run's known failures."""
    entries = [KnownFailure.from_dict(e) for e in head.get("known") or ()]
    today = datetime.now(timezone.utc).date().isoformat()
    statuses = zip(cells, (str(row["status"]) for row in rows))
    return applied(entries, statuses, today, whole=common.whole([str(word) for word in head.get("argv") or ()]))


def _stored_rules(head: Mapping[str, Any]) -> Callable[[Cell], list[dict[str, Any]]]:
    """The tolerances of the run's matrices, as the run stored them."""
    of = {m["name"]: [Tolerance.from_dict(t) for t in m.get("tolerances", [])] for m in head.get("matrices", [])}
    return lambda cell: tolerances_for(of.get(cell.matrix, []), cell)


def _write(
    store: Store,
    run_id: str,
    source: Run,
    plan: dict[str, Any],
    cells: list[Cell],
    rows: list[dict[str, Any]],
    samples: list[dict[str, Any]],
    begun: float,
    verdict: str,
    code: int,
    tables: dict[str, Any],
) -> str:
    """Write the complete derived run: plan, results, tables, run.json."""
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
        writer.finish(rows, samples, {**plan, **foot}, tables)
    except BaseException as error:  # otherwise an incomplete run would be the store's last one
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        if isinstance(error, FarmError):
            why = str(error).partition(";")[0]
            raise InfraError(
                f"{why}; {source.id} is unchanged; free space there, then judge this run again", id="judge-unwritable"
            ) from None
        raise
    writer.close()
    return writer.id


def _counts(rows: list[dict[str, Any]], backend: str) -> dict[str, int]:
    return results.counts(r for r in rows if r["backend"] == backend)


def _tell(
    head: Mapping[str, Any],
    source: str,
    run_id: str,
    changes: list[rejudge.VerdictChange],
    rows: list[dict[str, Any]],
    seconds: float,
) -> None:
    err = sys.stderr
    if any("tolerances" not in m for m in head.get("matrices", [])):
        warning = Message(
            f"{source} does not contain the tolerances of the run's matrices, so only the tolerances of the "
            "contracts and of --tolerances apply",
            id="judge-tolerances-not-stored",
        )
        print(f"farm judge: {sentence(warning)}", file=err)
    print(f"run {run_id}: judged {source} again", file=err)
    for line in progress.summary(rows, seconds):
        print(line, file=err)
    if not changes:
        print("no cell changes status", file=err)
        return
    print(
        f"{len(changes)} cell{'s change' if len(changes) > 1 else ' changes'} status: "
        f"{', '.join(rejudge.tally(changes))}",
        file=err,
    )
    for change in changes[:MAX_CHANGES]:
        peer = " (peer)" if change.role == "peer" else ""
        text = f"{change.cell_id}{peer}: {change.before} -> {change.after}: {change.reason}"
        print(f"  {printable(text)}"[:300], file=err)
    if len(changes) > MAX_CHANGES:
        print(f"  and {len(changes) - MAX_CHANGES} more", file=err)
