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

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.contracts import sizes
from farm.contracts.base import Dimension, Parameter, Work
from farm.contracts.dtypes import FLOATS, get
from farm.contracts.layouts import STRIDES
from farm.contracts.torch_contract import BACKWARD, Right, SeveralAnswers, Spec, TorchContract
from farm.errors import ContractError

KINDS = ("rows", "normal", "weight", "integers")
#: Layouts of a tensor of one dimension.
LINE = ("strided", "offset")
#: The largest dimension that a matrix may give, unless `bounds` says otherwise.
LARGEST = 2**30


def integers(dims: str, low: int | str, high: int | str, dtype: str = "int64") -> Spec:
    """An input of whole numbers in [low, high): labels, ids, positions."""
    return Spec(dims, dtype, "integers", low, high)


def bits(dims: str) -> Spec:
    """An input of random bits: int32 in [0, 2^31), all equally likely.  An op that draws (dropout) is given them, so
    that its result is determined."""
    return Spec(dims, "int32", "integers", 0, 2**31)


def from_torch(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, str | Spec],
    outputs: Mapping[str, str | Spec],
    rows: str = "",
    gradients: Sequence[str] | None = None,
    roundings: Mapping[str, int] | None = None,
    right: Mapping[str, Right] | None = None,
    allowed: Mapping[str, tuple[Any, ...]] | None = None,
    positional: Sequence[str] = (),
    bounds: Mapping[str, tuple[int, int]] | None = None,
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    families: Mapping[str, Mapping[str, Any]] | None = None,
    more_families: Sequence[str] = (),
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
    roundings: outputs and gradients that a correct kernel may round twice: name -> 2.
    right: output -> a function in NumPy that says which of its elements are right, where several answers are (an
        argmax of equal values): `right(found, inputs)`, the output's values and the inputs by name, gives a bool array
        like the output.  Every element must be right; the function's own answer is one of them.
    allowed: parameter -> all its values.  values: parameter -> those that `farm contract check` tries.
    positional: parameters that providers take by position, behind the inputs.
    bounds: dimension -> smallest and largest size.
    families: own name -> {input: the one value that it is filled with}.
    more_families: the farm's own beside `mixed` and `normal` (`shifted` for an op that subtracts a mean).
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
    made: TorchContract = SeveralAnswers() if right else TorchContract()
    if isinstance(made, SeveralAnswers):
        made.right = dict(right or {})
    for name in right or ():
        if name not in given:
            raise _wrong(f"{where}: right has {name}, which is not an output ({', '.join(given)})", "right")
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
    made.roundings = dict(roundings or {})
    results = [*given, *(f"d{name}" for name in made.gradients)]
    for name, count in made.roundings.items():
        if name not in results or count not in (1, 2):
            what = f"{name}: {count!r}; it takes 1 or 2, of {', '.join(results)}"
            raise _wrong(f"{where}: roundings has {what}", "roundings")
    limits = bounds or {}
    for name in limits:
        if name not in names:
            raise _wrong(f"{where}: bounds has {name}, which is not a dimension ({', '.join(names)})", "bounds")
    made.dimensions = tuple(Dimension(n, *limits.get(n, (0 if n == rows else 1, LARGEST))) for n in names)
    made.typed = tuple(n for n in named if _floats(named[n]) and not named[n].dtype)
    made.dtypes = tuple(dtypes)
    made.operations = ("forward", "no-grad-forward", *(BACKWARD if made.gradients else ()))
    made.own_families = dict.fromkeys(families or {}, "normal")
    made.fills = dict(families or {})
    for name, of in made.fills.items():
        for tensor in of:
            if tensor not in named:
                raise _wrong(f"{where}: the family {name} fills {tensor}, which is not an input", "family")
    made.families = ("mixed", "normal", *more_families, *made.fills)
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
    return [n for word in (*spec.dims.split(), str(spec.low), str(spec.high)) for n in sizes.names(word)]
