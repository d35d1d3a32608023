"""Runs of one plan's parts as one ledger: who wins, who is lost, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.cell import Cell, Status
from farm.cli.merge import _named as named
from farm.errors import id_of
from farm.matrix import load_all, plan
from farm.sites import merging, planfile
from farm.sites.merging import Report
from farm.sites.planfile import PlanFile
from farm.store import results
from farm.store.results import ALIKE, SCHEMA, finish_row, sample_row

MATRIX = """
name: m
op: rms_norm
axes: {shape: [{rows: 2, hidden: [64, 128, 256]}], dtype: float32}
providers: [farm]
exclude: [{hidden: 256, reason: too wide}]
targets: {ascend: [910B3, 910B4]}
"""
NOON = 1795262400.0


@pytest.fixture
def file(tmp_path: Path) -> PlanFile:
    (tmp_path / "m.yaml").write_text(MATRIX)
    whole = plan(load_all(tmp_path / "m.yaml"), ["cuda", "rocm", "ascend"])
    return planfile.read(planfile.write(whole, {}), "PLAN")


def row(cell: Cell, status: Status = Status.PASSED, at: float = 0.0, **more: Any) -> dict[str, Any]:
    if cell.skip_reason:
        return finish_row(cell, status=Status.SKIPPED, reason=cell.skip_reason, owner="", attempt=0, evidence="")
    origin = {"target": f"{cell.backend}:x", "node": "n", "started": NOON + at, "seconds": 1.0, "evidence": "simulated"}
    found = finish_row(cell, status=status, reason="", owner="", attempt=1, evidence="executed", origin=origin)
    return {**found, **more}


def report(file: PlanFile, part: str, name: str = "", at: float = 0.0, **head: Any) -> Report:
    """A complete run of a part, every cell passed."""
    cells = planfile.part(file.plan, part).cells if part else file.plan.cells
    return of_rows(file, part, [row(c, at=at) for c in cells], name, at, **head)


def of_rows(
    file: PlanFile, part: str, rows: list[dict[str, Any]], name: str = "", at: float = 0.0, **head: Any
) -> Report:
    named = {
        "schema": SCHEMA,
        "run_id": name or part,
        "plan": file.described(part),
        "counts": results.counts(rows),
        "created": f"created at {at}",
        "finished": "2026-11-21T13:00:00+00:00",
        "seconds": 2.0,
        "revision": {"name": "abc", "version": "0.1.0", "kernels": "k"},
        **head,
    }
    cells = {c.cell_id: c for c in file.plan.cells}
    timing = {"method": "host", "samples_us": [1.0]}
    samples = [s for r in rows if (s := sample_row(cells[r["cell_id"]], 1, timing)) and r["evidence"]]
    return Report(name or part, named, True, rows, samples, [dict(r) for r in rows])


def with_row(report: Report, at: int, **more: Any) -> Report:
    rows = [dict(r) for r in report.rows]
    rows[at].update(more)
    return replace(report, rows=rows, told=rows, head={**report.head, "counts": results.counts(rows)})


def test_three_sites_are_one_ledger(file: PlanFile) -> None:
    reports = [report(file, b) for b in ("rocm", "ascend", "cuda")]
    assert [merging.wrong(r, file) for r in reports] == [None, None, None]
    merged = merging.merge(file, reports)
    assert [(r["index"], r["cell_id"]) for r in merged.rows] == [(c.index, c.cell_id) for c in file.plan.cells]
    assert results.counts(merged.rows) == {"passed": 8, "skipped": 4}
    assert (merged.superseded, merged.silent, merged.warnings) == ([], {}, [])
    assert sorted(s["cell_id"] for s in merged.samples) == sorted(r["cell_id"] for r in merged.rows if r["evidence"])
    assert [reports[n].name for n in dict.fromkeys(merged.origin) if n is not None] == ["cuda", "rocm", "ascend"]
    head = merging.head(file, reports, merged)
    assert head["planned"] == 12 and head["plan_hash"] == file.plan.plan_hash and head["plan"]["part"] == ""
    assert head["revision"] == {"name": "abc", "version": "0.1.0", "kernels": "k"}
    assert [r["part"] for r in head["merged"]] == ["rocm", "ascend", "cuda"]
    json.dumps(head, allow_nan=False)


def test_each_row_keeps_what_judged_it_also_from_a_farm_that_did_not_record_it(file: PlanFile) -> None:
    old, new = report(file, "rocm", schema=ALIKE[0]), with_row(report(file, "cuda"), 0, judged_by="of-cuda")
    for row in (*old.rows, *old.told):
        row.pop("judged_by", None)
    assert [merging.wrong(r, file) for r in (old, new)] == [None, None]
    merged = merging.merge(file, [old, new])
    assert merged.rows[0]["judged_by"] == "of-cuda"
    assert {r.get("judged_by") for r, n in zip(merged.rows, merged.origin) if n == 0} == {None}


def test_what_no_site_reported_is_lost_with_its_target(file: PlanFile) -> None:
    merged = merging.merge(file, [report(file, "cuda"), report(file, "ascend:910B4")])
    lost = [r for r in merged.rows if r["status"] == "lost"]
    assert Counter(r["reason"] for r in lost) == {"no site reported rocm": 3, "no site reported ascend:910B3": 3}
    assert {r["fault_owner"] for r in lost} == {"infra"}
    assert merged.silent == {"rocm": 3, "ascend:910B3": 3}
    assert results.verdict(merged.rows) == ("farm_fault", 3)
    assert len(merged.rows) == 12 and sum(results.counts(merged.rows).values()) == 12


def test_the_first_finished_of_two_results_stays_and_the_other_is_named(file: PlanFile) -> None:
    early, late = report(file, "cuda", "early", 0.0), report(file, "cuda", "late", 60.0)
    for reports in ([early, late], [late, early]):
        merged = merging.merge(file, reports)
        kept = {reports[n].name for r, n in zip(merged.rows, merged.origin) if n is not None and r["evidence"]}
        assert kept == {"early"}
        assert [s["left"] for s in merged.superseded] == ["late"] * 2  # what was skipped by a rule ran nowhere
        assert {s["kept_status"] for s in merged.superseded} == {"passed"}
        assert len(merged.samples) == 2
        assert not any("disagree" in w for w in merged.warnings)


def test_sites_that_disagree_are_told_loudly(file: PlanFile) -> None:
    bad = with_row(report(file, "cuda", "bad", 60.0), 0, status="crashed", fault_owner="kernel")
    (warning,) = merging.merge(file, [report(file, "cuda", "good"), bad]).warnings
    assert "sites disagree" in warning and "is passed in good but crashed in bad" in warning


@pytest.mark.parametrize("fault", ["lost", "infra_error"])
def test_a_fault_of_the_farm_gives_way_to_a_result(file: PlanFile, fault: str) -> None:
    faulty = with_row(report(file, "cuda", "faulty", 0.0), 1, status=fault, reason="its node left")
    merged = merging.merge(file, [faulty, report(file, "cuda", "second", 60.0)])
    assert merged.rows[1]["status"] == "passed" and merged.origin[1] == 1
    assert merged.origin[0] == 0  # the others stay where they were first
    assert merged.rows[1]["cell_id"] not in {s["cell_id"] for s in merged.superseded}
    alone = merging.merge(file, [faulty])
    assert (alone.rows[1]["status"], alone.rows[1]["reason"]) == (fault, "its node left")
    assert "cuda" not in alone.silent


def test_an_infra_error_goes_before_lost(file: PlanFile) -> None:
    lost = with_row(report(file, "cuda", "a"), 1, status="lost", started=None)
    fault = with_row(report(file, "cuda", "b", 60.0), 1, status="infra_error")
    assert merging.merge(file, [lost, fault]).rows[1]["status"] == "infra_error"


def test_a_finding_is_a_result(file: PlanFile) -> None:
    """A site cannot be outvoted: what crashed first stays crashed."""
    bad = with_row(report(file, "cuda", "bad", 0.0), 0, status="crashed", fault_owner="kernel")
    merged = merging.merge(file, [report(file, "cuda", "good", 60.0), bad])
    assert merged.rows[0]["status"] == "crashed"
    assert results.verdict(merging.merge(file, [bad, *(report(file, b) for b in ("rocm", "ascend"))]).rows)[1] == 1


def test_an_interrupted_site_counts_with_what_it_has(file: PlanFile) -> None:
    done = report(file, "cuda", "nv")
    rows = [done.rows[0], *(results.planned_row(c) for c in planfile.part(file.plan, "cuda").cells[1:])]
    cut = replace(done, complete=False, rows=rows, told=())
    assert merging.wrong(cut, file) is None
    merged = merging.merge(file, [cut, report(file, "rocm"), report(file, "ascend")])
    assert results.counts(merged.rows)["lost"] == 2
    assert merged.rows[1]["reason"] == "planned, no result: run nv was interrupted"
    for why, then in ((results.INTERRUPTED, ""), ("no device is left", " (no device is left)")):
        rows[1] = results.planned_row(next(c for c in file.plan.cells if c.cell_id == rows[1]["cell_id"]), why)
        merged = merging.merge(file, [replace(cut, rows=rows), report(file, "rocm"), report(file, "ascend")])
        assert merged.rows[1]["reason"] == f"planned, no result: run nv was interrupted{then}"
    assert merged.silent == {}
    (warning,) = merged.warnings
    assert "run nv " in warning and "2 of 3 cells" in warning and "farm resume nv" in warning


def test_a_site_that_still_runs_is_told_as_such(file: PlanFile) -> None:
    done = report(file, "cuda", "nv")
    rows = [done.rows[0], *(results.planned_row(c) for c in planfile.part(file.plan, "cuda").cells[1:])]
    going = replace(done, complete=False, rows=rows, told=(), writer="process 7 on node-b")
    merged = merging.merge(file, [going, report(file, "rocm"), report(file, "ascend")])
    assert merged.rows[1]["reason"] == "planned, no result: run nv was still being written by process 7 on node-b"
    (warning,) = merged.warnings
    assert "run nv is still being written by process 7 on node-b: 2 of 3 cells" in warning
    assert "farm resume" not in warning
    again = merging.merge(file, [of_rows(file, "", merged.rows, "all", merged=merged.runs), done])
    assert again.warnings == [] and "writer" not in again.runs[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: replace(r, head={}, rows=[]), "merge-starting"),
        (lambda r: replace(r, rows=r.rows[:1]), "merge-still-written"),
        (lambda r: replace(r, head={**r.head, "kind": "merged"}), "merge-merging"),
    ],
)
def test_a_site_that_has_only_begun_is_not_called_damaged(
    file: PlanFile, change: Callable[[Report], Report], told: str
) -> None:
    going = change(replace(report(file, "cuda", "nv"), complete=False, told=(), writer="process 7 on node-b"))
    found = merging.wrong(going, file)
    assert found and found.id == told and "process 7 on node-b" in found
    assert id_of(merging.wrong(replace(going, writer=""), file)) not in ("", told)


def test_sites_of_one_subject_are_that_subjects_and_others_are_warned_of(file: PlanFile) -> None:
    of = {"name": "mylib", "revision": "abc", "digest": "d1", "source": "/here", "modules": ["mylib"], "over": ""}

    def sites(second: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        found = [report(file, "cuda"), report(file, "rocm")]
        found = [replace(r, head={**r.head, "subject": s}) for r, s in zip(found, (of, second))]
        merged = merging.merge(file, found)
        return merged, merging.head(file, found, merged)

    merged, head = sites({**of, "source": "/there"})
    assert head["subject"] == of and not any("subject" in w for w in merged.warnings)
    merged, head = sites({**of, "digest": "d2"})
    assert "subject" not in head and any("different subjects" in w and "d2" in w for w in merged.warnings)
    merged, head = sites({})
    assert "subject" not in head and any("none in" in w for w in merged.warnings)


def test_a_late_site_joins_a_merged_run(file: PlanFile) -> None:
    first = [report(file, "cuda"), report(file, "rocm")]
    early = merging.merge(file, first)
    head = {
        **merging.head(file, first, early),
        "schema": SCHEMA,
        "run_id": "both",
        "counts": results.counts(early.rows),
    }
    merged_run = Report("both", head, True, early.rows, early.samples, early.rows)
    assert merging.wrong(merged_run, file) is None
    assert merging.merge(file, [merged_run]).silent == {"ascend:910B3": 3, "ascend:910B4": 3}
    late = merging.merge(file, [merged_run, report(file, "ascend")])
    assert results.counts(late.rows) == {"passed": 8, "skipped": 4}
    assert late.silent == {} and late.superseded == []
    assert [r["run_id"] for r in late.runs] == ["cuda", "rocm", "ascend"]
    assert len(late.samples) == 8


def merged_run(file: PlanFile, reports: list[Report], name: str = "both") -> Report:
    found = merging.merge(file, reports)
    head = {
        **merging.head(file, reports, found),
        "schema": SCHEMA,
        "run_id": name,
        "counts": results.counts(found.rows),
        "created": name,
        "command": "farm merge",
        "finished": "2026-11-21T14:00:00+00:00",
    }
    return Report(name, json.loads(json.dumps(head)), True, found.rows, found.samples, found.rows)


def test_a_merge_of_a_merged_run_forgets_nothing_that_the_first_told(file: PlanFile) -> None:
    bad = with_row(report(file, "cuda", "bad", 60.0), 0, status="crashed", fault_owner="kernel")
    done = report(file, "rocm", "amd")
    rows = [done.rows[0], *(results.planned_row(c) for c in planfile.part(file.plan, "rocm").cells[1:])]
    cut = replace(done, complete=False, rows=rows, told=())
    sources = [report(file, "cuda", "good"), bad, cut]
    at_once = merging.merge(file, [*sources, report(file, "ascend")])
    later = merging.merge(file, [merged_run(file, sources), report(file, "ascend")])
    assert len(at_once.warnings) == 2
    assert (later.superseded, later.warnings) == (at_once.superseded, at_once.warnings)


def test_one_result_that_comes_twice_is_no_other_result(file: PlanFile) -> None:
    """A site that goes on after a merge: its run, now whole, is merged with what it was part of."""
    done = report(file, "cuda", "nv")
    rows = [done.rows[0], *(results.planned_row(c) for c in planfile.part(file.plan, "cuda").cells[1:])]
    cut = replace(done, complete=False, rows=rows, told=())
    both = merged_run(file, [cut, report(file, "rocm")])
    merged = merging.merge(file, [both, done])
    assert merged.superseded == []
    assert [(r["run_id"], r["complete"]) for r in merged.runs] == [("nv", True), ("rocm", True)]
    assert not any("not complete" in w for w in merged.warnings)
    assert len(merged.samples) == len({s["cell_id"] for s in merged.samples})


def test_a_device_s_result_goes_before_a_fake_s(file: PlanFile) -> None:
    fake, real = report(file, "cuda", "fake", 0.0), report(file, "cuda", "real", 60.0)
    real = with_row(real, 0, evidence="executed")
    merged = merging.merge(file, [fake, real])
    assert [merged.origin[0], merged.origin[1]] == [1, 0]  # cell 1 was simulated by both
    crashed = with_row(real, 0, evidence="executed", status="infra_error")
    assert merging.merge(file, [fake, crashed]).origin[0] == 0


def test_runs_named_alike_have_names_of_their_own_also_in_a_second_merge(file: PlanFile) -> None:
    """Sites call their runs `nightly`; what a merged run says of one must not be taken for another's."""
    sites = [report(file, part, "nightly", at, command="farm run") for at, part in enumerate(("cuda", "rocm", "cuda"))]
    first = named(sites)
    assert [r.name for r in first] == ["nightly", "nightly (2)", "nightly (3)"]
    both = merged_run(file, first[:2])
    again = named([sites[2], both, sites[1]])
    assert [r.name for r in again] == ["nightly (3)", "both", "nightly (2)"]
    merged = merging.merge(file, again)
    assert {(r["run_id"], r["part"]) for r in merged.runs} == {
        ("nightly", "cuda"),
        ("nightly (2)", "rocm"),
        ("nightly (3)", "cuda"),
    }


def test_devices_of_a_run_that_comes_twice_are_listed_once(file: PlanFile) -> None:
    told = {"cuda": {"devices": [{"device": "cuda:0"}]}}
    cuda = report(file, "cuda", backends=told)
    reports = [merged_run(file, [cuda]), cuda]
    head = merging.head(file, reports, merging.merge(file, reports))
    assert head["backends"]["cuda"]["devices"] == [{"run": "cuda", "device": "cuda:0"}]


def test_sites_that_judged_by_different_contracts_are_told_loudly(file: PlanFile) -> None:
    def judged(part: str, *digests: str | None) -> Report:
        found = report(file, part)
        rows = [{**r, "judged_by": digests[i % len(digests)]} for i, r in enumerate(found.rows)]
        return of_rows(file, part, rows)

    same = merging.merge(file, [judged("cuda", "d1"), judged("rocm", "d1", None), judged("ascend:910B3", "d1", "")])
    assert same.warnings == [], "what no judge saw, and old runs, say nothing"
    first = [judged("cuda", "d1"), judged("rocm", "d2")]
    merged = merging.merge(file, first)
    (warning,) = merged.warnings
    assert "different contracts or judges" in warning and "d1 in cuda; d2 in rocm" in warning
    assert merging.head(file, first, merged)["warnings"] == merged.warnings
    (mixed,) = merging.merge(file, [judged("cuda", "d1", "d2")]).warnings
    assert "d1 in cuda; d2 in cuda" in mixed
    whole = Report("whole", merging.head(file, first, merged), True, merged.rows, merged.samples)
    again = merging.merge(file, [whole, judged("ascend:910B3", "d1")]).warnings
    assert any("d1 in cuda, ascend:910B3; d2 in rocm" in w for w in again), "also of the runs inside a merged run"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "def"}, "different revisions of the kernels: abc in cuda; def in rocm"),
        ({"version": "0.2.0"}, "different versions of the farm: 0.1.0 in cuda; 0.2.0 in rocm"),
        ({"kernels": "l"}, "different kernels (by content): k in cuda; l in rocm"),
    ],
)
def test_sites_of_different_code_are_told_loudly(file: PlanFile, change: dict[str, str], told: str) -> None:
    revision = {"name": "abc", "version": "0.1.0", "kernels": "k", **change}
    reports = [report(file, "cuda"), report(file, "rocm", revision=revision)]
    merged = merging.merge(file, reports)
    assert [told in w for w in merged.warnings] == [True]
    assert merging.head(file, reports, merged)["warnings"] == merged.warnings
    assert (merging.head(file, reports, merged)["revision"]["name"] == "abc | def") == ("name" in change)


# Refusals


def _edit(**more: Any) -> Callable[[Report], Report]:
    return lambda r: replace(r, head={**r.head, **more})


def _told(at: int, **more: Any) -> Callable[[Report], Report]:
    """Changed in the tables, not in the journal."""
    return lambda r: replace(with_row(r, at, **more), told=r.told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_edit(schema=SCHEMA + 1), f"schema {SCHEMA + 1} [merge-schema-unknown]"),
        (_edit(schema=ALIKE[0] - 1), f"schema {ALIKE[0] - 1} [merge-schema-unknown]"),
        (_edit(kind="compile"), "[merge-compiled]"),
        (_edit(kind="judged"), "[merge-judged]"),
        (lambda r: replace(r, head={"complete": False}, complete=False, rows=[], told=()), "[merge-not-started]"),
        (_edit(plan=None), "[merge-without-plan]"),
        (_edit(plan={"part": "cuda", "sha256": "x", "hash": "y"}), "[merge-other-plan]"),
        (_edit(counts={"passed": 3}), "status counts [merge-damaged]"),
        (lambda r: with_row(r, 0, cell_key="x"), "cell 0 [merge-damaged]"),
        (lambda r: with_row(r, 1, index=2), "cell 1 [merge-damaged]"),
        (lambda r: with_row(r, 1, status="great"), "'great' [merge-damaged]"),
        (_told(0, time_us_p50=1.0), "time_us_p50 [merge-damaged]"),
        (_told(0, status="inaccurate"), "status [merge-damaged]"),
        (lambda r: replace(r, rows=r.rows[:-1], told=r.told[:-1]), "2 cells [merge-damaged]"),
        (lambda r: replace(r, told_samples=[{**s, "floor_us": 9.0} for s in r.samples]), "floor_us [merge-damaged]"),
        (lambda r: replace(r, told_samples=r.samples[:1]), "samples.parquet [merge-damaged]"),
        (lambda r: replace(r, told=r.told[:-1]), "journal [merge-damaged]"),
        (lambda r: replace(r, rows=[r.rows[1], r.rows[0], r.rows[2]]), "cell 0 [merge-damaged]"),
    ],
)
def test_what_cannot_be_merged_is_refused(file: PlanFile, change: Callable[[Report], Report], told: str) -> None:
    good = report(file, "cuda")
    assert merging.wrong(good, file) is None
    found = merging.wrong(change(good), file)
    data, _, name = told.rpartition("[")
    assert found and found.id == name.rstrip("]") and data.strip() in found


def test_a_run_of_a_part_that_the_plan_has_not_is_refused(file: PlanFile) -> None:
    odd = replace(report(file, "cuda"), head={**report(file, "cuda").head, "plan": file.described("cuda:GB200")})
    found = merging.wrong(odd, file)
    assert found and found.id == "merge-damaged" and '"cuda:GB200"' in found


def test_the_same_cells_under_other_gates_are_another_plan(file: PlanFile, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX + "deadlines: {check: 9}\n")
    other = planfile.read(planfile.write(plan(load_all(tmp_path / "m.yaml"), ["cuda", "rocm", "ascend"]), {}), "OTHER")
    assert other.plan.plan_hash == file.plan.plan_hash and other.sha256 != file.sha256
    found = merging.wrong(report(other, "cuda"), file)
    assert found and found.id == "merge-other-plan" and "deadlines" in found


def test_a_nan_is_no_edit(file: PlanFile) -> None:
    good = with_row(report(file, "cuda"), 0, worst_ratio=float("nan"))
    assert merging.wrong(replace(good, told=[{**r} for r in good.rows]), file) is None


def test_a_merge_that_was_cut_short_is_refused(file: PlanFile) -> None:
    cut = replace(_edit(kind="merged")(report(file, "")), complete=False)
    assert id_of(merging.wrong(cut, file)) == "merge-interrupted"


def test_a_page_tells_the_warnings_of_a_merged_run(file: PlanFile) -> None:
    from synthetic_runs import fake_run

    from farm.report import run_verdict

    told = run_verdict.warnings(fake_run(warnings=["sites disagree: x"]))
    assert "Sites disagree: x." in told
