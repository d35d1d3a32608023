"""The pure core of judging: inputs, references and comparison in row blocks, and the judgement of a cell.

Blocked tensors go through in blocks of rows, so memory is bounded by the block and by the widest row; `map` may be a
thread pool's, since every step spends its time in NumPy.  Parts are merged in the order of the blocks, whatever the
order in which they end.  An output of more than SAMPLE_ABOVE elements is compared in a seeded sample of rows; that it
is finite is still checked everywhere, and reductions still run over all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from farm.accuracy import find_places
from farm.accuracy import tolerances as gating
from farm.accuracy.dtypes import decode, encode, finite_mask, is_float, storage_dtype
from farm.accuracy.inputs import Family, WholeOnce, hashes
from farm.accuracy.metrics import Partial, compare
from farm.cell import Cell, canonical_json
from farm.contracts import view
from farm.contracts.base import Contract, Tensor, Work
from farm.contracts.from_torch import SMALL_GRADIENT, SMALL_RESULT
from farm.errors import ContractError, describe

Array = Any  # numpy.ndarray
Arrays = Mapping[str, Array]
Map = Callable[..., Iterable[Any]]
Block = tuple[int, int]

SAMPLE_ABOVE = 1 << 26  # elements of one output
SAMPLE_ROWS = 1024
WHOLE_SHARE = 8  # a block is at least this part of the largest whole tensor
KEPT_ELEMENTS = 1 << 20  # whole tensors of more elements are decoded once, for all blocks
BLOCK_ELEMENTS = 1 << 19  # of the widest blocked tensor: 4 MiB an array in float64, some ten arrays a block
REFERENCE_VERSION = 1


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


#: A cell's views are needed a dozen times while it is prepared and judged.
_views = lru_cache(maxsize=64)(view.of)


def inputs_view(cell: Cell, contract: Contract) -> view.CellView:
    """The cell as `contract.inputs` sees it."""
    return _views(cell, contract).inputs


def reference_view(cell: Cell, contract: Contract) -> view.CellView:
    """The cell as `contract.reference` sees it."""
    return _views(cell, contract).reference


def tensors_of(cell: Cell, contract: Contract) -> tuple[Tensor, ...]:
    """Every tensor of the cell, whoever computes it."""
    return _views(cell, contract).tensors


def given_tensors(cell: Cell, contract: Contract) -> list[Tensor]:
    """The cell's inputs and upstream gradients."""
    return list(_views(cell, contract).given)


class _Values(Mapping[str, Array]):
    """Stored inputs as values, each decoded when it is asked for."""

    def __init__(self, stored: Arrays, dtypes: Mapping[str, str]) -> None:
        self._stored, self._dtypes = stored, dtypes

    def __getitem__(self, name: str) -> Array:
        return decode(np.asarray(self._stored[name]), self._dtypes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._dtypes)

    def __len__(self) -> int:
        return len(self._dtypes)


def work_of(cell: Cell, contract: Contract, inputs: Arrays | None = None) -> Work:
    """The least work of one call, whoever computes it: on these inputs (whole storage arrays), where it depends on
    them; without them, on the fullest."""
    every = _views(cell, contract).every
    if inputs is None or not contract.work_from_inputs:
        return contract.work(every)
    return contract.work_on(every, _Values(inputs, {t.name: t.dtype for t in given_tensors(cell, contract)}))


def judged_tensors(cell: Cell, contract: Contract) -> list[Tensor]:
    """The cell's outputs and gradients."""
    return [t for t in tensors_of(cell, contract) if t.role in ("output", "gradient", "mutated")]


def row_count(cell: Cell) -> int:
    """The size of the row dimension: the first."""
    return next(iter(cell.dims.values()))


def default_rows(cell: Cell, contract: Contract) -> int:
    """Rows per block, so that the widest blocked tensor has about BLOCK_ELEMENTS in it; all of them where rows depend
    on where they stand."""
    rows = max(1, row_count(cell))
    if not contract.rows_independent:
        return rows
    tensors = tensors_of(cell, contract)
    width = max((t.size // rows for t in tensors if t.blocked), default=1)
    whole = max((t.size for t in tensors if not t.blocked), default=0)  # each block reads all of it
    return max(1, min(rows, max(BLOCK_ELEMENTS, whole // WHOLE_SHARE) // max(width, 1)))


def blocks(total: int, rows_per_block: int) -> list[Block]:
    """[start, stop) of each block; one empty block for no rows, so that reductions still have their shape."""
    return [(at, min(at + rows_per_block, total)) for at in range(0, total, rows_per_block)] or [(0, 0)]


def unsupported(cell: Cell, contract: Contract) -> str | None:
    """Why no provider can run this cell, by its contract or by its size; or None."""
    reason = contract.supports(cell)
    if reason or contract.rows_independent:
        return reason
    largest = max(tensors_of(cell, contract), key=lambda t: t.size)
    if largest.size <= SAMPLE_ABOVE:
        return None
    return (
        f"{largest.name} has {largest.size:,} elements, but an op whose rows depend on each other is evaluated in one "
        f"piece, of at most {SAMPLE_ABOVE:,}"
    )


def row_sample(cell: Cell, total: int) -> Array | None:
    """The rows to compare (int64, sorted) of an output of `total` elements: None for all of them, else SAMPLE_ROWS
    drawn by the cell's inputs, plus the first and the last."""
    rows = row_count(cell)
    if total <= SAMPLE_ABOVE or rows <= SAMPLE_ROWS + 2:
        return None
    drawn: dict[int, None] = {}
    at = 0
    while len(drawn) < SAMPLE_ROWS:
        values = hashes("row sample", cell.seed, np.arange(at, at + SAMPLE_ROWS)) % np.uint64(rows)
        drawn.update(dict.fromkeys(int(v) for v in values))
        at += SAMPLE_ROWS
    chosen = [*list(drawn)[:SAMPLE_ROWS], 0, rows - 1]
    return np.unique(np.array(chosen, dtype=np.int64))


def compared_rows(cell: Cell, contract: Contract) -> int:
    """How many rows the reference is evaluated in: all where an output is a sum over them, else those of the sample."""
    judged = judged_tensors(cell, contract)
    largest = max((t.size for t in judged if t.blocked), default=0)
    whole = not contract.rows_independent or any(not t.blocked for t in judged)
    large = largest > SAMPLE_ABOVE and row_count(cell) > SAMPLE_ROWS + 2
    return SAMPLE_ROWS + 2 if large and not whole else row_count(cell)


@lru_cache(maxsize=64)
def input_key(cell: Cell, contract: Contract) -> str:
    """What a cell's inputs are cached by: all that `contract.inputs` can read, and the tensors that it fills."""
    seen = _views(cell, contract)
    parts = [*seen.inputs.parts(), view.layout(seen.given), default_rows(cell, contract)]
    parts += [cell.contract_content] if cell.contract_content else []
    return _key([*parts, cell.contract_version, cell.family, cell.seed])


@lru_cache(maxsize=64)
def reference_key(cell: Cell, contract: Contract) -> str:
    """What a reference is cached by: its inputs, all that `contract.reference` can read, and every tensor."""
    seen = _views(cell, contract)
    return _key([REFERENCE_VERSION, input_key(cell, contract), *seen.reference.parts(), view.layout(seen.tensors)])


def _key(parts: list[Any]) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:24]


def family_of(cell: Cell, contract: Contract) -> Family:
    """The generator of a cell's inputs; the contract's own families have a built-in one's values."""
    return Family(contract.own_families.get(cell.family, cell.family), cell.seed, cell.family)


def make_inputs(
    cell: Cell, contract: Contract, block: Block, *, family: Family | None = None, whole: bool = True
) -> dict[str, Array]:
    """The inputs and upstream gradients as storage arrays: blocked ones for rows [start, stop), the others whole, or
    not at all without `whole`.  `family`: a generator to use again."""
    made = contract.inputs(_views(cell, contract).inputs, family or family_of(cell, contract), block)
    dtypes = {t.name: t.dtype for t in given_tensors(cell, contract)}
    if set(made) != set(dtypes):
        wrong = f"inputs() makes {', '.join(made) or 'nothing'}, but the tensors are {', '.join(dtypes) or 'none'}"
        raise ContractError(f"the contract of {cell.op}: {wrong}; make one array for each", id="contract-inputs-names")
    blocked = {t.name for t in given_tensors(cell, contract) if t.blocked}
    return {name: encode(values, dtypes[name]) for name, values in made.items() if whole or name in blocked}


def fill_inputs(
    cell: Cell,
    contract: Contract,
    *,
    rows_per_block: int | None = None,
    map: Map = map,
    allocate: Callable[[str, tuple[int, ...], Any], Array] | None = None,
) -> dict[str, Array]:
    """All inputs and upstream gradients of a cell as storage arrays.  `allocate` as for `fill_reference`."""
    allocate = allocate or _allocate
    tensors = {t.name: t for t in given_tensors(cell, contract)}
    whole = {name: allocate(name, t.stored_dims, storage_dtype(t.dtype)) for name, t in tensors.items()}

    once = WholeOnce(family_of(cell, contract))

    def fill(block: Block) -> None:
        family = once.of_block(block)
        for name, values in make_inputs(cell, contract, block, family=family, whole=block[0] == 0).items():
            if tensors[name].blocked:
                whole[name][block[0] : block[1]] = values
            else:
                whole[name][...] = values

    first, *others = blocks(row_count(cell), rows_per_block or default_rows(cell, contract))
    fill(first)  # alone: what it makes of whole tensors, the others have
    for _ in map(fill, others):
        pass
    return whole


def cut(arrays: Arrays, cell: Cell, contract: Contract, rows: slice | Array) -> dict[str, Array]:
    """Whole storage arrays, the blocked ones cut to `rows`."""
    tensors = {t.name: t for t in tensors_of(cell, contract)}
    return {name: (a[rows] if tensors[name].blocked else a) for name, a in arrays.items()}


def make_reference(
    cell: Cell, contract: Contract, inputs: Arrays, block: Block, decoded: Arrays | None = None
) -> dict[str, Array]:
    """The reference of a block from its inputs (storage arrays, blocked ones cut to it), in float64.  `decoded`: the
    values of inputs that are decoded already.

    Under each output's name its value, under `NAME.scale2` the squared size of its terms, under `NAME.spread` which
    rows are spread, and what else the contract's judge needs, as `NAME.something`.
    """
    dtypes = {t.name: t.dtype for t in tensors_of(cell, contract)}
    known = decoded or {}
    values = {n: known[n] if n in known else decode(stored, dtypes[n]) for n, stored in inputs.items()}
    seen = _views(cell, contract).reference
    found = dict(contract.reference(values, seen, block))
    found |= {f"{name}.scale2": a for name, a in contract.scales(values, seen, block).items()}
    return found | {f"{name}.spread": a for name, a in contract.spread(values, seen, block).items()}


def fill_reference(
    cell: Cell,
    contract: Contract,
    inputs: Arrays,
    *,
    rows_per_block: int | None = None,
    map: Map = map,
    allocate: Callable[[str, tuple[int, ...], Any], Array] | None = None,
) -> dict[str, Array]:
    """The whole reference of a cell, to be kept: blocked arrays over all rows, or over the sample's where one is
    compared; reductions over all rows.  `allocate(name, shape, dtype)` gives each array its memory or file."""
    allocate = allocate or _allocate
    work = _Work(cell, contract, rows_per_block)
    whole: dict[str, Array] = {}

    def job(rows: _Rows) -> dict[str, Array]:
        found = work.reference(inputs, rows)
        for name, part in found.items():
            if work.is_blocked(name):
                if name not in whole:  # in the first block, which is alone
                    whole[name] = allocate(name, (work.compared_rows, *part.shape[1:]), part.dtype)
                whole[name][rows.place : rows.place + len(part)] = part
        return work.shares(found)

    first, *others = work.compared
    totals = job(first)
    for share in map(job, others):
        _add_shares(totals, share)
    if work.has_reductions and work.sample is not None:  # the sample's shares are not the whole
        totals = _reductions(work, inputs, map)
    for name, total in totals.items():
        whole[name] = allocate(name, total.shape, total.dtype)
        whole[name][...] = total
    return whole


def _allocate(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.empty(shape, dtype)


def _reductions(work: _Work, inputs: Arrays, map: Map) -> dict[str, Array]:
    """The reference of the reductions, over all rows."""
    totals: dict[str, Array] = {}
    for share in map(lambda rows: work.shares(work.reference(inputs, rows)), work.everything):
        _add_shares(totals, share)
    return totals


def _add_shares(total: dict[str, Array], share: Arrays) -> None:
    for name, part in share.items():
        total[name] = total[name] + part if name in total else part


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
    work = _Work(cell, contract, rows_per_block)
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
    work: _Work,
    outputs: Arrays,
    inputs: Arrays,
    reference: Arrays | None,
    metrics: dict[str, dict[str, float]],
    gates: gating.Gates,
    found: gating.Verdict,
    map: Map,
) -> tuple[dict[str, dict[str, Any]], str]:
    """Where the outputs are wrong, and the sentence on the worst one.  The verdict stands whatever becomes of this."""

    def part(rows: _Rows) -> Arrays:
        return work.reference(inputs, rows) if reference is None else work.kept(reference, rows)

    def totals() -> Arrays:
        return _reductions(work, inputs, map) if reference is None else work.shares(dict(reference))

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


@dataclass(frozen=True)
class _Rows:
    """Rows that are worked on together: their place in the tensor or in the sample, and which rows those are."""

    place: int
    block: Block
    index: slice | Array

    @property
    def numbers(self) -> Array:
        """Each row's number in the whole tensor."""
        return np.arange(*self.block) if isinstance(self.index, slice) else self.index


class _Work:
    """How one cell is cut into pieces."""

    def __init__(self, cell: Cell, contract: Contract, rows_per_block: int | None) -> None:
        self.cell, self.contract = cell, contract
        self.tensors = {t.name: t for t in judged_tensors(cell, contract)}
        self.total = row_count(cell)
        self.step = rows_per_block or default_rows(cell, contract)
        largest = max((t.size for t in self.tensors.values() if t.blocked), default=0)
        self.sample = row_sample(cell, largest) if contract.rows_independent else None
        self.has_reductions = any(not t.blocked for t in self.tensors.values())
        self.compared_rows = self.total if self.sample is None else len(self.sample)
        self._decoded: dict[str, Array] = {}

    @property
    def everything(self) -> Iterator[_Rows]:
        """All rows."""
        for start, stop in blocks(self.total, self.step):
            yield _Rows(start, (start, stop), slice(start, stop))

    @property
    def compared(self) -> Iterator[_Rows]:
        """The rows that are compared element by element."""
        if self.sample is None:
            yield from self.everything
            return
        for start, stop in blocks(len(self.sample), self.step):
            yield _Rows(start, (0, stop - start), self.sample[start:stop])

    def is_blocked(self, name: str) -> bool:
        """Whether a reference array has the row dimension."""
        return self.tensors[name.split(".")[0]].blocked

    def shares(self, found: Arrays) -> dict[str, Array]:
        """The reductions among a block's reference arrays."""
        return {name: a for name, a in found.items() if not self.is_blocked(name)}

    def reference(self, inputs: Arrays, rows: _Rows) -> dict[str, Array]:
        part = cut(inputs, self.cell, self.contract, rows.index)
        return make_reference(self.cell, self.contract, part, rows.block, self._large(inputs))

    def _large(self, inputs: Arrays) -> dict[str, Array]:
        """The values of large whole inputs, which every block reads; read-only."""
        for t in given_tensors(self.cell, self.contract):
            if not t.blocked and t.size > KEPT_ELEMENTS and t.name not in self._decoded:
                values = decode(np.asarray(inputs[t.name]), t.dtype).view()
                values.flags.writeable = False
                self._decoded[t.name] = values  # of two threads that are first, the later one's
        return self._decoded

    def kept(self, reference: Arrays, rows: _Rows) -> dict[str, Array]:
        """The rows of a whole kept reference."""
        part = slice(rows.place, rows.place + rows.block[1] - rows.block[0])
        return {name: a[part] for name, a in reference.items() if self.is_blocked(name)}

    def compare(self, outputs: Arrays, reference: Arrays, rows: _Rows) -> tuple[dict[str, Partial], dict[str, Any]]:
        """The errors of the blocked outputs in these rows: generic ones, and the contract's own."""
        blocked = {name: t for name, t in self.tensors.items() if t.blocked}
        stored = {name: np.asarray(outputs[name][rows.index]) for name in blocked}
        own: dict[str, Any] = {}
        if type(self.contract).judge is not Contract.judge:
            values = {name: decode(a, blocked[name].dtype) for name, a in stored.items()}
            own = self.contract.judge(self.cell, values, reference, rows.block) or {}
            own = {
                n: _with_nonfinite(v, blocked[n], stored[n], reference[n]) if n in reference and n in blocked else v
                for n, v in own.items()
            }
        found = {name: self.generic(t, stored[name], reference, rows.numbers) for name, t in blocked.items()}
        found = {name: partial for name, partial in found.items() if name not in own}
        for name in (n for n in found.copy() if f"{n}.own" in reference):
            mine = encode(reference[f"{name}.own"], blocked[name].dtype)
            found[f"{name}.own"] = self.generic(blocked[name], mine, reference, rows.numbers)
        return found, own

    @staticmethod
    def generic(tensor: Tensor, stored: Array, reference: Arrays, numbers: Array) -> Partial:
        """The generic errors of rows of a blocked output."""
        name = tensor.name
        return compare(
            stored,
            reference[name],
            tensor.dtype,
            squared_scale=reference.get(f"{name}.scale2"),
            spread=reference.get(f"{name}.spread"),
            row_numbers=numbers,
        )


def _measure(
    work: _Work, outputs: Arrays, inputs: Arrays, reference: Arrays | None, map: Map
) -> dict[str, dict[str, float]]:
    partials = {name: Partial() for name in work.tensors}
    own: dict[str, dict[str, float]] = {}
    totals: dict[str, Array] = {}
    share_now = work.has_reductions and work.sample is None and reference is None

    def job(rows: _Rows) -> tuple[dict[str, Partial], dict[str, Any], dict[str, Array]]:
        found = work.reference(inputs, rows) if reference is None else work.kept(reference, rows)
        return *work.compare(outputs, found, rows), work.shares(found) if share_now else {}

    for some, custom, share in map(job, work.compared):
        for name, partial in some.items():
            partials[name] = partials.get(name, Partial()).merge(partial)
        for name, values in custom.items():
            so_far = own.setdefault(name, {})
            so_far.update({m: _maximum(v, so_far.get(m, 0.0)) for m, v in values.items()})
        _add_shares(totals, share)
    if work.sample is not None:
        _count_nonfinite(work, outputs, partials, map)
    if reference is not None:
        totals = work.shares(reference)
    elif work.has_reductions and not share_now:
        totals = _reductions(work, inputs, map)
    for name, tensor in work.tensors.items():
        if not tensor.blocked:
            partials[name], mine = _reduction(work, name, outputs, totals)
            if mine:
                partials[f"{name}.own"] = mine
            own.update(_own_reduction(work, name, outputs, totals))
    return {name: own.get(name) or _finished(partials, name) for name in work.tensors}


def _finished(partials: Mapping[str, Partial], name: str) -> dict[str, float]:
    """An output's metrics; and, as `own_METRIC`, those of the reference's own result at the cell's dtypes."""
    found = partials[name].finish()
    if f"{name}.own" in partials:
        mine = partials[f"{name}.own"].finish()
        found |= {f"own_{metric}": mine[metric] for metric in gating.FACTORS}
    return found


def _reduction(work: _Work, name: str, outputs: Arrays, totals: Arrays) -> tuple[Partial, Partial | None]:
    """The errors of an output without the row dimension, and of the reference's own."""
    tensor, want = work.tensors[name], totals[name].reshape(1, -1)
    scale = totals.get(f"{name}.scale2")
    if scale is None and work.contract.own_tolerances and is_float(tensor.dtype) and want.size:
        finite = np.where(np.isfinite(want), want, 0.0)
        share = SMALL_GRADIENT if tensor.role == "gradient" else SMALL_RESULT
        scale = np.full(want.shape, float(np.mean(finite**2)) * share**2)

    def against(stored: Array) -> Partial:
        squared = None if scale is None else scale.reshape(1, -1)
        return compare(stored.reshape(1, -1), want, tensor.dtype, squared_scale=squared)

    mine = totals.get(f"{name}.own")
    return against(np.asarray(outputs[name])), None if mine is None else against(encode(mine, tensor.dtype))


def _own_reduction(work: _Work, name: str, outputs: Arrays, totals: Arrays) -> dict[str, dict[str, float]]:
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


def _count_nonfinite(work: _Work, outputs: Arrays, partials: dict[str, Partial], map: Map) -> None:
    """Beyond the sample, every element must be finite, unless the sample's own reference is not."""
    sample = work.sample
    assert sample is not None
    floats = [n for n, t in work.tensors.items() if t.blocked and is_float(t.dtype) and not partials[n].unbound]

    def job(rows: _Rows) -> dict[str, int]:
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
    "cut",
    "default_rows",
    "evaluate",
    "fill_inputs",
    "fill_reference",
    "given_tensors",
    "input_key",
    "judged_tensors",
    "make_inputs",
    "make_reference",
    "reference_key",
    "row_count",
    "row_sample",
    "tensors_of",
    "unsupported",
    "work_of",
]
