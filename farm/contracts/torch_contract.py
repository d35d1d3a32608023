"""The class of contracts whose reference is a PyTorch function (farm/contracts/from_torch.py).

Nothing of the function runs here: `evaluate_with` says who evaluates it.  So this module needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.contracts import own_errors as own
from farm.contracts import sizes
from farm.contracts.base import Array, CellLike, Contract, FamilyLike, Tensor, Work
from farm.contracts.dtypes import FLOATS
from farm.errors import ContractError

#: (the values of an output, the inputs by name) -> which elements are right
Right = Callable[[Array, Mapping[str, Array]], Array]
FORWARD, BACKWARD = ("forward", "no-grad-forward", "full"), ("backward", "full")


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
    many; the first is on these inputs, the others are beside them."""

    op: str
    values: Mapping[str, Array]
    dtypes: Mapping[str, str]
    parameters: Mapping[str, Any]
    backward: bool = False
    samples: int = 1


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
    roundings: Mapping[str, int]

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """Inputs; upstream gradients `dNAME` of each output; outputs; gradients `dNAME` of each input that has one."""
        found = [self._tensor(name, spec, cell, "input") for name, spec in self.given.items()]
        outputs = [self._tensor(name, spec, cell, "output") for name, spec in self.made.items()]
        if cell.operation in BACKWARD:
            found += [replace(t, name=f"d{t.name}", role="upstream") for t in self._upstreams(outputs)]
        if cell.operation in FORWARD:
            found += outputs
        if cell.operation in BACKWARD:
            inputs = {t.name: t for t in found if t.role == "input"}
            found += [replace(inputs[name], name=f"d{name}", role="gradient", of=name) for name in self.gradients]
        return tuple(found)

    @staticmethod
    def _upstreams(outputs: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in outputs if t.dtype in FLOATS]

    def _tensor(self, name: str, spec: Spec, cell: CellLike, role: str) -> Tensor:
        words = spec.dims.split()
        dims = tuple(sizes.value(word, cell.dims) for word in words)
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
            low, high = (sizes.value(v, cell.dims) for v in (spec.low, spec.high))
            return family.integers(t.name, part, width, low, high)
        if kind == "rows":
            return family.rows(t.name, part, width, t.dtype, total=total)
        if kind == "weight" and not t.blocked:
            return family.vector(t.name, math.prod(t.dims), t.dtype)
        return family.normal(t.name, part, width, t.dtype)

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Outputs and gradients in float64; under `NAME.own` what the function gives at the cell's dtypes; and under
        `NAME.others`, [samples - 1, ...], of what has no rows: the reference with further samples of that error."""
        tensors = self.tensors(cell)
        whole = any(t.role in ("output", "gradient") and not t.blocked for t in tensors)
        return self._evaluated(inputs, cell, block, own.samples(sum(t.size for t in tensors)) if whole else 1)

    def exact(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """`reference` without the function's own errors."""
        return self._evaluated(inputs, cell, block, 0)

    def in_float32(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Outputs and gradients as a kernel gives them that computes in float32 whatever it stores, unrounded."""
        found = self._evaluated(inputs, cell, block, 1, "float32")
        names = [t.name for t in self.tensors(cell) if t.role in ("output", "gradient")]
        return {n: found.get(f"{n}.own", found[n]) for n in names}

    def _evaluated(
        self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int], samples: int, floats: str = ""
    ) -> dict[str, Array]:
        """`floats`: the dtype that stands for every dtype of floats."""
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
        dtypes = {n: floats if floats and d in FLOATS else d for n, d in dtypes.items()}
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
            kept = (f"{t.name}.own", *([] if t.blocked else [f"{t.name}.others"]))  # each row is a sample of its own
            out |= {n: found[n] for n in kept if n in found}
            if t.dtype in FLOATS:
                out |= self._sizes(t, value)
        return out

    def _sizes(self, t: Tensor, value: Array) -> dict[str, Array]:
        """The squared size below which an error is relative to the row, and which rows are spread.  A reduction's share
        of it is its own; `farm.accuracy.evaluate` takes the mean."""
        if not t.blocked or not value.size:
            return {}
        flat = np.where(np.isfinite(value), value, 0.0).reshape(len(value), -1)
        share = own.SMALL_GRADIENT if t.role == "gradient" else own.SMALL_RESULT
        scale = np.einsum("ij,ij->i", flat, flat)[:, None] / flat.shape[1] * share**2
        size = np.abs(flat)
        spread = (size.max(axis=1) > size.min(axis=1) * (1 + 1e-6))[:, None]
        if self.roundings.get(t.name, 1) == 2:
            spread &= own.shared_by_many(flat)[:, None]
        return {f"{t.name}.scale2": scale, f"{t.name}.spread": spread}

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """The floors: the limits of correct roundings; what is allowed beyond follows from the function's error."""
        out: dict[str, dict[str, float]] = {}
        for t in self.tensors(cell):
            if t.role in ("output", "gradient"):
                columns = math.prod(t.dims[1:]) if t.blocked else t.size
                gradient, roundings = t.role == "gradient", self.roundings.get(t.name, 1)
                out[t.name] = own.floors(t.dtype, columns, t.size, gradient=gradient, roundings=roundings)
                if t.dtype in FLOATS and own.has_lines(t.dims, t.blocked):
                    out[t.name]["line_max"] = 1.0
        return out

    def work(self, cell: CellLike) -> Work:
        """Each tensor once, unless the contract says otherwise."""
        if self.own_work is not None and not self.work_from_inputs:
            return self.own_work(cell)
        tensors = self.tensors(cell)
        read = sum(t.nbytes for t in tensors if t.role in ("input", "upstream"))
        written = [t for t in tensors if t.role in ("output", "gradient")]
        count = sum(t.size for t in written) * self.per_element
        return Work(read, sum(t.nbytes for t in written), {"vector": count})

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


class SeveralAnswers(TorchContract):
    """A contract of whose outputs some have several right answers."""

    right: Mapping[str, Right]

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Also, under `NAME.INPUT`, the inputs that say which answers are right: those with rows, if there are rows."""
        found = super().reference(inputs, cell, block)
        seen = [t.name for t in self.tensors(cell) if t.role == "input" and t.blocked == bool(self.rows)]
        return found | {f"{name}.{n}": inputs[n] for name in self.right if name in found for n in seen}

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """`wrong`: how many elements are no right answer; all, where one leads out of an array."""
        out = {}
        for name in (n for n in self.right if n in outputs):
            given = {k.split(".", 1)[1]: a for k, a in reference.items() if k.startswith(f"{name}.")}
            try:
                right = np.asarray(self.right[name](outputs[name], given), bool)
            except IndexError:
                right = np.zeros(outputs[name].shape, bool)
            if right.shape != outputs[name].shape:
                raise ContractError(
                    f"the contract of {self.op}: right of {name} gives the sizes {list(right.shape)}, but the output "
                    f"has {list(outputs[name].shape)}; give one answer for each element",
                    id="contract-torch-right-shape",
                )
            out[name] = {"wrong": float(np.count_nonzero(~right))}
        return out

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """No element of such an output may be wrong."""
        return {name: {"wrong": 0.0} if name in self.right else of for name, of in super().gates(cell).items()}
