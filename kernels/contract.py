"""What an op's contract must say.  NumPy only; a contract never imports an implementation, and nothing of the farm.

An op is a folder `kernels/ops/<op>/` whose `contract.py` defines one subclass of `Contract` and the name `CONTRACT`,
an instance of it.  A new op is a new folder and no other edit.

**Row blocks.** The first dimension is the *row* dimension.  A tensor whose first dimension is the row dimension is
made, referenced and compared in blocks of rows `[start, stop)`; every other tensor is whole.  An output without the
row dimension (a weight gradient) is a *reduction*: `reference` gives one block's share, and shares are summed.
A row's reference depends on that row's inputs and on whole tensors, never on where the row stands: of a very large
cell a sample of rows is gathered and referenced as if it were one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Array = Any  # numpy.ndarray; NumPy's own generic alias says no more to a reader


class CellLike(Protocol):
    """The part of a cell that a contract reads."""

    @property
    def op(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def dtypes(self) -> Mapping[str, str]: ...
    @property
    def dims(self) -> Mapping[str, int]: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


class FamilyLike(Protocol):
    """Where input values come from: given by the farm, made by integer arithmetic, equal on every host."""

    def rows(self, name: str, block: tuple[int, int], width: int, dtype: str, *, total: int) -> Array:
        """Rows [start, stop) of a `total` x `width` tensor in the family's kinds, float32 [stop - start, width],
        each value exactly representable in `dtype`."""

    def vector(self, name: str, size: int, dtype: str, *, mean: float = 1.0, spread: float = 0.25) -> Array:
        """A parameter-like tensor (a weight): varied values around `mean`, float32 [size], exact in `dtype`."""

    def normal(self, name: str, block: tuple[int, int], width: int, dtype: str, *, scale: float = 1.0) -> Array:
        """Rows [start, stop) of plain unit-normal-like data times `scale`, float32 [stop - start, width], exact in
        `dtype`; no special rows (upstream gradients, matrix operands)."""


@dataclass(frozen=True)
class Dimension:
    """A named size with its inclusive bounds."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Parameter:
    """A parameter of the op: its Python type, default, allowed values, and whether it is passed by position.

    `semantic=False` marks a rounding class and the like: it chooses gates, and is not passed to a provider that
    does not take it.  `changes_result=False` marks a parameter that leaves the unrounded result as it is (where memory
    is taken from): the reference does not depend on it; nor does it on one that is not semantic.
    `nullifies` names an optional input tensor that is passed as None where the value is False.
    `in_id` puts the bare value into the cell's id (`llama`), instead of `name=value` where it is not the default.
    `declared` marks what implementations define differently, and a provider says of itself (`DECLARES` in its file): it
    is planned with that value and judged by that reference.  No matrix sets it, no provider is passed it, and the id
    leaves it to the provider's name.
    """

    name: str
    type: type
    default: Any
    allowed: tuple[Any, ...] | None = None
    low: float | None = None
    high: float | None = None
    positional: bool = False
    semantic: bool = True
    changes_result: bool = True
    nullifies: str | None = None
    in_id: bool = False
    declared: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor of a cell.  `role`: input, upstream (a fixed gradient fed to backward), output, gradient, mutated.

    `dims` are sizes; `blocked` says that the first of them is the row dimension.  A gradient is `of` an input.
    `may_overwrite`: the op is allowed to destroy this input (an in-place backward takes dy's memory for dx).
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    role: str
    blocked: bool = True
    of: str | None = None
    may_overwrite: bool = False

    @property
    def size(self) -> int:
        n = 1
        for d in self.dims:
            n *= d
        return n


@dataclass(frozen=True)
class Work:
    """What a cell must do at least: model bytes, and operations per datapath (`tensor` for matrix units, `vector`)."""

    bytes_read: int
    bytes_written: int
    operations: Mapping[str, int]


class Contract:
    """An op's definition of right.  Subclasses fill in the class attributes and the methods that raise here."""

    op: str
    version: int = 1
    dimensions: tuple[Dimension, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    typed: tuple[str, ...] = ()  # tensors whose dtype a matrix may choose; the first is what `dtype:` means
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")  # what such a tensor may be
    operations: tuple[str, ...] = ("forward",)
    families: tuple[str, ...] = ("mixed", "normal")
    determinism: str = "bitwise"  # what a correct provider of ours promises between runs: bitwise or tolerance

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """Every tensor of this cell, inputs first, in the order in which a provider is called."""
        raise NotImplementedError

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """The inputs and upstream gradients: blocked ones for rows [start, stop), the others whole.
        float32 or integer arrays whose values are exact in the tensor's dtype."""
        raise NotImplementedError

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Outputs and gradients in float64 (integers as integers) from `inputs` (blocked ones already cut to the
        block): blocked ones for the block, reductions as the block's share."""
        raise NotImplementedError

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """For outputs whose elements cancel (gradients): the size of the terms, **squared**, below which errors are
        held to it instead of to the result.  Blocked: float64 [rows, 1]; reductions: the block's share, float64 [...].
        An output that is not here is held to its own value."""
        return {}

    def spread(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """For blocked outputs: bool [rows, 1], false where a row's rounding errors repeat instead of averaging out (a
        constant row), so that L2 and gain say nothing of it and only the element-wise gates hold.
        An output that is not here is spread everywhere."""
        return {}

    def work(self, cell: CellLike) -> Work:
        """Model bytes and operations of one call."""
        raise NotImplementedError

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """Output name -> metric -> limit.  A limit that is not there is not enforced; that float outputs are finite
        where the reference is, always is."""
        raise NotImplementedError

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """Metrics of outputs that the generic ones do not fit: per output, metrics of this block (0 for no error),
        merged by maximum over blocks.  Outputs that are not in the answer get the generic metrics; None (the default):
        all of them.  `outputs` are values (float64 or integers), `reference` is what `reference` gave, which may hold
        more than the outputs under names like `q.real`."""
        return None

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Why no provider can be asked for this cell on `target`, or None."""
        return None

    def roof(self, cell: CellLike) -> str:
        """Which roof binds: `bytes` (copy kernel) or `operations` (the vendor's GEMM)."""
        return "bytes"


def nbytes(dtype: str) -> int:
    """Bytes per element of a dtype name."""
    return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}.get(dtype, 1)


__all__ = ["Contract", "Dimension", "Parameter", "Tensor", "Work", "nbytes"]
