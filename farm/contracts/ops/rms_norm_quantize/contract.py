"""The op rms_norm_quantize: rms_norm, then symmetric quantisation with one scale a row, or one a group of columns.

y = x / sqrt(mean(x^2) + eps) * weight      (Zhang and Sennrich, arXiv:1910.07467, equation 4; not rounded)
scale = max|y| / L,  q = y / scale, rounded half to even      an all-zero group: scale 0, q 0

L is the largest value of q's dtype: 127 of int8, 448 of float8_e4m3fn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.dtypes import get
from farm.contracts.layouts import LEADING, STRIDES
from farm.contracts.ops.rms import SPILL_FREE

#: How far from a rounding tie float32 arithmetic may still fall to the other side, in quantisation steps.
TIE_WIDTH = 2.0**-9
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}


class RmsNormQuantize(Contract):
    """Two outputs of different dtypes; q is judged by its distance from the unrounded ratio."""

    op = "rms_norm_quantize"
    version = 1
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (
        Parameter("eps", float, 1e-6, low=0.0, positional=True),
        Parameter("quantized", str, "int8", allowed=tuple(LARGEST)),
        Parameter("group", int, 0, allowed=(0, 128)),  # columns that share a scale; 0: all
    )
    check_sizes = {"hidden": 256}
    typed = ("x", "weight")
    families = ("mixed", "normal", "outlier", "alternating", "tiny", "large", "signed", "large_weight")
    layouts = {"x": (*STRIDES, *LEADING), "weight": ("strided", "offset")}
    spill_free = SPILL_FREE

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x [rows, hidden], weight [hidden]; q [rows, hidden], scale float32 [rows, groups]."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        return (
            Tensor("x", cell.dtypes["x"], (rows, hidden), "input"),
            Tensor("weight", cell.dtypes["weight"], (hidden,), "input", blocked=False),
            Tensor("q", _quantized(cell), (rows, hidden), "output"),
            Tensor("scale", "float32", (rows, hidden // _group(cell)), "output"),
        )

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """x in the family's kinds, weight varied."""
        hidden = cell.dims["hidden"]
        return {
            "x": family.rows("x", block, hidden, cell.dtypes["x"], total=cell.dims["rows"]),
            "weight": family.vector("weight", hidden, cell.dtypes["weight"]),
        }

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """q, of int8 rounded; scale float64 [rows, groups]; and `q.real`, the ratio y / scale."""
        x = inputs["x"].astype(np.float64)
        mean = np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            y = x / np.sqrt(mean + cell.params["eps"]) * inputs["weight"].astype(np.float64)
        to, group = _quantized(cell), _group(cell)
        groups = y.reshape(len(y), y.shape[1] // group, group)
        scale = np.abs(groups).max(axis=2, keepdims=True) / LARGEST[to]
        real = np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0).reshape(y.shape)
        return {"q": np.rint(real).astype(np.int8) if to == "int8" else real, "scale": scale[:, :, 0], "q.real": real}

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """q: `max_steps`, the largest |q - y/scale| in steps.  Half a step is rounding; a q on the other side of a tie
        is right only within TIE_WIDTH of it."""
        if "q" not in outputs:
            return None
        real = reference["q.real"]
        steps = np.abs(outputs["q"] - real) / _step(real, _quantized(cell))
        return {"q": {"max_steps": float(steps.max(initial=0.0))}}

    def work(self, cell: CellLike) -> Work:
        """Each tensor once; 7 operations an element."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        read = rows * hidden * nbytes(cell.dtypes["x"]) + hidden * nbytes(cell.dtypes["weight"])
        return Work(read, rows * hidden + 4 * rows * (hidden // _group(cell)), {"vector": 7 * rows * hidden})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """scale as any float32 statistic; q within half a step, and a tie's width for float32 arithmetic."""
        growth = g.root_growth(cell.dims["hidden"], 16384)
        groups = cell.dims["hidden"] // _group(cell)
        scale = g.limits(g.SINGLE["float32"], groups, cell.dims["rows"] * groups, growth=growth)
        return {"q": {"max_steps": 0.5 + TIE_WIDTH * growth}, "scale": scale}

    def supports(self, cell: CellLike, target: str | None = None) -> str | None:
        """Whole groups only."""
        hidden, group = cell.dims["hidden"], _group(cell)
        return None if hidden % group == 0 else f"hidden must be a multiple of the group, {group}, but is {hidden}"


def _quantized(cell: CellLike) -> str:
    """The dtype of q; int8 in runs that are older than the parameter."""
    return str(cell.params.get("quantized", "int8"))


def _group(cell: CellLike) -> int:
    """Columns that share a scale, at least 1."""
    return int(cell.params.get("group", 0)) or cell.dims["hidden"]


def _step(values: Array, dtype: str) -> Array:
    """The distance of neighbours of q's dtype at `values`."""
    if dtype == "int8":
        return np.ones_like(values)
    d = get(dtype)
    exponent = np.frexp(np.abs(values))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, d.smallest) - (d.precision - 1))


CONTRACT = RmsNormQuantize()
