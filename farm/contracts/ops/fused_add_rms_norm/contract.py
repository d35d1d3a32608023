"""The op fused_add_rms_norm: sum = x + residual, rounded to x's dtype, and y = rms_norm(sum), over the last dimension.

Formulas, sizes of terms and gates: `farm/contracts/ops/rms.py`, which it shares with rms_norm.
"""

from __future__ import annotations

from farm.contracts.base import Array, CellLike, FamilyLike, Parameter
from farm.contracts.layouts import STRIDES
from farm.contracts.ops.rms import CASTING, EPS, OFFSET, WEIGHT, RmsContract, half_of


class FusedAddRmsNorm(RmsContract):
    """fused_add_rms_norm with gradients through both outputs.  x, residual [rows, hidden], weight [hidden] -> y, sum as
    x; dy, dsum as x -> dx and dresidual as x (equal values), dw as weight.

    `sum` says of what y is the norm where implementations differ.  `rounded`: of the stored sum.  `unrounded`: of x +
    residual as float32 holds it, y and 1/rms; the gradients are still taken at the stored sum, with that 1/rms, since a
    backward has no other.
    """

    op = "fused_add_rms_norm"
    version = 1
    parameters = (
        EPS,
        OFFSET,
        CASTING,
        WEIGHT,
        Parameter("sum", str, "rounded", allowed=("rounded", "unrounded"), declared=True),
    )
    summands = ("x", "residual")
    layouts = {**RmsContract.layouts, "residual": STRIDES, "dsum": STRIDES}
    outputs = ("y", "sum")

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        """As for any norm, rows of x and residual of one kind, but

        - residual is half as large: with two equal ones and the default eps, the RMS of tiny rows is next to a power of
          two, and a whole row of a correct kernel that rounds n has one and the same error;
        - its rows have such signs that in the last column, where a row may have its weight, it has x's: none cancels;
        - a row of one value has x's: float32 adds the square of the sum exactly in any order, as it does that of x's;
        - dsum is a quarter of dy, so that in rows of size 1 it does not hide an error of the norm's own gradient.
        """
        made = super().inputs(cell, family, block)
        dtype = cell.dtypes["x"]
        made["residual"] = half_of(made["residual"], made["x"], dtype)
        if "dsum" in made:
            rows, hidden = cell.dims["rows"], cell.dims["hidden"]
            made["dsum"] = family.upstream("dsum", block, hidden, dtype, total=rows, scale=0.25)
        return made


CONTRACT = FusedAddRmsNorm()
