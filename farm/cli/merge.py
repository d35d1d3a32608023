"""`farm merge`: the runs of one plan's parts, made at sites that share no network, as one run."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import results, revision
from farm.cli import common, launching, progress
from farm.cli.run import read_plan
from farm.cli.text import printable
from farm.errors import StoreError, UsageError
from farm.results import COLUMNS
from farm.sites import merging
from farm.sites.merging import Merged, Report
from farm.sites.planfile import PlanFile
from farm.store import PLAN, Run, RunWriter, Store, before, fold
from farm.store.journal import torn

MAX_TOLD = 10


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "merge",
        help="runs of one plan, made at several sites, as one run",
        description="Puts the runs of a plan's parts together: one ledger with every planned cell, one page. What no "
        "site reported is lost. The runs that are merged stay as they are.",
        epilog="example: farm merge copied/nv-run copied/amd-run --plan PLAN",
    )
    p.add_argument("runs", nargs="+", metavar="RUN", help="a run id, or the folder of a run from elsewhere")
    p.add_argument("--plan", type=Path, metavar="PLAN", help="the plan's file (default: the one that the runs kept)")
    p.add_argument("--strict-peers", action="store_true", help="failures of peers are findings too")
    p.add_argument("--run-id", metavar="ID", help="a name for the merged run (default: made from the time)")
    p.add_argument("--json", action="store_true", help="print the merged run's run.json")
    p.add_argument("--no-page", action="store_true", help="do not build the page")
    common.store_option(p)


def run(args: argparse.Namespace) -> int:
    """Read and check every run, merge, write the merged run, say what it is."""
    launching.check_run_id(args.run_id)
    begun = time.monotonic()
    store = common.store(args)
    found = _runs(store, args.runs)
    file = _plan(args, found)
    reports = _reports(found)
    for source, report in zip(found, reports):
        why = merging.wrong(report, file)
        if why:
            raise StoreError(f"{source.dir}: this run {why}")
    merged = merging.merge(file, reports)
    verdict, code = results.verdict(merged.rows, strict_peers=args.strict_peers)
    plan = {
        **merging.head(file, reports, merged),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "farm " + shlex.join(args.argv),
        "argv": args.argv,
        "merged_by": revision.of(),
    }
    store.probe()
    writer = store.create(args.run_id or f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
    try:
        _write(writer, file, found, merged, plan, {
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": max((float(r["seconds"] or 0.0) for r in merged.runs), default=0.0),  # sites work side by side
            "counts": results.counts(merged.rows),
            "verdict": verdict,
            "exit_code": code,
        })  # fmt: skip
    except BaseException:  # a part of it would be the store's last run
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        raise
    writer.close()
    _tell(args, store, writer.id, merged, time.monotonic() - begun)
    if args.json:
        print(json.dumps(store.run(writer.id).head, indent=1))
    return code


def _runs(store: Store, names: Sequence[str]) -> list[Run]:
    """The runs of ids and folders, each once."""
    found: list[Run] = []
    for name in names:
        folder = Path(name)
        if (folder / "journal.jsonl").is_file():
            run = Run(folder.resolve())
        elif folder.is_dir():
            raise StoreError(f"{name}: this folder is no run (it has no journal.jsonl); name a run's own folder")
        elif "/" in name:
            raise StoreError(f"{name}: there is no such folder; copy the run's folder here, or name a run of the store")
        else:
            run = store.run(name)
        if any(run.dir.samefile(other.dir) for other in found):
            raise UsageError(f"{name}: this run is named twice; name each once")
        found.append(run)
    return found


def _plan(args: argparse.Namespace, found: Sequence[Run]) -> PlanFile:
    """The plan's file: the named one, else the first that a run kept."""
    if args.plan:
        return read_plan(args.plan, "--plan")
    for run in found:
        if (run.dir / PLAN).is_file():
            try:
                return read_plan(run.dir / PLAN, "the plan of a run,")
            except UsageError as error:
                raise StoreError(f"{str(error).partition('; plan again')[0]}; copy the run again, or name the plan "
                                 "with --plan") from None  # fmt: skip
    raise UsageError(f"no run kept its plan ({found[0].dir / PLAN} is not there); name its file with --plan")


def _reports(found: Sequence[Run]) -> list[Report]:
    """What the runs say, read whole.  StoreError for a damaged one, and for one run that is there twice."""
    reports: list[Report] = []
    begun: dict[tuple[Any, ...], Run] = {}
    for run in found:
        with common.readable(run):
            writer, complete = run.writer, run.complete
            if not complete and not writer:  # nothing else would tell that what follows a bad line is not read
                torn(run.dir / "journal.jsonl")
            lines = list(run.journal())  # once: one that is being written has more of them each time
            head, rows = run.head, run.rows if complete else fold(lines)
            told = fold(lines) if complete else []
            journaled = None if head.get("kind") else list(before.read(lines).samples)
            samples = run.samples() if complete else journaled or []
            key = (head.get("run_id"), head.get("created"), head.get("command"), str(head.get("plan")))
            rows = [{name: row.get(name) for name in COLUMNS} for row in rows]
        if key in begun:
            raise UsageError(f"{run.dir}: this is the same run as {begun[key].dir}; name one of them")
        begun[key] = run
        name = str(head.get("run_id") or run.id)
        reports.append(Report(name, head, complete, rows, samples, told, journaled, writer))
    return _named(reports)


def _named(reports: Sequence[Report]) -> list[Report]:
    """Each run under a name that no other has, also none of those that a merged run was made of: sites name their runs
    alike.  A run that is in a merged one too has the name that it has there."""
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
    """The merged run, whole: plan, results, logs, tables, run.json."""
    writer.plan({k: v for k, v in plan.items() if k != "backends"}, file.plan.cells)
    writer.keep_plan(file.text)
    for row, number in zip(merged.rows, merged.origin):
        if number is not None and row["log"]:
            row["log"] = writer.take_log(found[number], str(row["log"]), str(number + 1))
        writer.append({"event": "result", "row": row})
    writer.append({"event": "finished", "time": round(time.time(), 3)})
    writer.finish(merged.rows, merged.samples, {**plan, **foot})


def _tell(args: argparse.Namespace, store: Store, run_id: str, merged: Merged, seconds: float) -> None:
    err = sys.stderr
    print(f"run {run_id}: {len(merged.runs)} run{'s' if len(merged.runs) > 1 else ''} merged", file=err)
    for sentence in merged.warnings:
        print(f"farm merge: warning: {printable(sentence)}", file=err)
    for target, count in merged.silent.items():
        print(f"farm merge: no site reported {target}: {count} cell{'s are' if count > 1 else ' is'} lost", file=err)
    if merged.superseded:
        count = len(merged.superseded)
        print(f"{count} result{'s were' if count > 1 else ' was'} left aside, since another run of the same cell had "
              "finished before; the first:", file=err)  # fmt: skip
        for one in merged.superseded[:MAX_TOLD]:
            told = f"{one['cell_id']}: {one['kept_status']} in {one['kept']}, {one['left_status']} in {one['left']}"
            print(f"  {printable(told)}"[:300], file=err)
    for line in progress.summary(merged.rows, seconds):
        print(line, file=err)
    bad = [r for r in merged.rows if progress.needs_a_look(r, args.strict_peers) and r["status"] != "lost"]
    if bad:
        print(f"{len(bad)} cell{'s need' if len(bad) > 1 else ' needs'} a look; the first:", file=err)
        for row in bad[:MAX_TOLD]:
            print(f"  {printable(progress.told(row))}"[:300], file=err)
            if row["log"]:
                print(f"    log: {store.path / 'runs' / run_id / row['log']}", file=err)
    if not args.no_page:
        common.tell_page(args, store, run_id)
