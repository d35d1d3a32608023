"""Tolerances: how far a correct kernel may be from the unrounded result, for outputs that are rounded once or twice.

The numbers come from a simulation (`benchmarks/calibrate_gates.py`): for every shape, dtype, casting and seed there,
correct kernels stay below them, and wrong kernels exceed them.  Metrics are defined in `farm/accuracy/metrics.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: In shorter rows, rounding errors do not average out, so only the worst element has a limit.
MIN_COLUMNS = 64
#: With fewer elements, the L2 norm of an output varies as much as that of one row.
FEW_ELEMENTS = 4096
#: Bits of the significand.
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8}


class Limits(NamedTuple):
    """Limits for one dtype; `mismatch`: the share of elements above 1 ULP, None for no limit."""

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
#: One addition: the stored value is exact except for one rounding, also in float32.
ADDED = {**SINGLE, "float32": Limits(1.2e-7, 1.2e-7, 1.2e-7, 1.0)}
#: Row-wise gradients, relative to the magnitude of their terms: dy's product with the weight is rounded as well.
GRADIENT_SINGLE = SINGLE
GRADIENT_DOUBLE = {
    "float32": _FLOAT32,
    "float16": Limits(5e-4, 7e-4, 5e-4, 6.0),
    "bfloat16": Limits(3.5e-3, 4.5e-3, 3e-3, 6.0),
}
#: The gradient of one of several summands: a composition rounds the norm's gradient before it adds the sum's.
GRADIENT_TRIPLE = {**GRADIENT_DOUBLE, "bfloat16": Limits(4e-3, 5.6e-3, 3e-3, 6.0)}
#: Sums over rows, relative to the magnitude of their terms.  A sum of a single row has the error of its statistic.
_REDUCED_FLOAT32 = Limits(6e-6, 8e-6, 8e-6, 256.0)
REDUCED_SINGLE = {**SINGLE, "float32": _REDUCED_FLOAT32}
REDUCED_DOUBLE = {
    "float32": _REDUCED_FLOAT32,
    "float16": Limits(5.2e-4, 6e-4, 4e-4, 4.0),
    "bfloat16": Limits(4.2e-3, 4.5e-3, 2.2e-3, 4.0),
}


def limits(base: Limits, columns: int, elements: int, *, growth: float = 1.0) -> dict[str, float]:
    """Metric -> limit for an output of `elements` elements in rows of `columns`; `growth` multiplies each limit."""
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
    """`limits` for an output whose errors are relative to its terms, where a count above 1 ULP means nothing."""
    return limits(base._replace(mismatch=None), columns, elements, growth=growth)


def wider_stored(base: Limits, computed: str, stored: str) -> Limits:
    """The limits `base` of the dtype in which factors are rounded, for an output that is stored in a wider dtype."""
    return base._replace(max_ulp=base.max_ulp * 2.0 ** (PRECISION[stored] - PRECISION[computed]))


def root_growth(terms: int, free: int) -> float:
    """The factor by which rounding errors of a sequential sum grow beyond `free` terms: the square root."""
    return math.sqrt(max(1.0, terms / free))
