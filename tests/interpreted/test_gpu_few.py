"""The kernels of few rows, each row divided among programs in two launches, and a backward whose one program has all of
dw: judged by the contract, and the same bits in every call."""

from __future__ import annotations

from typing import Any

import pytest
from judged import Launch, norm_cell, same

from kernels import launches
from kernels.ops.rms_norm.choice import OPERATIONS
from kernels.ops.rms_norm.gpu import choose, launch

FORWARD = {"mode": "multi_wave_reload", "kernel": "forward_parts", "num_warps": 4}
STRIPS = {"mode": "column_tiled", "kernel": "backward_strips", "num_warps": 4}
#: op, operation, rows, hidden, dtype, weight, layout, configuration.  Parts and strips that do not divide the row, more
#: rows than a tile has, no weight, a weight of another dtype, gaps between rows.
CASES: list[tuple[str, str, int, int, str, str, str, dict[str, Any]]] = [
    ("rms_norm", "forward", 1, 300, "bfloat16", "same", "dense", {**FORWARD, "parts": 5}),
    ("fused_add_rms_norm", "forward", 3, 1000, "bfloat16", "float32", "apart", {**FORWARD, "parts": 4}),
    ("rms_norm", "forward", 5, 7, "float32", "none", "apart", {**FORWARD, "parts": 2}),
    ("fused_add_rms_norm", "forward", 2, 256, "float16", "same", "dense", {**FORWARD, "parts": 2}),
    ("rms_norm", "backward", 1, 300, "bfloat16", "same", "dense", {**STRIPS, "block": 128, "rows": 1}),
    ("fused_add_rms_norm", "backward", 7, 200, "bfloat16", "float32", "apart", {**STRIPS, "block": 64, "rows": 4}),
    ("rms_norm", "backward", 4, 256, "float32", "none", "apart", {**STRIPS, "block": 128, "rows": 2}),
    ("fused_add_rms_norm", "backward", 3, 129, "float16", "same", "dense", {**STRIPS, "block": 64, "rows": 1}),
]


def launched(case: tuple[str, str, int, int, str, str, str, dict[str, Any]]) -> Launch:
    op, operation, rows, hidden, dtype, kind, layout, config = case
    choice = choose.build(operation, config, rows, hidden, choose.BYTES[dtype], 8, "interpreter")
    cell = norm_cell(op, choice.mode, operation, dtype, kind, rows, hidden)
    return Launch(cell, choice, launch, layout=layout)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0][:5]}-{c[1]}-{c[2]}x{c[3]}-{c[4]}")
def test_divided_rows_are_right(case: tuple[Any, ...]) -> None:
    """In two launches, none of which is of another kernel, and with the same bits again."""
    subject = launched(case)  # type: ignore[arg-type]
    launches.enable()
    launches.drain()
    made = subject.run()
    names = [found["kernel"] for found in launches.drain()]
    subject.judge(made)
    wanted = {"forward": ["row_squares", "forward_parts"], "backward": ["row_products", "backward_strips"]}
    assert names == wanted[case[1]]
    assert same(made, subject.run())


ONE = [
    {"mode": "static_persistent", "kernel": "backward_rows", "num_warps": 4, "per_core": 1},
    {"mode": "row_packed", "kernel": "backward_rows", "num_warps": 4, "per_core": 1, "rows": 4, "fold": False},
    {"mode": "static_persistent", "kernel": "backward_twice", "num_warps": 4, "per_core": 1, "chunk": 64},
    {"mode": "static_persistent", "kernel": "backward_unaligned", "num_warps": 4, "per_core": 1},
]


@pytest.mark.parametrize("config", ONE, ids=lambda c: f"{c['kernel']}-{c.get('rows', 1)}")
def test_one_program_needs_no_sum_of_partial_sums(config: dict[str, Any]) -> None:
    """It stores dw itself, rounded to the weight's dtype."""
    hidden = 129 if "unaligned" in config["kernel"] else 128
    rows = config.get("rows", 1)
    subject = launched(("rms_norm", "backward", rows, hidden, "bfloat16", "same", "dense", config))
    launches.enable()
    launches.drain()
    made = subject.run()
    assert [found["kernel"] for found in launches.drain()] == [config["kernel"]]
    subject.judge(made)


def test_a_choice_for_other_rows_is_refused() -> None:
    """A grid of other rows would leave some unwritten."""
    assert set(OPERATIONS) == {"forward", "backward"}
    subject = launched(CASES[1])
    subject.choice = choose.build("forward", CASES[1][7], 2, 1000, 2, 8, "interpreter")
    with pytest.raises(ValueError, match="the choice is of 2 rows, x has 3"):
        subject.run()
