"""The wrong kernels that friendly inputs cannot tell from right ones are `inaccurate` in shipped matrices."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import mutant_suite as suite
import pytest
import torch
import wrong_unfriendly as wrong

from farm.cell import Cell

CPU = torch.device("cpu")
MATRICES = Path(__file__).resolve().parents[2] / "matrices"
EVERY: Mapping[str, wrong.Function] = {**wrong.RMS, **wrong.FUSED}
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


@pytest.fixture(scope="module")
def unfriendly() -> Found:
    found = outcomes(wrong.RMS, cells("unfriendly", "rms_norm"))
    return {**found, **outcomes(wrong.FUSED, cells("unfriendly", "fused_add_rms_norm"))}


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_kernel_is_inaccurate(name: str, unfriendly: Found) -> None:
    assert [o.status for o in unfriendly[name]["caught"]] == ["inaccurate"]


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
def test_the_same_code_without_a_mutation_passes_everywhere(op: str) -> None:
    right: wrong.Function = wrong.right if op == "rms_norm" else wrong.right_fused
    found = outcomes({"right": right}, cells("unfriendly", op), until_caught=False)["right"]
    assert [f"{o.cell.cell_id}: {o.reason}" for o in found["caught"]] == [] and len(found["passed"]) > 15


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
