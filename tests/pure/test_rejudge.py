"""Verdicts again from stored metrics: the same by stored gates, another by other gates, and nothing made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_accuracy_evaluate import cell, inputs_of, right_outputs

from farm.accuracy import tolerances
from farm.accuracy.dtypes import decode, encode
from farm.accuracy.evaluate import evaluate
from farm.cell import Cell, Owner, Status
from farm.cli.main import main
from farm.contracts.discovery import contract
from farm.errors import InfraError, id_of
from farm.judge.digest import judging_digest
from farm.judge.rejudge import judge_again, judge_run, tally
from farm.store import RunWriter, Store, results

LIMIT = {"output": "y", "metric": "max_ulp", "limit": 0.2, "reason": "why", "date": "2026-01-31"}


def judged(c: Cell, scale: float = 1.0, tolerances: Any = ()) -> dict[str, Any]:
    """The row of a cell whose y is the right one times `scale`, as a run stores it."""
    outputs = right_outputs(c)
    outputs["y"] = encode(decode(outputs["y"], c.dtype) * scale, c.dtype)
    found = evaluate(c, contract(c.op), outputs, inputs_of(c), tolerances=tolerances)
    names = ("reason", "metrics", "gates", "worst_output", "worst_metric", "worst_ratio", "places")
    return results.finish_row(
        c,
        status=Status.PASSED if found.ok else Status.INACCURATE,
        reason=found.reason,
        owner="" if found.ok else "kernel",
        attempt=1,
        evidence="interpreted",
        origin={"device": "cpu:0", "log": ""},
        judged={**{name: getattr(found, name) for name in names}, "judged_by": judging_digest()},
    )


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
    assert tolerances.verdict(json.loads(row["metrics"]), json.loads(row["gates"])).ok == (scale == 1)


def test_another_gate_gives_another_verdict_and_says_why() -> None:
    c = a_cell()
    new = judge_again(judged(c), c, contract(c.op), [LIMIT])
    assert (new["status"], new["fault_owner"], new["worst_metric"]) == ("inaccurate", Owner.KERNEL.value, "max_ulp")
    assert all(fact in new["reason"] for fact in ("y: ", "max_ulp", "0.2")) and new["worst_ratio"] > 1
    assert json.loads(new["gates"])["y"]["max_ulp"] == 0.2
    back = judge_again(new, c, contract(c.op), [])
    assert (back["status"], back["reason"], back["fault_owner"]) == ("passed", "", "")


def test_a_row_names_what_gave_its_verdict() -> None:
    c = a_cell()
    old = {**judged(c), "judged_by": "of-the-run"}
    assert judge_again(old, c, contract(c.op), [])["judged_by"] == judging_digest()
    crashed = {**old, "status": "crashed", "metrics": "{}"}
    assert judge_again(crashed, c, contract(c.op), [])["judged_by"] == "of-the-run"  # nothing judged it again
    assert judge_again(old, c, None, [])["judged_by"] == ""  # it has no verdict any more


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
    older = Cell.from_dict({**c.to_dict(), "contract_version": 99})
    forged = {**judged(c, 1.02), "status": "passed", "reason": ""}
    undecided = {
        "rejudge-metric-missing": (judge_again(row, c, contract(c.op), [{**LIMIT, "metric": "rel_l3"}]), "y.rel_l3"),
        "rejudge-contract-version": (judge_again(row, older, contract(c.op), []), "99"),
        "rejudge-op-unknown": (judge_again(row, c, None, []), "rms_norm"),
        "rejudge-contradiction": (judge_again(forged, c, contract(c.op), []), "y: "),
    }
    for id, (changed, fact) in undecided.items():
        assert id_of(changed["reason"]) == id and fact in changed["reason"]
        assert (changed["status"], changed["fault_owner"]) == ("infra_error", "harness")


def test_changes_are_listed_and_counted() -> None:
    cells = [a_cell(0), a_cell(1, "float32"), a_cell(2, seed=1)]
    rows = [judged(c) for c in cells]
    new, changes = judge_run(rows, cells, contract, lambda c: [LIMIT] if c.dtype == "bfloat16" else [])
    assert [r["status"] for r in new] == ["inaccurate", "passed", "inaccurate"]
    assert [(c.cell_id, c.before, c.after) for c in changes] == [
        ("cell-0", "passed", "inaccurate"),
        ("cell-2", "passed", "inaccurate"),
    ]
    assert tally(changes) == ["2 passed -> inaccurate"]


def test_metrics_of_two_calls_are_those_of_the_worse() -> None:
    one = {"y": {"max_ulp": 3.0, "rel_l2": 0.1, "worst_row": 5, "count": 9}}
    two = {"y": {"max_ulp": 1.0, "rel_l2": 0.2, "worst_row": 7, "count": 9}}
    both = {"y": {"max_ulp": 3.0, "rel_l2": 0.2, "worst_row": 5, "count": 9}}
    assert tolerances.worse(one, two) == tolerances.worse(two, one) == both
    broken = tolerances.worse({"y": {"max_ulp": np.nan}}, one)
    assert np.isnan(broken["y"]["max_ulp"]) and np.isnan(
        tolerances.worse(one, {"y": {"max_ulp": np.nan}})["y"]["max_ulp"]
    )


# through the command


def stored_run(folder: Path, metrics_without: str = "", **head: Any) -> Store:
    """A store with one complete run `first`: three cells that passed, one of a wrong kernel."""
    store = Store(folder)
    cells = [a_cell(0), a_cell(1, "float32"), a_cell(2, seed=1), a_cell(3, seed=2)]
    rows = [judged(c, 1.02 if c.index == 3 else 1.0) for c in cells]
    for row in rows:
        metrics = json.loads(row["metrics"])
        row["metrics"] = json.dumps(
            {o: {m: v for m, v in of.items() if m != metrics_without} for o, of in metrics.items()}
        )
    writer = store.create("first")
    writer.plan({"matrices": [{"name": "m", "path": "m.yaml", "sha256": "0", "tolerances": []}]}, cells)
    rows[3]["log"] = writer.log("3", "what happened")
    for row in rows:
        writer.append({"event": "result", "row": row})
    samples = [{"cell_id": "cell-0", "method": "events", "samples_us": "[1.0]"}]
    whole = {
        "matrices": [{"name": "m", "path": "m.yaml", "sha256": "0", "tolerances": []}],
        "argv": ["run"],
        "backends": {"cpu": {"devices": [], "counts": {}}},
        "verdict": "findings",
        "exit_code": 1,
        **head,
    }
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
    assert " -> " not in capsys.readouterr().err
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
    printed = capsys.readouterr().err
    assert "3 cells" in printed and "2 passed -> inaccurate, 1 inaccurate -> passed" in printed
    assert "cell-0: passed -> inaccurate: y: max_ulp " in printed
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
    assert "[judge-tolerances-not-stored]" in capsys.readouterr().err


def test_what_cannot_be_judged_ends_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "t.yaml"
    rules.write_text("tolerances: [{output: y, metric: max_rel, limit: 1, reason: r, date: 2026-01-31}]\n")
    store = stored_run(tmp_path, metrics_without="max_rel")  # of a farm that did not measure it
    assert judge(store, "--tolerances", str(rules)) == 3
    assert "passed -> infra_error" in (printed := capsys.readouterr().err) and "y.max_rel" in printed


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("tolerance: []\n", ("t.yaml:1: ", "tolerances")),
        ("tolerances: [{output: y}]\n", ("metric",)),
        ("- 1\n", ("t.yaml",)),
        (
            "tolerances: [{match: {seed: 9}, output: y, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
            ("seed=9",),
        ),
        (
            "tolerances: [{match: {sed: 9}, output: y, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
            ('"seed"',),
        ),
        (
            "tolerances: [{output: z, metric: max_ulp, limit: 1, reason: r, date: 2026-01-31}]\n",
            ("t.yaml:1: ", "tolerances[0]", '"z"', "y"),
        ),
        (
            "tolerances: [{output: y, metric: rel_l3, limit: 1, reason: r, date: 2026-01-31}]\n",
            ('"rel_l3"', '"rel_l2"'),
        ),
    ],
)
def test_a_wrong_file_of_tolerances_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, facts: tuple[str, ...]
) -> None:
    store = stored_run(tmp_path)
    (tmp_path / "t.yaml").write_text(text)
    assert judge(store, "--tolerances", str(tmp_path / "t.yaml")) == 2
    said = capsys.readouterr().err
    assert all(fact in said for fact in facts) and "Traceback" not in said
    assert [r.id for r in store.runs()] == ["first"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (InfraError("second: its tables cannot be written (no space left); the run stops here"), "[judge-unwritable]"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_derived_run_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    shown: str,
) -> None:
    """A part of it would be the store's last run, with cells that are lost."""
    store = stored_run(tmp_path)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(RunWriter, "finish", fail)
    assert judge(store) == 3
    printed = capsys.readouterr().err
    assert shown in printed and ("no space left" in printed) == isinstance(error, InfraError)
    assert [r.id for r in store.runs()] == ["first"] and not (tmp_path / "runs" / "second").exists()


def test_a_page_that_cannot_be_written_does_not_hide_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stored_run(tmp_path)
    store.pages.write_text("a file where the folder should be")
    assert main(["judge", "first", "--out", str(tmp_path), "--run-id", "second"]) == 1  # its one finding
    said = capsys.readouterr().err
    assert "(File exists)" in said and said.endswith(" [page-unwritable]\n")
    assert f"farm dashboard build second --out {tmp_path}" in said and "\npage: " not in said
    assert store.run("second").complete


def test_a_compiled_run_has_nothing_to_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(stored_run(tmp_path, kind="compile")) == 2
    assert "[judge-run-compiled]" in capsys.readouterr().err


def test_a_run_of_a_newer_farm_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored_run(tmp_path)
    path = store.run("first").dir / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": results.SCHEMA + 1}))
    assert judge(store) == 2
    printed = capsys.readouterr().err
    assert "[run-schema-newer]" in printed and all(str(n) in printed for n in (results.SCHEMA, results.SCHEMA + 1))
    assert [r.id for r in store.runs()] == ["first"]
