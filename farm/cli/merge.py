"""`farm merge`: merge the runs of one plan's parts, made at sites that share no network, into one run."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm.cli import common, progress
from farm.cli.run import read_plan
from farm.cli.text import counted, printable
from farm.compare.summary import Summary
from farm.coordinator.request import KIND
from farm.errors import StoreError, UsageError
from farm.matrix.known import KnownFailure, applied
from farm.report import pairs_again, pairs_text
from farm.shipping import revision
from farm.sites import kit_result, merging
from farm.sites.kit import Kit
from farm.sites.merging import Merged, Report
from farm.sites.planfile import PlanFile
from farm.store import PLAN, Run, RunWriter, Store, fold, kit_runs, known, recovery, results
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS
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
    p.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run to merge: a run ID, the folder of a copied run, or the file result-....tar.gz of a kit",
    )
    p.add_argument(
        "--kit",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="the archive of a kit whose result is merged, if another store made the kit; repeatable",
    )
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
    store = common.store(args)
    kits = [kit_result.kit_of(path, "--kit") for path in args.kit]
    names, compared = [], []

    def kept(digest: str) -> str:
        return kit_runs.kept_kit(store, digest)

    with tempfile.TemporaryDirectory(prefix="farm-result-") as place:
        for number, name in enumerate(args.runs):
            if Path(name).is_file():  # a kit's result: from here on, the folder of its run
                folder, kit = kit_result.arrived(Path(name), kits, kept, Path(place, str(number)))
                compared += [(name, folder, kit)] if kit.arms else []
                name = str(folder)
            names.append(name)
        if not compared:
            return _merge(args, store, names)
        if len(names) > 1 or args.plan or args.run_id:
            raise UsageError(
                f"{compared[0][0]}: is of a kit that compares two arms, and such a run is taken as it is; give it "
                "alone, without --plan and --run-id",
                id="kit-arms-alone",
            )
        return _take_comparison(args, store, *compared[0])


def _take_comparison(args: argparse.Namespace, store: Store, name: str, folder: Path, kit: Kit) -> int:
    """Put the run of a kit with two arms into the store, compared here; the exit code of its comparison."""
    from farm.cli import kit_arms
    from farm.report import pairs_text

    if not (folder / "run.json").is_file():
        raise UsageError(
            f"{name}: this comparison is not complete; start run.py of its kit again at that site, and take the new "
            "result",
            id="kit-arms-incomplete",
        )
    report = _reports([Run(folder)], compared=False)[0]
    plain = replace(report, head={k: v for k, v in report.head.items() if k != "kind"})
    if why := merging.wrong(plain, read_plan(folder / PLAN, "the plan of")):
        raise StoreError(f"{name}: this run {why}", id=why.id)
    try:
        pairs, summed, kernels = kit_arms.compared(folder, kit)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        cause = f"{type(error).__name__}: {error}"[:200]
        raise UsageError(
            f"{name}: the rounds of this result cannot be read ({cause}); ask for the file that run.py has written",
            id="kit-rounds",
        ) from None
    run = kit_runs.adopt(store, folder)
    print(f"run {run.id}: {printable(merging.told_of_kit(merging.source(report)))}", file=sys.stderr)
    if args.json:
        print(json.dumps(run.head, indent=1))
    else:
        for line in pairs_text.lines(run.head["arms"], pairs, summed, complete=True, kernels=kernels):
            print(printable(line))
    if not args.no_page:
        common.tell_page(args, store, run.id)
    return int(summed.exit_code)


def _merge(args: argparse.Namespace, store: Store, names: Sequence[str]) -> int:
    begun = time.monotonic()
    found = _runs(store, names)
    file = _plan(args, found)
    reports = _reports(found)
    for source, report in zip(found, reports):
        why = merging.wrong(report, file)
        if why:
            raise StoreError(f"{source.dir}: this run {why}", id=why.id)
        if file.arms and (damage := pairs_again.damaged(report.pairs, report.rounds, report.told_rounds, report.rows)):
            what = f"{source.dir}: this run is damaged or was edited: {damage}; copy the run from its site again"
            raise StoreError(what, id="merge-damaged")
    merged = merging.merge(file, reports)
    told = _known(found, file, merged.rows)
    covered, stale = known.covered(told), bool(known.fixed(told))
    tables, again = _comparison(args, file, reports, merged, covered)
    verdict, code = results.verdict(merged.rows, strict_peers=args.strict_peers, known=covered, stale=stale)
    plan = {
        **merging.head(file, reports, merged),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": "farm " + shlex.join(args.argv),
        "argv": args.argv,
        "merged_by": revision.of(),
        **({"comparison": again[0]} if again else {}),
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
            tables,
        )
    except BaseException:  # a part of it would be the store's last run
        writer.close()
        shutil.rmtree(writer.dir, ignore_errors=True)
        raise
    writer.close()
    _tell(args, store, writer.id, merged, time.monotonic() - begun)
    if args.json:
        print(json.dumps(store.run(writer.id).head, indent=1))
    elif again:
        arms, kernels = plan["arms"], again[0].get("kernels", ())
        for line in pairs_text.lines(arms, tables["pairs"][0], again[1], kernels=kernels):
            print(printable(line))
    return again[1].exit_code if again else code


def _comparison(
    args: argparse.Namespace, file: PlanFile, reports: Sequence[Report], merged: Merged, covered: Collection[str]
) -> tuple[dict[str, Any], tuple[dict[str, Any], Summary] | None]:
    """(the tables of two arms beside those of any run, `comparison` of the head and its verdict); nothing for a plan of
    one arm."""
    if not file.arms:
        return {}, None
    mates = {i: j for i, j in merging.partners(file).items() if file.plan.cells[i].arm == "a"}
    parts = [(report.pairs, report.rounds) for report in reports]
    pairs, rounds = pairs_again.merged(parts, mates, merged.rows, merged.origin)
    used = dict.fromkeys(number for number in merged.origin if number is not None)
    kernels = pairs_again.merged_kernels([_kernels(reports[number]) for number in used])
    told = pairs_again.comparison(pairs, kernels, strict_peers=args.strict_peers, known=covered)
    return {"rounds": (rounds, ROUND_COLUMNS), "pairs": (pairs, PAIR_COLUMNS)}, told


def _kernels(report: Report) -> list[dict[str, Any]]:
    return list((report.head.get("comparison") or {}).get("kernels") or ())


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


def _reports(found: Sequence[Run], compared: bool = True) -> list[Report]:
    """The runs, read completely; not `compared`: without the tables of a comparison.  StoreError for a damaged run,
    UsageError for a run that is given twice."""
    reports: list[Report] = []
    begun: dict[tuple[Any, ...], Run] = {}
    for run in found:
        common.refuse_newer(run, "merges")
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
            if head.get("kind") in (None, "", KIND):
                known = recovery.read(lines)
                journaled = list(recovery.samples(known.rows, lines.__getitem__))
                if known.contradicted:
                    raise StoreError(
                        f"{run.dir}: the result of cell {known.contradicted[0]} in this run's journal differs from how "
                        "its attempt ended, so the journal was edited; copy the run from its site again",
                        id="merge-contradiction",
                    )
            samples = run.samples() if complete else journaled or []
            arms = compared and complete and head.get("arms")
            pairs, rounds = (run.table(name) if arms else () for name in ("pairs", "rounds"))
            further = [row for line in lines if line.get("event") == "round" for row in line["rows"]] if arms else []
            key = (head.get("run_id"), head.get("created"), head.get("command"), str(head.get("plan")))
            rows = [{name: row.get(name) for name in COLUMNS} for row in table]
        if key in begun:
            raise UsageError(
                f"{run.dir}: this is the same run as {begun[key].dir}; give only one of the two", id="merge-run-copied"
            )
        begun[key] = run
        name = str(head.get("run_id") or run.id)
        further_told = None if head.get("kind") == "merged" else further
        tables = (pairs, rounds, further_told)
        reports.append(Report(name, head, complete, rows, samples, told, journaled, *tables, writer))
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
    writer: RunWriter,
    file: PlanFile,
    found: Sequence[Run],
    merged: Merged,
    plan: dict[str, Any],
    foot: dict[str, Any],
    tables: dict[str, Any],
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
    writer.finish(merged.rows, merged.samples, {**plan, **foot}, tables)


def _tell(args: argparse.Namespace, store: Store, run_id: str, merged: Merged, seconds: float) -> None:
    err = sys.stderr
    print(f"run {run_id}: merged {counted(len(merged.runs), 'run')}", file=err)
    for one in merged.runs:
        if told := merging.told_of_kit(one):
            print(printable(f"  {one['run_id']}: kit {told}")[:400], file=err)
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
