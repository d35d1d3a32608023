"""Where a cell's outputs are wrong: a second look, block by block, at those that exceed a tolerance.

An output that a contract judges itself may have several right answers: of such a one only what is not finite is
reported, and of integers what is more than 1 off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm.accuracy import lines, places
from farm.accuracy.dtypes import decode, finite_mask, is_float
from farm.accuracy.inputs import KINDS, UPSTREAM_KINDS, Family
from farm.accuracy.place_words import singular
from farm.accuracy.tolerances import ratio
from farm.cell import Cell
from farm.contracts.base import Contract, Tensor

Array = Any  # numpy.ndarray
Limits = Mapping[str, Mapping[str, float]]


def refused(metrics: Limits, gates: Limits) -> list[str]:
    """The outputs that exceed a tolerance, the worst first."""
    worst = {
        name: max((ratio(metrics.get(name, {}).get(m), x) for m, x in of.items()), default=0.0)
        for name, of in gates.items()
    }
    return sorted((name for name, r in worst.items() if r > 1), key=lambda name: -worst[name])


def find(
    work: Any,
    outputs: Mapping[str, Array],
    part: Callable[[Any], Mapping[str, Array]],
    totals: Callable[[], Mapping[str, Array]],
    metrics: Limits,
    gates: Limits,
    map: Callable[..., Iterable[Any]],
) -> dict[str, Any]:
    """Output -> its report (`places.finish`), of those that exceed a tolerance and have a wrong element.

    `work`: how the cell is cut into pieces (farm.accuracy.prepare).  `part(rows)`: the reference of a piece's blocked
    outputs; `totals()`: of the others.
    """
    out = {}
    for name in refused(metrics, gates):
        tensor: Tensor = work.tensors[name]
        limits = _limits(tensor, metrics.get(name, {}), gates[name])
        if limits is None:
            continue
        compared = work.sample if tensor.blocked else None
        marks = None
        if not tensor.blocked:
            found = totals()
            marks = _of_total(tensor, outputs[name], found, limits)
        elif work.sample is not None and metrics[name].get("nonfinite", 0) > 0:
            compared = None  # that it is finite was looked at everywhere
            marks = _merged(map(lambda rows: _not_finite(tensor, outputs[name], rows), work.everything), tensor)
        else:
            for loosely in (False, True):
                marks = _merged(
                    map(lambda rows: _of_rows(tensor, outputs[name], part(rows), rows, limits, loosely), work.compared),
                    tensor,
                )
                if marks.count:
                    break
        if marks is not None and marks.count:
            names = axis_names(work.cell, work.contract, tensor)
            kinds = row_kinds(work.cell, work.contract) if tensor.blocked and work.contract.rows_independent else {}
            out[name] = places.finish(marks, tensor.dtype, names=names, kinds=kinds, compared=compared)
    return out


def _limits(tensor: Tensor, metrics: Mapping[str, float], gates: Mapping[str, float]) -> Mapping[str, float] | None:
    """What decides whether an element is wrong; None where no element says."""
    if "max_ulp" in metrics:
        return gates
    if not is_float(tensor.dtype):
        return {"max_abs": 1.0}
    return {} if metrics.get("nonfinite", 0) > gates.get("nonfinite", 0) else None


def _merged(marks: Iterable[places.Marks], tensor: Tensor) -> places.Marks:
    total = places.Marks(tuple(tensor.dims))
    for some in marks:
        total = total.merge(some)
    return total


def _of_rows(
    tensor: Tensor, output: Array, reference: Mapping[str, Array], rows: Any, limits: Mapping[str, float], loosely: bool
) -> places.Marks:
    stored = np.asarray(output[rows.index])
    if not stored.size:
        return places.Marks(tuple(tensor.dims))
    stored = stored.reshape(len(stored), -1)
    want = np.asarray(reference[tensor.name], np.float64).reshape(stored.shape)
    scale = reference.get(f"{tensor.name}.scale2")
    wrong = places.wrong_elements(
        stored,
        want,
        tensor.dtype,
        limits,
        squared_scale=None if scale is None else scale.reshape(len(stored), -1),
        spread=reference.get(f"{tensor.name}.spread"),
        loosely=loosely and bool(limits),
        line=tensor.dims[-1] if len(tensor.dims) > 2 else 0,
    )
    wrong |= _of_lines(tensor, np.asarray(output[rows.index]), reference, limits).reshape(wrong.shape)
    return places.mark(wrong, stored, want, tensor.dtype, tensor.dims, rows.numbers)


def _of_lines(tensor: Tensor, stored: Array, reference: Mapping[str, Array], limits: Mapping[str, float]) -> Array:
    """Which elements differ in lines that exceed `line_max`, bool like the output."""
    found = lines.of(tensor, stored, reference) if "line_max" in limits else None
    if found is None:
        return np.zeros(stored.shape, bool)
    off = found.reshape(stored.shape[:-1]) > limits["line_max"]
    differs = np.zeros(stored.shape, bool)
    differs[off] = decode(stored[off], tensor.dtype) != reference[tensor.name][off]
    return differs


def _of_total(
    tensor: Tensor, output: Array, reference: Mapping[str, Array], limits: Mapping[str, float]
) -> places.Marks:
    """The marks of an output without the row dimension, whose first axis stands for rows."""
    stored = np.asarray(output)
    if not stored.size:
        return places.Marks(tuple(tensor.dims))
    flat, want = stored.reshape(1, -1), np.asarray(reference[tensor.name], np.float64).reshape(1, -1)
    scale = reference.get(f"{tensor.name}.scale2")
    in_lines = _of_lines(tensor, stored, reference, limits).reshape(1, -1)
    squared = None if scale is None else np.broadcast_to(scale, tensor.dims).reshape(1, -1)
    for loosely in (False, True):
        wrong = places.wrong_elements(
            flat, want, tensor.dtype, limits, squared_scale=squared, loosely=loosely and bool(limits)
        )
        wrong |= in_lines
        if wrong.any():
            break
    high = tensor.dims[0] if tensor.dims else 1
    shaped = (high, -1)
    return places.mark(
        wrong.reshape(shaped), stored.reshape(shaped), want.reshape(shaped), tensor.dtype, tensor.dims, np.arange(high)
    )


def _not_finite(tensor: Tensor, output: Array, rows: Any) -> places.Marks:
    stored = np.asarray(output[rows.index])
    stored = stored.reshape(len(stored), -1)
    return places.mark(~finite_mask(stored, tensor.dtype), stored, None, tensor.dtype, tensor.dims, rows.numbers)


def row_kinds(cell: Cell, contract: Contract) -> dict[str, Array]:
    """Kind of row -> the numbers of the rows that the cell's input family makes such; {} where it has one kind."""
    family = contract.own_families.get(cell.family, cell.family)
    rows = next(iter(cell.dims.values()))
    index = np.arange(rows)
    if family == "upstream":
        kind = np.where(index == rows - 1, UPSTREAM_KINDS.index("unit"), index % len(UPSTREAM_KINDS))
        return {name: np.flatnonzero(kind == k) for k, name in enumerate(UPSTREAM_KINDS)}
    kind = Family(family, cell.seed).kinds(index, rows)
    return {name: np.flatnonzero(kind == k) for k, name in enumerate(KINDS)} if len(np.unique(kind)) > 1 else {}


def axis_names(cell: Cell, contract: Contract, tensor: Tensor) -> Sequence[str]:
    """What one index of each axis is called: `row` and `column` of a matrix, else the contract's dimension that the
    axis grows with, in the singular."""
    if len(tensor.dims) == 2 and tensor.blocked:
        return ["row", "column"]
    if len(tensor.dims) == 1:
        return ["row" if tensor.blocked else "column"]
    found = [f"index of axis {axis}" for axis in range(len(tensor.dims))]
    taken = set()
    for dimension, size in cell.dims.items():
        try:
            grown = contract.tensors(replace(cell, dims={**cell.dims, dimension: 2 * size}))
        except Exception:  # a contract may refuse such a size: then the axis keeps its number
            continue
        dims = next((t.dims for t in grown if t.name == tensor.name), ())
        if len(dims) == len(tensor.dims):
            for axis, (before, after) in enumerate(zip(tensor.dims, dims)):
                if after != before and axis not in taken:
                    found[axis] = singular(dimension)
                    taken.add(axis)
    return found
