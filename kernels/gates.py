"""How far a correct kernel may be from the unrounded result: limits for outputs that were rounded once or twice.

The numbers are calibrated by simulation (`benchmarks/calibrate_gates.py`): over every shape, dtype, casting and seed
there, correct kernels stay below them and wrong ones above.  Metrics are defined in `farm/accuracy/metrics.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Shorter rows do not average rounding errors out: only their worst element is held.
MIN_COLUMNS = 64
#: Of fewer elements the L2 norm is no steadier than a row's.
FEW_ELEMENTS = 4096
#: Bits of the significand.
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8}


class Limits(NamedTuple):
    """Limits of one dtype; `mismatch` is None where the count of elements above 1 ULP is not held."""

    rel_l2: float
    row_l2_max: float
    gain_max: float
    max_ulp: float
    mismatch: float | None = None


_FLOAT32 = Limits(5e-6, 6e-6, 6e-6, 128.0)  # admits a fully sequential sum of 16,384 terms (66 ULP)
#: One rounding, at the end.
SINGLE = {
    "float32": _FLOAT32,
    "float16": Limits(3.5e-4, 4.5e-4, 5e-4, 1.0),
    "bfloat16": Limits(2.5e-3, 3.2e-3, 3e-3, 1.0),
}
#: Factors are rounded before the last product (Llama's cast before the weight, and each product rounded).
DOUBLE = {
    "float32": _FLOAT32,
    "float16": Limits(5e-4, 6e-4, 5e-4, 2.01, 4e-2),
    "bfloat16": Limits(3.5e-3, 4.5e-3, 3e-3, 2.01, 4e-2),
}
#: One addition: what is stored is exact but for its one rounding, in float32 too.
ADDED = {**SINGLE, "float32": Limits(1.2e-7, 1.2e-7, 1.2e-7, 1.0)}
#: Row-wise gradients, held to the size of their terms: dy's product with the weight is rounded as well.
GRADIENT_SINGLE = SINGLE
GRADIENT_DOUBLE = {
    "float32": _FLOAT32,
    "float16": Limits(5e-4, 7e-4, 5e-4, 6.0),
    "bfloat16": Limits(3.5e-3, 4.5e-3, 3e-3, 6.0),
}
#: The gradient of one summand of several: a composition rounds the norm's own before it adds the sum's.
GRADIENT_TRIPLE = {**GRADIENT_DOUBLE, "bfloat16": Limits(4e-3, 5.6e-3, 3e-3, 6.0)}
#: Sums over rows, held to the size of their terms.  With one row to sum, they have its statistic's error.
_REDUCED_FLOAT32 = Limits(6e-6, 8e-6, 8e-6, 256.0)
REDUCED_SINGLE = {**SINGLE, "float32": _REDUCED_FLOAT32}
REDUCED_DOUBLE = {
    "float32": _REDUCED_FLOAT32,
    "float16": Limits(5.2e-4, 6e-4, 4e-4, 4.0),
    "bfloat16": Limits(4.2e-3, 4.5e-3, 2.2e-3, 4.0),
}


def limits(base: Limits, columns: int, elements: int, *, growth: float = 1.0) -> dict[str, float]:
    """Metric name -> limit for an output with rows of `columns`, `elements` in all; `growth` multiplies each limit."""
    gates = {"max_ulp": base.max_ulp * growth}
    if columns < MIN_COLUMNS:
        return gates
    gates |= {name: getattr(base, name) * growth for name in ("rel_l2", "row_l2_max", "gain_max")}
    if elements < FEW_ELEMENTS:
        gates["rel_l2"] = max(gates["rel_l2"], gates["row_l2_max"])
    if base.mismatch is not None:
        gates["mismatch_ratio"] = max(base.mismatch, 16 / max(elements, 1))
    return gates


def gradient_limits(base: Limits, columns: int, elements: int, *, growth: float = 1.0) -> dict[str, float]:
    """As `limits`, for an output that is held to the size of its terms: the count above 1 ULP says nothing there."""
    return limits(base._replace(mismatch=None), columns, elements, growth=growth)


def wider_stored(base: Limits, computed: str, stored: str) -> Limits:
    """`base`, of the dtype in which factors were rounded, for an output that is stored in a wider one."""
    return base._replace(max_ulp=base.max_ulp * 2.0 ** (PRECISION[stored] - PRECISION[computed]))


def root_growth(terms: int, free: int) -> float:
    """How rounding errors of a sequential sum of `terms` grow beyond `free` terms: by the square root."""
    return math.sqrt(max(1.0, terms / free))
