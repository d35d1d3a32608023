"""A cell's tensors as a child is told of them: `{"name", "dtype", "shape", "role", "of", ...}`.  Pure.

Whoever has the values of a given tensor adds `file`, by which a child knows that there are some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.contracts import layouts
from farm.contracts.base import Contract
from farm.contracts.dtypes import PACKED


def described(cell: Cell, contract: Contract) -> list[dict[str, Any]]:
    """Every tensor of the cell, in the contract's order; each absent optional input too, without a shape, so that it is
    passed as None."""
    out = []
    for t in evaluate.tensors_of(cell, contract):
        dtype = "uint8" if t.dtype in PACKED else t.dtype  # a child is given bytes
        plan: dict[str, Any] = {"name": t.name, "dtype": dtype, "shape": list(t.stored_dims)}
        plan |= {"role": t.role, "of": t.of}
        plan["may_overwrite"] = t.may_overwrite
        plan["blocked"] = t.blocked and contract.rows_independent
        out.append(layouts.described(plan, cell.layout, evaluate.row_count(cell)))
    return _with_absent(cell, contract, out)


def _with_absent(cell: Cell, contract: Contract, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    absent = {p.name: p.nullifies for p in contract.parameters if p.nullifies and cell.params.get(p.name) is False}
    whole = replace(cell, params={**cell.params, **dict.fromkeys(absent, True)})
    out = list(tensors)
    for place, t in enumerate(evaluate.tensors_of(whole, contract)):
        if t.name in absent.values():
            out.insert(place, {"name": t.name, "dtype": t.dtype, "shape": [], "role": "input", "of": None})
    return out
