"""`farm contract check`: what is wrong with a contract itself.  Pure.

`declared` reads what a contract declares; `problem` also makes small cells and evaluates them.  Each says the first
thing that is wrong, in one sentence, or nothing.  Which planted faults it finds: `farm.accuracy.contract_score`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from farm.accuracy import evaluate, plants
from farm.accuracy.dtypes import decode, encode, is_float
from farm.accuracy.inputs import FAMILIES, hashes
from farm.accuracy.metrics import Partial
from farm.cell import OPERATIONS, Cell
from farm.contracts.base import Contract, Dimension, Parameter, Tensor, Work
from farm.contracts.dtypes import DTYPES
from farm.contracts.torch_contract import TorchContract
from farm.errors import FarmError

Array = Any  # numpy.ndarray
ROLES = ("input", "upstream", "output", "gradient", "mutated")
METRICS = tuple(n for n in Partial(line_max=0.0).finish() if n != "count" and not n.startswith("worst_"))
#: Sizes of a check's cell: every kind of row of the family `mixed` several times, and as many columns as the limits of
#: norms need (farm.contracts.gates.MIN_COLUMNS).
ROWS, COLUMNS, FEW = 40, 72, 16
#: A gradient by central differences errs by the square of the step, and by what the reference rounds.
DIFFERENCE_STEP, DIFFERENCE_TOLERANCE = 1e-3, 2e-2
#: Families that say nothing of values, or whose results are not finite: not for differences.
_PLAIN = "normal"


def declared(contract: Contract, op: str) -> str:
    """What is wrong with what a contract of the folder `op` declares; "" if nothing is."""
    c = contract
    if getattr(c, "op", None) != op:
        return f'op is "{getattr(c, "op", None)}", but its folder is {op}; make them equal'
    for name, kind in (("dimensions", Dimension), ("parameters", Parameter)):
        found = getattr(c, name)
        if not isinstance(found, tuple) or not all(isinstance(x, kind) for x in found):
            one = " with one entry: write a comma behind it" if isinstance(found, kind) else ""
            return f"{name} is {_short(found)}; it must be a tuple of {kind.__name__}{one}"
    if not c.dimensions:
        return "dimensions is empty; name at least the row dimension"
    for d in c.dimensions:
        if not isinstance(d.name, str) or not d.name.isidentifier() or not 0 <= d.low <= d.high:
            return f"the dimension {d.name!r} goes from {d.low} to {d.high}; give it a name and 0 <= low <= high"
    for p in c.parameters:
        if p.type not in (bool, int, float, str) or (p.default is not None and type(p.default) is not p.type):
            return f"the parameter {p.name} is of type {getattr(p.type, '__name__', p.type)} with default {p.default!r}"
        if p.allowed is not None and p.default not in p.allowed:
            return f"the parameter {p.name} has the default {p.default!r}, which is not among its allowed values"
    names = [d.name for d in c.dimensions] + [p.name for p in c.parameters]
    for name in names:
        if names.count(name) > 1:
            return f"{name} names two dimensions or parameters; rename one"
    for name in ("typed", "dtypes", "operations", "families"):
        found = getattr(c, name)
        if not isinstance(found, tuple) or not found or not all(isinstance(x, str) for x in found):
            return f"{name} is {_short(found)}; it must be a tuple of at least one name"
    for dtype in c.dtypes:
        if dtype not in DTYPES:
            return f"dtypes has {dtype}, which is not a dtype; known dtypes: {', '.join(DTYPES)}"
    for operation in c.operations:
        if operation not in OPERATIONS:
            return f"operations has {operation}; known operations: {', '.join(OPERATIONS)}"
    for family in c.families:
        if c.own_families.get(family, family) not in FAMILIES:
            return (
                f"families has {family}, which is not a family of the farm ({', '.join(FAMILIES)}); add it to "
                "own_families with the one whose values it starts from"
            )
    return ""


def _short(value: object) -> str:
    return f"{value!r:.60}"


def tensors_problem(contract: Contract, cell: Cell) -> str:
    """What is wrong with the tensors of a cell; "" if nothing is."""
    try:
        found = evaluate.tensors_of(cell, contract)
    except FarmError as error:
        return str(error)
    except Exception as error:
        return f"tensors() raises {_raised(error)} for {where(cell)}"
    if not isinstance(found, tuple) or not all(isinstance(t, Tensor) for t in found):
        return f"tensors() gives {_short(found)}; it must give a tuple of Tensor"
    names = [t.name for t in found]
    inputs = {t.name for t in found if t.role in ("input", "mutated")}
    rows = evaluate.row_count(cell)
    for t in found:
        if names.count(t.name) > 1:
            return f"tensors() gives {t.name} twice; rename one"
        if t.role not in ROLES:
            return f'the tensor {t.name} has the role "{t.role}"; known roles: {", ".join(ROLES)}'
        if t.dtype not in DTYPES:
            return f'the tensor {t.name} has the dtype "{t.dtype}"; known dtypes: {", ".join(DTYPES)}'
        if not isinstance(t.dims, tuple) or not all(type(n) is int and n >= 0 for n in t.dims):
            return f"the tensor {t.name} has the sizes {_short(t.dims)}; they must be whole numbers, not negative"
        if t.blocked and contract.rows_independent and (not t.dims or t.dims[0] != rows):
            return (
                f"the tensor {t.name} of sizes {list(t.dims)} is blocked, but its first size is not that of the row "
                f"dimension, {rows}; write blocked=False"
            )
        if t.role == "mutated" and cell.operation == "backward":
            return f"the tensor {t.name} is mutated in backward, which is judged without its forward; use full"
        if t.role == "mutated" and any(u.role == "gradient" and u.of == t.name for u in found):
            return f"the tensor {t.name} is mutated and has a gradient; autograd cannot write to such an input"
        if t.role == "gradient" and t.of not in inputs:
            return f"the gradient {t.name} is of {t.of!r}, which is not an input; name one in of="
    for name in contract.typed:
        if not any(name == t.name for t in found) and name not in {p.nullifies for p in contract.parameters}:
            return f"typed has {name}, which is not a tensor ({', '.join(names)})"
    for p in contract.parameters:
        if p.nullifies and p.nullifies not in names and cell.params[p.name] is True:
            return f"the parameter {p.name} nullifies {p.nullifies}, which is not an input"
    if not any(t.role in ("output", "gradient", "mutated") for t in found):
        return f"tensors() gives no output for {cell.operation}"
    return ""


def _raised(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} ({first[:160]})"


def where(cell: Cell) -> str:
    """A cell in words."""
    return f"{cell.operation} in {cell.dtype} of {', '.join(f'{k}={v}' for k, v in cell.dims.items())}"


def sizes(contract: Contract) -> dict[str, int]:
    """The sizes of a check's cell, within the bounds: ROWS rows, the second dimension COLUMNS, of further ones FEW."""
    wanted = (ROWS, COLUMNS, *[FEW] * len(contract.dimensions))
    found = {d.name: min(max(n, d.low), d.high) for d, n in zip(contract.dimensions, wanted)}
    return {**found, **contract.check_sizes}


def cells(contract: Contract, dtypes: Iterable[str], families: Iterable[str]) -> Iterator[Cell]:
    """The cells of a check: each dtype and family, with every parameter at its default; then, in the first dtype, each
    other value of each parameter.  Only those that the contract supports."""
    some = [o for o in contract.operations if o != "no-grad-forward"] or list(contract.operations)
    operations = ["full"] if "full" in some else some
    default = {p.name: p.default for p in contract.parameters}
    dtypes, families = list(dtypes), list(families)
    variants = [default, *({**default, p.name: v} for p in contract.parameters for v in _others(contract, p))]
    product = itertools.product(operations, variants, dtypes, families)
    for number, (operation, params, dtype, family) in enumerate(product):
        found = Cell(
            backend="cpu",
            op=contract.op,
            provider="reference",
            mode="auto",
            operation=operation,
            dtypes=dict.fromkeys(contract.typed, dtype),
            dims=sizes(contract),
            params=params,
            family=family,
            contract_version=contract.version,
            contract_content=contract.content,
            index=number,
        )
        if contract.supports(found) is None:
            yield found


def _others(contract: Contract, p: Parameter) -> list[Any]:
    found = contract.check_values.get(p.name)
    return plants.others(p) if found is None else [v for v in found if v != p.default]


def problem(contract: Contract, op: str) -> str:
    """What is wrong with a contract, by what it declares and by small cells of it; "" if nothing is."""
    wrong = declared(contract, op)
    if wrong:
        return wrong
    family = _PLAIN if _PLAIN in contract.families else contract.families[0]
    some = list(cells(contract, contract.dtypes, contract.families))
    if not some:
        return f"no cell of {_sizes(contract)} is supported; give other sizes in check_sizes"
    for cell in some:
        wrong = tensors_problem(contract, cell)
        if wrong:
            return wrong
    few = [c for c in some if c.family == family] + [c for c in some if c.family != family][:2]
    for cell in few:
        wrong = _evaluated(contract, cell)
        if wrong:
            return f"{wrong} ({where(cell)}, family {cell.family})"
    for cell in (c for c in few if c.family == family and c.dtype == few[0].dtype):
        wrong = _gradients(contract, cell)
        if wrong:
            return f"{wrong} ({where(cell)})"
    return ""


def _sizes(contract: Contract) -> str:
    return ", ".join(f"{k}={v}" for k, v in sizes(contract).items())


def _evaluated(contract: Contract, cell: Cell) -> str:
    """What is wrong with the inputs, the reference, the work and the tolerances of one cell."""
    rows = evaluate.row_count(cell)
    given = {t.name: t for t in evaluate.given_tensors(cell, contract)}
    try:
        raw = contract.inputs(evaluate.inputs_view(cell, contract), evaluate.family_of(cell, contract), (0, rows))
        evaluate.make_inputs(cell, contract, (0, rows))
    except FarmError as error:
        return str(error)
    except Exception as error:
        return f"inputs() raises {_raised(error)}"
    for name, t in given.items():
        value = np.asarray(raw[name])
        if value.shape != t.dims:
            return f"inputs() makes {name} with sizes {list(value.shape)}, but the tensor has {list(t.dims)}"
        if not np.array_equal(decode(encode(value, t.dtype), t.dtype), value, equal_nan=is_float(t.dtype)):
            return f"inputs() makes values of {name} that {t.dtype} cannot hold; let the family make them in that dtype"
    whole = evaluate.fill_inputs(cell, contract)
    if contract.rows_independent and rows > 2:
        cut = evaluate.fill_inputs(cell, contract, rows_per_block=max(1, rows // 3))
        for name in given:
            if not np.array_equal(_bits(whole[name]), _bits(cut[name])):
                return f"inputs() makes other rows of {name} in a block than in the whole; make them by their number"
    wrong, found = _referenced(contract, cell, whole)
    return wrong or _limits(contract, cell, whole, found)


def _bits(stored: Array) -> Array:
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)


def _referenced(contract: Contract, cell: Cell, inputs: Mapping[str, Array]) -> tuple[str, dict[str, Array]]:
    rows = evaluate.row_count(cell)
    try:
        found = evaluate.make_reference(cell, contract, inputs, (0, rows))
    except FarmError as error:
        return str(error), {}
    except Exception as error:
        return f"reference() raises {_raised(error)}", {}
    judged = evaluate.judged_tensors(cell, contract)
    for t in judged:
        if t.name not in found:
            return f"reference() gives {', '.join(found) or 'nothing'}, but not {t.name}", {}
        value = np.asarray(found[t.name])
        if value.shape != t.dims:
            return f"reference() gives {t.name} with sizes {list(value.shape)}, but the tensor has {list(t.dims)}", {}
        if is_float(t.dtype) and value.dtype != np.float64:
            return f"reference() gives {t.name} as {value.dtype}; compute it in float64", {}
    names = {t.name for t in judged}
    for name in found:
        if name.split(".")[0] not in names:
            return f"reference() gives {name}, which is not an output ({', '.join(sorted(names))})", {}
    own = evaluate.make_reductions(cell, contract, inputs, (0, rows))
    shares = evaluate.reductions_of(cell, contract, found)
    if set(own) != set(shares) or any(not np.array_equal(own[n], shares[n], equal_nan=True) for n in own):
        return "reductions() gives something else than reference() and scales() of the same rows; correct it", {}
    if contract.rows_independent and rows > 2:
        wrong = _rows_alone(contract, cell, inputs, found)
        if wrong:
            return wrong, {}
    return "", found


def _rows_alone(contract: Contract, cell: Cell, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> str:
    """Why blocks give something else than the whole: other rows, or a row that knows where it stands."""
    rows = evaluate.row_count(cell)
    cut = evaluate.fill_reference(cell, contract, inputs, rows_per_block=max(1, rows // 3))
    order = np.argsort(hashes("rows alone", cell.seed, np.arange(rows)), kind="stable")
    moved = evaluate.make_reference(cell, contract, evaluate.cut(inputs, cell, contract, order), (0, rows))
    for t in evaluate.judged_tensors(cell, contract):
        want = np.asarray(found[t.name])
        if not _close(cut[t.name], want):
            sums = "its blocks do not add up to the whole" if not t.blocked else "a row depends on the rows around it"
            differs = f"reference() of {t.name} in blocks differs from the whole"
            return f"{differs}, so {sums}; correct it, or {_declare(contract)}"
        if not _close(moved[t.name], want[order] if t.blocked else want):
            return (
                f"reference() of {t.name} depends on where a row stands; make rows independent, or {_declare(contract)}"
            )
    return ""


def _declare(contract: Contract) -> str:
    """What the author of this kind of contract writes where rows are not independent of each other."""
    return "leave out rows=" if isinstance(contract, TorchContract) else "declare rows_independent = False"


def _close(one: Array, other: Array) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    size = np.abs(other[np.isfinite(other)]).max(initial=0.0)
    return bool(np.allclose(one, other, rtol=1e-9, atol=1e-12 * size, equal_nan=True))


def _limits(contract: Contract, cell: Cell, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> str:
    """What is wrong with the tolerances, the work and the contract's own judge."""
    judged = {t.name: t for t in evaluate.judged_tensors(cell, contract)}
    try:
        gates = contract.gates(cell)
        work = evaluate.work_of(cell, contract, inputs)
        outputs = {name: encode(np.asarray(found[name]), t.dtype) for name, t in judged.items()}
        told = evaluate.evaluate(cell, contract, outputs, inputs)
    except FarmError as error:
        return str(error)
    except Exception as error:
        return f"a tolerance, work() or judge() raises {_raised(error)}"
    for name, limits in gates.items():
        if name not in judged:
            return f"a tolerance is for {name}, which is not an output ({', '.join(judged)})"
        for metric, limit in limits.items():
            if not isinstance(limit, (int, float)) or math.isnan(limit) or limit < 0:
                return f"the tolerance {name}.{metric} is {limit!r}; it must be a number, not negative"
            if metric not in told.metrics[name] and metric not in METRICS:
                return (
                    f"a tolerance limits {name}.{metric}, which is not a metric ({', '.join(METRICS)}) nor of judge()"
                )
    for name in judged:
        if not gates.get(name):
            return f"no tolerance limits {name}, so whatever is finite passes; add one"
    numbers = (work.bytes_read, work.bytes_written, *work.operations.values()) if isinstance(work, Work) else (-1,)
    if any(n < 0 for n in numbers):
        return f"work() gives {_short(work)}; it must be a Work of numbers that are not negative"
    if not told.ok:
        return f"the reference itself, rounded to the dtypes, is not within the tolerances: {told.reason}"
    return ""


def _gradients(contract: Contract, cell: Cell) -> str:
    """A gradient that central differences of the reference contradict; "" if none does."""
    tensors = evaluate.tensors_of(cell, contract)
    gradients = [t for t in tensors if t.role == "gradient"]
    ups = [t for t in tensors if t.role == "upstream"]
    if not gradients or "forward" not in contract.operations:
        return ""
    forward = replace(cell, operation="forward", cell_key="")
    values = decoded(cell, contract, evaluate.fill_inputs(cell, contract))
    outputs = [t for t in evaluate.judged_tensors(forward, contract) if is_float(t.dtype)]
    pairs = [(u, o) for u in ups for o in outputs if u.name == f"d{o.name}"] or list(zip(ups, outputs))
    found = reference(contract)(cell, values)
    for t in gradients:
        x = np.asarray(values[str(t.of)], dtype=np.float64)
        # along its own signs, where nothing cancels; and along a random direction
        drawn = (hashes(f"{t.name}.direction", 0, np.arange(x.size)) >> np.uint64(40)).astype(np.float64) / 2**23
        ways = (np.sign(np.asarray(found[t.name])) * (drawn.reshape(x.shape) / 4 + 0.5), drawn.reshape(x.shape) - 1)
        # rows of different sizes: a step of each row's own
        size = np.abs(x).reshape(len(x), -1).max(axis=1) if t.blocked else np.full(max(1, len(x)), np.abs(x).max())
        for direction in ways:
            step = direction * DIFFERENCE_STEP * np.maximum(size, 1e-6).reshape(-1, *([1] * (x.ndim - 1)))
            ahead, behind = (
                reference(contract)(forward, {**values, str(t.of): x + sign * step}) for sign in (1.0, -1.0)
            )
            slope = sum(float(((ahead[o.name] - behind[o.name]) / 2 * values[u.name]).sum()) for u, o in pairs)
            terms = np.asarray(found[t.name]) * step
            told, scale = float(terms.sum()), math.sqrt(float((terms**2).sum())) + 1e-300
            if not abs(slope - told) <= DIFFERENCE_TOLERANCE * max(scale, abs(told)):
                return (
                    f"the gradient {t.name} does not fit the reference: along a direction it gives {told:.6g}, and "
                    f"central differences give {slope:.6g}; correct its formula"
                )
    return ""


def decoded(cell: Cell, contract: Contract, stored: Mapping[str, Array]) -> dict[str, Array]:
    """Storage arrays of inputs as values."""
    dtypes = {t.name: t.dtype for t in evaluate.tensors_of(cell, contract)}
    return {name: np.array(decode(a, dtypes[name])) for name, a in stored.items()}


def reference(contract: Contract) -> plants.Reference:
    """The reference of a whole cell as a function of its decoded inputs."""

    def of(cell: Cell, values: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            seen = evaluate.reference_view(cell, contract)
            exact = contract.exact if isinstance(contract, TorchContract) else contract.reference
            return dict(exact(values, seen, (0, evaluate.row_count(cell))))

    return of
