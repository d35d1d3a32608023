"""The pure core of preparing: a cell's tensors, inputs and references, in row blocks, and what they are cached by.

Blocked tensors go through in blocks of rows, so memory is bounded by the block and by the widest row; `map` may be a
thread pool's, since every step spends its time in NumPy.  Parts are merged in the order of the blocks, whatever the
order in which they end.  Of an output of more than SAMPLE_ABOVE elements the reference has a seeded sample of rows;
reductions still run over all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from farm.accuracy.dtypes import decode, encode, storage_dtype
from farm.accuracy.inputs import Family, WholeOnce, hashes
from farm.cell import Cell, canonical_json
from farm.contracts import view
from farm.contracts.base import Contract, Tensor, Work
from farm.errors import ContractError

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
    values, seen = _decoded(cell, contract, inputs, decoded), _views(cell, contract).reference
    found = dict(contract.reference(values, seen, block))
    found |= {f"{name}.scale2": a for name, a in contract.scales(values, seen, block).items()}
    return found | {f"{name}.spread": a for name, a in contract.spread(values, seen, block).items()}


def make_reductions(
    cell: Cell, contract: Contract, inputs: Arrays, block: Block, decoded: Arrays | None = None
) -> dict[str, Array]:
    """Of `make_reference` the reductions alone, without the rest being made where the contract can."""
    values = _decoded(cell, contract, inputs, decoded)
    found = contract.reductions(values, _views(cell, contract).reference, block)
    if found is None:
        found = make_reference(cell, contract, inputs, block, values)
    return reductions_of(cell, contract, found)


def reductions_of(cell: Cell, contract: Contract, found: Arrays) -> dict[str, Array]:
    """The reductions among a block's reference arrays."""
    blocked = {t.name for t in tensors_of(cell, contract) if t.blocked}
    return {name: a for name, a in found.items() if name.split(".")[0] not in blocked}


def _decoded(cell: Cell, contract: Contract, inputs: Arrays, known: Arrays | None) -> dict[str, Array]:
    """The values of stored inputs."""
    dtypes, known = {t.name: t.dtype for t in tensors_of(cell, contract)}, known or {}
    return {n: known[n] if n in known else decode(stored, dtypes[n]) for n, stored in inputs.items()}


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
    work = Pieces(cell, contract, rows_per_block)
    whole: dict[str, Array] = {}

    def job(rows: Rows) -> dict[str, Array]:
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
        add_shares(totals, share)
    if work.has_reductions and work.sample is not None:  # the sample's shares are not the whole
        totals = reductions(work, inputs, map)
    for name, total in totals.items():
        whole[name] = allocate(name, total.shape, total.dtype)
        whole[name][...] = total
    return whole


def _allocate(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.empty(shape, dtype)


def reductions(work: Pieces, inputs: Arrays, map: Map) -> dict[str, Array]:
    """The reference of the reductions, over all rows."""
    totals: dict[str, Array] = {}
    for share in map(lambda rows: work.reductions(inputs, rows), work.everything):
        add_shares(totals, share)
    return totals


def add_shares(total: dict[str, Array], share: Arrays) -> None:
    for name, part in share.items():
        total[name] = total[name] + part if name in total else part


@dataclass(frozen=True)
class Rows:
    """Rows that are worked on together: their place in the tensor or in the sample, and which rows those are."""

    place: int
    block: Block
    index: slice | Array

    @property
    def numbers(self) -> Array:
        """Each row's number in the whole tensor."""
        return np.arange(*self.block) if isinstance(self.index, slice) else self.index


class Pieces:
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
    def everything(self) -> Iterator[Rows]:
        """All rows."""
        for start, stop in blocks(self.total, self.step):
            yield Rows(start, (start, stop), slice(start, stop))

    @property
    def compared(self) -> Iterator[Rows]:
        """The rows that are compared element by element."""
        if self.sample is None:
            yield from self.everything
            return
        for start, stop in blocks(len(self.sample), self.step):
            yield Rows(start, (0, stop - start), self.sample[start:stop])

    def is_blocked(self, name: str) -> bool:
        """Whether a reference array has the row dimension."""
        return self.tensors[name.split(".")[0]].blocked

    def shares(self, found: Arrays) -> dict[str, Array]:
        """The reductions among a block's reference arrays."""
        return {name: a for name, a in found.items() if not self.is_blocked(name)}

    def reference(self, inputs: Arrays, rows: Rows) -> dict[str, Array]:
        part = cut(inputs, self.cell, self.contract, rows.index)
        return make_reference(self.cell, self.contract, part, rows.block, self._large(inputs))

    def reductions(self, inputs: Arrays, rows: Rows) -> dict[str, Array]:
        part = cut(inputs, self.cell, self.contract, rows.index)
        return make_reductions(self.cell, self.contract, part, rows.block, self._large(inputs))

    def _large(self, inputs: Arrays) -> dict[str, Array]:
        """The values of large whole inputs, which every block reads; read-only."""
        for t in given_tensors(self.cell, self.contract):
            if not t.blocked and t.size > KEPT_ELEMENTS and t.name not in self._decoded:
                values = decode(np.asarray(inputs[t.name]), t.dtype).view()
                values.flags.writeable = False
                self._decoded[t.name] = values  # of two threads that are first, the later one's
        return self._decoded

    def kept(self, reference: Arrays, rows: Rows) -> dict[str, Array]:
        """The rows of a whole kept reference."""
        part = slice(rows.place, rows.place + rows.block[1] - rows.block[0])
        return {name: a[part] for name, a in reference.items() if self.is_blocked(name)}
