"""What a contract can say beyond one rounded result: several right answers, given bits, roundings on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from farm.accuracy import contract_check, contract_score, evaluate  # noqa: E402
from farm.accuracy.dtypes import decode, encode  # noqa: E402
from farm.contracts import Spec, bits, discovery, from_torch, round_to, wide  # noqa: E402
from farm.contracts.dtypes import FLOATS, PACKED  # noqa: E402
from farm.errors import ContractError  # noqa: E402
from tests.pure.outside_contracts import known, write  # noqa: E402
from tests.pure.planted_contracts import cell_of as planted_cell  # noqa: E402
from tests.pure.torch_contracts import cell_of, evaluated_here  # noqa: E402


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with evaluated_here():
        yield


def named(op: str, *given: Any, **how: Any) -> Any:
    contract = from_torch(*given, **how)
    contract.op = op
    return contract


# several right answers


def largest(x: Any) -> Any:
    return x.argmax(-1)


def any_largest(found: Any, inputs: Any) -> Any:
    x = inputs["x"]
    return np.take_along_axis(x, found[:, None], axis=1)[:, 0] == x.max(axis=1)


def order(keys: Any) -> Any:
    return keys.argsort(dim=-1)


def any_order(found: Any, inputs: Any) -> Any:
    """A permutation of each row's columns along which the keys do not fall."""
    keys = np.take_along_axis(inputs["keys"], found, axis=1)
    once = np.sort(found, axis=1) == np.arange(found.shape[1])
    return once & (np.diff(keys, axis=1, prepend=keys[:, :1]) >= 0)


def ties(rows: str = "rows") -> Any:
    return named(
        "largest",
        largest,
        inputs={"x": "rows columns"},
        outputs={"index": Spec("rows", dtype="int64")},
        rows=rows,
        families={"equal": {"x": 1.0}},
        right={"index": any_largest},
    )


@pytest.mark.parametrize("rows", ["rows", ""])
def test_every_tie_of_an_argmax_is_right_and_nothing_else(rows: str) -> None:
    contract = ties(rows)
    cell = cell_of(contract, rows=50, columns=8, family="equal")
    inputs = evaluate.fill_inputs(cell, contract)
    for index in (0, 7):
        found = evaluate.evaluate(cell, contract, {"index": np.full(50, index)}, inputs, rows_per_block=7)
        assert found.ok and found.metrics["index"]["wrong"] == 0
    assert not evaluate.evaluate(cell, contract, {"index": np.full(50, 8)}, inputs).ok, "leads out of the row"
    cell = cell_of(contract, rows=50, columns=8, family="normal")
    inputs = evaluate.fill_inputs(cell, contract)
    right = inputs["x"].argmax(1)
    assert evaluate.evaluate(cell, contract, {"index": right}, inputs).ok
    found = evaluate.evaluate(cell, contract, {"index": (right + (np.arange(50) == 20)) % 8}, inputs)
    assert not found.ok and found.metrics["index"]["wrong"] == 1


def test_any_permutation_of_equal_keys_is_right() -> None:
    contract = named(
        "order",
        order,
        inputs={"keys": "rows columns"},
        outputs={"index": Spec("rows columns", dtype="int64")},
        rows="rows",
        families={"equal": {"keys": 1.0}},
        right={"index": any_order},
    )
    cell = cell_of(contract, rows=3, columns=6, family="equal")
    inputs = evaluate.fill_inputs(cell, contract)
    places = np.tile(np.arange(6), (3, 1))
    for index in (places, places[:, ::-1], np.roll(places, 2, axis=1)):
        assert evaluate.evaluate(cell, contract, {"index": np.ascontiguousarray(index)}, inputs).ok
    assert not evaluate.evaluate(cell, contract, {"index": np.zeros((3, 6), np.int64)}, inputs).ok, "no permutation"


def test_the_check_plants_faults_in_an_op_of_several_answers() -> None:
    contract = ties()
    assert contract_check.problem(contract, "largest") == ""
    score = contract_score.score(contract)
    assert not score.accused and score.share >= 0.95, score.escaped


def test_a_wrong_right_is_refused() -> None:
    with pytest.raises(ContractError, match="right has y"):
        from_torch(largest, inputs={"x": "rows n"}, outputs={"i": Spec("rows", "int64")}, right={"y": any_largest})
    contract = named(
        "l",
        largest,
        inputs={"x": "rows n"},
        outputs={"i": Spec("rows", "int64")},
        rows="rows",
        right={"i": lambda found, inputs: found.sum() > 0},
    )
    assert "give one answer for each element" in contract_check.problem(contract, "l")


# random ops, by given bits


def dropout(x: Any, drawn: Any, p: float = 0.25) -> Any:
    return torch.where(drawn >= p * 2**31, x / (1 - p), torch.zeros_like(x))


def test_a_random_op_is_determined_by_the_bits_that_it_is_given() -> None:
    contract = named(
        "dropout",
        dropout,
        inputs={"x": "rows columns", "drawn": bits("rows columns")},
        outputs={"y": "rows columns"},
        rows="rows",
        allowed={"p": (0.0, 0.25, 0.5)},
        dtypes=("float32",),
        check_sizes={"rows": 8},
    )
    assert contract.gradients == ("x",)
    assert contract_check.problem(contract, "dropout") == ""
    score = contract_score.score(contract, ["normal"])
    assert not score.accused and score.share == 1.0, score.escaped
    cell = cell_of(contract, "forward", rows=64, columns=64)
    drawn = evaluate.fill_inputs(cell, contract)["drawn"]
    assert drawn.dtype == np.int32 and drawn.min() >= 0 and abs((drawn >= 2**29).mean() - 0.75) < 0.03


# roundings on the way


@pytest.mark.parametrize("dtype", sorted(set(FLOATS) - set(PACKED)))
def test_round_to_is_the_rounding_of_the_farm(dtype: str) -> None:
    drawn = np.random.default_rng(0)
    values = drawn.standard_normal(4000) * np.exp2(drawn.integers(-30, 30, 4000))
    values = np.concatenate([values, [0.0, -0.0, 1.0, 448.0, 464.0, 480.0, 65504.0, 65520.0, np.inf, -np.inf, np.nan]])
    assert np.array_equal(round_to(values, dtype), decode(encode(values, dtype), dtype), equal_nan=True)


def test_round_to_rounds_to_floats_only() -> None:
    with pytest.raises(ContractError, match="int8 is none"):
        round_to(np.ones(1), "int8")


def test_wide_computes_in_float32_and_leaves_the_reference_alone() -> None:
    assert wide(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert wide(torch.ones(1, dtype=torch.float64)).dtype == torch.float64


def square(x: Any) -> Any:
    return wide(x).square().to(x.dtype)


def test_a_gradient_that_is_rounded_twice_passes_where_that_is_declared() -> None:
    sizes = {"rows": 64, "columns": 256}
    outcome = []
    for roundings in ({}, {"dx": 2}):
        contract = named(
            "square",
            square,
            inputs={"x": Spec("rows columns", kind="normal")},
            outputs={"y": "rows columns"},
            rows="rows",
            roundings=roundings,
        )
        cell = cell_of(contract, "backward", "bfloat16", **sizes)
        inputs = evaluate.fill_inputs(cell, contract)
        x, dy = (decode(inputs[n], "bfloat16") for n in ("x", "dy"))
        twice = encode(round_to(2 * x, "bfloat16") * dy, "bfloat16")
        thrice = encode(round_to(round_to(0.3 * x, "bfloat16") / 0.15, "bfloat16") * dy, "bfloat16")
        scaled = encode(2.02 * x * dy, "bfloat16")
        verdicts = [evaluate.evaluate(cell, contract, {"dx": a}, inputs).ok for a in (twice, thrice, scaled)]
        outcome.append(verdicts)
    assert outcome == [[True, False, False], [True, True, False]]
    with pytest.raises(ContractError, match="roundings has dz"):
        from_torch(square, inputs={"x": "rows n"}, outputs={"y": "rows n"}, roundings={"dz": 2})


# a tensor that is overwritten, beside gradients

RUNNING = """
operations = ("forward", "full")

def tensors(self, cell):
    t, d = self.shape(cell), cell.dtypes["x"]
    out = [Tensor("x", d, t, "input"), Tensor("state", "float32", t, "mutated"), Tensor("y", d, t, "output")]
    if cell.operation == "full":
        out += [Tensor("dy", d, t, "upstream"), Tensor("dx", d, t, "gradient", of=OF)]
    return tuple(out)

def inputs(self, cell, family, block):
    columns = cell.dims["columns"]
    made = {"x": self.x(cell, family, block), "state": family.normal("state", block, columns, "float32")}
    if cell.operation == "full":
        made["dy"] = family.upstream("dy", block, columns, cell.dtypes["x"], total=cell.dims["rows"])
    return made

def reference(self, inputs, cell, block):
    x, state = (inputs[n].astype(np.float64) for n in ("x", "state"))
    found = {"y": x * state, "state": state + x}
    return found | ({"dx": inputs["dy"] * state} if cell.operation == "full" else {})

def gates(self, cell):
    return {t.name: {"max_ulp": 1.0} for t in self.tensors(cell) if t.role in ("output", "gradient", "mutated")}
"""


def test_an_overwritten_state_is_judged_beside_gradients(tmp_path: Path) -> None:
    with known(write(tmp_path, "running", RUNNING, 'OF = "x"')):
        contract = discovery.contract("running")
        assert contract_check.problem(contract, "running") == ""
        score = contract_score.score(contract, ["normal"])
        assert not score.accused
        found = {plant.where for _, plant in score.found}
        assert {"y", "dx", "state"} <= found and not score.escaped, score.escaped


@pytest.mark.parametrize(
    ("body", "of", "says"),
    [
        (RUNNING, "state", "is mutated and has a gradient"),
        (RUNNING.replace("full", "backward"), "x", "is mutated in backward"),
    ],
)
def test_what_autograd_cannot_write_to_is_refused(tmp_path: Path, body: str, of: str, says: str) -> None:
    with known(write(tmp_path, "running", body, f'OF = "{of}"')):
        assert says in contract_check.problem(discovery.contract("running"), "running")


# a judge of a reduction

EXTREMES = '''
def tensors(self, cell):
    one = Tensor("found", "float32", (2,), "output", blocked=False)
    return (Tensor("x", cell.dtypes["x"], self.shape(cell), "input"), one)

def reference(self, inputs, cell, block):
    """Sum and sum of magnitudes of this block; the farm adds those of all blocks."""
    x = inputs["x"].astype(np.float64)
    return {"found": np.array([x.sum(), (x**2).sum()]), "found.size": np.array([np.abs(x).sum(), (x**2).sum()])}

def judge(self, cell, outputs, reference, block):
    if "found" not in outputs:
        return None
    off = np.abs(outputs["found"] - reference["found"]) / np.maximum(reference["found.size"], 1e-30)
    return {"found": {"of_the_terms": float(off.max())}}

def gates(self, cell):
    return {"found": {"of_the_terms": 1e-5}}
'''


def test_a_judge_of_a_reduction_sees_the_sums_of_all_blocks(tmp_path: Path) -> None:
    with known(write(tmp_path, "extremes", EXTREMES)):
        contract = discovery.contract("extremes")
        assert contract_check.problem(contract, "extremes") == ""
        cell = planted_cell("extremes")
        inputs = evaluate.fill_inputs(cell, contract)
        x = inputs["x"].astype(np.float64)
        right = np.array([x.sum(), (x**2).sum()])
        for rows in (1, 3, None):
            assert evaluate.evaluate(cell, contract, {"found": right.astype("f4")}, inputs, rows_per_block=rows).ok
        found = evaluate.evaluate(cell, contract, {"found": (right * 1.0001).astype("f4")}, inputs, rows_per_block=2)
        assert not found.ok and found.worst_metric == "of_the_terms"
        assert not contract_score.score(contract, ["normal"]).accused
