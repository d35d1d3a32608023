"""Tolerances that follow from the error of a correct implementation, for contracts made from a function.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farm.contracts import gates as g
from farm.contracts.dtypes import FLOATS, get

Array = Any  # numpy.ndarray

#: What another implementation may have of the function's own error.  Norms of errors hardly vary between two correct
#: implementations; the largest of many errors does, and the gain of a row that one element makes up is that element's.
FACTORS: Mapping[str, float] = {"rel_l2": 2.0, "row_l2_max": 2.0, "gain_max": 3.0, "max_ulp": 4.0}
#: Errors of results below this share of their row's RMS are relative to it: a result that cancels has the error of its
#: terms.  A gradient cancels more often, and has no smaller share.
SMALL_RESULT, SMALL_GRADIENT = 2.0**-6, 1.0
#: Fewer lines in a row are no sample of a correct implementation's errors; and then the row's own metrics see each.
FEWEST_LINES = 32
#: As many equal elements have the norm of a row: their sum of squares, squared, by that of fourth powers.
FEWEST_SHARES = 16
#: One element of a float32 gradient may have the rounding errors of a sum over its row: softmax's largest element, if
#: the gradient goes through the maximum too.  In ULP, for each square root of a column, up to so many columns.
ROW_SUM_ULP, ROW_SUM_COLUMNS = 32.0, 1 << 16
#: Where one row is all there is (no independent rows, or a sum over them), its metrics are one sample of the function's
#: own error, which may be small by chance.  So more samples are taken: up to so many elements of all tensors, so many.
SAMPLES = ((1 << 14, 8), (1 << 19, 4))


def samples(elements: int) -> int:
    """How many samples of the function's own error a cell of so many elements has."""
    return next((count for most, count in SAMPLES if elements <= most), 1)


def floors(dtype: str, columns: int, elements: int, *, gradient: bool = False, roundings: int = 1) -> dict[str, float]:
    """The limits of one correct rounding at the end, or of two; integers must be equal."""
    if dtype not in FLOATS:
        return {"max_ulp": 0.0}
    if dtype == "float64":
        return {"max_ulp": 2.0**20}
    found = g.gradient_limits(_rounded(dtype, roundings), columns, elements)
    if gradient and dtype == "float32":
        found["max_ulp"] = max(found["max_ulp"], ROW_SUM_ULP * math.sqrt(min(columns, ROW_SUM_COLUMNS)))
    return found


def _rounded(dtype: str, roundings: int = 1) -> g.Limits:
    unit = 2.0 ** -get(dtype).precision
    known, ulp = (g.SINGLE, 1.0) if roundings == 1 else (g.DOUBLE, 2.01)
    return known.get(dtype) or g.Limits(0.75 * unit * roundings**0.5, 1.2 * unit * roundings**0.5, 1.2 * unit, ulp)


def shared_by_many(rows: Array) -> Array:
    """Of rows of values, bool [rows]: whether at least FEWEST_SHARES elements make up their norm.  The errors of fewer,
    each rounded twice, do not average out, so their row has only the limits of single elements."""
    squares = np.square(rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), np.finfo(np.float64).tiny))
    return np.asarray(squares.sum(axis=1) ** 2 >= FEWEST_SHARES * np.square(squares).sum(axis=1))


def rounding(dtype: str) -> float:
    """The relative error of a row that is rounded once."""
    return 2.0**-48 if dtype == "float64" else _rounded(dtype).row_l2_max


def has_lines(dims: Sequence[int], blocked: bool) -> bool:
    """Whether an output of these sizes has vectors along its last axis that are compared one by one
    (farm/accuracy/lines.py): more axes than its rows', and enough vectors in a row."""
    inner = dims[1:] if blocked else dims
    return len(inner) > 1 and math.prod(inner[:-1]) >= FEWEST_LINES
