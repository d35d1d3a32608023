"""The pure core of judging: comparison in row blocks, and the judgement of a cell.

What is compared is made by `farm.accuracy.prepare`, whose functions can be had from here too.  An output of more than
SAMPLE_ABOVE elements is compared in a seeded sample of rows; that it is finite is still checked everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farm.accuracy import find_places, lines
from farm.accuracy import tolerances as gating
from farm.accuracy.dtypes import decode, encode, finite_mask, is_float, storage_dtype
from farm.accuracy.metrics import Partial, compare
from farm.accuracy.prepare import (
    Array,
    Arrays,
    Map,
    Pieces,
    Rows,
    add_shares,
    blocks,
    compared_rows,
    cut,
    default_rows,
    family_of,
    fill_inputs,
    fill_reference,
    given_tensors,
    input_key,
    inputs_view,
    judged_tensors,
    make_inputs,
    make_reductions,
    make_reference,
    reductions,
    reductions_of,
    reference_key,
    reference_view,
    row_count,
    row_sample,
    tensors_of,
    unsupported,
    work_of,
)
from farm.cell import Cell
from farm.contracts.base import Contract, Tensor
from farm.contracts.own_errors import SMALL_GRADIENT, SMALL_RESULT
from farm.errors import describe


@dataclass(frozen=True)
class Judgement:
    """What the judge says of one cell's outputs.  `reason` is one sentence where they are not accurate, else empty."""

    ok: bool
    reason: str = ""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    gates: dict[str, dict[str, float]] = field(default_factory=dict)
    worst_output: str = ""
    worst_metric: str = ""
    worst_ratio: float | None = None
    sampled_rows: int | None = None  # how many rows were compared, where not all were
    #: Output -> where it is wrong (`farm.accuracy.places.finish`), of those that are, the worst first.
    places: dict[str, dict[str, Any]] = field(default_factory=dict)


def check_layout(expected: Tensor, dtype: str, shape: Iterable[int]) -> str | None:
    """Why an output of this dtype and shape is not the one expected, or None."""
    shape = tuple(shape)
    if dtype != expected.dtype:
        return f"output {expected.name} has dtype {dtype}, expected {expected.dtype}"
    if shape != tuple(expected.dims):
        return f"output {expected.name} has shape {list(shape)}, expected {list(expected.dims)}"
    return None


def evaluate(
    cell: Cell,
    contract: Contract,
    outputs: Arrays,
    inputs: Arrays,
    *,
    reference: Arrays | None = None,
    rows_per_block: int | None = None,
    map: Map = map,
    tolerances: Iterable[Mapping[str, Any]] = (),
) -> Judgement:
    """Judge whole outputs (storage arrays, memory maps too) of a cell whose whole `inputs` these were.

    `reference` is what `fill_reference` gave for the same `reference_key`; without it, it is made on the way.
    """
    gates = gating.resolve(cell, contract, tolerances)
    for tensor in judged_tensors(cell, contract):
        problem = _stored_wrongly(tensor, outputs)
        if problem:
            return Judgement(False, problem, gates=gates, worst_output=tensor.name, worst_ratio=gating.WORST)
    work = Pieces(cell, contract, rows_per_block)
    metrics = _measure(work, outputs, inputs, reference, map)
    gates = gating.resolve(cell, contract, tolerances, metrics)
    found = gating.verdict(metrics, gates)
    where, reason = ({}, "") if found.ok else _located(work, outputs, inputs, reference, metrics, gates, found, map)
    return Judgement(
        found.ok,
        reason,
        metrics,
        gates,
        found.worst_output,
        found.worst_metric,
        found.worst_ratio,
        None if work.sample is None else len(work.sample),
        where,
    )


def _located(
    work: Pieces,
    outputs: Arrays,
    inputs: Arrays,
    reference: Arrays | None,
    metrics: dict[str, dict[str, float]],
    gates: gating.Gates,
    found: gating.Verdict,
    map: Map,
) -> tuple[dict[str, dict[str, Any]], str]:
    """Where the outputs are wrong, and the sentence on the worst one.  The verdict stands whatever becomes of this."""

    def part(rows: Rows) -> Arrays:
        return work.reference(inputs, rows) if reference is None else work.kept(reference, rows)

    def totals() -> Arrays:
        return reductions(work, inputs, map) if reference is None else work.shares(dict(reference))

    try:
        where = find_places.find(work, outputs, part, totals, metrics, gates, map)
    except Exception as error:
        return {}, f"{gating.explain(found, metrics, gates)} (where it is wrong was not found: {describe(error)})"
    return where, gating.explain(found, metrics, gates, where.get(found.worst_output))


def _stored_wrongly(tensor: Tensor, outputs: Arrays) -> str | None:
    if tensor.name not in outputs:
        return f"output {tensor.name} is missing"
    stored = outputs[tensor.name]
    if stored.dtype != storage_dtype(tensor.dtype):
        return f"output {tensor.name} is stored as {stored.dtype}, expected {storage_dtype(tensor.dtype)}"
    return check_layout(tensor, tensor.dtype, stored.shape)


def _compared(
    work: Pieces, outputs: Arrays, reference: Arrays, rows: Rows
) -> tuple[dict[str, Partial], dict[str, Any]]:
    """The errors of the blocked outputs in these rows: generic ones, and the contract's own."""
    blocked = {name: t for name, t in work.tensors.items() if t.blocked}
    stored = {name: np.asarray(outputs[name][rows.index]) for name in blocked}
    own: dict[str, Any] = {}
    if type(work.contract).judge is not Contract.judge:
        values = {name: decode(a, blocked[name].dtype) for name, a in stored.items()}
        own = work.contract.judge(work.cell, values, reference, rows.block) or {}
        own = {
            n: _with_nonfinite(v, blocked[n], stored[n], reference[n]) if n in reference and n in blocked else v
            for n, v in own.items()
        }
    found = {name: _generic(t, stored[name], reference, rows.numbers) for name, t in blocked.items()}
    found = {name: partial for name, partial in found.items() if name not in own}
    for name in (n for n in found.copy() if f"{n}.own" in reference):
        mine = encode(reference[f"{name}.own"], blocked[name].dtype)
        found[f"{name}.own"] = _generic(blocked[name], mine, reference, rows.numbers)
    return found, own


def _generic(tensor: Tensor, stored: Array, reference: Arrays, numbers: Array) -> Partial:
    """The generic errors of rows of a blocked output."""
    name = tensor.name
    found = compare(
        stored,
        reference[name],
        tensor.dtype,
        squared_scale=reference.get(f"{name}.scale2"),
        spread=reference.get(f"{name}.spread"),
        row_numbers=numbers,
    )
    return _with_lines(found, tensor, stored, reference)


def _with_lines(found: Partial, tensor: Tensor, stored: Array, reference: Arrays) -> Partial:
    """With `line_max`, where the output has lines and the reference says what a correct implementation has there."""
    worst = lines.of(tensor, stored, reference)
    return found if worst is None else replace(found, line_max=float(worst.max(initial=0.0)))


def _measure(
    work: Pieces, outputs: Arrays, inputs: Arrays, reference: Arrays | None, map: Map
) -> dict[str, dict[str, float]]:
    partials = {name: Partial() for name in work.tensors}
    own: dict[str, dict[str, float]] = {}
    totals: dict[str, Array] = {}
    share_now = work.has_reductions and work.sample is None and reference is None

    def job(rows: Rows) -> tuple[dict[str, Partial], dict[str, Any], dict[str, Array]]:
        found = work.reference(inputs, rows) if reference is None else work.kept(reference, rows)
        return *_compared(work, outputs, found, rows), work.shares(found) if share_now else {}

    for some, custom, share in map(job, work.compared):
        for name, partial in some.items():
            partials[name] = partials.get(name, Partial()).merge(partial)
        for name, values in custom.items():
            so_far = own.setdefault(name, {})
            so_far.update({m: _maximum(v, so_far.get(m, 0.0)) for m, v in values.items()})
        add_shares(totals, share)
    if work.sample is not None:
        _count_nonfinite(work, outputs, partials, map)
    if reference is not None:
        totals = work.shares(reference)
    elif work.has_reductions and not share_now:
        totals = reductions(work, inputs, map)
    for name, tensor in work.tensors.items():
        if not tensor.blocked:
            partials |= _reduction(work, name, outputs, totals)
            own.update(_own_reduction(work, name, outputs, totals))
    return {name: own.get(name) or _finished(partials, name) for name in work.tensors}


def _finished(partials: Mapping[str, Partial], name: str) -> dict[str, float]:
    """An output's metrics; and, as `own_METRIC`, the largest of the samples of the reference's own error at the cell's
    dtypes."""
    found = partials[name].finish()
    if f"{name}.own" in partials:
        mine, others = (partials.get(f"{name}.{kind}", Partial()).finish() for kind in ("own", "others"))
        others["rel_l2"] = others["row_l2_max"]  # a sample is a row
        found |= {f"own_{metric}": max(mine[metric], others[metric]) for metric in gating.FACTORS}
    return found


def _reduction(work: Pieces, name: str, outputs: Arrays, totals: Arrays) -> dict[str, Partial]:
    """The errors of an output without the row dimension, under its name; those of the reference's own as NAME.own, and
    of its further samples as NAME.others."""
    tensor, want = work.tensors[name], totals[name].reshape(1, -1)
    scale = totals.get(f"{name}.scale2")
    if scale is None and work.contract.own_tolerances and is_float(tensor.dtype) and want.size:
        finite = np.where(np.isfinite(want), want, 0.0)
        share = SMALL_GRADIENT if tensor.role == "gradient" else SMALL_RESULT
        scale = np.full(want.shape, float(np.mean(finite**2)) * share**2)

    def against(stored: Array, rows: int = 1, decoded: bool = False) -> Partial:
        squared = None if scale is None else np.broadcast_to(scale.reshape(1, -1), (rows, want.size))
        wanted = np.broadcast_to(want, (rows, want.size))
        return compare(stored.reshape(rows, -1), wanted, tensor.dtype, squared_scale=squared, decoded=decoded)

    stored = np.asarray(outputs[name])
    found = {name: _with_lines(against(stored), tensor, stored, totals)}
    if f"{name}.own" in totals:
        found[f"{name}.own"] = against(encode(totals[f"{name}.own"], tensor.dtype))
    if f"{name}.others" in totals:
        others = totals[f"{name}.others"]
        found[f"{name}.others"] = against(others, len(others), decoded=True)
    return found


def _own_reduction(work: Pieces, name: str, outputs: Arrays, totals: Arrays) -> dict[str, dict[str, float]]:
    """What the contract's own judge says of an output without the row dimension, once all of it is there."""
    if type(work.contract).judge is Contract.judge:
        return {}
    tensor = work.tensors[name]
    values = {name: decode(np.asarray(outputs[name]), tensor.dtype)}
    mine = {k: a for k, a in totals.items() if k.split(".")[0] == name}
    found = work.contract.judge(work.cell, values, mine, (0, work.total)) or {}
    return {k: _with_nonfinite(v, tensor, outputs[k], totals[k]) for k, v in found.items() if k == name}


def _with_nonfinite(values: Mapping[str, float], tensor: Tensor, stored: Array, want: Array) -> dict[str, float]:
    """A contract's own metrics, with `nonfinite` where it leaves that to the farm: a float output must be finite where
    the reference is."""
    if "nonfinite" in values or not is_float(tensor.dtype):
        return dict(values)
    wrong = np.isfinite(want) & ~finite_mask(np.asarray(stored), tensor.dtype).reshape(want.shape)
    return {**values, "nonfinite": float(np.count_nonzero(wrong))}


def _maximum(a: float, b: float) -> float:
    """The larger one; NaN if either is: what cannot be measured must not pass."""
    return float(np.maximum(a, b))


def _count_nonfinite(work: Pieces, outputs: Arrays, partials: dict[str, Partial], map: Map) -> None:
    """Beyond the sample, every element must be finite, unless the sample's own reference is not."""
    sample = work.sample
    assert sample is not None
    floats = [n for n, t in work.tensors.items() if t.blocked and is_float(t.dtype) and not partials[n].unbound]

    def job(rows: Rows) -> dict[str, int]:
        outside = ~np.isin(rows.numbers, sample, assume_unique=True)
        found = {}
        for name in floats:
            wrong = ~finite_mask(np.asarray(outputs[name][rows.index]), work.tensors[name].dtype)
            found[name] = int(np.count_nonzero(wrong[outside]))
        return found

    for counts in map(job, work.everything):
        for name, count in counts.items():
            partials[name] = partials[name].merge(Partial(nonfinite=count))


__all__ = [
    "Judgement",
    "blocks",
    "check_layout",
    "compared_rows",
    "cut",
    "default_rows",
    "evaluate",
    "family_of",
    "fill_inputs",
    "fill_reference",
    "given_tensors",
    "input_key",
    "inputs_view",
    "judged_tensors",
    "make_inputs",
    "make_reductions",
    "make_reference",
    "reductions_of",
    "reference_key",
    "reference_view",
    "row_count",
    "row_sample",
    "tensors_of",
    "unsupported",
    "work_of",
]
