"""Outputs whose bytes were judged before, in the same question, are not judged again; all others are."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.contracts.discovery import contract
from farm.judge import once
from farm.judge.judge import Judge
from farm.judge.once import JudgedOnce, key_of

OP = contract("rms_norm")
PARAMETERS = {p.name: p.default for p in OP.parameters}
CELL = replace(
    Cell(
        *("cuda", "rms_norm", "farm", "auto", "forward"),
        dict.fromkeys(("x", "weight"), "float32"),
        {"rows": 4, "hidden": 64},
        PARAMETERS,
    ),
    index=3,
    cell_id="cuda/rms_norm/farm/auto/forward/fp32/4x64/llama",
)
TIGHT = [{"output": "y", "metric": "max_ulp", "limit": 1e-6}]


class Asked:
    """A judge whose comparisons are counted; outputs by name are right, one unit off, or wrong."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.judge, self.folder, self.compared = Judge(str(folder / "spool"), 1, str(folder / "cache")), folder, 0
        stock = evaluate.evaluate

        def counted(*args: Any, **more: Any) -> Any:
            self.compared += 1
            return stock(*args, **more)

        monkeypatch.setattr(evaluate, "evaluate", counted)
        right = OP.reference(self.judge._inputs(CELL).arrays, CELL, (0, 4))["y"].astype(np.float32)
        self.outputs = {"right": right, "near": right.copy(), "wrong": right * np.float32(1.1)}
        self.outputs["near"][1, 7] = np.nextafter(right[1, 7], np.float32(9))

    def __call__(self, name: str = "right", cell: Cell = CELL, shape: tuple[int, int] = (4, 64), **more: Any) -> Any:
        """(whether it was compared, the verdict)."""
        path = self.folder / f"{name}.bin"
        self.outputs[name].tofile(path)
        before = self.compared
        outputs = [{"name": "y", "dtype": "float32", "shape": list(shape), "path": str(path)}]
        found = self.judge.judge({"cell": cell.to_dict(), "outputs": outputs, **more})
        return self.compared > before, found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    one = Asked(tmp_path, monkeypatch)
    yield one
    one.judge.clean()


def test_the_same_bytes_are_judged_once_and_have_all_their_numbers(asked: Asked) -> None:
    compared, first = asked()
    assert compared and first["status"] == "passed" and first["judged_as"] == ""
    for other in (
        CELL,  # a second attempt
        replace(CELL, index=4, arm="b"),
        replace(CELL, index=5, mode="static_persistent"),
        replace(CELL, index=6, provider="torch", role="peer"),
    ):
        compared, again = asked(cell=other)
        assert not compared
        assert again == {**first, "judged_as": CELL.cell_id}


def test_whatever_differs_is_judged_afresh(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = asked()
    compared, near = asked("near")  # the hash of other bytes
    assert compared and near["status"] == "passed" and near["output_hash"] != first["output_hash"]
    compared, strict = asked(tolerances=TIGHT)
    assert compared and strict["status"] == "inaccurate" and strict["gates"] != first["gates"]
    compared, other = asked(cell=replace(CELL, seed=1))  # other inputs: these outputs are wrong there
    assert compared and other["status"] == "inaccurate"
    assert asked(cell=replace(CELL, params={**PARAMETERS, "casting": "gemma"}))[0]
    assert asked(shape=(64, 4))[1]["status"] == "inaccurate"  # the same bytes in another shape
    monkeypatch.setattr(asked.judge, "digest", "of another judge")
    assert asked()[0]


def test_a_failure_is_looked_at_again_and_findings_still_count(asked: Asked) -> None:
    for _ in range(2):
        compared, found = asked("wrong")
        assert compared and found["status"] == "inaccurate" and found["places"]
    asked()
    found = asked(flags=["patched time.perf_counter"])[1]
    assert found["status"] == "inaccurate"
    assert asked()[1]["status"] == "passed"  # and what was made of a verdict did not change the record
    found = asked(timed_outputs=[{"name": "y", "dtype": "float32", "shape": [4, 64], "path": str(asked.folder / "no")}])
    assert found[1]["status"] != "passed"
    assert asked()[1]["status"] == "passed"


def test_a_poisoned_answer_is_nobody_elses(asked: Asked) -> None:
    """Whoever gets a verdict may change it; the record is the judge's own, in memory that no path leads to."""
    _, first = asked()
    whole = copy.deepcopy(first)
    first["metrics"]["y"]["max_ulp"] = 0.0
    first.update(status="inaccurate")
    _, again = asked()
    again["gates"].clear()
    _, third = asked()
    assert third["judged_as"] == CELL.cell_id
    third["judged_as"] = ""
    assert third == whole
    assert not [path for path in asked.folder.rglob("*") if "once" in path.name or "judged" in path.name]


def test_each_part_of_the_question_is_in_the_key() -> None:
    """Every field of a cell but those that no verdict depends on, and everything beside the cell."""
    layout = [{"name": "y", "dtype": "float32", "shape": [4, 64], "path": "/anywhere"}]
    given = {"judge": "j", "cell": CELL, "op": OP, "tolerances": (), "layout": layout, "inputs": "i", "outputs": "o"}
    first = key_of(**given)
    assert key_of(**{**given, "layout": [{**layout[0], "path": "/elsewhere"}]}) == first
    for name, value in (
        ("judge", "k"),
        ("tolerances", TIGHT),
        ("layout", [{**layout[0], "name": "z"}]),
        ("layout", [{**layout[0], "dtype": "bfloat16"}]),
        ("inputs", "h"),
        ("outputs", "p"),
    ):
        assert key_of(**{**given, name: value}) != first, name
    fields = set(CELL.to_dict()) - set(once._BESIDE) - set(once._WHOSE)
    changed = {
        "backend": "rocm",
        "op": "rms_norm",
        "operation": "backward",
        "family": "outlier",
        "seed": 9,
        "dims": {"rows": 4, "hidden": 65},
        "dtypes": {"x": "float32", "weight": "bfloat16"},
        "params": {**PARAMETERS, "eps": 1e-3},
        "contract_version": 99,
        "contract_content": "other",
    }
    seen = {first}
    for name in fields & changed.keys() - {"op"}:
        seen.add(key_of(**{**given, "cell": replace(CELL, **{name: changed[name]})}))
    assert len(seen) == 1 + len(fields & changed.keys() - {"op"})
    assert {"backend", "operation", "dims", "dtypes", "params", "family", "seed"} <= fields


def test_a_contract_from_outside_may_look_at_whose_outputs_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "reference_key", lambda cell, op: "r")
    ours, theirs = (SimpleNamespace(content=content, version=1) for content in ("", "a1b2"))
    keys = {
        (op.content, mode): key_of("j", replace(CELL, mode=mode), op, (), (), "i", "o")  # type: ignore[arg-type]
        for op in (ours, theirs)
        for mode in ("auto", "row_packed")
    }
    assert keys["", "auto"] == keys["", "row_packed"] and len(set(keys.values())) == 3
    changed = SimpleNamespace(content="a1b3", version=1)  # the contract was edited
    assert key_of("j", CELL, changed, (), (), "i", "o") not in keys.values()  # type: ignore[arg-type]


def test_little_is_kept_and_the_longest_unused_goes_first() -> None:
    known = JudgedOnce(most=2)
    for name in "ab":
        known.keep(name, name, {"status": "passed"})
    assert known.get("a") == {"status": "passed", "judged_as": "a"}
    known.keep("c", "c", {"status": "passed"})
    known.keep("d", "d", {"status": "inaccurate"})
    assert [known.get(name) is not None for name in "abcd"] == [True, False, True, False]


def test_every_field_of_a_cell_is_known_here() -> None:
    """A new field of a cell is in the key, unless somebody decides that no verdict depends on it."""
    fields = {field.name for field in dataclasses.fields(Cell)} | set(CELL.to_dict())
    assert set(once._BESIDE) | set(once._WHOSE) <= fields
