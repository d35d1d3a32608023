"""Which script a simulated cell plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.cell import Cell
from farm.matrix import load, plan
from farm.matrix.sim_script import script_for

CELL = Cell(
    backend="sim",
    op="rms_norm",
    provider="torch",
    mode="auto",
    operation="backward",
    dtypes={"x": "bfloat16", "weight": "float32"},
    dims={"rows": 4, "hidden": 4096},
    params={"eps": 1e-6, "casting": "gemma", "weight": True},
    family="mixed",
)


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


@pytest.mark.parametrize(
    "when",
    [
        "dtype: bf16",
        'dtype: "!=fp32"',
        "x_dtype: bf16",
        "weight_dtype: float32",
        'weight_dtype: "!=fp32"',
        "timing: host",
        'timing: "!=host"',
        "timing: [events, host]",
        "tag: a",
        'tag: "!=a"',
        "tag: [b, c]",
        "eps: 1e-6",
        'eps: "!=1e-6"',
        'eps: ">1e-7"',
        'offset: "!=0"',
        "offset: 1",
        'hidden: "!=064"',
        'hidden: " >64"',
        'hidden: ">=64.5"',
        "weight: true",
        'weight: "!=false"',
        "casting: [gemma, none]",
        "provider: torch",
        "op: rms_norm",
        "backend: sim",
        'backend: "!=cpu"',
        "mode: auto",
        "operation: backward",
        "seed: 1",
        'seed: "<1"',
        "family: mixed",
        "rows: 3, dtype: bf16",
        'rows: "!=4", hidden: 65',
    ],
)
def test_a_rule_means_what_it_means_in_exclude(tmp_path: Path, when: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "name: m\nop: rms_norm\n"
        "axes:\n  shape: [{rows: 3, hidden: [64, 65], tag: a+b}, {rows: 4, hidden: 64, tag: c}]\n"
        "  dtype: [bfloat16, {x: bfloat16, weight: float32}]\n  operation: [forward, backward]\n"
        "  variant: [{eps: 1e-6, offset: 0}, {eps: 1e-5, offset: 1, casting: gemma}]\n  seed: [0, 1]\n"
        "providers: [farm, torch]\ntiming: [{method: host}, {method: events}]\n"
        f"exclude: [{{{when}, reason: r}}]\nsim: {{rules: [{{when: {{{when}}}, exit: 3}}]}}\n"
    )
    matrix = load(path)
    cells = plan([matrix], ["sim"]).cells
    excluded = [bool(cell.skip_reason) for cell in cells]
    assert [bool(script_for(matrix.sim, cell)) for cell in cells] == excluded
    assert len(cells) == 192 and any(excluded)
