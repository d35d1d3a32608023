"""Verdicts again from stored metrics: the same by stored gates, another by other gates, and nothing made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_accuracy_evaluate import cell, inputs_of, right_outputs

from farm import results
from farm.accuracy import gates
from farm.accuracy.dtypes import decode, encode
from farm.accuracy.evaluate import evaluate
from farm.cell import Cell, Owner, Status
from farm.cli.main import main
from farm.errors import InfraError
from farm.ops import contract
from farm.rejudge import judge_again, judge_run, tally
from farm.store import RunWriter, Store

LIMIT = {"output": "y", "metric": "max_ulp", "limit": 0.2, "reason": "why", "date": "2026-01-31"}


def judged(c: Cell, scale: float = 1.0, tolerances: Any = ()) -> dict[str, Any]:
    """The row of a cell whose y is the right one times `scale`, as a run stores it."""
    outputs = right_outputs(c)
    outputs["y"] = encode(decode(outputs["y"], c.dtype) * scale, c.dtype)
    found = evaluate(c, contract(c.op), outputs, inputs_of(c), tolerances=tolerances)
    names = ("reason", "metrics", "gates", "worst_output", "worst_metric", "worst_ratio")
    return results.finish_row(
        c, status=Status.PASSED if found.ok else Status.INACCURATE, reason=found.reason,
        owner="" if found.ok else "kernel", attempt=1, evidence="interpreted", origin={"device": "cpu:0", "log": ""},
        judged={name: getattr(found, name) for name in names},
    )  # fmt: skip


def a_cell(index: int = 0, dtype: str = "bfloat16", **more: Any) -> Cell:
    made = cell("rms_norm", dtype, **more)
    return Cell.from_dict({**made.to_dict(), "index": index, "cell_id": f"cell-{index}", "matrix": "m"})


@pytest.mark.parametrize("scale", [1.0, 1.02])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_same_gates_give_the_same_row(dtype: str, scale: float) -> None:
    c = a_cell(0, dtype)
    row = judged(c, scale)
    assert row["status"] == ("passed" if scale == 1 else "inaccurate")
    assert judge_again(row, c, contract(c.op), []) == row
    assert gates.verdict(json.loads(row["metrics"]), json.loads(row["gates"])).ok == (scale == 1)


def test_another_gate_gives_another_verdict_and_says_why() -> None:
    c = a_cell()
    new = judge_again(judged(c), c, contract(c.op), [LIMIT])
    assert (new["status"], new["fault_owner"], new["worst_metric"]) == ("inaccurate", Owner.KERNEL.value, "max_ulp")
    assert new["reason"].startswith("y: max_ulp is 0.") and "its gate 0.2" in new["reason"] and new["worst_ratio"] > 1
    assert json.loads(new["gates"])["y"]["max_ulp"] == 0.2
    back = judge_again(new, c, contract(c.op), [])
    assert (back["status"], back["reason"], back["fault_owner"]) == ("passed", "", "")


def test_what_numbers_did_not_decide_stays() -> None:
    c = a_cell()
    changed = {**judged(c), "status": "inaccurate", "reason": "it changed its inputs", "fault_owner": "kernel"}
    assert judge_again(changed, c, contract(c.op), []) == changed
    both = {**judged(c, 1.02), "reason": "it patched torch.equal", "flags": json.dumps(["patched torch.equal"])}
    wide = [{"output": "y", "metric": m, "limit": 1e9, "reason": "why"} for m in json.loads(both["gates"])["y"]]
    assert judge_again(judged(c, 1.02), c, contract(c.op), wide)["status"] == "passed"
    assert judge_again(both, c, contract(c.op), wide) == both
    layout = {**judged(c), "status": "inaccurate", "reason": "wrong shape", "metrics": "{}"}
    crashed = {**results.planned_row(c), "status": "crashed", "reason": "signal 11"}
    lost = results.planned_row(c)
    for row in (layout, crashed, lost):
        assert judge_again(row, c, contract(c.op), [LIMIT]) == row


def test_what_cannot_be_decided_is_the_farms_fault_and_never_passed() -> None:
    c = a_cell()
    row = judged(c)
    new_metric = {**LIMIT, "metric": "rel_l3"}
    assert "lack y.rel_l3" in judge_again(row, c, contract(c.op), [new_metric])["reason"]
    older = Cell.from_dict({**c.to_dict(), "contract_version": 99})
    assert "version 99 of the contract" in judge_again(row, older, contract(c.op), [])["reason"]
    assert "no op rms_norm" in judge_again(row, c, None, [])["reason"]
    forged = {**judged(c, 1.02), "status": "passed", "reason": ""}
    assert "break its stored gates" in judge_again(forged, c, contract(c.op), [])["reason"]
    for changed in (judge_again(row, c, None, []), judge_again(forged, c, contract(c.op), [])):
        assert (changed["status"], changed["fault_owner"]) == ("infra_error", "harness")


def test_changes_are_told_and_counted() -> None:
    cells = [a_cell(0), a_cell(1, "float32"), a_cell(2, seed=1)]
    rows = [judged(c) for c in cells]
    new, changes = judge_run(rows, cells, contract, lambda c: [LIMIT] if c.dtype == "bfloat16" else [])
    assert [r["status"] for r in new] == ["inaccurate", "passed", "inaccurate"]
    assert [(c.cell_id, c.before, c.after) for c in changes] == [
        ("cell-0", "passed", "inaccurate"), ("cell-2", "passed", "inaccurate")
    ]  # fmt: skip
    assert tally(changes) == ["2 passed -> inaccurate"]


def test_metrics_of_two_calls_are_those_of_the_worse() -> None:
    one = {"y": {"max_ulp": 3.0, "rel_l2": 0.1, "worst_row": 5, "count": 9}}
    two = {"y": {"max_ulp": 1.0, "rel_l2": 0.2, "worst_row": 7, "count": 9}}
    both = {"y": {"max_ulp": 3.0, "rel_l2": 0.2, "worst_row": 5, "count": 9}}
    assert gates.worse(one, two) == gates.worse(two, one) == both
    broken = gates.worse({"y": {"max_ulp": np.nan}}, one)
    assert np.isnan(broken["y"]["max_ulp"]) and np.isnan(gates.worse(one, {"y": {"max_ulp": np.nan}})["y"]["max_ulp"])


# through the command


def stored_run(folder: Path, metrics_without: str = "", **head: Any) -> Store:
    """A store with one complete run `first`: three cells that passed, one of a wrong kernel."""
    store = Store(folder)
    cells = [a_cell(0), a_cell(1, "float32"), a_cell(2, seed=1), a_cell(3, seed=2)]
    rows = [judged(c, 1.02 if c.index == 3 else 1.0) for c in cells]
    for row in rows:
        metrics = json.loads(row["metrics"])
        row["metrics"] = json.dumps({o: {m: v for m, v in of.items() if m != metrics_without}
                                     for o, of in metrics.items()})  # fmt: skip
    writer = store.create("first")
    writer.plan({"matrices": [{"name": "m", "path": "m.yaml", "sha256": "0", "tolerances": []}]}, cells)
    rows[3]["log"] = writer.log("3", "what happened")
    for row in rows:
        writer.append({"event": "result", "row": row})
    samples = [{"cell_id": "cell-0", "method": "events", "samples_us": "[1.0]"}]
    whole = {
        "matrices": [{"name": "m", "path": "m.yaml", "sha256": "0", "tolerances": []}], "argv": ["run"],
        "backends": {"cpu": {"devices": [], "counts": {}}}, "verdict": "findings", "exit_code": 1, **head,
    }  # fmt: skip
    writer.finish(rows, samples, whole)
    writer.close()
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def judge(store: Store, *words: str) -> int:
    return main(["judge", "first", "--out", str(store.path), "--no-page", "--run-id", "second", *words])


def test_a_derived_run_stands_beside_the_one_that_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored_run(tmp_path)
    before = contents(tmp_path / "runs" / "first")
    assert judge(store) == 1  # the wrong kernel still is
    assert "no cell changes its status" in capsys.readouterr().err
    assert contents(tmp_path / "runs" / "first") == before
    first, second = store.run("first"), store.run("second")
    assert second.rows == first.rows and second.samples() == first.samples() and second.cells() == first.cells()
    head = second.head
    assert (head["kind"], head["derived_from"], head["exit_code"]) == ("judged", "first", 1)
    assert head["counts"] == head["backends"]["cpu"]["counts"] == {"passed": 3, "inaccurate": 1}
    assert (second.dir / second.rows[3]["log"]).read_text() == "what happened"
    assert [line["event"] for line in second.journal()][-1] == "finished"


def test_tolerances_of_a_file_change_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored_run(tmp_path)
    rules = tmp_path / "t.yaml"
    rules.write_text(
        "tolerances:\n"
        "  - {match: {dtype: bf16, seed: '<2'}, output: y, metric: max_ulp, limit: 0.2, reason: r, date: 2026-01-31}\n"
        "  - {match: {seed: 2}, output: y, metric: max_ulp, limit: 99, reason: r, date: 2026-01-31}\n"
        "  - {match: {seed: 2}, output: y, metric: rel_l2, limit: 1, reason: r, date: 2026-01-31}\n"
        "  - {match: {seed: 2}, output: y, metric: row_l2_max, limit: 1, reason: r, date: 2026-01-31}\n"
        "  - {match: {seed: 2}, output: y, metric: gain_max, limit: 1, reason: r, date: 2026-01-31}\n"
        "  - {match: {seed: 2}, output: y, metric: mismatch_ratio, limit: 1, reason: r, date: 2026-01-31}\n"
    )
    assert judge(store, "--tolerances", str(rules)) == 1
    told = capsys.readouterr().err
    assert "3 cells change status: 2 passed -> inaccurate, 1 inaccurate -> passed" in told
    assert "cell-0: passed -> inaccurate: y: max_ulp is" in told
    second = store.run("second")
    assert [r["status"] for r in second.rows] == ["inaccurate", "passed", "inaccurate", "passed"]
    assert "max_ulp" in (second.dir / second.rows[0]["log"]).read_text()  # every failed cell has a log
    assert len(second.head["tolerances"]) == 6 and second.head["tolerances"][0]["reason"] == "r"


def test_the_runs_own_tolerances_hold_again(tmp_path: Path) -> None:
    rule = {"match": [["seed", "in", [0]]], **LIMIT}
    store = stored_run(tmp_path, matrices=[{"name": "m", "path": "", "sha256": "", "tolerances": [rule]}])
    assert judge(store) == 1
    assert [r["status"] for r in store.run("second").rows] == ["inaccurate", "inaccurate", "passed", "inaccurate"]


def test_an_older_run_without_its_tolerances_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge(stored_run(tmp_path, matrices=[{"name": "m"}]))
    assert "first does not hold its matrices' tolerances" in capsys.readouterr().err


def test_what_cannot_be_judged_ends_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "t.yaml"
    rules.write_text("tolerances: [{output: y, metric: max_rel, limit: 1, reason: r, date: 2026-01-31}]\n")
    store = stored_run(tmp_path, metrics_without="max_rel")  # of a farm that did not measure it
    assert judge(store, "--tolerances", str(rules)) == 3
    assert "lack y.max_rel, which is gated now; run it again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tolerance: []\n", "t.yaml:1: tolerance is no key of a file of tolerances; it has one, tolerances:"),
        ("tolerances: [{output: y}]\n", "has no metric"),
        ("- 1\n", "is no file of tolerances"),
        ("tolerances: [{match: {seed: 9}, output: y, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
         "matches no cell of the run (seed=9); correct it or remove it"),
        ("tolerances: [{match: {sed: 9}, output: y, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
         'did you mean "seed"?'),
        ("tolerances: [{output: z, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
         't.yaml:1: tolerances[0] names what its cells do not have: output is "z"; the outputs are y'),
        ("tolerances: [{output: y, metric: rel_l3, limit: 1, reason: r, date: 2026-01-31}]\n",
         'metric is "rel_l3"; did you mean "rel_l2"?'),
    ],
)  # fmt: skip
def test_a_wrong_file_of_tolerances_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    store = stored_run(tmp_path)
    (tmp_path / "t.yaml").write_text(text)
    assert judge(store, "--tolerances", str(tmp_path / "t.yaml")) == 2
    said = capsys.readouterr().err
    assert told in said and "Traceback" not in said
    assert [r.id for r in store.runs()] == ["first"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InfraError("second: its tables cannot be written (no space left); the run stops here"),
         "farm judge: second: its tables cannot be written (no space left); first is as it was, make room there"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)  # fmt: skip
def test_a_derived_run_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    """A part of it would be the store's last run, with cells that are lost."""
    store = stored_run(tmp_path)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(RunWriter, "finish", fail)
    assert judge(store) == 3
    assert told in capsys.readouterr().err
    assert [r.id for r in store.runs()] == ["first"] and not (tmp_path / "runs" / "second").exists()


def test_a_page_that_cannot_be_written_does_not_hide_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stored_run(tmp_path)
    store.pages.write_text("a file where the folder should be")
    assert main(["judge", "first", "--out", str(tmp_path), "--run-id", "second"]) == 1  # its one finding
    said = capsys.readouterr().err
    assert "the page cannot be written (File exists); every result is stored all the same" in said
    assert f"farm dashboard build second --out {tmp_path} makes the page" in said and "page: " not in said
    assert store.run("second").complete


def test_a_compiled_run_has_nothing_to_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(stored_run(tmp_path, kind="compile")) == 2
    assert "first was compiled, not run" in capsys.readouterr().err


def test_a_run_of_a_newer_farm_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored_run(tmp_path)
    path = store.run("first").dir / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": results.SCHEMA + 1}))
    assert judge(store) == 2
    assert f"written with schema {results.SCHEMA + 1}, this farm judges up to" in capsys.readouterr().err
    assert [r.id for r in store.runs()] == ["first"]
