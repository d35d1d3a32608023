"""Errors of lines: the vectors along the last axis of an output whose rows have more axes than that.

A row of attention's dk is all heads and keys of a batch, and in a causal one the last key, which one query sees, is
smaller than the rounding errors of the first.  So each line is compared with what it may have itself: a share of its
own size, and a multiple of the error that a correct implementation (`NAME.own`) has there.  Its error in one line is a
single sample where few terms make the line, so the mean of the lines around it, in all heads, counts as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farm.accuracy.dtypes import decode, is_float, ulp
from farm.contracts import own_errors
from farm.contracts.base import Tensor

Array = Any  # numpy.ndarray

#: What a line may have: this share of its size, or so many times the error of one rounding if that is more; and so many
#: times the correct implementation's error.  The share is for lines of few terms that cancel: what is looked for is a
#: line that is lost.  Right attentions stay below half of all this (tests/pure/test_lines.py).
SHARE, ROUNDINGS, OWN_ERRORS = 2.0**-6, 4.0, 12.0
#: And so much of the row's RMS: below it a line (of a class with no probability) has errors of all orders of magnitude.
#: The last of 2^17 keys still has 8 times as much.
OF_THE_ROW = 2.0**-14
#: Lines on either side of one whose mean counts.
AROUND = 4
_CHUNK = 1 << 18  # elements compared at a time


def of(tensor: Tensor, stored: Array, reference: Mapping[str, Array]) -> Array | None:
    """`errors` of some rows of an output, or of all of one without rows, [rows or 1, ..., lines]; None where it has no
    such lines."""
    own = reference.get(f"{tensor.name}.own")
    if own is None or not is_float(tensor.dtype) or not own_errors.has_lines(tensor.dims, tensor.blocked):
        return None
    given = (stored, reference[tensor.name], own)
    stored, want, own = given if tensor.blocked else (a[None] for a in given)
    return errors(stored, want, own, tensor.dtype, own_errors.rounding(tensor.dtype))


def errors(stored: Array, want: Array, own: Array, dtype: str, rounding: float) -> Array:
    """The error of each line of [rows, ..., lines, width], divided by what it may have: float64 [rows, ..., lines].

    `stored`: a storage array; `want` (float64) and `own` (the correct implementation's values) are shaped like it;
    `rounding`: the relative error of one rounding.  Elements that are not finite do not count.
    """
    dims, width = stored.shape[:-1], stored.shape[-1]
    flat = [np.asarray(a).reshape(-1, width) for a in (stored, want, own)]
    found, size, mine = (np.zeros(len(flat[0])) for _ in range(3))
    step = max(1, _CHUNK // max(width, 1))
    for at in range(0, len(found), step):
        part = slice(at, at + step)
        a, r, b = (np.asarray(x, np.float64) for x in (decode(flat[0][part], dtype), flat[1][part], flat[2][part]))
        keep = np.isfinite(a) & np.isfinite(r) & np.isfinite(b)
        a, r, b = (np.where(keep, x, 0.0) for x in (a, r, b))
        for sums, x in ((found, a - r), (size, r), (mine, b - r)):
            sums[part] = np.einsum("ij,ij->i", x, x)
    found, size, mine = (x.reshape(dims) for x in (found, size, mine))
    near = mine.mean(axis=tuple(range(1, mine.ndim - 1)), keepdims=True) if mine.ndim > 2 else mine
    may = max(SHARE, ROUNDINGS * rounding) ** 2 * size + OWN_ERRORS**2 * np.maximum(mine, _around(near))
    may += OF_THE_ROW**2 * size.mean(axis=tuple(range(1, size.ndim)), keepdims=True)
    return np.sqrt(found / (may + width * float(ulp(np.zeros(1), dtype)[0]) ** 2))


def _around(of_lines: Array) -> Array:
    """The mean of the line and of AROUND lines on either side, along the last axis."""
    at = np.arange(of_lines.shape[-1])
    total = np.concatenate([np.zeros((*of_lines.shape[:-1], 1)), np.cumsum(of_lines, axis=-1)], axis=-1)
    first, last = np.maximum(at - AROUND, 0), np.minimum(at + AROUND + 1, len(at))
    return np.maximum(total[..., last] - total[..., first], 0.0) / (last - first)
