"""What a process that calls a provider is told of a cell's tensors.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.contracts import layouts, view
from farm.contracts.base import Contract
from farm.contracts.dtypes import PACKED


def plans_of(cell: Cell, op: Contract, file: Callable[[str], str]) -> list[dict[str, Any]]:
    """The plan of each tensor in the contract's order: name, dtype, shape, role, layout; of what is given, its
    `file`."""
    tensors = []
    for t in evaluate.tensors_of(cell, op):
        dtype = "uint8" if t.dtype in PACKED else t.dtype  # a child is given bytes
        plan: dict[str, Any] = {
            "name": t.name,
            "dtype": dtype,
            "shape": list(t.stored_dims),
            "role": t.role,
            "of": t.of,
        }
        plan["may_overwrite"] = t.may_overwrite
        plan["blocked"] = t.blocked and op.rows_independent
        if t.role in view.GIVEN:
            plan["file"] = file(t.name)
        tensors.append(layouts.described(plan, cell.layout, evaluate.row_count(cell)))
    return with_absent(cell, op, tensors)


def with_absent(cell: Cell, op: Contract, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`tensors` with an entry without a file for each absent optional input, so that it is passed as None."""
    out = list(tensors)
    absent = {p.name: p.nullifies for p in op.parameters if p.nullifies and cell.params.get(p.name) is False}
    whole = replace(cell, params={**cell.params, **dict.fromkeys(absent, True)})
    for place, t in enumerate(evaluate.tensors_of(whole, op)):  # in the contract's order
        if t.name in absent.values():
            out.insert(place, {"name": t.name, "dtype": t.dtype, "shape": [], "role": "input", "of": None})
    return out
