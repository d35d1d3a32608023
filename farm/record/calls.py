"""Makes of a watched call the cell of its op: sizes, dtypes, layouts and parameters, or why it is none.  Pure.

A contract says which sizes its tensors have for given dimensions; here the reverse is needed.  So the contract is asked
once with a different prime for each dimension, and every size is read as a product of them (`equations`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from farm.contracts.base import Contract, Parameter, Tensor
from farm.contracts.dtypes import get
from farm.contracts.layouts import DENSE, placement
from farm.record.targets import Arguments, Given, OpCall, Target, UnfitCallError

_PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)
_INPUTS = ("input", "mutated")


@dataclass(frozen=True)
class Recorded:
    """A call as a cell of its op.  `dtypes`: of the tensors whose dtype a matrix chooses.  `params`: those that are not
    the default.  `layout`: of the tensors that are not dense.  `notes`: what a matrix cannot say of it."""

    op: str
    dims: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, Any], ...]
    layout: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Counts:
    """How often a call was made: with a gradient wanted, without, and how often it got one."""

    graded: int = 0
    plain: int = 0
    backward: int = 0

    @property
    def calls(self) -> int:
        return self.graded + self.plain


def read(value: Any) -> Any:
    """An argument as the hook wrote it down."""
    if isinstance(value, dict) and "shape" in value:
        return Given(tuple(value["shape"]), tuple(value["strides"]), value["offset"], value["dtype"])
    return value


def recorded(target: Target, contract: Contract, arguments: Arguments) -> Recorded:
    """A call of `target`, whose op's contract is this.  UnfitCallError if it is none of that op."""
    call = target.means(arguments) if target.means else by_name(target, contract, arguments)
    params = {p.name: p.default for p in contract.parameters}
    notes = [
        f"{name}={value} is not recorded: {contract.op} has no such parameter" for name, value in call.left.items()
    ]
    for p in contract.parameters:
        if p.nullifies:
            params[p.name] = call.tensors.get(p.nullifies) is not None
        elif p.name in call.params and not p.declared:
            params[p.name] = _value(p, call.params[p.name])
    given = {name: t for name, t in call.tensors.items() if t is not None}
    dtypes = {n: _known(given[n].dtype) for n in contract.typed if n in given}
    if not dtypes:
        raise UnfitCallError("no tensor whose dtype a matrix chooses")
    for name, dtype in dtypes.items():
        if dtype not in contract.dtypes:
            raise UnfitCallError(f"{name} is {dtype}; {contract.op} has {', '.join(contract.dtypes)}")
    first = next(iter(dtypes.values()))
    dtypes = {n: dtypes.get(n, first) for n in contract.typed}
    tensors = _inputs(contract, {d.name: _prime(i, d) for i, d in enumerate(contract.dimensions)}, dtypes, params)
    missing = next((t.name for t in tensors if t.name not in given), None)
    if missing:
        raise UnfitCallError(f"no tensor for {missing} of {contract.op}")
    shapes = {t.name: _shape(given[t.name], len(t.dims), t.name, contract.op) for t in tensors}
    dims = solved(contract, tensors, shapes)
    for t in _inputs(contract, dims, dtypes, params):
        if t.dims != shapes[t.name]:
            raise UnfitCallError(
                f"{t.name} has shape {list(given[t.name].shape)}; with {_words(dims)} that of {contract.op} is "
                f"{list(t.dims)}"
            )
        if _known(given[t.name].dtype) != t.dtype:
            raise UnfitCallError(f"{t.name} is {given[t.name].dtype}; that of {contract.op} is {t.dtype}")
    for d in contract.dimensions:
        if not d.low <= dims[d.name] <= d.high:
            raise UnfitCallError(f"{d.name} is {dims[d.name]}; that of {contract.op} is {d.low} to {d.high}")
    layout = {}
    for name, dims_of in shapes.items():
        allowed = tuple(contract.layouts.get(name, ()))
        found = layout_of(given[name], dims_of, allowed)
        if found is None:
            notes.append(
                f"{name} had the strides {list(given[name].strides)} of shape {list(given[name].shape)}, which no "
                f"layout of {contract.op} has; recorded as dense"
            )
        elif found != DENSE:
            layout[name] = found
    changed = {p.name: params[p.name] for p in contract.parameters if params[p.name] != p.default}
    return Recorded(
        contract.op,
        tuple(dims.items()),
        tuple(dtypes.items()),
        tuple(changed.items()),
        tuple(layout.items()),
        (*notes,),
    )


def by_name(target: Target, contract: Contract, arguments: Arguments) -> OpCall:
    """Arguments named as the op's inputs and parameters are those, whatever their case; the tensors that remain are the
    inputs that remain, in their order."""
    cell = _inputs(contract, {d.name: max(d.low, 1) for d in contract.dimensions}, {}, _defaults(contract))
    inputs = {t.name.lower(): t.name for t in cell}
    params = {p.name.lower(): p.name for p in contract.parameters if not p.nullifies}
    tensors: dict[str, Given | None] = {}
    found, left, others = {}, {}, []
    for name, value in arguments.items():
        called = target.called.get(name, name).lower()
        if called in inputs and (value is None or isinstance(value, Given)):
            tensors[inputs[called]] = value
        elif isinstance(value, Given):
            others.append(value)
        elif called in params:
            found[params[called]] = value
        elif called and isinstance(value, (int, float, str)):
            left[name] = value
    free = [name for name in inputs.values() if name not in tensors]
    if len(others) > len(free):
        raise UnfitCallError(f"{len(others) + len(tensors)} tensors; {contract.op} has {', '.join(inputs.values())}")
    tensors |= dict(zip(free, others))
    return OpCall(tensors, found, left)


def attributes(contract: Contract) -> list[str]:
    """What to read of the `self` of a method: names of inputs and parameters."""
    cell = _inputs(contract, {d.name: max(d.low, 1) for d in contract.dimensions}, {}, _defaults(contract))
    return [*dict.fromkeys([*(t.name for t in cell), *(p.name for p in contract.parameters)])]


def _defaults(contract: Contract) -> dict[str, Any]:
    return {p.name: p.default for p in contract.parameters}


def _inputs(
    contract: Contract, dims: Mapping[str, int], dtypes: Mapping[str, str], params: Mapping[str, Any]
) -> list[Tensor]:
    """The inputs of a forward of these dimensions."""
    kinds = dict(dtypes) or dict.fromkeys(contract.typed, contract.dtypes[0])
    cell: Any = SimpleNamespace(
        op=contract.op, operation=contract.operations[0], dtypes=kinds, dims=dict(dims), params=dict(params)
    )
    return [t for t in contract.tensors(cell) if t.role in _INPUTS]


def _prime(place: int, dimension: Any) -> int:
    if place >= len(_PRIMES) or not dimension.low <= _PRIMES[place] <= dimension.high:
        return int(dimension.low)  # its size cannot be told from a constant: `solved` says so
    return _PRIMES[place]


def _shape(given: Given, rank: int, name: str, op: str) -> tuple[int, ...]:
    """The shape with its leading dimensions as one, or with leading ones of size 1, as the op has so many."""
    shape = given.shape
    if len(shape) < rank:
        shape = (*(1,) * (rank - len(shape)), *shape)
    if len(shape) > rank:
        if rank < 1:
            raise UnfitCallError(f"{name} has {len(shape)} dimensions; that of {op} has {rank}")
        cut = len(shape) - rank + 1
        shape = (math.prod(shape[:cut]), *shape[cut:])
    return shape


def solved(contract: Contract, asked: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The dimensions of which these shapes follow; `asked`: the tensors of a cell whose dimensions are primes."""
    open_ = []
    for t in asked:
        for size, actual in zip(t.dims, shapes[t.name]):
            factor, names = size, []
            for place, d in enumerate(contract.dimensions):
                prime = _prime(place, d)
                while prime in _PRIMES and factor % prime == 0:
                    factor //= prime
                    names.append(d.name)
            open_.append((factor, names, actual))
    dims: dict[str, int] = {}
    progress = True
    while progress:
        progress = False
        for factor, names, actual in open_:
            unknown = [n for n in names if n not in dims]
            product = factor * math.prod(dims[n] for n in names if n in dims)
            if len(unknown) == 1 and product and actual % product == 0:
                dims[unknown[0]], progress = actual // product, True
    missing = next((d.name for d in contract.dimensions if d.name not in dims), None)
    if missing:
        raise UnfitCallError(f"the size of {missing} does not follow from the tensors' shapes")
    return {d.name: dims[d.name] for d in contract.dimensions}


def layout_of(given: Given, dims: tuple[int, ...], allowed: Sequence[str]) -> str | None:
    """The layout of a tensor whose leading dimensions are taken as one to give `dims`: dense, one of those that its op
    allows, or None for strides that none of them has."""
    if 0 in given.shape:
        return DENSE
    names = [DENSE, *allowed]
    strides = _folded(given, len(dims))
    if strides is None:
        return "heads" if "heads" in allowed and _same(given, placement("heads", given.shape, ())) else None
    item = max(get(_known(given.dtype)).bits // 8, 1)
    width = dims[-1] if dims else 1
    for name in names:
        if name in ("heads", "3d", "4d"):
            continue
        if name == "row_strided" and len(dims) > 1:
            pitch = strides[-2]
            dense = (*(pitch * math.prod(dims[i + 1 : -1]) for i in range(len(dims) - 1)), 1)
            fits = pitch > width and _equal(dims, strides, dense)
        else:
            fits = _equal(dims, strides, placement(name, dims).strides)
        if name == DENSE and fits and given.offset * item % 16:
            return "offset" if "offset" in allowed else DENSE
        if name == "packed":
            fits = fits and given.offset // max(width, 1) % 3 == 1
        if fits and name != "offset":
            return "packed" if name == "row_strided" and _packed(given, dims, strides, allowed) else name
    return None


def _packed(given: Given, dims: tuple[int, ...], strides: tuple[int, ...], allowed: Sequence[str]) -> bool:
    width = dims[-1]
    return "packed" in allowed and strides[-2] == 3 * width and given.offset // width % 3 == 1


def _folded(given: Given, rank: int) -> tuple[int, ...] | None:
    """The strides with the leading dimensions as one; None where they do not fold."""
    pairs = [(n, s) for n, s in zip(given.shape, given.strides)]
    if len(pairs) <= rank:
        return (*(0,) * (rank - len(pairs)), *(s for _, s in pairs))
    cut = len(pairs) - rank + 1
    kept = [(n, s) for n, s in pairs[:cut] if n > 1]
    for (_, outer), (n, inner) in pairwise(kept):
        if outer != n * inner:
            return None
    return (kept[-1][1] if kept else 0, *(s for _, s in pairs[cut:]))


def _equal(dims: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether strides are the same where they count: those of a single element do not."""
    return all(n == 1 or x == y for n, x, y in zip(dims, a, b))


def _same(given: Given, wanted: Any) -> bool:
    return len(given.shape) == 4 and _equal(given.shape, given.strides, wanted.strides)


def _known(dtype: str) -> str:
    try:
        return get(dtype).name
    except Exception:
        raise UnfitCallError(f"the dtype {dtype}, which the farm does not know") from None


def _value(p: Parameter, value: Any) -> Any:
    """A value as the parameter's type, if the op can have it."""
    if p.type is float and type(value) in (int, float) and math.isfinite(value):
        value = float(value)
    if type(value) is not p.type:
        raise UnfitCallError(f"{p.name}={value!s:.50}, which is not a {p.type.__name__}")
    if p.allowed is not None and value not in p.allowed:
        raise UnfitCallError(f"{p.name}={value}; the op has {', '.join(map(str, p.allowed))}")
    number: Any = value
    low, high = (-math.inf if p.low is None else p.low), (math.inf if p.high is None else p.high)
    if p.type in (int, float) and not low <= float(number) <= high:
        raise UnfitCallError(f"{p.name}={value}, which is out of bounds")
    return value


def _words(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{n}={v}" for n, v in dims.items())


@dataclass
class Run:
    """What one run of a command called.  `unfit`: (function, why) -> calls that are no cells.  `lost`: calls beyond
    what is kept.  `processes`: Pythons that were watched; `imported`: targets whose module was imported; `missing`:
    those that were not there, and why."""

    calls: dict[Recorded, Counts] = field(default_factory=dict)
    unfit: dict[tuple[str, str], int] = field(default_factory=dict)
    lost: int = 0
    processes: int = 0
    imported: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, target: Target, contract: Contract, line: Mapping[str, Any], calls: int, backward: int) -> None:
        """Count a call that the hook wrote down, made `calls` times."""
        if "unread" in line:
            return self._unfit(target, line["unread"], calls)
        try:
            found = recorded(target, contract, {n: read(v) for n, v in line["arguments"].items()})
        except UnfitCallError as why:
            return self._unfit(target, str(why), calls)
        counts = self.calls.setdefault(found, Counts())
        if line["graded"]:
            counts.graded += calls
        else:
            counts.plain += calls
        counts.backward += backward
        return None

    def _unfit(self, target: Target, why: str, calls: int) -> None:
        key = (target.path, why)
        self.unfit[key] = self.unfit.get(key, 0) + calls
