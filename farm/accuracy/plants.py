"""Faults planted in a contract's reference, by a fixed list: what a contract's inputs and tolerances must find.  Pure.

Each plant makes, from the correct float64 outputs and the inputs, the outputs that a kernel with that fault would give.
A plant in an input evaluates the reference with that input changed.  The names are stable: scores are compared by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.accuracy import low_precision
from farm.accuracy.dtypes import PRECISION, encode, is_float
from farm.accuracy.inputs import hashes
from farm.cell import Cell
from farm.contracts.base import Contract, Parameter, Tensor

Array = Any  # numpy.ndarray
Arrays = Mapping[str, Array]
#: (cell, values of the inputs) -> the reference's arrays
Reference = Callable[[Cell, Arrays], dict[str, Array]]

#: Of an output: name -> what becomes of its values.
OUTPUT: Mapping[str, str] = {
    "last row": "the last row is not computed (zeros)",
    "last column": "the last column is not computed (zeros)",
    "last head": "the last entry of a middle dimension is not computed (zeros)",
    "last line": "the last entry of the last dimension but one is not computed (zeros): the last key of each head",
    "one line": "one vector along the last dimension is not computed (zeros): one key of one head",
    "scale 1.005": "every value is 0.5 % too large",
    "shifted column": "every value stands one column too far",
    "sign": "every sign is turned",
    "abs": "the absolute value",
    "clamp": "values are clamped to half of the largest",
    "unwritten element": "one element is not written (zero)",
}
#: Of an input: name -> how the kernel reads it.
INPUT: Mapping[str, str] = {
    "ignored": "read as zeros",
    "last row": "its last row is read as zeros",
    "last column": "its last column is read as zeros",
    "shifted column": "read one column too far",
    "strides": "read as if its dimensions lay in the other order",
    "sign": "its sign is lost",
    "clamp": "clamped to half of its largest value",
}


#: Differences take two evaluations a column.
MOST_COLUMNS = 128


@dataclass(frozen=True)
class Plant:
    """One fault: in which tensor or parameter, and its name in the lists."""

    where: str
    name: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}"


@dataclass(frozen=True)
class Case:
    """One cell with its inputs (decoded) and the correct reference."""

    cell: Cell
    contract: Contract
    tensors: tuple[Tensor, ...]
    values: Arrays
    correct: Arrays
    reference: Reference

    @property
    def judged(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role in ("output", "gradient", "mutated")]

    @property
    def given(self) -> list[Tensor]:
        return [t for t in self.tensors if t.role == "input"]


def planted(case: Case) -> Iterator[tuple[Plant, Callable[[], dict[str, Array] | None]]]:
    """Every plant of a case, with what makes its outputs: all judged tensors by name, or None where the fault cannot be
    in such a tensor."""
    for t in case.judged:
        for name in OUTPUT:
            yield Plant(t.name, name), lambda t=t, name=name: _in_output(case, t, name)  # type: ignore[misc]
    for t in case.given:
        for name in INPUT:
            yield Plant(t.name, name), lambda t=t, name=name: _in_input(case, t, name)  # type: ignore[misc]
    for p in case.contract.parameters:
        yield from _in_parameter(case, p)
    gradients = [t for t in case.judged if t.role == "gradient"]
    for t in gradients:
        for up in (u for u in case.tensors if u.role == "upstream"):
            yield (
                Plant(t.name, f"without the term of {up.name}"),
                lambda t=t, up=up: _only(case, t, _again(case, {up.name: np.zeros_like(case.values[up.name])})),  # type: ignore[misc]
            )
        yield Plant(t.name, "without terms across columns"), lambda t=t: _without_cross(case, t)  # type: ignore[misc]
    for name, outputs in _own(case).items():
        yield Plant("own", name), lambda outputs=outputs: {**_outputs(case, case.correct), **outputs}  # type: ignore[misc]
    yield Plant("every output", "cached answer"), lambda: _cached(case)
    yield Plant("every output", "accumulated in the storage dtype"), lambda: _accumulated(case)


def _own(case: Case) -> Mapping[str, Arrays]:
    """The faults that the contract itself knows."""
    with np.errstate(all="ignore"):
        return case.contract.faults(case.values, case.cell, case.correct)


def _again(case: Case, changed: Arrays) -> dict[str, Array]:
    return case.reference(case.cell, {**case.values, **changed})


def _outputs(case: Case, found: Arrays) -> dict[str, Array]:
    return {t.name: found[t.name] for t in case.judged}


def _only(case: Case, t: Tensor, found: Arrays) -> dict[str, Array]:
    """The correct outputs, but one as found."""
    return {**_outputs(case, case.correct), t.name: found[t.name]}


def _in_output(case: Case, t: Tensor, name: str) -> dict[str, Array] | None:
    value = np.array(case.correct[t.name], dtype=np.float64 if is_float(t.dtype) else None)
    changed = _changed(value, name, case.cell)
    return None if changed is None else _only(case, t, {t.name: changed})


def _changed(value: Array, name: str, cell: Cell) -> Array | None:
    if value.ndim == 0 or not value.size:
        return None
    out = value.copy()
    finite = value[np.isfinite(value)]
    largest = np.abs(finite).max(initial=0)
    if name == "last row":
        out[-1] = 0
    elif name == "last column":
        if value.ndim < 2:
            return None
        out[..., -1] = 0
    elif name == "last head":
        if value.ndim < 3:
            return None
        out[:, -1] = 0
    elif name == "last line":
        if value.ndim < 3:
            return None
        out[..., -1, :] = 0
    elif name == "one line":
        if value.ndim < 3:
            return None
        lines = out.reshape(-1, value.shape[-1])
        lines[int(hashes("line", cell.seed, np.arange(1))[0] % np.uint64(len(lines)))] = 0
    elif name == "scale 1.005":
        if not np.issubdtype(value.dtype, np.floating):
            return None
        out *= 1.005
    elif name == "shifted column":
        out = np.roll(out, 1, axis=-1)
    elif name == "sign":
        out = -out
    elif name == "abs":
        out = np.abs(out)
    elif name == "clamp":
        half = largest / 2 if np.issubdtype(value.dtype, np.floating) else largest // 2
        out = np.clip(out, -half, half)
    elif name == "unwritten element":
        place = int(hashes("unwritten", cell.seed, np.arange(1))[0] % np.uint64(max(1, value.size)))
        flat = out.reshape(-1)
        nonzero = np.flatnonzero(flat)
        if not nonzero.size:
            return out
        flat[nonzero[place % nonzero.size]] = 0
    return out


def _in_input(case: Case, t: Tensor, name: str) -> dict[str, Array] | None:
    value = np.array(case.values[t.name])
    out = value.copy()
    floats = is_float(t.dtype)
    if value.ndim == 0 or not value.size:
        return None
    if name == "ignored":
        out[...] = 0
    elif name == "last row":
        if value.ndim < 2:
            return None
        out[-1] = 0
    elif name == "last column":
        out[..., -1] = 0
    elif name == "shifted column":
        out = np.roll(out, 1, axis=-1)
    elif name == "strides":
        if value.ndim < 2:
            return None
        out = np.ascontiguousarray(np.swapaxes(out, -1, -2)).reshape(out.shape)
    elif name == "sign":
        if not floats:
            return None
        out = np.abs(out)
    elif name == "clamp":
        if not floats:
            return None
        half = np.abs(value[np.isfinite(value)]).max(initial=0) / 2
        out = np.clip(out, -half, half)
    return _outputs(case, _again(case, {t.name: out}))


def others(p: Parameter) -> list[Any]:
    """Values of a parameter other than its default, within its bounds."""
    if p.allowed is not None:
        return [v for v in p.allowed if v != p.default]
    if p.type is bool:
        return [not p.default]
    if p.type not in (int, float):
        return []
    value: Any = p.default + 1 if p.type is int or not p.default else p.default * 1000
    inside = (p.low is None or value >= p.low) and (p.high is None or value <= p.high)
    return [p.type(value)] if inside else []


def counts(p: Parameter) -> bool:
    """Whether a parameter changes the result, so that ignoring it is a fault."""
    return p.semantic and p.changes_result and not p.nullifies and not p.declared


def _in_parameter(case: Case, p: Parameter) -> Iterator[tuple[Plant, Callable[[], dict[str, Array] | None]]]:
    if not counts(p):
        return
    used = case.cell.params[p.name]

    def with_value(value: Any) -> dict[str, Array]:
        cell = replace(case.cell, params={**case.cell.params, p.name: value}, cell_key="")
        return _outputs(case, case.reference(cell, case.values))

    if used != p.default:
        yield Plant(p.name, "ignored"), lambda: with_value(p.default)
    if p.type is float and 0 < p.default < 1e-2 and used == p.default:
        yield Plant(p.name, "missing"), lambda: with_value(0.0)


def _without_cross(case: Case, t: Tensor) -> dict[str, Array] | None:
    """A gradient of which only the share of the output's own element is left: what a kernel gives that takes the row's
    statistics for constants.  By central differences, a column at a time; small cells alone."""
    x = np.asarray(case.values.get(t.of or "", np.zeros(0)), dtype=np.float64)
    alike = [
        u for u in case.tensors if u.role == "upstream" and tuple(case.values[u.name].shape) == x.shape and x.ndim == 2
    ]
    outputs = {u.name: u.name[1:] for u in alike}
    if not t.blocked or not alike or x.shape[1] > MOST_COLUMNS:
        return None
    forward = replace(case.cell, operation="forward", cell_key="")
    total = np.zeros_like(x)
    size = np.maximum(np.abs(x).max(axis=1, keepdims=True), 1e-30) * 1e-4
    for column in range(x.shape[1]):
        step = np.zeros_like(x)
        step[:, column] = size[:, 0]
        ahead, behind = (case.reference(forward, {**case.values, str(t.of): x + sign * step}) for sign in (1.0, -1.0))
        for up, name in outputs.items():
            if name in ahead:
                slope = (ahead[name][:, column] - behind[name][:, column]) / (2 * size[:, 0])
                total[:, column] += slope * case.values[up][:, column]
    want = case.correct[t.name]
    near = np.abs(total - want) <= 1e-5 * np.abs(want).max(initial=0)  # differences are not exact
    return _only(case, t, {t.name: np.where(near, want, total)})


def _cached(case: Case) -> dict[str, Array]:
    """The answer to other values: the rows of each input moved on by one."""
    moved = {
        t.name: np.roll(case.values[t.name], 1, axis=0 if case.values[t.name].ndim > 1 else -1)
        for t in case.tensors
        if t.role in ("input", "upstream", "mutated") and case.values[t.name].ndim
    }
    return _outputs(case, _again(case, moved))


def accumulated(case: Case, dtype: str) -> dict[str, Array]:
    """The outputs where every operation of the reference, each step of a sum too, is rounded to `dtype`."""
    return low_precision.evaluated(case.reference, case.cell, case.values, dtype, [t.name for t in case.judged])


def _accumulated(case: Case) -> dict[str, Array] | None:
    """In the storage dtype; not of float32, in which to accumulate is right, nor of a PyTorch function, whose
    arithmetic is not ours to change."""
    dtype = case.cell.dtype
    if case.contract.needs_torch or not is_float(dtype) or PRECISION[dtype] >= PRECISION["float32"]:
        return None
    found = accumulated(case, dtype)
    alike = all(
        np.array_equal(_bits(found[t.name], t.dtype), _bits(case.correct[t.name], t.dtype)) for t in case.judged
    )
    return _outputs(case, case.correct) if alike else found  # where each value is rounded once, that is no fault


def _bits(values: Array, dtype: str) -> Array:
    return encode(np.asarray(values), dtype)
