"""The contracts of the examples find at least 95 % of the planted faults, and reject no correct result."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside_contracts import known
from torch_contracts import evaluated_here

from farm.accuracy import contract_check, contract_score
from farm.contracts import discovery

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "liger" / "contracts"
OPS = sorted(file.parent.name for file in FOLDER.glob("*/contract.py"))


@pytest.mark.parametrize("op", [pytest.param(op, marks=pytest.mark.soak(seconds=3)) for op in OPS])
def test_the_contract_of_an_example_finds_what_is_planted(op: str) -> None:
    with evaluated_here(), known(FOLDER):
        contract = discovery.contract(op)
        assert contract_check.problem(contract, op) == ""
        score = contract_score.score(contract)
    assert score.accused == ()
    assert score.share >= 0.95, [f"{dtype}: {plant}" for dtype, plant in score.escaped]
