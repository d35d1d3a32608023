"""The axis `layout`: laws of placements, what a plan makes of it, and that the cells of before have their keys."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_fakes import BASE, load_text

from farm.accuracy.evaluate import input_key, reference_key
from farm.cell import Cell, cell_key
from farm.contracts import layouts
from farm.contracts.discovery import contract, known_ops
from farm.matrix import plan


def addresses(found: layouts.Placement) -> list[int]:
    places = itertools.product(*(range(n) for n in found.shape))
    return [found.offset + sum(i * s for i, s in zip(at, found.strides)) for at in places]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(layouts.LAYOUTS), rows=st.integers(0, 40), width=st.integers(1, 9), split=st.booleans())
def test_a_placement_gives_each_element_a_place_of_its_own(name: str, rows: int, width: int, split: bool) -> None:
    leading = layouts.leading_of({"x": name, "other": "4d" if split and name not in ("3d",) else "dense"}, rows)
    found = layouts.placement(name, (rows, width), leading)
    assert math.prod(found.shape) == rows * width and found.shape[-1] == width
    assert len(found.shape) == (1 + len(leading) if leading else 2)
    seen = addresses(found)
    assert len(set(seen)) == rows * width
    assert all(found.offset <= a < found.offset + found.span for a in seen)
    if name in ("dense", "3d", "4d"):
        assert seen == list(range(rows * width))
    elif rows > 1 and width > 1 and name != "offset" and not (name == "heads" and len(set(found.shape[1:3])) < 2):
        assert seen != list(range(seen[0], seen[0] + rows * width)) or 1 in found.shape[1:3]


@pytest.mark.parametrize("name", ["strided", "offset"])
def test_what_a_weight_may_have(name: str) -> None:
    found = layouts.placement(name, (5,))
    assert addresses(found) == ([0, 2, 4, 6, 8] if name == "strided" else [1, 2, 3, 4, 5])


@given(rows=st.integers(1, 3000), name=st.sampled_from(list(layouts.LEADING)))
def test_rows_are_split_into_as_many_sizes_as_the_layout_has(rows: int, name: str) -> None:
    sizes = layouts.leading_of({"x": name}, rows)
    assert len(sizes) == layouts.LEADING[name] and math.prod(sizes) == rows
    assert layouts.leading_of({"x": "transposed"}, rows) == layouts.leading_of({}, rows) == ()


def test_twelve_rows_are_split_into_more_than_one_and_one() -> None:
    """What no matrix of two dimensions tells apart shows only where no leading size is 1."""
    assert layouts.leading_of({"x": "3d"}, 12) == (3, 4) and layouts.leading_of({"x": "heads"}, 12) == (2, 2, 3)


def test_a_description_has_layouts_only_where_they_are_not_the_default() -> None:
    x = {"name": "x", "shape": [12, 8], "blocked": True}
    weight = {"name": "weight", "shape": [8], "blocked": False}
    assert layouts.described(dict(x), {}, 12) == x
    assert layouts.described(dict(x), {"dy": "packed"}, 12) == x
    split = {"x": "3d", "weight": "offset"}
    assert layouts.described(dict(x), split, 12) == {**x, "layout": "3d", "leading": [3, 4]}
    assert layouts.described(dict(weight), split, 12) == {**weight, "layout": "offset"}
    assert layouts.described({"name": "y", "shape": [12, 8]}, split, 12)["leading"] == [3, 4]


def test_every_op_declares_layouts_of_tensors_that_it_has() -> None:
    for op in known_ops():
        c = contract(op)
        params = {p.name: p.default for p in c.parameters}
        dims = {d.name: 4 for d in c.dimensions}
        # with what may be left out, but for a scale of one element, which has no layout
        whole = params | {p.name: True for p in c.parameters if p.default is False and p.name != "static"}
        cells = [
            Cell("cpu", op, "torch", "auto", o, dict.fromkeys(c.typed, "float32"), dims, given)
            for o in c.operations
            for given in (params, whole)
        ]
        tensors = {t.name: t for cell in cells for t in c.tensors(cell) if t.role in ("input", "upstream", "mutated")}
        assert set(c.layouts) == set(tensors)
        for name, known in c.layouts.items():
            assert set(known) <= set(layouts.LAYOUTS) - {"dense"}
            flat = len(tensors[name].dims) == 1
            assert not flat or set(known) <= {"strided", "offset"}
            assert tensors[name].blocked or not set(known) & set(layouts.LEADING)


def cells(folder: Path, axis: str, rest: str = "", **how: Any) -> tuple[Cell, ...]:
    text = BASE.replace("axes:\n", f"axes:\n  operation: [forward, backward]\n  layout: {axis}\n") + rest
    return plan(load_text(folder, text), ["cpu"], **how).cells


def test_the_axis_multiplies_and_the_default_is_left_out(tmp_path: Path) -> None:
    found = cells(tmp_path, "[dense, {x: row_strided}, {dx: 3d, x: 3d}]")
    plain = plan(
        load_text(tmp_path, BASE.replace("axes:\n", "axes:\n  operation: [forward, backward]\n")), ["cpu"]
    ).cells
    dense = [c for c in found if not c.layout]
    assert len(found) == 6 and [(c.cell_id, c.cell_key) for c in dense] == [(c.cell_id, c.cell_key) for c in plain]
    assert [dict(c.to_dict(), index=0) for c in dense] == [dict(c.to_dict(), index=0) for c in plain]
    assert not any("layout" in c.to_dict() for c in dense)
    ids = {c.cell_id.split("/llama")[1] for c in found}
    assert ids == {"", "/x_layout=row_strided", "/x_layout=3d/dx_layout=3d"}
    for c in found:
        assert cell_key(c) == c.cell_key and Cell.from_dict(c.to_dict()) == c
    assert len({c.cell_key for c in found}) == 6


def test_a_layout_of_a_tensor_that_the_cell_does_not_have_is_skipped_with_a_reason(tmp_path: Path) -> None:
    found = cells(tmp_path, "{dx: row_strided}")
    assert [bool(c.skip_reason) for c in found] == [True, False] and "dx" in found[0].skip_reason


def test_rules_know_layouts(tmp_path: Path) -> None:
    axis = "[dense, {x: row_strided}, {x: 3d}]"
    found = cells(tmp_path, axis, "exclude:\n  - {x_layout: [row_strided, 3d], operation: backward, reason: why}\n")
    assert [c.layout.get("x") for c in found if c.skip_reason] == ["row_strided", "3d"]
    picked = [c.layout.get("x", "dense") for c in cells(tmp_path, axis, select="x_layout=!=dense,operation=forward")]
    assert picked == ["row_strided", "3d"]
    assert [c.layout.get("x", "dense") for c in cells(tmp_path, axis, select="x_layout=dense")] == ["dense", "dense"]


def test_a_layout_is_in_no_key_of_an_input_or_reference() -> None:
    op = contract("rms_norm")
    params = {p.name: p.default for p in op.parameters}
    cell = Cell(
        "cpu",
        "rms_norm",
        "torch",
        "auto",
        "backward",
        dict.fromkeys(op.typed, "float32"),
        {"rows": 4, "hidden": 8},
        params,
    )
    other = replace(cell, layout={"x": "heads", "dy": "strided"}, cell_key="")
    assert other.cell_key != cell.cell_key
    assert input_key(cell, op) == input_key(other, op) and reference_key(cell, op) == reference_key(other, op)
