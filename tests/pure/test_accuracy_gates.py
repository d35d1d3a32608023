"""The verdict from stored numbers, and how limits are resolved."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.accuracy.tolerances import WORST, ratio, resolve, verdict
from farm.cell import Cell
from farm.contracts.ops.rms_norm.contract import CONTRACT

GATES = {"y": {"nonfinite": 0.0, "max_ulp": 2.0, "rel_l2": 1e-3}}
GOOD = {"y": {"nonfinite": 0, "max_ulp": 1.0, "rel_l2": 9e-4, "max_rel": 1e9}}


def cell(**params: object) -> Cell:
    defaults = {p.name: p.default for p in CONTRACT.parameters}
    return Cell(
        "cpu",
        "rms_norm",
        "farm",
        "auto",
        "full",
        {"x": "bfloat16", "weight": "bfloat16"},
        {"rows": 64, "hidden": 1024},
        {**defaults, **params},
    )


def test_all_within_their_gates() -> None:
    found = verdict(GOOD, GATES)
    assert found.ok and (found.worst_output, found.worst_metric) == ("y", "rel_l2")
    assert found.worst_ratio == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [("max_ulp", 2.5, 1.25), ("rel_l2", 2e-3, 2.0), ("nonfinite", 1, WORST), ("rel_l2", math.nan, WORST)],
)
def test_each_gate_can_fail(metric: str, value: float, expected: float) -> None:
    found = verdict({"y": {**GOOD["y"], metric: value}}, GATES)
    assert not found.ok and found.worst_metric == metric and found.worst_ratio == pytest.approx(expected)


def test_a_gate_without_its_metric_or_output_fails() -> None:
    assert not verdict({"y": {"nonfinite": 0, "max_ulp": 1.0}}, GATES).ok
    assert not verdict({}, GATES).ok
    assert not verdict({"y": {**GOOD["y"], "rel_l2": None}}, GATES).ok  # type: ignore[dict-item]


def test_a_value_at_its_limit_passes() -> None:
    assert verdict({"y": {**GOOD["y"], "max_ulp": 2.0}}, GATES).ok


def test_the_worst_of_several_outputs() -> None:
    found = verdict({**GOOD, "dx": {"max_ulp": 9.0}}, {**GATES, "dx": {"max_ulp": 3.0}})
    assert not found.ok and found.worst_output == "dx" and found.worst_ratio == 3.0


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_a_ratio_is_always_a_number_and_never_flatters(value: float, limit: float) -> None:
    found = ratio(value, limit)
    assert 0 <= found <= WORST
    if not value <= limit and not value <= 0:
        assert found > 1 or found == pytest.approx(1)


def test_gates_are_complete_and_json() -> None:
    gates = resolve(cell(), CONTRACT)
    assert set(gates) == {"y", "dx", "dw"}
    assert all(g["nonfinite"] == 0 and "max_ulp" in g and "rel_l2" in g for g in gates.values())
    assert json.loads(json.dumps(gates)) == gates


def test_overrides_apply_where_they_say() -> None:
    rule = {"output": "*", "metric": "max_ulp", "limit": 500, "reason": "rsqrt of the 910B"}
    assert resolve(cell(), CONTRACT, [rule])["dx"]["max_ulp"] == 500
    changed = resolve(cell(), CONTRACT, [rule, {**rule, "output": "y", "limit": 7}])
    assert changed["y"]["max_ulp"] == 7 and changed["dx"]["max_ulp"] == 500  # the later one wins
    assert resolve(cell(), CONTRACT, [{**rule, "output": "z"}]) == resolve(cell(), CONTRACT)


def test_castings_choose_gates() -> None:
    llama, gemma, none = (resolve(cell(casting=c), CONTRACT) for c in ("llama", "gemma", "none"))
    assert llama == none and gemma["y"]["max_ulp"] == 1 < llama["y"]["max_ulp"]
    assert "mismatch_ratio" in llama["y"] and "mismatch_ratio" not in llama["dx"]
