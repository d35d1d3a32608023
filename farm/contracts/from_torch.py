"""A contract made from a plain PyTorch function, which is the reference.

    from farm.contracts import from_torch

    def softmax(x):
        import torch
        return torch.softmax(x, -1)

    CONTRACT = from_torch(softmax, inputs={"x": "rows columns"}, outputs={"y": "rows columns"}, rows="rows")

The function is evaluated on the CPU in float64, and its gradients by autograd, in a process of the node's environment
`reference` (farm/child/reference.py).  Nothing of it runs here, so this module, and what imports it, needs no torch.

**Tolerances** come from the function itself: evaluated again at the cell's dtypes on the same inputs, its own error,
times a factor, is what another implementation may have, and never less than that of one correct rounding
(farm/contracts/own_errors.py).  An 8-bit float is computed in float32 and rounded once, because torch does not
compute in one.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.contracts import own_errors as own
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.dtypes import FLOATS, get
from farm.contracts.layouts import STRIDES
from farm.errors import ContractError

KINDS = ("rows", "normal", "weight", "integers")
_FORWARD, _BACKWARD = ("forward", "no-grad-forward", "full"), ("backward", "full")
#: Layouts of a tensor of one dimension.
LINE = ("strided", "offset")
#: The largest dimension that a matrix may give, unless `bounds` says otherwise.
LARGEST = 2**30


@dataclass(frozen=True)
class Spec:
    """One tensor of the function: its dimensions, and what is in it.

    `dims`: names of dimensions, whole numbers, and products, sums, differences and whole quotients of them without
    spaces (`"rows 2*hidden"`).  `dtype`: a fixed one; "": what the matrix chooses.  `kind`, of an input: `rows` (rows
    of several sizes, some of them zero, constant, or with one large element), `normal`, `weight` (values around 1),
    or `integers` in [low, high), which may name dimensions.
    """

    dims: str
    dtype: str = ""
    kind: str = ""
    low: int | str = 0
    high: int | str = 0


def integers(dims: str, low: int | str, high: int | str, dtype: str = "int64") -> Spec:
    """An input of whole numbers in [low, high): labels, ids, positions."""
    return Spec(dims, dtype, "integers", low, high)


def from_torch(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, str | Spec],
    outputs: Mapping[str, str | Spec],
    rows: str = "",
    gradients: Sequence[str] | None = None,
    allowed: Mapping[str, tuple[Any, ...]] | None = None,
    positional: Sequence[str] = (),
    bounds: Mapping[str, tuple[int, int]] | None = None,
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    families: Mapping[str, Mapping[str, Any]] | None = None,
    values: Mapping[str, tuple[Any, ...]] | None = None,
    layouts: Mapping[str, tuple[str, ...]] | None = None,
    check_sizes: Mapping[str, int] | None = None,
    operations_per_element: int = 1,
    work: Callable[..., Work] | None = None,
    version: int = 1,
    determinism: str = "bitwise",
) -> TorchContract:
    """The contract of `function`, whose first arguments are the `inputs` and whose others, with defaults, are the op's
    parameters.  It returns the `outputs`, one tensor or a tuple in their order.

    rows: the dimension whose entries are independent; tensors whose first dimension it is are made and compared in
        blocks of it.  Without it a cell with a tensor of more than 2^26 elements is unsupported.
    gradients: the inputs that have one; left out: all of floats; `()`: the op has no backward.
    allowed: parameter -> all its values.  values: parameter -> those that `farm contract check` tries.
    positional: parameters that providers take by position, behind the inputs.
    bounds: dimension -> smallest and largest size.
    families: own name -> {input: the one value that it is filled with}.
    layouts, check_sizes: as of any contract; without `layouts` every tensor may have strides.
    work: bytes and operations of one call, `work(cell)`, or `work(cell, inputs)` if they depend on the values of the
        inputs (`Contract.work_on`); left out: each tensor once, and `operations_per_element` for each element
        of the outputs.

    ContractError, in one sentence, for what does not fit together.
    """
    named = {name: s if isinstance(s, Spec) else Spec(s) for name, s in inputs.items()}
    given = {name: s if isinstance(s, Spec) else Spec(s) for name, s in outputs.items()}
    parameters = _parameters(function, tuple(named), allowed or {}, positional)
    specs = {**named, **given}
    first = next(iter(specs.values())).dims.split()[:1]
    names = list(dict.fromkeys([*([rows] if rows else []), *(n for s in specs.values() for n in _names(s))]))
    where = f"the contract of {function.__name__}"
    if not named or not given:
        raise _wrong(f"{where}: it needs at least one of inputs and of outputs", "empty")
    if set(named) & set(given):
        raise _wrong(f"{where}: {sorted(set(named) & set(given))[0]} is an input and an output; rename one", "twice")
    if rows and not any(s.dims.split()[:1] == [rows] for s in specs.values()):
        raise _wrong(f"{where}: rows is {rows}, but no tensor begins with it (the first has {first})", "rows")
    for name, spec in specs.items():
        if spec.kind not in ("", *KINDS):
            raise _wrong(f"{where}: the kind of {name} is {spec.kind}; known kinds: {', '.join(KINDS)}", "kind")
        if spec.dtype:
            get(spec.dtype)
        later = spec.dims.split()[1:]
        if rows and any(rows in _names(Spec(d)) for d in later):
            raise _wrong(f"{where}: {name} has {rows}, its rows, in another place than the first", "rows-later")
    made = TorchContract()
    made.function, made.given, made.made, made.rows = function, named, given, rows
    made.rows_independent = bool(rows)
    differentiable = [n for n, s in named.items() if _floats(s)]
    for name in gradients or ():
        if name not in differentiable:
            raise _wrong(f"{where}: gradients has {name}, which is not an input of floats", "gradient")
    made.gradients = tuple(differentiable if gradients is None else gradients)
    if not any(_floats(s) for s in given.values()):
        made.gradients = ()
    made.op, made.version, made.parameters = "", version, parameters
    limits = bounds or {}
    for name in limits:
        if name not in names:
            raise _wrong(f"{where}: bounds has {name}, which is not a dimension ({', '.join(names)})", "bounds")
    made.dimensions = tuple(Dimension(n, *limits.get(n, (0 if n == rows else 1, LARGEST))) for n in names)
    made.typed = tuple(n for n in named if _floats(named[n]) and not named[n].dtype)
    made.dtypes = tuple(dtypes)
    made.operations = ("forward", "no-grad-forward", *(_BACKWARD if made.gradients else ()))
    made.own_families = dict.fromkeys(families or {}, "normal")
    made.fills = dict(families or {})
    for name, of in made.fills.items():
        for tensor in of:
            if tensor not in named:
                raise _wrong(f"{where}: the family {name} fills {tensor}, which is not an input", "family")
    made.families = ("mixed", "normal", *made.fills)
    made.check_values, made.check_sizes = dict(values or {}), dict(check_sizes or {})
    for name in made.check_values:
        if name not in {p.name for p in parameters}:
            raise _wrong(f"{where}: values has {name}, which is not a parameter", "values")
    shaped = {**named, **({f"d{n}": s for n, s in given.items() if _floats(s)} if made.gradients else {})}
    made.layouts = dict(layouts or {n: LINE if len(s.dims.split()) < 2 else STRIDES for n, s in shaped.items()})
    made.determinism, made.per_element, made.own_work = determinism, operations_per_element, work
    made.work_from_inputs = work is not None and len(inspect.signature(work).parameters) > 1
    return made


def _wrong(text: str, id: str) -> ContractError:
    return ContractError(text, id=f"contract-torch-{id}")


def _floats(spec: Spec) -> bool:
    return spec.kind != "integers" and (not spec.dtype or spec.dtype in FLOATS)


def _parameters(
    function: Callable[..., Any],
    inputs: tuple[str, ...],
    allowed: Mapping[str, tuple[Any, ...]],
    positional: Sequence[str],
) -> tuple[Parameter, ...]:
    where = f"the contract of {function.__name__}"
    arguments = list(inspect.signature(function).parameters.values())
    first = tuple(a.name for a in arguments[: len(inputs)])
    if first != inputs:
        raise _wrong(
            f"{where}: its first arguments are {', '.join(first)}, but inputs names {', '.join(inputs)}", "names"
        )
    out = []
    for a in arguments[len(inputs) :]:
        if a.default is inspect.Parameter.empty or type(a.default) not in (bool, int, float, str):
            raise _wrong(
                f"{where}: its argument {a.name} is not an input and has no default that is a bool, int, float or str",
                "default",
            )
        values = allowed.get(a.name)
        out.append(Parameter(a.name, type(a.default), a.default, allowed=values, positional=a.name in positional))
    unknown = sorted({*allowed, *positional} - {p.name for p in out})
    if unknown:
        raise _wrong(f"{where}: {unknown[0]} is not one of its arguments with a default", "parameter")
    return tuple(out)


def _names(spec: Spec) -> list[str]:
    """The dimensions that a tensor's shape, and its bounds, name."""
    words = [*spec.dims.split(), *(str(v) for v in (spec.low, spec.high))]
    return [node.id for word in words for node in ast.walk(_tree(word)) if isinstance(node, ast.Name)]


def _tree(word: str) -> ast.expr:
    try:
        return ast.parse(word, mode="eval").body
    except SyntaxError:
        raise _wrong(f'"{word}" is not a size; write a name, a number, or a*b, a+b, a-b, a//b', "size") from None


def size(word: str | int, dims: Mapping[str, int]) -> int:
    """The value of one size of a shape, like `2*hidden`."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in dims:
            return dims[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise _wrong(f'"{word}" is not a size; write a name, a number, or a*b, a+b, a-b, a//b', "size")

    return value(_tree(str(word)))


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Mult: lambda a, b: a * b,
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.FloorDiv: lambda a, b: a // b,
}
#: (contract, operation, the values of its inputs, dtypes, parameters) -> arrays: who evaluates references here.
Evaluator = Callable[["TorchContract", "Job"], dict[str, Array]]
_evaluator: list[Evaluator | None] = [None]


def evaluate_with(evaluator: Evaluator | None) -> None:
    """From now on references of this process are evaluated so (farm/judge/references.py)."""
    _evaluator[0] = evaluator


@dataclass(frozen=True)
class Job:
    """One evaluation: `values` of inputs and upstream gradients (float64 or integers); `dtypes` of every tensor;
    `parameters` of the function; `backward`: whether gradients are wanted; `samples`: of the function's own error, how
    many beside the one on these inputs."""

    op: str
    values: Mapping[str, Array]
    dtypes: Mapping[str, str]
    parameters: Mapping[str, Any]
    backward: bool = False
    samples: int = 0


class TorchContract(Contract):
    """See `from_torch`."""

    needs_torch = True
    own_tolerances = True
    function: Callable[..., Any]
    given: Mapping[str, Spec]
    made: Mapping[str, Spec]
    rows: str
    gradients: tuple[str, ...]
    fills: Mapping[str, Mapping[str, Any]]
    per_element: int
    own_work: Callable[..., Work] | None

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """Inputs; upstream gradients `dNAME` of each output; outputs; gradients `dNAME` of each input that has one."""
        found = [self._tensor(name, spec, cell, "input") for name, spec in self.given.items()]
        outputs = [self._tensor(name, spec, cell, "output") for name, spec in self.made.items()]
        if cell.operation in _BACKWARD:
            found += [replace(t, name=f"d{t.name}", role="upstream") for t in self._upstreams(outputs)]
        if cell.operation in _FORWARD:
            found += outputs
        if cell.operation in _BACKWARD:
            inputs = {t.name: t for t in found if t.role == "input"}
            found += [replace(inputs[name], name=f"d{name}", role="gradient", of=name) for name in self.gradients]
        return tuple(found)

    @staticmethod
    def _upstreams(outputs: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in outputs if t.dtype in FLOATS]

    def _tensor(self, name: str, spec: Spec, cell: CellLike, role: str) -> Tensor:
        words = spec.dims.split()
        dims = tuple(size(word, cell.dims) for word in words)
        dtype = spec.dtype or cell.dtypes.get(name) or next(iter(cell.dtypes.values()))
        # without independent rows everything is made and compared whole, in the one block that there is
        blocked = words[:1] == [self.rows] if self.rows else False
        return Tensor(name, dtype, dims, role, blocked=blocked)

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """By the kind of each: blocked floats in the family's kinds of rows, whole ones normal, whole vectors varied
        around 1; upstream gradients by the family."""
        filled = self.fills.get(getattr(family, "asked", ""), {})
        out = {}
        for t in self.tensors(cell):
            if t.role not in ("input", "upstream"):
                continue
            part = block if t.blocked else (0, t.dims[0] if t.dims else 1)
            shape = (part[1] - part[0], *t.dims[1:]) if t.dims else ()
            made = self._values(t, cell, family, part)
            out[t.name] = made.reshape(shape)
            if t.name in filled:
                out[t.name] = np.full_like(out[t.name], filled[t.name])
        return out

    def _values(self, t: Tensor, cell: CellLike, family: FamilyLike, part: tuple[int, int]) -> Array:
        total = t.dims[0] if t.dims else 1
        width = math.prod(t.dims[1:])
        if t.role == "upstream":
            return family.upstream(t.name, part, width, t.dtype, total=total)
        spec = self.given[t.name]
        kind = spec.kind or ("rows" if t.blocked and len(t.dims) > 1 else "weight" if len(t.dims) == 1 else "normal")
        if kind == "integers":
            low, high = (size(v, cell.dims) for v in (spec.low, spec.high))
            return family.integers(t.name, part, width, low, high)
        if kind == "rows":
            return family.rows(t.name, part, width, t.dtype, total=total)
        if kind == "weight" and not t.blocked:
            return family.vector(t.name, math.prod(t.dims), t.dtype)
        return family.normal(t.name, part, width, t.dtype)

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Outputs and gradients in float64; under `NAME.own` what the function gives at the cell's dtypes; and under
        `NAME.others`, [samples, ...], the reference with further samples of the function's own error."""
        evaluator = _evaluator[0]
        if evaluator is None:
            raise ContractError(
                f"the reference of {self.op} is a PyTorch function, which nothing evaluates here",
                id="contract-no-torch",
            )
        tensors = self.tensors(cell)
        wanted = [t for t in tensors if t.role in ("output", "gradient")]
        backward = any(t.role == "gradient" for t in tensors)
        dtypes = {
            t.name: t.dtype for t in (*tensors, *(self._tensor(n, s, cell, "output") for n, s in self.made.items()))
        }
        # where rows are independent each is a sample of its own; and a sample must not depend on the block
        samples = 0 if self.rows else own.samples(sum(t.size for t in tensors))
        job = Job(self.op, dict(inputs), dtypes, dict(cell.params), backward, samples)
        found = evaluator(self, job)
        out: dict[str, Array] = {}
        for t in wanted:
            rows = (block[1] - block[0], *t.dims[1:]) if t.blocked else t.dims
            value = found[t.name]
            if tuple(value.shape) != tuple(rows):
                raise ContractError(
                    f"the contract of {self.op}: the function gives {t.name} with shape {list(value.shape)}, but the "
                    f"contract says {list(rows)}",
                    id="contract-torch-shape",
                )
            out[t.name] = value
            out |= {n: found[n] for n in (f"{t.name}.own", f"{t.name}.others") if n in found}
            if t.dtype in FLOATS:
                out |= self._sizes(t, value)
        return out

    @staticmethod
    def _sizes(t: Tensor, value: Array) -> dict[str, Array]:
        """The squared size below which an error is relative to the row, and which rows are spread.  A reduction's share
        of it is its own; `farm.accuracy.evaluate` takes the mean."""
        if not t.blocked or not value.size:
            return {}
        flat = np.where(np.isfinite(value), value, 0.0).reshape(len(value), -1)
        share = own.SMALL_GRADIENT if t.role == "gradient" else own.SMALL_RESULT
        scale = np.einsum("ij,ij->i", flat, flat)[:, None] / flat.shape[1] * share**2
        size = np.abs(flat)
        spread = (size.max(axis=1) > size.min(axis=1) * (1 + 1e-6))[:, None]
        return {f"{t.name}.scale2": scale, f"{t.name}.spread": spread}

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """The floors: the limits of one correct rounding; what is allowed beyond follows from the function's error."""
        out: dict[str, dict[str, float]] = {}
        for t in self.tensors(cell):
            if t.role in ("output", "gradient"):
                columns = math.prod(t.dims[1:]) if t.blocked else t.size
                out[t.name] = own.floors(t.dtype, columns, t.size, gradient=t.role == "gradient")
                if t.dtype in FLOATS and own.has_lines(t.dims, t.blocked):
                    out[t.name]["line_max"] = 1.0
        return out

    def work(self, cell: CellLike) -> Work:
        """Each tensor once, unless the contract says otherwise."""
        if self.own_work is not None and not self.work_from_inputs:
            return self.own_work(cell)
        tensors = self.tensors(cell)
        read = sum(t.size * nbytes(t.dtype) for t in tensors if t.role in ("input", "upstream"))
        written = [t for t in tensors if t.role in ("output", "gradient")]
        count = sum(t.size for t in written) * self.per_element
        return Work(read, sum(t.size * nbytes(t.dtype) for t in written), {"vector": count})

    def work_on(self, cell: CellLike, inputs: Mapping[str, Array]) -> Work:
        """Of these inputs, if the contract's `work` takes them."""
        return self.own_work(cell, inputs) if self.own_work and self.work_from_inputs else self.work(cell)

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Only where there is a torch that evaluates the reference."""
        if self.content.endswith("torch-"):
            return (
                f"the reference of {self.op} is a PyTorch function, and the environment reference has no torch; "
                "install torch there"
            )
        return None
