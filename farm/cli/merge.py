"""`farm merge`: merge the runs of one plan's parts, made at sites that share no network, into one run."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import common, progress
from farm.cli.run import read_plan
from farm.cli.text import counted, printable
from farm.errors import StoreError, UsageError
from farm.matrix.known import KnownFailure, applied
from farm.shipping import revision
from farm.sites import merging
from farm.sites.merging import Merged, Report
from farm.sites.planfile import PlanFile
from farm.store import PLAN, Run, RunWriter, Store, fold, known, recovery, results
from farm.store.results import COLUMNS

MAX_SHOWN = 10


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "merge",
        help="merge the runs of one plan, made at several sites, into one run",
        description="Merge the runs of a plan's parts into one run, with a result for every planned cell and one page. "
        "Cells that no site reported get the status lost. The runs that are merged stay unchanged.",
        epilog="example: farm merge copied/nv-run copied/amd-run --plan PLAN",
    )
    p.add_argument("runs", nargs="+", metavar="RUN", help="run to merge: a run ID, or the folder of a copied run")
    p.add_argument(
        "--plan", type=Path, metavar="PLAN", help="plan file of the runs (default: the copy that each run contains)"
    )
    p.add_argument("--strict-peers", action="store_true", help="count failures of peers as findings, too")
    p.add_argument("--run-id", metavar="ID", help="name the merged run (default: a timestamped name)")
    p.add_argument("--json", action="store_true", help="print the merged run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the run's page")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Read and check every run, merge them, write the merged run, and print its summary."""
    common.check_run_id(args.run_id)
    begun = time.monotonic()
    store = common.store(args)
    found = _runs(store, args.runs)
    file = _plan(args, found)
    reports = _reports(found)
    for source, report in zip(found, reports):
        why = merging.wrong(report, file)
        if why:
            raise StoreError(f"{source.dir}: this run {why}", id=why.id)
    merged = merging.merge(file, reports)
    told = _known(found, file, merged.rows)
    stale = bool(known.fixed(told))
    verdict, code = results.verdict(merged.rows, strict_peers=args.strict_peers, known=known.covered(told), stale=stale)
    plan = {
        **merging.head(file, reports, merged),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "farm " + shlex.join(args.argv),
        "argv": args.argv,
        "merged_by": revision.of(),
        **({"known": told} if told else {}),
    }
    store.probe()
    writer = store.create(args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
    try:
        _write(
            writer,
            file,
            found,
            merged,
            plan,
            {
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "seconds": max(
                    (float(r["seconds"] or 0.0) for r in merged.runs), default=0.0
                ),  # sites work side by side
                "counts": results.counts(merged.rows),
                "verdict": verdict,
                "exit_code": code,
            },
        )
    except BaseException:  # a part of it would be the store's last run
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        raise
    writer.close()
    _tell(args, store, writer.id, merged, time.monotonic() - begun)
    if args.json:
        print(json.dumps(store.run(writer.id).head, indent=1))
    return code


def _known(found: Sequence[Run], file: PlanFile, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What becomes of the sites' known failures."""
    entries = {
        json.dumps(kept.to_dict()): kept
        for run in found
        for e in run.head.get("known") or ()
        for kept in (KnownFailure.from_dict(e),)
    }
    today = datetime.now(timezone.utc).date().isoformat()
    return applied(entries.values(), zip(file.plan.cells, (str(row["status"]) for row in rows)), today)


def _runs(store: Store, names: Sequence[str]) -> list[Run]:
    """The runs of ids and folders, each once."""
    found: list[Run] = []
    for name in names:
        folder = Path(name)
        if (folder / "journal.jsonl").is_file():
            run = Run(folder.resolve())
        elif folder.is_dir():
            raise StoreError(
                f"{name}: this folder is not a run (it has no journal.jsonl); give the folder of one run",
                id="merge-folder-not-run",
            )
        elif "/" in name:
            raise StoreError(
                f"{name}: no such folder; copy the run's folder here, or give the ID of a run in the store",
                id="merge-folder-missing",
            )
        else:
            run = store.run(name)
        if any(run.dir.samefile(other.dir) for other in found):
            raise UsageError(f"{name}: this run is given twice; give each run once", id="merge-run-twice")
        found.append(run)
    return found


def _plan(args: argparse.Namespace, found: Sequence[Run]) -> PlanFile:
    """The plan of --plan, else the first copy in a run."""
    if args.plan:
        return read_plan(args.plan, "--plan")
    for run in found:
        if (run.dir / PLAN).is_file():
            try:
                return read_plan(run.dir / PLAN, "the plan of a run,")
            except UsageError as error:
                raise StoreError(
                    f"{str(error).partition('; plan again')[0]}; copy the run again, or give the plan with --plan",
                    id=error.id,
                ) from None
    raise UsageError(
        f"none of the runs contains a copy of the plan ({found[0].dir / PLAN} does not exist); give the plan with "
        "--plan",
        id="merge-plan-missing",
    )


def _reports(found: Sequence[Run]) -> list[Report]:
    """The runs, read completely.  StoreError for a damaged run, UsageError for a run that is given twice."""
    reports: list[Report] = []
    begun: dict[tuple[Any, ...], Run] = {}
    for run in found:
        with common.readable(run):
            writer, complete, journal = run.writer, run.complete, run.journal()
            lines = list(journal)  # once: a journal that is being written grows between two reads
            if journal.damage and not complete:
                raise StoreError(
                    f"{run.dir}: line {journal.damage.first} of this run's journal is damaged, so a result may be "
                    f"missing; copy the run from its site again, or run farm resume {run.id} at the site",
                    id="store-journal-damaged",
                )
            head, table = run.head, run.rows if complete else fold(lines)
            told = fold(lines) if complete else []
            journaled = None
            if not head.get("kind"):
                known = recovery.read(lines)
                journaled = list(recovery.samples(known.rows, lines.__getitem__))
                if known.contradicted:
                    raise StoreError(
                        f"{run.dir}: the result of cell {known.contradicted[0]} in this run's journal differs from how "
                        "its attempt ended, so the journal was edited; copy the run from its site again",
                        id="merge-contradiction",
                    )
            samples = run.samples() if complete else journaled or []
            key = (head.get("run_id"), head.get("created"), head.get("command"), str(head.get("plan")))
            rows = [{name: row.get(name) for name in COLUMNS} for row in table]
        if key in begun:
            raise UsageError(
                f"{run.dir}: this is the same run as {begun[key].dir}; give only one of the two", id="merge-run-copied"
            )
        begun[key] = run
        name = str(head.get("run_id") or run.id)
        reports.append(Report(name, head, complete, rows, samples, told, journaled, writer))
    return _named(reports)


def _named(reports: Sequence[Report]) -> list[Report]:
    """The reports with unique names, because sites may use the same names: unique also among the runs inside merged
    runs.  A run that a merged run contains keeps its name there."""
    taken = {str(r["run_id"]): merging.birth(r) for report in reports for r in report.head.get("merged") or ()}
    out = []
    for report in reports:
        name, number = report.name, 1
        while taken.setdefault(name, merging.birth(report.head)) != merging.birth(report.head):
            number += 1
            name = f"{report.name} ({number})"
        out.append(replace(report, name=name))
    return out


def _write(
    writer: RunWriter, file: PlanFile, found: Sequence[Run], merged: Merged, plan: dict[str, Any], foot: dict[str, Any]
) -> None:
    """Write the complete merged run: plan, results, logs, tables, run.json."""
    writer.plan({k: v for k, v in plan.items() if k != "backends"}, file.plan.cells)
    writer.keep_plan(file.text)
    kept = next((text for text in (run.contracts() for run in found) if text), "")
    if kept:  # the parts of one plan have the same
        writer.keep_contracts(kept)
    for row, number in zip(merged.rows, merged.origin):
        if number is not None and row["log"]:
            row["log"] = writer.take_log(found[number], str(row["log"]), str(number + 1))
        writer.append({"event": "result", "row": row})
    writer.append({"event": "finished", "time": round(time.time(), 3)})
    writer.finish(merged.rows, merged.samples, {**plan, **foot})


def _tell(args: argparse.Namespace, store: Store, run_id: str, merged: Merged, seconds: float) -> None:
    err = sys.stderr
    print(f"run {run_id}: merged {counted(len(merged.runs), 'run')}", file=err)
    for sentence in merged.warnings:
        print(f"farm merge: warning: {printable(sentence)}", file=err)
    for target, count in merged.silent.items():
        print(f"farm merge: no site reported part {target}; {counted(count, 'cell')} lost", file=err)
    if merged.superseded:
        count = len(merged.superseded)
        print(
            f"{counted(count, 'result')} dropped, because another run finished the same cell earlier; the first:",
            file=err,
        )
        for one in merged.superseded[:MAX_SHOWN]:
            text = f"{one['cell_id']}: {one['kept_status']} in {one['kept']}, {one['left_status']} in {one['left']}"
            print(f"  {printable(text)}"[:300], file=err)
    for line in progress.summary(merged.rows, seconds):
        print(line, file=err)
    covered = known.covered(store.run(run_id).head.get("known") or ())
    bad = [r for r in merged.rows if progress.needs_a_look(r, args.strict_peers) and r["status"] != "lost"]
    bad = [r for r in bad if r["cell_id"] not in covered]
    if bad:
        progress.print_findings(bad, store.path / "runs" / run_id)
    if not args.no_page:
        common.tell_page(args, store, run_id)
