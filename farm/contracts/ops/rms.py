"""What the contracts of norms by the root mean square share: tensors, formulas, sizes of terms, gates.  NumPy only.

Formulas: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467, equation 4, with eps inside the
root and the offset on the weight as Llama and Gemma have them; the gradients are its derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.layouts import LEADING, STRIDES

EPS = Parameter("eps", float, 1e-6, low=0.0, positional=True)
OFFSET = Parameter("offset", float, 0.0)
CASTING = Parameter("casting", str, "llama", allowed=("llama", "gemma", "none"), semantic=False, in_id=True)
WEIGHT = Parameter("weight", bool, True, nullifies="weight")

_FORWARD = ("forward", "no-grad-forward", "full")
_BACKWARD = ("backward", "full")
#: The widest rows for which what `auto` chooses may not spill.
SPILL_FREE = {"forward": ("hidden", 16384), "backward": ("hidden", 8192)}
#: Our kernels in the CPU's interpreter, seconds for two runs (the second must give the same bits).  Measured on two x86
#: cores (docs/facts.md): of a row, of each of its elements, and of each program that sums 32 columns of dw.
_ROW, _COLUMN, _SUM = 2e-3, 0.2e-6, 0.9e-3
_PACKED, _PACKED_ROWS = 1024, 8  # narrower rows share a program, about this many
#: The smallest normal number, where terms come near it.
_SMALLEST = {"float16": 2.0**-14}


class RmsContract(Contract):
    """A norm over the last dimension of the sum of its `summands`, with gradients; `casting` says where a kernel rounds
    and chooses gates, never the reference.  `outputs`: y first, then the sum where it is one."""

    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    typed = ("x", "weight")
    operations = ("forward", "no-grad-forward", "backward", "full")
    families = (
        *("mixed", "normal", "outlier", "alternating", "tiny", "large", "nan", "inf"),
        *("signed", "large_weight", "upstream", "upstream_nan", "upstream_inf"),
    )
    layouts = {"x": (*STRIDES, *LEADING), "weight": ("strided", "offset"), "dy": STRIDES}
    spill_free = SPILL_FREE
    summands: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """Summands [rows, hidden], weight [hidden]; outputs and upstream gradients as x; gradients as what they are
        of, dw as weight."""
        shape, (_, hidden) = (cell.dims["rows"], cell.dims["hidden"]), tuple(cell.dims.values())
        dtype, affine = cell.dtypes["x"], cell.params["weight"]
        found = [Tensor(name, dtype, shape, "input") for name in self.summands]
        if affine:
            found.append(Tensor("weight", cell.dtypes["weight"], (hidden,), "input", blocked=False))
        if cell.operation in _BACKWARD:
            given_up = cell.params.get("in_place", False)
            found += [Tensor(f"d{name}", dtype, shape, "upstream", may_overwrite=given_up) for name in self.outputs]
        if cell.operation in _FORWARD:
            found += [Tensor(name, dtype, shape, "output") for name in self.outputs]
        if cell.operation in _BACKWARD:
            found += [Tensor(f"d{name}", dtype, shape, "gradient", of=name) for name in self.summands]
            if affine:
                found.append(Tensor("dw", cell.dtypes["weight"], (hidden,), "gradient", blocked=False, of="weight"))
        return tuple(found)

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """Summands and upstream gradients in the family's kinds, weight varied (never all ones)."""
        (rows, hidden), dtype = (cell.dims["rows"], cell.dims["hidden"]), cell.dtypes["x"]
        made = {name: family.rows(name, block, hidden, dtype, total=rows) for name in self.summands}
        if cell.params["weight"]:
            made["weight"] = family.vector("weight", hidden, cell.dtypes["weight"])
        if cell.operation in _BACKWARD:
            made |= {f"d{name}": family.upstream(f"d{name}", block, hidden, dtype, total=rows) for name in self.outputs}
        return made

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """With s the sum, rstd = 1/sqrt(mean(s^2) + eps), n = s rstd, m = dy (weight + offset):
        y = n (weight + offset), ds = rstd (m - n mean(m n)) + dsum, the gradient of each summand, and dw = sum over
        rows of dy n.

        A row that is not finite is what these formulas make of it in IEEE arithmetic: of a NaN, all of the row; of an
        infinity, rstd 0, y 0 but for a NaN in that place, ds NaN."""
        with np.errstate(invalid="ignore"):
            return self._reference(inputs, cell)

    def _reference(self, inputs: Mapping[str, Array], cell: CellLike) -> dict[str, Array]:
        total, normed, kept, rstd, factor = self._state(inputs, cell)
        found: dict[str, Array] = {}
        if cell.operation in _FORWARD:
            found |= dict(zip(self.outputs, (normed * factor, total)))
        if cell.operation in _BACKWARD:
            dy = inputs["dy"].astype(np.float64)
            m = dy * factor
            slope = _row_mean(m, kept)
            if cell.params["weight"]:
                found["dw"] = _column_sum(dy, kept)
            kept = kept * slope
            m -= kept
            m *= rstd
            if "dsum" in inputs:
                m += inputs["dsum"]
            found |= {f"d{name}": m for name in self.summands}
        return found

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """Gradients of summands: the row's mean square of rstd dy (weight + offset), plus that of dsum; dw: the
        column's sum of squared terms dy n, each at least a normal number: llama's product with n in float16 has fewer
        digits below."""
        if cell.operation not in _BACKWARD:
            return {}
        with np.errstate(invalid="ignore"):
            _, _, kept, rstd, factor = self._state(inputs, cell)
            dy = inputs["dy"].astype(np.float64)
            m = dy * factor
            squared = rstd * rstd * _row_mean(m, m)
            if "dsum" in inputs:
                dsum = inputs["dsum"].astype(np.float64)
                squared = squared + _row_mean(dsum, dsum)
            found = {f"d{name}": squared for name in self.summands}
            if cell.params["weight"]:
                found["dw"] = _squared_terms(dy, kept, cell)
            return found

    def reductions(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """dw and the squared size of its terms, without the gradients of the summands."""
        if cell.operation not in _BACKWARD or not cell.params["weight"]:
            return {}
        with np.errstate(invalid="ignore"):
            kept, _, rstd = self._statistic(self._total(inputs), cell)
            kept *= rstd
            dy = inputs["dy"].astype(np.float64)
            return {"dw": _column_sum(dy, kept), "dw.scale2": _squared_terms(dy, kept, cell)}

    def interpreted_seconds(self, cell: CellLike) -> float:
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        forward = interpreted_forward(rows, hidden)
        return 3 * forward + _SUM * hidden / 32 if cell.operation in _BACKWARD else forward

    def spread(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """A row of one repeated value, but for its sign, has one rounding error, repeated; so has nearly one in which a
        single element holds more than a quarter of the energy.  So has one that is not finite."""
        if cell.operation not in _FORWARD:
            return {}
        with np.errstate(invalid="ignore"):
            squares = np.square(self._total(inputs))
            largest = squares.max(axis=1, keepdims=True)
            constant = largest == squares.min(axis=1, keepdims=True)
            spread = ~constant & np.isfinite(largest) & (largest <= squares.sum(axis=1, keepdims=True) / 4)
        return dict.fromkeys(self.outputs, spread)

    def work(self, cell: CellLike) -> Work:
        """Each tensor once per pass, gradients that are equal as one; a forward is 4 operations an element, a backward
        9, and one more in each for a second summand."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        matrix = rows * hidden * nbytes(cell.dtypes["x"])
        weight = hidden * nbytes(cell.dtypes["weight"]) if cell.params["weight"] else 0
        adds = len(self.summands) - 1
        read = written = operations = 0
        if cell.operation in _FORWARD:
            read, written = len(self.summands) * matrix + weight, len(self.outputs) * matrix
            operations = (4 + adds) * rows * hidden
        if cell.operation in _BACKWARD:
            read += (1 + len(self.outputs)) * matrix + weight  # the sum, and each output's gradient
            written += matrix + weight
            operations += (9 + adds) * rows * hidden
        return Work(read, written, {"vector": operations})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """By casting: gemma rounds once; llama and none round factors too, to x's dtype, whatever dw is stored in.
        The gradient of one summand of several has a rounding more: whoever composes the op rounds the norm's own."""
        once = cell.params["casting"] == "gemma"
        outputs = g.SINGLE if once else g.DOUBLE
        steps = (g.GRADIENT_SINGLE, g.GRADIENT_DOUBLE, g.GRADIENT_TRIPLE)
        gradients = steps[(not once) + (len(self.summands) > 1)]
        found = {}
        for tensor in self.tensors(cell):
            hidden, dtype = cell.dims["hidden"], tensor.dtype
            growth = g.root_growth(hidden, 16384) if dtype == "float32" else 1.0
            if tensor.name == "dw":
                found["dw"] = self._weight_gates(cell, once, growth)
            elif tensor.role == "gradient":
                found[tensor.name] = g.gradient_limits(gradients[dtype], hidden, tensor.size, growth=growth)
            elif tensor.name == "sum":
                found["sum"] = g.limits(g.ADDED[dtype], hidden, tensor.size)
            elif tensor.role == "output":
                found["y"] = g.limits(outputs[dtype], hidden, tensor.size, growth=growth)
        return found

    def _weight_gates(self, cell: CellLike, once: bool, growth: float) -> dict[str, float]:
        reduced = g.REDUCED_SINGLE if once else g.REDUCED_DOUBLE
        x, dtype, hidden = cell.dtypes["x"], cell.dtypes["weight"], cell.dims["hidden"]
        narrow = not once and g.PRECISION[x] < g.PRECISION[dtype]
        base = g.wider_stored(reduced[x], x, dtype) if narrow else reduced[dtype]
        growth *= g.root_growth(cell.dims["rows"], 1024) if dtype == "float32" else 1.0
        return g.gradient_limits(base, hidden, hidden, growth=growth)

    def _total(self, inputs: Mapping[str, Array]) -> Array:
        """The summands' sum, float64, an array of its own."""
        total = inputs[self.summands[0]].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            for name in self.summands[1:]:
                total += inputs[name]
        return total

    def _state(self, inputs: Mapping[str, Array], cell: CellLike) -> tuple[Array, Array, Array, Array, Any]:
        """In float64: the sum, unrounded; n of y and n of the gradients, [rows, hidden]; rstd [rows, 1]; weight +
        offset.  The two n are one array but where y is of a sum that is not the stored one."""
        total = self._total(inputs)
        stored, used, rstd = self._statistic(total, cell)
        with np.errstate(invalid="ignore"):
            normed = used * rstd
            kept = normed if used is stored else stored * rstd
        offset = cell.params["offset"]
        factor = inputs["weight"].astype(np.float64) + offset if cell.params["weight"] else 1.0
        return total, normed, kept, rstd, factor

    def _statistic(self, total: Array, cell: CellLike) -> tuple[Array, Array, Array]:
        """The sum as it is stored; as y is made of it; and rstd of the latter.  One array may be several."""
        stored = rounded(total, cell.dtypes["x"]) if len(self.summands) > 1 else total
        used = total if cell.params.get("sum") == "unrounded" else stored
        with np.errstate(divide="ignore"):  # eps = 0 on a zero row: the infinity belongs to the definition
            rstd = 1.0 / np.sqrt(_row_mean(used, used) + cell.params["eps"])
        return stored, used, rstd


def interpreted_forward(rows: int, hidden: int) -> float:
    """Seconds of a forward in the interpreter, two runs of it."""
    programs = rows if hidden > _PACKED else rows / _PACKED_ROWS
    return programs * (_ROW + _COLUMN * hidden)


def half_of(residual: Array, x: Array, dtype: str) -> Array:
    """A residual that goes with x, float32: half as large as it is made, of x's sign in the last column, and x itself
    in rows of one value (why: FusedAddRmsNorm.inputs)."""
    half = rounded(residual * np.float64(0.5), dtype)  # a half of the smallest float16 is none
    alike = np.signbit(half[:, -1:]) == np.signbit(x[:, -1:])
    half = np.where(alike, half, -half)
    constant = (half == half[:, :1]).all(axis=1, keepdims=True)
    found: Array = np.where(constant, x, half)
    return found.astype(np.float32)


def _column_sum(dy: Array, normed: Array) -> Array:
    """dw of a block: the sum over its rows of dy n, [hidden]."""
    found: Array = np.einsum("ij,ij->j", dy, normed)
    return found


def _squared_terms(dy: Array, normed: Array, cell: CellLike) -> Array:
    """Sum over the block's rows of (dy n)^2, [hidden], with the least that x's dtype resolves.  Overwrites dy."""
    dy *= normed
    found: Array = np.einsum("ij,ij->j", dy, dy) + len(dy) * _SMALLEST.get(cell.dtypes["x"], 0.0) ** 2
    return found


def _row_mean(a: Array, b: Array) -> Array:
    """mean(a b) of each row, [rows, 1]."""
    return np.einsum("ij,ij->i", a, b)[:, None] / a.shape[1]


def rounded(values: Array, dtype: str) -> Array:
    """float64 `values` rounded to nearest, ties to even, at the precision of a float dtype of at most 32 bits;
    float64 again.  A bfloat16 keeps its 8 bits also below the smallest normal number, where sums of two are exact.
    Infinities and quiet NaN stay what they are."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values.astype(dtype).astype(np.float64)
    dropped = np.uint64(53 - g.PRECISION[dtype])
    bits = values.view(np.uint64)
    half = (np.uint64(1) << (dropped - np.uint64(1))) - np.uint64(1)
    up = bits + half + ((bits >> dropped) & np.uint64(1))
    return ((up >> dropped) << dropped).view(np.float64)
