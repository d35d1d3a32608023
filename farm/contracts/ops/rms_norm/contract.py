"""The op rms_norm: y = x / sqrt(mean(x^2) + eps) * (weight + offset), over the last dimension.

Formulas, sizes of terms and gates: `farm/contracts/ops/rms.py`, which it shares with fused_add_rms_norm.
"""

from __future__ import annotations

from farm.contracts.base import Parameter
from farm.contracts.ops.rms import CASTING, EPS, OFFSET, WEIGHT, RmsContract


class RmsNorm(RmsContract):
    """rms_norm with gradients.  x [rows, hidden], weight [hidden] -> y as x; dy as x -> dx as x, dw as weight."""

    op = "rms_norm"
    version = 1
    parameters = (EPS, OFFSET, CASTING, Parameter("in_place", bool, False, changes_result=False), WEIGHT)


CONTRACT = RmsNorm()
