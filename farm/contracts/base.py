"""The base class of an op's contract.  NumPy only; a contract never imports an implementation.

An op is a folder `farm/contracts/ops/<op>/` whose `contract.py` defines a subclass of `Contract` and an instance named
`CONTRACT`.  A new op needs a new folder and no other edit.

**Row blocks.** The first dimension is the *row* dimension.  A tensor whose first dimension is the row dimension is
*blocked*: it is generated, referenced and compared in blocks of rows `[start, stop)`.  Every other tensor is *whole*.
An output without the row dimension (a weight gradient) is a *reduction*: `reference` returns one block's partial sum,
and partial sums are added.  The reference of a row depends on the inputs of that row and on whole tensors, never on the
row's index, because for a very large cell a sample of rows is gathered and referenced as if it were one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from farm.contracts.dtypes import PACKED, get
from farm.errors import ContractError

Array = Any  # numpy.ndarray; NumPy's own generic alias would tell a reader no more


class CellLike(Protocol):
    """The part of a cell that a contract uses."""

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
    """The generator of input values, provided by the farm.  Its integer arithmetic gives equal values on every host."""

    def rows(self, name: str, block: tuple[int, int], width: int, dtype: str, *, total: int) -> Array:
        """Rows [start, stop) of a `total` x `width` tensor, float32 [stop - start, width], with the family's kinds of
        rows.  Each value is exactly representable in `dtype`."""

    def vector(self, name: str, size: int, dtype: str, *, mean: float = 1.0, spread: float = 0.25) -> Array:
        """A weight: varied values around `mean`, float32 [size], exactly representable in `dtype`.  In some families
        it has both signs, exact zeros and large values."""

    def normal(self, name: str, block: tuple[int, int], width: int, dtype: str, *, scale: float = 1.0) -> Array:
        """Rows [start, stop) of approximately normal data times `scale`, float32 [stop - start, width], exactly
        representable in `dtype`, without special rows: for matrix operands."""

    def upstream(
        self, name: str, block: tuple[int, int], width: int, dtype: str, *, total: int, scale: float = 1.0
    ) -> Array:
        """Rows [start, stop) of a `total` x `width` upstream gradient: as `normal`, but with large, zero, tiny or
        nonfinite values in the families for upstream gradients (`upstream`, `upstream_nan`, `upstream_inf`)."""

    def integers(self, name: str, block: tuple[int, int], width: int, low: int, high: int) -> Array:
        """Rows [start, stop) of integers in [low, high), all equally likely, int64 [stop - start, width]."""

    @property
    def asked(self) -> str:
        """The family that the matrix names, which may be one of the contract's own."""


@dataclass(frozen=True)
class Dimension:
    """A named size with its inclusive bounds."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Parameter:
    """A parameter of the op: its Python type, default, allowed values, and whether it is passed by position.

    `semantic=False`: the parameter selects tolerances, for example by rounding class.  It is passed only to providers
    that accept it, and the reference does not depend on it.
    `changes_result=False`: the parameter does not change the unrounded result (for example, where memory is allocated),
    so the reference does not depend on it.
    `inputs=True`: `inputs` may read the parameter, so cells with different values do not share inputs.  Without it (and
    without `nullifies`), reading the parameter there is a ContractError.
    `nullifies`: the name of an optional input tensor, which is passed as None if the value is False.
    `in_id`: the cell's id contains the bare value (`llama`), instead of `name=value` if it is not the default.
    `declared`: implementations define it differently, so each provider declares its value (`DECLARES` in its file), is
    planned with that value, and is judged by the corresponding reference.  A matrix cannot set it, it is not passed to
    providers, and it is not in the id, because the provider's name implies it.
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
    inputs: bool = False
    nullifies: str | None = None
    in_id: bool = False
    declared: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor of a cell.  `role`: input, upstream (a fixed gradient fed to backward), output, gradient, mutated.

    `dims` are sizes; `blocked`: the first of them is the row dimension.  `of`: the input that a gradient belongs to.
    `may_overwrite`: the op may overwrite this input (an in-place backward writes dx into dy's memory).
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    role: str
    blocked: bool = True
    of: str | None = None
    may_overwrite: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in PACKED:
            return
        wrong = "" if self.role == "input" else "only inputs may be packed"
        if len(self.dims) < 1 + self.blocked or self.dims[-1] % 2:
            wrong = "the last dimension must be even, and not that of the rows"
        if wrong:
            text = f"{self.name} is of {self.dtype}, two elements a byte, as {self.role} {list(self.dims)}; {wrong}"
            raise ContractError(text, id="contract-packed")

    @property
    def stored_dims(self) -> tuple[int, ...]:
        """The shape of the stored array: with half as many columns where two elements share a byte."""
        return get(self.dtype).stored_shape(self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * get(self.dtype).bits // 8

    @property
    def size(self) -> int:
        n = 1
        for d in self.dims:
            n *= d
        return n


@dataclass(frozen=True)
class Work:
    """The least work that a cell requires: bytes, and operations per datapath (`tensor` for matrix units, `vector`)."""

    bytes_read: int
    bytes_written: int
    operations: Mapping[str, int]

    def plain(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {"bytes_read": self.bytes_read, "bytes_written": self.bytes_written, "operations": dict(self.operations)}


class Contract:
    """The definition of correct results of an op.  Subclasses set the class attributes and implement the methods that
    raise NotImplementedError here."""

    op: str
    version: int = 1
    dimensions: tuple[Dimension, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    typed: tuple[str, ...] = ()  # tensors whose dtype a matrix may choose; a plain `dtype:` sets that of the first
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")  # the dtypes that these tensors may have
    operations: tuple[str, ...] = ("forward",)
    families: tuple[str, ...] = ("mixed", "normal")
    #: Tensor -> the layouts of `farm.contracts.layouts` that a matrix may give it.
    layouts: Mapping[str, tuple[str, ...]] = {}
    determinism: str = "bitwise"  # what our correct providers guarantee between runs: bitwise or tolerance
    #: Whether a row must have the same bits alone as in a batch, from every provider: a choice of kernel by the number
    #: of rows, or a sum split by it, breaks that.
    batch_invariant: bool = False
    #: Whether a row's result depends on that row and on whole tensors alone.  False for an op whose rows depend on
    #: where they stand (ragged batches, a scan over rows): it is made and compared whole, in one block, its inputs are
    #: never moved round, and a cell with a tensor of more than 2^26 elements is unsupported.
    rows_independent: bool = True
    #: Whether the reference is a PyTorch function (farm/contracts/from_torch.py), which runs in a process of its own.
    needs_torch: bool = False
    #: Whether `reference` also gives what a correct implementation gives at the cell's dtypes (`NAME.own`), whose
    #: error, times `farm.contracts.own_errors.FACTORS`, widens the tolerances of `gates`.
    own_tolerances: bool = False
    #: Whether bytes and operations depend on the values of the inputs: then `work_on` gives them.
    work_from_inputs: bool = False
    #: Families of the contract's own, each with the built-in one whose values the generator gives for it; `inputs`
    #: knows them by `family.asked`.
    own_families: Mapping[str, str] = {}
    #: Dimension -> its size in the cells of `farm contract check`, where those that it chooses do not fit.
    check_sizes: Mapping[str, int] = {}
    #: Parameter -> the values that `farm contract check` gives it, where its bounds do not say which make sense.
    check_values: Mapping[str, tuple[Any, ...]] = {}
    #: What an outside contract is made of, set where it is found (farm/contracts/discovery.py); "" for a built-in one.
    content: str = ""
    #: forward or backward -> (a dimension, its largest size for which a kernel that `auto` chooses may not spill)
    spill_free: Mapping[str, tuple[str, int]] = {}

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """Every tensor of this cell, inputs first, in the order in which a provider is called."""
        raise NotImplementedError

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """The inputs and upstream gradients: rows [start, stop) of blocked tensors, and whole tensors completely.
        float32 or integer arrays whose values are exactly representable in the tensor's dtype.

        Cells share inputs, so `cell` has only what the inputs may depend on (farm/contracts/view.py): the parameters
        with `inputs=True` or `nullifies`, and as `operation` the first one with the same input tensors."""
        raise NotImplementedError

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Outputs and gradients in float64 (integers as integers): the block's rows of blocked ones, and the block's
        partial sums of reductions.  `inputs` contains only the block's rows of blocked tensors.

        Cells share references, so `cell` (here, in `scales` and in `spread`) lacks the parameters that do not change
        the result, and its `operation` is the first one with the same tensors."""
        raise NotImplementedError

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """For outputs with cancellation (gradients): the magnitude of the terms, **squared**.  Errors of results
        below it are relative to the terms.  Blocked outputs: float64 [rows, 1]; reductions: the block's partial sums,
        float64 [...].  For omitted outputs, errors are relative to the result."""
        return {}

    def spread(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """For blocked outputs: bool [rows, 1], false for rows whose rounding errors repeat instead of averaging out (a
        constant row).  Metrics of L2 and gain mean nothing there, so only element-wise tolerances apply.  For outputs
        that are omitted, all rows count as spread."""
        return {}

    def reductions(
        self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]
    ) -> dict[str, Array] | None:
        """What `reference` gives for outputs without the row dimension, under NAME, and `scales` under NAME.scale2, bit
        for bit, without the rest: of a large tensor every row adds to a reduction, and a sample of rows is compared.
        None (the default): `reference` and `scales` are asked, and what is not needed is dropped."""
        return None

    def work(self, cell: CellLike) -> Work:
        """The least bytes and operations of one call; of the fullest inputs, where they depend on the inputs."""
        raise NotImplementedError

    def work_on(self, cell: CellLike, inputs: Mapping[str, Array]) -> Work:
        """`work` of an op whose work depends on its inputs (ignored rows, ragged batches), with `work_from_inputs`.
        `inputs`: each input and upstream gradient whole, read-only, as values (float or integer arrays); one is decoded
        when it is asked for, so ask only for what decides."""
        return self.work(cell)

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """The tolerances: output -> metric -> limit.  Metrics without a limit are not enforced, except that a float
        output must always be finite where the reference is finite."""
        raise NotImplementedError

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """Metrics for outputs that the generic metrics do not fit: output -> metric -> value for this block (0: no
        error); blocks are merged by the maximum.  Omitted outputs get the generic metrics; None (the default): all do.
        `outputs` are values (float64 or integers).  `reference` is the result of `reference`, which may contain
        additional arrays under names like `q.real`."""
        return None

    def faults(
        self, inputs: Mapping[str, Array], cell: CellLike, correct: Mapping[str, Array]
    ) -> Mapping[str, Mapping[str, Array]]:
        """Faults of this op's own for `farm contract check`, beside those of farm/accuracy/plants.py: name -> the
        outputs that differ, unrounded as those of `reference`, of which `correct` is the result."""
        return {}

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Why no provider can run this cell on `target`, or None."""
        return None

    def interpreted_seconds(self, cell: CellLike) -> float:
        """The approximate extra seconds that our kernels take in the CPU's interpreter, beyond the time per element."""
        return 0.0


def nbytes(dtype: str) -> int:
    """Bytes per element of a dtype name, of at least 8 bits; of others a tensor knows its `nbytes`."""
    if dtype in PACKED:
        raise ContractError(
            f"elements of {dtype} share bytes; use the nbytes of the tensor", id="contract-packed-bytes"
        )
    return get(dtype).bits // 8


__all__ = ["Contract", "Dimension", "Parameter", "Tensor", "Work", "nbytes"]
