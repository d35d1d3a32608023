"""Which script a simulated cell plays."""

from __future__ import annotations

from typing import Any

import pytest

from farm.cell import Cell
from farm.simulation import script_for, value_of

CELL = Cell(
    backend="sim", op="rms_norm", provider="torch", mode="auto", operation="backward",
    dtypes={"x": "bfloat16", "weight": "float32"}, dims={"rows": 4, "hidden": 4096},
    params={"eps": 1e-6, "casting": "gemma", "weight": True}, family="mixed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"hidden": 4096}, True),
        ({"hidden": 4097}, False),
        ({"hidden": ">4095"}, True),
        ({"hidden": ">4096"}, False),
        ({"hidden": ">=4096"}, True),
        ({"hidden": "< 4096"}, False),
        ({"hidden": "<=4096"}, True),
        ({"hidden": [1, ">4000"]}, True),
        ({"hidden": [1, 2]}, False),
        ({"dtype": "bf16"}, True),
        ({"dtype": "bfloat16"}, True),
        ({"dtype": ["fp32", "fp16"]}, False),
        ({"provider": "torch", "operation": "backward"}, True),
        ({"provider": "torch", "operation": "forward"}, False),
        ({"casting": "gemma"}, True),
        ({"rows": 4, "family": "mixed", "mode": "auto"}, True),
        ({"nonsense": 1}, False),
        ({"hidden": "!=4096"}, False),
        ({"hidden": "!=4097"}, True),
        ({"dtype": "!= bf16"}, False),
        ({"dtype": "!=fp32"}, True),
        ({"weight": "!=true"}, False),
    ],
)
def test_rules(when: dict[str, Any], holds: bool) -> None:
    script = script_for({"rules": [{"when": when, "exit": 3}]}, CELL)
    assert script == ({"exit": 3} if holds else {})


def test_rules_add_up_later_over_earlier_and_the_section_stays_as_it_is() -> None:
    section = {
        "default": {"time_us": 10, "noise": 0.1},
        "rules": [
            {"when": {"rows": 4}, "time_us": 20, "error": 0.5},
            {"time_us": 30},
            {"when": {"rows": 5}, "exit": 1},
        ],
    }
    before = repr(section)
    assert script_for(section, CELL) == {"time_us": 30, "noise": 0.1, "error": 0.5}
    assert repr(section) == before
    assert script_for({}, CELL) == {}


def test_values_by_the_names_of_a_matrix() -> None:
    assert [value_of(CELL, k) for k in ("hidden", "eps", "dtype", "op", "nothing")] == [
        4096, 1e-6, "bfloat16", "rms_norm", None
    ]  # fmt: skip
