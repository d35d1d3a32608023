"""The wrong kernels that friendly inputs cannot tell from right ones are `inaccurate` in shipped matrices."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import mutant_suite as suite
import pytest
import torch
import wrong_unfriendly as wrong

from farm.cell import Cell
from farm.child import reference
from farm.contracts.torch_contract import evaluate_with

CPU = torch.device("cpu")
MATRICES = Path(__file__).resolve().parents[2] / "matrices"
EVERY: Mapping[str, wrong.Function] = {**wrong.RMS, **wrong.FUSED, **wrong.LAYER}
Found = dict[str, dict[str, list[suite.Outcome]]]


def cells(name: str, op: str) -> list[Cell]:
    """The cells of a shipped matrix that a provider without modes has; a tensor's values are the same for all."""
    found = [c for c in suite.planned("cpu", MATRICES / f"{name}.yaml") if c.provider == "torch" and c.op == op]
    random.Random(0).shuffle(found)  # neighbours are alike, and what one does not see the next one does not either
    return found


def outcomes(functions: Mapping[str, wrong.Function], some: Iterable[Cell], until_caught: bool = True) -> Found:
    """Of each function, under `caught` and `passed`, in its op's cells."""
    found: Found = {name: defaultdict(list) for name in functions}
    for cell in some:
        asked = [n for n in functions if not (until_caught and found[n]["caught"])]
        if not asked:
            return found
        trial = suite.Trial(cell, CPU)
        for name in asked:
            outcome = trial.judge(name, trial.call(functions[name]))
            found[name]["caught" if outcome.caught else "passed"].append(outcome)
    return found


@pytest.fixture(scope="module", autouse=True)
def references() -> Iterator[None]:
    evaluate_with(reference.evaluate)
    yield
    evaluate_with(None)


@pytest.fixture(scope="module")
def unfriendly() -> Found:
    found = outcomes(wrong.RMS, cells("unfriendly", "rms_norm"))
    found |= outcomes(wrong.LAYER, cells("unfriendly", "layer_norm"))
    return {**found, **outcomes(wrong.FUSED, cells("unfriendly", "fused_add_rms_norm"))}


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_kernel_is_inaccurate(name: str, unfriendly: Found) -> None:
    assert [o.status for o in unfriendly[name]["caught"]] == ["inaccurate"]


RIGHT: Mapping[str, wrong.Function] = {
    "rms_norm": wrong.right,
    "fused_add_rms_norm": wrong.right_fused,
    "layer_norm": wrong.right_layer,
}


@pytest.mark.parametrize("op", RIGHT)
def test_the_same_code_without_a_mutation_passes_everywhere(op: str) -> None:
    right = RIGHT[op]
    found = outcomes({"right": right}, cells("unfriendly", op), until_caught=False)["right"]
    assert [f"{o.cell.cell_id}: {o.reason}" for o in found["caught"]] == [] and len(found["passed"]) >= 12


def test_layer_norms_of_pytorch_pass_where_the_mean_is_far_from_zero() -> None:
    right = {"torch": torch.nn.functional.layer_norm}
    function = lambda x, w, b, eps=1e-5: right["torch"](x, x.shape[-1:], w, b, eps)  # noqa: E731
    found = outcomes({"torch": function}, cells("unfriendly", "layer_norm"), until_caught=False)["torch"]
    assert [f"{o.cell.cell_id}: {o.reason}" for o in found["caught"]] == [] and len(found["passed"]) >= 12


def test_rows_around_zero_hide_padding_that_counts() -> None:
    """In 16-bit dtypes: without the family `shifted` the kernel would pass, and with it the sentence says why it
    fails."""
    (cell, *_) = [c for c in cells("unfriendly", "layer_norm") if (c.dtype, c.operation) == ("bfloat16", "forward")]
    plain = replace(cell, family="mixed", dims={"rows": 37, "hidden": 1000})
    wrongly = {"padding_counts": wrong.padding_counts}
    assert outcomes(wrongly, [plain])["padding_counts"]["caught"] == []
    (caught,) = outcomes(wrongly, [cell])["padding_counts"]["caught"]
    assert "each row scaled by about a factor of its own, 0." in caught.reason
    assert "pulled toward a value of each column's own (as a bias is)" in caught.reason


def test_the_first_six_are_inaccurate_in_the_smoke_run() -> None:
    """And only in its newer cells: rows of dense matrices and weights around 1 tell none of them from a right one."""
    six = {name: wrong.RMS[name] for name in wrong.FIRST}
    every = cells("smoke", "rms_norm")
    newer = [c for c in every if c.family == "signed"]
    found = outcomes(six, newer)
    assert [name for name in six if not found[name]["caught"]] == [] and newer
    older = [c for c in every if c.family != "signed" and c.dims["rows"] < 17 and c.dtype == "bfloat16"]
    assert [name for name, o in outcomes(six, older[:4]).items() if o["caught"]] == []


def test_there_are_twenty_and_each_says_what_is_wrong() -> None:
    assert len(EVERY) >= 20 and set(wrong.FIRST) <= set(EVERY)
