"""Parameters that a provider declares: they are planned, are part of the key, and cannot be set by a matrix."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from matrix_fakes import WORLD, check, load_text, refusal, sentence

from farm.accuracy.evaluate import input_key
from farm.cell import Cell, cell_key
from farm.contracts.base import CellLike, Contract, Dimension, Parameter, Tensor
from farm.contracts.call import call_for
from farm.errors import UsageError
from farm.matrix import ProviderInfo, json_schema, plan


class Sum(Contract):
    op = "sum"
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (
        Parameter("eps", float, 1e-6, low=0.0, positional=True),
        Parameter("kind", str, "rounded", allowed=("rounded", "unrounded"), declared=True),
        Parameter("offset", float, 0.0),
    )
    typed = ("x",)

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x."""
        return (Tensor("x", cell.dtypes["x"], tuple(cell.dims.values()), "input"),)


SUM = Sum()
SUMS: dict[str, Any] = {
    **WORLD,
    "contracts": {"sum": SUM}.__getitem__,
    "ops": ("sum",),
    "registry": {
        "farm": ProviderInfo("farm", "subject", ("auto", "fast"), ("sum",)),
        "precise": ProviderInfo("precise", "peer", ("auto",), ("sum",), {"sum": {"kind": "unrounded"}}),
        "torch": ProviderInfo("torch", "peer", ("auto",), ("sum",), {"other": {"kind": "unrounded"}}),
    },
}
TEXT = """\
name: m
op: sum
axes:
  shape: [{rows: 8, hidden: [64, 65]}]
  offset: [0.0, 1.0]
providers: {farm: {mode: [auto, fast]}, precise: {}, torch: {}}
"""


def planned(folder: Path, text: str = TEXT, select: str | None = None) -> tuple[Cell, ...]:
    return plan(load_text(folder, text, **SUMS), ["cuda"], select=select).cells


def test_a_provider_is_planned_with_what_it_declares_of_this_op(tmp_path: Path) -> None:
    cells = planned(tmp_path)
    assert len(cells) == 2 * 2 * 4
    for cell in cells:
        assert cell.params["kind"] == ("unrounded" if cell.provider == "precise" else "rounded")
        assert list(cell.params) == ["eps", "kind", "offset"]


def test_it_is_in_the_key_and_the_id_leaves_it_to_the_name(tmp_path: Path) -> None:
    cells = planned(tmp_path)
    assert all(cell.cell_key == cell_key(cell) for cell in cells)
    for cell in cells:
        assert "kind" not in cell.cell_id and "rounded" not in cell.cell_id
        other = Cell(**{**cell.__dict__, "params": {**cell.params, "kind": "?"}, "cell_key": ""})
        assert other.cell_key != cell.cell_key
    assert "cuda/sum/precise/auto/forward/fp32/8x64/offset=1.0" in {c.cell_id for c in cells}


def test_inputs_are_shared_whatever_is_declared(tmp_path: Path) -> None:
    assert len({input_key(c, SUM) for c in planned(tmp_path)}) == 2  # one for each shape


def test_a_provider_is_never_passed_it(tmp_path: Path) -> None:
    for cell in planned(tmp_path):
        call = call_for(cell, SUM, {"name": cell.provider})
        assert call["positional"] == [1e-6] and not {"kind"} & {*call["keywords"], *call["optional"]}


@pytest.mark.parametrize(
    "change", [("offset: [0.0, 1.0]", "kind: unrounded"), ("offset: [0.0, 1.0]", "variant: [{kind: unrounded}]")]
)
def test_a_matrix_that_sets_it_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    message = refusal(tmp_path, TEXT.replace(*change), **SUMS)
    check(message, "matrix-declared-parameter", "m.yaml:5: axes.", "kind", "DECLARES")


def test_an_editor_is_not_offered_it() -> None:
    schema = json_schema(**{k: SUMS[k] for k in ("contracts", "ops", "registry", "backends")})
    axes = {"shape": [{"rows": 1, "hidden": 1}]}
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"name": "m", "op": "sum", "providers": ["farm"], "axes": axes})
    assert not valid({"name": "m", "op": "sum", "providers": ["farm"], "axes": {**axes, "kind": "rounded"}})


def test_rules_and_selections_may_name_it(tmp_path: Path) -> None:
    rule = "exclude:\n  - {kind: unrounded, hidden: 65, reason: why}\n"
    cells = planned(tmp_path, TEXT + rule)
    skipped = {(c.provider, c.shape) for c in cells if c.skip_reason}
    assert skipped == {("precise", "8x65")}
    assert {c.provider for c in planned(tmp_path, select="kind=rounded")} == {"farm", "torch"}
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, select="kind=round")
    check(sentence(caught.value), "matrix-rule-value", "--select kind=round: kind ", '"rounded"')
    nobody = TEXT.replace("precise: {}, ", "") + rule
    assert refusal(tmp_path, nobody, **SUMS).id == "matrix-rule-matches-nothing"


def test_a_plan_with_it_is_the_same_every_time(tmp_path: Path) -> None:
    texts = {plan(load_text(tmp_path, TEXT, **SUMS), ["cuda", "cpu"]).to_json() for _ in range(2)}
    assert len({hashlib.sha256(t.encode()).hexdigest() for t in texts}) == 1
