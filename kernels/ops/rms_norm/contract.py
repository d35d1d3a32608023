"""The op rms_norm: y = x / sqrt(mean(x^2) + eps) * (weight + offset), over the last dimension.

Formulas: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467, equation 4, with eps inside the
root and the offset on the weight as Llama and Gemma have them; the gradients are its derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels import gates as g
from kernels.contract import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes

_FORWARD = ("forward", "no-grad-forward", "full")
_BACKWARD = ("backward", "full")
#: The smallest normal number, where terms come near it.
_SMALLEST = {"float16": 2.0**-14}


class RmsNorm(Contract):
    """rms_norm with gradients; `casting` says where a kernel rounds and chooses gates, never the reference."""

    op = "rms_norm"
    version = 1
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (
        Parameter("eps", float, 1e-6, low=0.0, positional=True),
        Parameter("offset", float, 0.0),
        Parameter("casting", str, "llama", allowed=("llama", "gemma", "none"), semantic=False, in_id=True),
        Parameter("in_place", bool, False, changes_result=False),
        Parameter("weight", bool, True, nullifies="weight"),
    )
    typed = ("x", "weight")
    operations = ("forward", "no-grad-forward", "backward", "full")
    families = ("mixed", "normal", "outlier", "alternating", "tiny", "large")

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x [rows, hidden], weight [hidden], dy as x; y as x; dx as x, dw as weight."""
        shape, (_, hidden) = (cell.dims["rows"], cell.dims["hidden"]), tuple(cell.dims.values())
        dtype, affine = cell.dtypes["x"], cell.params["weight"]
        found = [Tensor("x", dtype, shape, "input")]
        if affine:
            found.append(Tensor("weight", cell.dtypes["weight"], (hidden,), "input", blocked=False))
        if cell.operation in _BACKWARD:
            found.append(Tensor("dy", dtype, shape, "upstream", may_overwrite=cell.params["in_place"]))
        if cell.operation in _FORWARD:
            found.append(Tensor("y", dtype, shape, "output"))
        if cell.operation in _BACKWARD:
            found.append(Tensor("dx", dtype, shape, "gradient", of="x"))
            if affine:
                found.append(Tensor("dw", cell.dtypes["weight"], (hidden,), "gradient", blocked=False, of="weight"))
        return tuple(found)

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """x in the family's kinds, weight varied around 1 (never all ones), dy plain."""
        hidden, dtype = cell.dims["hidden"], cell.dtypes["x"]
        made = {"x": family.rows("x", block, hidden, dtype, total=cell.dims["rows"])}
        if cell.params["weight"]:
            made["weight"] = family.vector("weight", hidden, cell.dtypes["weight"])
        if cell.operation in _BACKWARD:
            made["dy"] = family.normal("dy", block, hidden, dtype)
        return made

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """With rstd = 1/sqrt(mean(x^2) + eps), n = x rstd, m = dy (weight + offset):
        y = n (weight + offset), dx = rstd (m - n mean(m n)), dw = sum over rows of dy n."""
        normed, rstd, factor = _normed(inputs, cell)
        found = {}
        if cell.operation in _FORWARD:
            found["y"] = normed * factor
        if cell.operation in _BACKWARD:
            dy = inputs["dy"].astype(np.float64)
            m = dy * factor
            slope = _row_mean(m, normed)
            if cell.params["weight"]:
                found["dw"] = np.einsum("ij,ij->j", dy, normed)
            normed *= slope
            m -= normed
            m *= rstd
            found["dx"] = m
        return found

    def scales(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """dx: the row's mean square of rstd dy (weight + offset); dw: the column's sum of squared terms dy n, each at
        least a normal number: llama's product with n in float16 has fewer digits below."""
        if cell.operation not in _BACKWARD:
            return {}
        normed, rstd, factor = _normed(inputs, cell)
        dy = inputs["dy"].astype(np.float64)
        m = dy * factor
        found = {"dx": rstd * rstd * _row_mean(m, m)}
        if cell.params["weight"]:
            dy *= normed
            found["dw"] = np.einsum("ij,ij->j", dy, dy) + len(dy) * _SMALLEST.get(cell.dtypes["x"], 0.0) ** 2
        return found

    def spread(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """A row of one repeated value, but for its sign, has one rounding error, repeated; so has nearly one in which a
        single element holds more than a quarter of the energy."""
        if cell.operation not in _FORWARD:
            return {}
        squares = np.square(inputs["x"], dtype=np.float64)
        largest = squares.max(axis=1, keepdims=True)
        constant = largest == squares.min(axis=1, keepdims=True)
        return {"y": ~constant & (largest <= squares.sum(axis=1, keepdims=True) / 4)}

    def work(self, cell: CellLike) -> Work:
        """Each tensor once per pass; a forward is 4 operations an element, a backward 9."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        matrix = rows * hidden * nbytes(cell.dtypes["x"])
        weight = hidden * nbytes(cell.dtypes["weight"]) if cell.params["weight"] else 0
        read = written = operations = 0
        if cell.operation in _FORWARD:
            read, written, operations = matrix + weight, matrix, 4 * rows * hidden
        if cell.operation in _BACKWARD:
            read, written = read + 2 * matrix + weight, written + matrix + weight
            operations += 9 * rows * hidden
        return Work(read, written, {"vector": operations})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """By casting: gemma rounds once; llama and none round factors too, to x's dtype, whatever dw is stored in."""
        once = cell.params["casting"] == "gemma"
        outputs, gradients = (g.SINGLE, g.GRADIENT_SINGLE) if once else (g.DOUBLE, g.GRADIENT_DOUBLE)
        rows, hidden, x = cell.dims["rows"], cell.dims["hidden"], cell.dtypes["x"]
        found = {}
        for tensor in self.tensors(cell):
            dtype = tensor.dtype
            growth = g.root_growth(hidden, 16384) if dtype == "float32" else 1.0
            if tensor.name == "y":
                found["y"] = g.limits(outputs[dtype], hidden, tensor.size, growth=growth)
            elif tensor.name == "dx":
                found["dx"] = g.gradient_limits(gradients[dtype], hidden, tensor.size, growth=growth)
            elif tensor.name == "dw":
                gradients = g.REDUCED_SINGLE if once else g.REDUCED_DOUBLE
                narrow = not once and g.PRECISION[x] < g.PRECISION[dtype]
                base = g.wider_stored(gradients[x], x, dtype) if narrow else gradients[dtype]
                growth *= g.root_growth(rows, 1024) if dtype == "float32" else 1.0
                found["dw"] = g.gradient_limits(base, hidden, tensor.size, growth=growth)
        return found


def _normed(inputs: Mapping[str, Array], cell: CellLike) -> tuple[Array, Array, Array | float]:
    """n [rows, hidden], rstd [rows, 1], and weight + offset, in float64."""
    x = inputs["x"].astype(np.float64)
    with np.errstate(divide="ignore"):  # eps = 0 on a zero row: the infinity belongs to the definition
        rstd = 1.0 / np.sqrt(_row_mean(x, x) + cell.params["eps"])
    with np.errstate(invalid="ignore"):
        x *= rstd
    offset = cell.params["offset"]
    return x, rstd, inputs["weight"].astype(np.float64) + offset if cell.params["weight"] else 1.0


def _row_mean(a: Array, b: Array) -> Array:
    """mean(a b) of each row, [rows, 1]."""
    return np.einsum("ij,ij->i", a, b)[:, None] / a.shape[1]


CONTRACT = RmsNorm()
