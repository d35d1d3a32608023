"""Merges runs of the parts of one plan into one ledger: the complete plan, with one result per cell.  Pure.

A real result takes precedence over an infrastructure failure (`infra_error`, then `lost`), and a result of a real
device over that of a simulated one.  Of several real results, the one that finished first is used, and the others are
listed.  Cells that no site reported are `lost`, with the target that nobody reported.  A merged run can be merged
again: the runs that it contains are listed individually.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farm.cell import Cell, Owner, Status
from farm.compare.arms import Arm
from farm.errors import Message, UsageError
from farm.matrix.arms import mates
from farm.sites import kit, planfile
from farm.sites.planfile import PlanFile, unit
from farm.store import device_health, results
from farm.store.results import ALIKE, COLUMNS, INTERRUPTED, NO_RESULT, planned_row

Row = Mapping[str, Any]
_RANK = {Status.INFRA_ERROR.value: 1, Status.LOST.value: 2}
_SIMULATED = "simulated"
_STATUSES = {s.value for s in Status}
#: Columns that the plan determines; those that older schemas lack are empty there.
_FIXED = sorted(results.PLANNED - results.LATER_COLUMNS)
MAX_SHOWN = 3


@dataclass(frozen=True)
class Report:
    """A run of a part of the plan, as it was read.  `told`: the rows of its journal, if `rows` come from its tables;
    `log` files stay where they are."""

    name: str
    head: Mapping[str, Any]
    complete: bool
    rows: Sequence[Row]
    samples: Sequence[Row]
    told: Sequence[Row] = ()
    told_samples: Sequence[Mapping[str, Any]] | None = (
        None  # the same for samples; None for a merged run, whose journal has none
    )
    pairs: Sequence[Row] = ()  # of pairs.parquet, where the plan has two arms,
    rounds: Sequence[Row] = ()  # and of rounds.parquet
    told_rounds: Sequence[Row] | None = None  # as the journal has them; None for a merged run
    writer: str = ""  # who was still writing it while it was read (`process 7 on host`); "" if nobody was

    @property
    def part(self) -> str:
        """The target of the plan that it ran; "" for a merged run, which covers the complete plan."""
        return str((self.head.get("plan") or {}).get("part", ""))

    @property
    def silent(self) -> Mapping[str, int]:
        """For a merged run: the targets that no site had reported."""
        return self.head.get("silent") or {}

    @property
    def superseded(self) -> Sequence[Mapping[str, str]]:
        """For a merged run: the results that it did not use."""
        return self.head.get("superseded") or ()


@dataclass(frozen=True)
class Merged:
    """The ledger.  `rows`: in the plan's order; `origin[i]`: the report that row i came from, or None; `superseded`:
    real results that were not used; `silent`: target -> cells that no site reported; `runs`: a summary of each merged
    run; `warnings`: sentences for the user."""

    rows: list[dict[str, Any]]
    origin: list[int | None]
    samples: list[Row]
    superseded: list[dict[str, str]]
    silent: dict[str, int]
    runs: list[dict[str, Any]]
    warnings: list[str]


def wrong(report: Report, file: PlanFile) -> Message | None:
    """Why a run cannot be merged into this plan: a clause with what to do; None if it can."""
    head, plan, writer = report.head, report.head.get("plan"), report.writer
    if head.get("kind") == "compile":
        return Message("was compiled, not executed, so there is nothing to merge; omit this run", id="merge-compiled")
    if head.get("kind") == "judged":
        what = (
            "was judged again, perhaps with other tolerances than the plan's; merge the original run, then judge again"
        )
        return Message(what, id="merge-judged")
    if head.get("schema") is None and not report.complete:
        if writer:
            return Message(
                f"was just started by {writer}; merge after this run ends, or omit this run", id="merge-starting"
            )
        return Message("has no plan in its journal, so no cell had started; omit this run", id="merge-not-started")
    if head.get("schema") not in ALIKE:
        known = f"schemas {ALIKE[0]} to {ALIKE[-1]}"
        what = (
            f"has schema {head.get('schema')}, but this farm merges {known}; use the farm version that wrote this run"
        )
        return Message(what, id="merge-schema-unknown")
    if head.get("kind") == "merged" and not report.complete:
        if writer:
            return Message(
                f"is a merge that {writer} is still writing; merge again when that merge ends", id="merge-merging"
            )
        return Message("is a merge that was interrupted; merge the original runs again", id="merge-interrupted")
    if not isinstance(plan, Mapping) or not isinstance(plan.get("part"), str):
        what = "does not belong to a plan; only runs of farm run --plan and farm merge can be merged"
        return Message(what, id="merge-without-plan")
    if plan.get("sha256") != file.sha256:
        same = plan.get("hash") == file.plan.plan_hash
        other = "the same cells, but different deadlines, tolerances, scripts or providers" if same else "other cells"
        return Message(f"belongs to another plan ({other}); merge runs of one plan", id="merge-other-plan")
    if file.arms and not report.complete:
        what = f"is a comparison that is still being written by {writer}; merge after this run ends"
        again = "is an interrupted comparison, whose times are not decided; run farm resume at its site, then merge"
        return Message(what if writer else again, id="merge-arms-open")
    arms = head.get("arms") or {}
    other = next((n for n, arm in file.arms.items() if (arms.get(n) or {}).get("digest") != arm["digest"]), "")
    if other:
        what = f"ran other files as arm {other} than the plan names; run this part again"
        return Message(what, id="merge-arms-differ")
    damaged = _damaged(report, file)
    if damaged and writer:  # its plan, for example, may be half written
        what = f"is still being written by {writer} and is incomplete ({damaged}); merge after this run ends"
        return Message(what, id="merge-still-written")
    if damaged:
        return Message(f"is damaged or was edited: {damaged}; copy the run from its site again", id="merge-damaged")
    return None


def _damaged(report: Report, file: PlanFile) -> str:
    """How a run contradicts itself or its part of the plan; "" if it does not."""
    try:
        planned = planfile.part(file.plan, report.part).cells if report.part else file.plan.cells
    except UsageError:
        return f'the plan of this run has no part "{report.part}"'
    if len(report.rows) != len(planned):
        return f"the run has {len(report.rows)} cells, but this part of the plan has {len(planned)}"
    for cell, row in zip(planned, report.rows):
        if (row.get("index"), row.get("cell_id"), row.get("cell_key")) != (cell.index, cell.cell_id, cell.cell_key):
            return f"the run's cell {cell.index} is {row.get('cell_id')!r}, but in the plan it is {cell.cell_id}"
        planned_values = results.of_plan(cell)
        differs = [n for n in _FIXED if row.get(n) is not None and row[n] != planned_values[n]]
        if differs:
            return f"{cell.cell_id}: {differs[0]} is {row[differs[0]]!r:.80}, but not in the plan"
        if row.get("status") not in _STATUSES:
            return f"{cell.cell_id} has the unknown status {row.get('status')!r}"
    if report.complete:
        if report.head.get("counts") != results.counts(report.rows):
            return "the status counts in run.json and in the run's cells differ"
        if len(report.told) != len(report.rows):
            return "the run's journal and tables contain different cells"
        for row, told in zip(report.rows, report.told):
            differs = [n for n in COLUMNS if not _equal(row.get(n), told.get(n))]
            if differs:
                return f"{row['cell_id']}: {differs[0]} differs between the run's tables and journal"
    return _damaged_samples(report.samples, report.told_samples) if report.told_samples is not None else ""


def _damaged_samples(samples: Sequence[Row], told: Sequence[Row]) -> str:
    journal = {row["cell_id"]: row for row in told}
    if len(samples) != len(journal):
        return (
            f"samples.parquet has samples of {len(samples)} cells, but the run's journal has samples of {len(journal)}"
        )
    for row in samples:
        of = journal.get(row["cell_id"], {})
        differs = [n for n in row if not _equal(row[n], of.get(n))]
        if differs:
            return f"{row['cell_id']}: {differs[0]} differs between samples.parquet and the run's journal"
    return ""


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # a NaN is itself here


def merge(file: PlanFile, reports: Sequence[Report]) -> Merged:
    """One row for every cell of the plan; both rows of a pair of arms are of one run.  `reports` passed `wrong`."""
    partner = {file.plan.cells[i].cell_id: file.plan.cells[j].cell_id for i, j in partners(file).items()}
    at = [{row["cell_id"]: row for row in report.rows} if partner else {} for report in reports]

    def order(one: tuple[int, Row]) -> tuple[int, bool, float]:
        number, row = one
        mate = at[number].get(partner.get(row["cell_id"], ""))
        return max(_order(reports[number], found) for found in (row, mate) if found is not None)

    found: dict[str, list[tuple[int, Row]]] = {}
    for number, report in enumerate(reports):
        heard = {c.cell_id for c in file.plan.cells if unit(c) in report.silent}
        for row in report.rows:
            if not (row["status"] == Status.LOST.value and row["cell_id"] in heard):
                found.setdefault(row["cell_id"], []).append((number, row))
    rows: list[dict[str, Any]] = []
    origin: list[int | None] = []
    superseded = [dict(one) for report in reports for one in report.superseded]
    silent: Counter[str] = Counter()
    for cell in file.plan.cells:
        tries = found.get(cell.cell_id, [])
        if not tries:
            rows.append(_unheard(cell))
            origin.append(None)
            silent[unit(cell)] += 1
            continue
        tries = sorted(tries, key=order)
        number, row = tries[0]
        rows.append({**row, "index": cell.index, "reason": _reason(reports[number], row)})
        origin.append(number)
        superseded += _left(reports, tries)
    kept = {(row["cell_id"], n) for row, n in zip(rows, origin)}
    samples = [s for n, r in enumerate(reports) for s in r.samples if (s["cell_id"], n) in kept]
    superseded = list({(one["cell_id"], one["left"], one["left_status"]): one for one in reversed(superseded)}.values())
    superseded.reverse()
    runs = _each_once(told for report in reports for told in _sources(report))
    return Merged(
        rows,
        origin,
        samples,
        superseded,
        dict(silent),
        runs,
        [*_unlike(runs), *_unfinished(runs), *_contradictions(superseded)],
    )


def partners(file: PlanFile) -> dict[int, int]:
    """Place of a cell in the plan -> that of the same cell in the other arm, both ways; empty for a plan of one arm."""
    if not file.arms:
        return {}
    found = mates(file.plan.cells, [Arm.of(file.arms[name]) for name in ("a", "b")])
    return {**found, **{b: a for a, b in found.items()}}


def _unheard(cell: Cell) -> dict[str, Any]:
    row = planned_row(cell)
    row.update(reason=f"no site reported {unit(cell)}", fault_owner=Owner.INFRA.value)
    return row


def _order(report: Report, row: Row) -> tuple[int, bool, float]:
    """The rank of a result among several of its cell: the least is used."""
    return _RANK.get(row["status"], 0), row["evidence"] == _SIMULATED, _ended(report, row)


def _ended(report: Report, row: Row) -> float:
    """The Unix time at which a result was ready; for a cell that never began, the end of its run."""
    if row.get("started"):
        return float(row["started"]) + float(row.get("seconds") or 0.0)
    try:
        return datetime.fromisoformat(str(report.head.get("finished"))).timestamp()
    except ValueError:
        return float("inf")


def _reason(report: Report, row: Row) -> str:
    if row["status"] == Status.LOST.value and str(row["reason"]).startswith(NO_RESULT) and not report.complete:
        why = str(row["reason"])[len(NO_RESULT) :].removeprefix(f": {INTERRUPTED}").removeprefix(": ")
        end = f"was still being written by {report.writer}" if report.writer else "was interrupted"
        return f"{NO_RESULT}: run {report.name} {end}{f' ({why})' if why else ''}"
    return str(row["reason"])


def _left(reports: Sequence[Report], tries: list[tuple[int, Row]]) -> list[dict[str, str]]:
    """The real results that are not used: not cells that never ran (skipped, unsupported everywhere), and not copies
    of the same result (a merged run, and a run that it contains)."""
    number, kept = tries[0]
    return [
        {
            "cell_id": kept["cell_id"],
            "kept": reports[number].name,
            "kept_status": kept["status"],
            "left": reports[other].name,
            "left_status": row["status"],
        }
        for other, row in tries[1:]
        if row["status"] not in _RANK and (kept["evidence"] or row["evidence"]) and not _same_result(kept, row)
    ]


def _same_result(a: Row, b: Row) -> bool:
    return all(_equal(a.get(n), b.get(n)) for n in COLUMNS if n not in ("index", "log"))  # which each run has anew


def _sources(report: Report) -> list[dict[str, Any]]:
    """A summary of each run that was merged; for a merged run, of the runs that it contains."""
    if report.head.get("merged"):
        return [dict(run) for run in report.head["merged"]]
    return [source(report)]


def source(report: Report) -> dict[str, Any]:
    """The summary of a run that is no merged one."""
    head = report.head
    return {
        "run_id": report.name,
        "part": report.part,
        "revision": dict(head.get("revision") or {}),
        **({"subject": dict(head["subject"])} if head.get("subject") else {}),
        **({"kit": _kit(report)} if head.get("kit") else {}),
        "created": head.get("created", ""),
        "finished": head.get("finished", ""),
        "seconds": head.get("seconds"),
        "complete": report.complete,
        **({"writer": report.writer} if report.writer else {}),
        "command": head.get("command", ""),
        "counts": results.counts(report.rows),
        "judged_by": sorted({str(r["judged_by"]) for r in report.rows if r.get("judged_by")}),
        "nodes": sorted({str(r["node"]) for r in report.rows if r.get("node")}),
    }


def _kit(report: Report) -> dict[str, Any]:
    """Who ran a kit, where, and on what, as its result says."""
    told = report.head["kit"]
    kept = {name: told.get(name) for name in ("digest", "by", "site", "node", "system", "versions") if told.get(name)}
    prints = dict.fromkeys(str(row.get("fingerprint") or "{}") for row in report.rows)
    drivers = [str(found.get("driver") or "") for found in map(_object, prints)]
    facts = {
        "devices": [str(row.get("device") or "") for row in report.rows],
        "drivers": drivers,
        "evidence": [str(row.get("evidence") or "") for row in report.rows],
    }
    return {**kept, **{name: [v for v in dict.fromkeys(values) if v] for name, values in facts.items()}}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def told_of_kit(run: Mapping[str, Any]) -> str:
    """`executed by alice at Site A, on NVIDIA GB200 #0; driver 580.1, torch 2.9, triton 3.5`: of one of a merged run's
    runs, what it proves, who ran it, where and on what; "" for one that is not of a kit."""
    told = run.get("kit") or {}
    if not told:
        return ""
    versions = [f"driver {d}" for d in told.get("drivers") or ()]
    versions += [f"{name} {version}" for name, version in (told.get("versions") or {}).items()]
    devices = ", ".join(told.get("devices") or ()) or "no device"
    how = " and ".join(told.get("evidence") or ()) or "not executed"
    return f"{how} by {kit.called(told) or 'somebody'}, on {devices}{'; ' if versions else ''}{', '.join(versions)}"


def birth(run: Mapping[str, Any]) -> tuple[str, str]:
    """When a run began and by which command: together with its name this identifies the run in every copy."""
    return str(run.get("created", "")), str(run.get("command", ""))


def _each_once(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each run once: one that is given twice (inside a merged run, and alone) in its more complete form."""
    out: dict[tuple[str, ...], dict[str, Any]] = {}
    for run in runs:
        key = (str(run["run_id"]), *birth(run))
        if key not in out or (run["complete"] and not out[key]["complete"]):
            out[key] = run
    return list(out.values())


def _unlike(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings about what differs between sites but should not."""
    facts = {"version": "versions of the farm", "name": "revisions of the kernels", "kernels": "kernels (by content)"}
    out: dict[str, str] = {}
    for key, what in facts.items():
        seen: dict[str, list[str]] = {}
        for run in runs:
            seen.setdefault(str(run["revision"].get(key) or "unknown"), []).append(str(run["run_id"]))
        if len(seen) > 1 and not (key == "kernels" and "name" in out):
            which = "; ".join(f"{value} in {', '.join(ids)}" for value, ids in seen.items())
            out[key] = f"the sites ran different {what}: {which}"
    subjects: dict[str, list[str]] = {}
    for run in runs:
        of = run.get("subject") or {}
        told = f"{of.get('name')} {of.get('revision')} (digest {of.get('digest')})" if of else "none"
        subjects.setdefault(told, []).append(str(run["run_id"]))
    if len(subjects) > 1:
        which = "; ".join(f"{told} in {', '.join(ids)}" for told, ids in subjects.items())
        out["subject"] = f"the sites ran different subjects: {which}"
    return [*out.values(), *_judges(runs)]


def _judges(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning where not all verdicts come from the same contracts and judge.  Runs of older schemas do not record by
    what they were judged."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for digest in run.get("judged_by") or ():
            found.setdefault(digest, []).append(str(run["run_id"]))
    if len(found) < 2:
        return []
    which = "; ".join(f"{digest} in {', '.join(ids)}" for digest, ids in found.items())
    return [
        "the verdicts come from different contracts or judges (judged_by of each cell), so they cannot be compared: "
        f"{which}; judge the merged run again (farm judge), or run one of the parts again"
    ]


def _unfinished(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    out = []
    for run in (run for run in runs if not run["complete"]):
        name, lost = run["run_id"], run["counts"].get(Status.LOST.value, 0)
        of = f"{lost} of {sum(run['counts'].values())} cells"
        out.append(
            f"run {name} is still being written by {run['writer']}: {of} have no result yet and are lost in this "
            "merged run; when that run ends, merge both"
            if run.get("writer")
            else (
                f"run {name} is incomplete: {of} are lost; to run these cells, "
                + (
                    "start run.py of its kit again at that site, and merge the new result"
                    if run.get("kit")
                    else f"use farm resume {name} at the site of that run"
                )
            )
        )
    return out


def _contradictions(superseded: Sequence[Mapping[str, str]]) -> list[str]:
    unlike = [s for s in superseded if s["kept_status"] != s["left_status"]]
    shown = "; ".join(
        f"{s['cell_id']} is {s['kept_status']} in {s['kept']} but {s['left_status']} in {s['left']}"
        for s in unlike[:MAX_SHOWN]
    )
    more = f", and {len(unlike) - MAX_SHOWN} more" if len(unlike) > MAX_SHOWN else ""
    return [f"sites disagree on a cell; the result that finished first is used: {shown}{more}"] if unlike else []


def head(file: PlanFile, reports: Sequence[Report], merged: Merged) -> dict[str, Any]:
    """What run.json of the merged run contains besides its own command, times, counts and verdict."""
    used: dict[str, dict[str, Any]] = {b: {"devices": []} for b in dict.fromkeys(c.backend for c in file.plan.cells)}
    environments: dict[str, Any] = {}
    calibrations: dict[str, Any] = {}
    providers: dict[str, Any] = {}
    for report in reports:
        for backend, told in (report.head.get("backends") or {}).items():
            mine = used.setdefault(backend, {"devices": []})["devices"]
            mine += [d for of in told.get("devices", ()) if (d := {"run": report.name, **of}) not in mine]
        for name, environment in (report.head.get("environments") or {}).items():
            same = environments.get(name, environment) == environment
            environments[name if same else f"{name} ({report.name})"] = environment
        calibrations.update(report.head.get("calibrations") or {})
        providers.update(report.head.get("providers") or {})
    health = [entry for report in reports for entry in device_health.sound(report.head.get("health"))]
    for backend, told in used.items():
        told["counts"] = results.counts(r for r in merged.rows if r["backend"] == backend)
    return {
        "kind": "merged",
        **({"arms": dict(reports[0].head["arms"])} if file.arms else {}),
        "matrices": [m.to_dict() for m in file.plan.matrices],
        "plan_hash": file.plan.plan_hash,
        "planned": len(file.plan.cells),
        "plan": file.described(""),
        "revision": _revision(merged.runs),
        **_subject(merged.runs),
        "providers": providers,
        "environments": environments,
        "merged": merged.runs,
        "superseded": merged.superseded,
        "silent": merged.silent,
        "warnings": merged.warnings,
        "backends": used,
        "calibrations": calibrations,
        **({"health": health} if health else {}),
    }


def _subject(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sites' common subject, for the merged head; nothing where they had none, or different ones."""
    found = [run.get("subject") or {} for run in runs]
    same = len({(of.get("name"), of.get("revision"), of.get("digest")) for of in found}) == 1
    return {"subject": dict(found[0])} if same and found[0] else {}  # where it was found is each site's own


def _revision(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sites' common revision; if they differ, all of their names and no commit."""
    found = {str(r["revision"].get("name", "")): r["revision"] for r in runs}
    if len(found) == 1:
        return dict(next(iter(found.values())))
    versions = dict.fromkeys(str(r.get("version", "")) for r in found.values())
    return {"name": " | ".join(found), "commit": "", "dirty": False, "version": " | ".join(versions)}
