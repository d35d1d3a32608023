"""The op rms_norm_quantize: rms_norm, then symmetric int8 with one scale a row.

y = x / sqrt(mean(x^2) + eps) * weight      (Zhang and Sennrich, arXiv:1910.07467, equation 4; not rounded)
scale = max|y| / 127,  q = round-half-even(y / scale) in [-127, 127]      an all-zero row: scale 0, q 0
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farm.contracts import gates as g
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor, Work, nbytes
from farm.contracts.layouts import LEADING, STRIDES
from farm.contracts.ops.rms import SPILL_FREE

#: How far from a rounding tie float32 arithmetic may still fall to the other side, in quantisation steps.
TIE_WIDTH = 2.0**-9


class RmsNormQuantize(Contract):
    """Two outputs of different dtypes; q is judged by its distance from the unrounded ratio."""

    op = "rms_norm_quantize"
    version = 1
    dimensions = (Dimension("rows", 0, 2**40), Dimension("hidden", 1, 2**30))
    parameters = (Parameter("eps", float, 1e-6, low=0.0, positional=True),)
    typed = ("x", "weight")
    families = ("mixed", "normal", "outlier", "alternating", "tiny", "large", "signed", "large_weight")
    layouts = {"x": (*STRIDES, *LEADING), "weight": ("strided", "offset")}
    spill_free = SPILL_FREE

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x [rows, hidden], weight [hidden]; q int8 [rows, hidden], scale float32 [rows, 1]."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        return (
            Tensor("x", cell.dtypes["x"], (rows, hidden), "input"),
            Tensor("weight", cell.dtypes["weight"], (hidden,), "input", blocked=False),
            Tensor("q", "int8", (rows, hidden), "output"),
            Tensor("scale", "float32", (rows, 1), "output"),
        )

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """x in the family's kinds, weight varied."""
        hidden = cell.dims["hidden"]
        return {
            "x": family.rows("x", block, hidden, cell.dtypes["x"], total=cell.dims["rows"]),
            "weight": family.vector("weight", hidden, cell.dtypes["weight"]),
        }

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        """q int8, scale float64 [rows, 1], and `q.real`, the ratio y / scale before rounding."""
        x = inputs["x"].astype(np.float64)
        mean = np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            y = x / np.sqrt(mean + cell.params["eps"]) * inputs["weight"].astype(np.float64)
        scale = np.abs(y).max(axis=1, keepdims=True) / 127.0
        real = np.divide(y, scale, out=np.zeros_like(y), where=scale > 0)
        return {"q": np.rint(real).astype(np.int8), "scale": scale, "q.real": real}

    def judge(
        self, cell: CellLike, outputs: Mapping[str, Array], reference: Mapping[str, Array], block: tuple[int, int]
    ) -> dict[str, dict[str, float]] | None:
        """q: `max_steps`, the largest |q - y/scale|.  Half a step is rounding; a q on the other side of a tie is right
        only within TIE_WIDTH of it."""
        if "q" not in outputs:
            return None
        steps = np.abs(outputs["q"] - reference["q.real"])
        return {"q": {"max_steps": float(steps.max(initial=0.0))}}

    def work(self, cell: CellLike) -> Work:
        """Each tensor once; 7 operations an element."""
        rows, hidden = cell.dims["rows"], cell.dims["hidden"]
        read = rows * hidden * nbytes(cell.dtypes["x"]) + hidden * nbytes(cell.dtypes["weight"])
        return Work(read, rows * hidden + 4 * rows, {"vector": 7 * rows * hidden})

    def gates(self, cell: CellLike) -> dict[str, dict[str, float]]:
        """scale as any float32 statistic; q within half a step, and a tie's width for float32 arithmetic."""
        growth = g.root_growth(cell.dims["hidden"], 16384)
        scale = g.limits(g.SINGLE["float32"], 1, cell.dims["rows"], growth=growth)
        return {"q": {"max_steps": 0.5 + TIE_WIDTH * growth}, "scale": scale}


CONTRACT = RmsNormQuantize()
