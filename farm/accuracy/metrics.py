"""How far an output is from its reference, as sums and maxima that merge over row blocks.

With output y, reference r (float64), d = y - r, per output:

    max_abs         largest |d|
    max_rel         largest |d| / max(|r|, 1e-3 x the row's RMS); told, never gated: near zero it means nothing
    rel_l2          |d| / |r| over all spread rows
    row_l2_max      the same of the worst row
    gain_max        largest |<d, r>| / <r, r> of a row: a scale error, which rounding does not make
    max_ulp         largest |d| in units of the output dtype's last place at |r| (floored at the smallest normal)
    line_max        the worst line's error by what it may have (farm.accuracy.lines); only where there are lines
    mismatch_ratio  share of elements more than 1 ULP off
    nonfinite       elements that are NaN or infinite where the reference is finite, or the reverse
    count           elements compared
    worst_row, worst_column, worst_got, worst_want   where max_ulp is

An output whose elements cancel (a gradient) comes with the size s of its terms: |r| is then floored at s for the ULP,
and the norms of r at those of s.  Where each element has its own s (a reduction), d and r are divided by it before the
norms, so that no column outweighs the others.  A row whose rounding errors repeat (`spread` false) counts in the
element-wise metrics alone, and so does a row whose norm is zero.

Where the reference is NaN the output must be NaN or infinite, where it is infinite an infinity of its sign or next to
it; such elements are in no other metric.  Everywhere else the output must be finite, in a NaN's own row too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.accuracy.dtypes import LARGEST, decode, ulp

Array = Any  # numpy.ndarray

#: Stands for "beyond all measure" (an error against an expected zero), so that metrics stay JSON numbers.
CAP = 1e30
_CHUNK = 1 << 16  # elements compared at a time: ten float64 arrays stay in the last-level cache
_NEAR_OVERFLOW = 1 - 2.0**-6


@dataclass(frozen=True)
class Partial:
    """Error sums of a part of one output.  Parts merge in any order; counts and maxima exactly, sums to rounding."""

    count: int = 0
    over: int = 0  # elements more than 1 ULP off
    nonfinite: int = 0
    unbound: int = 0  # elements whose reference is not finite, or at the edge of the dtype
    max_abs: float = 0.0
    max_rel: float = 0.0
    sum_dd: float = 0.0
    sum_rr: float = 0.0
    sum_ss: float = 0.0
    row_l2_max: float = 0.0
    gain_max: float = 0.0
    line_max: float | None = None
    max_ulp: float = 0.0
    worst: tuple[int, int] = (-1, -1)
    worst_got: float = 0.0
    worst_want: float = 0.0

    def merge(self, other: Partial) -> Partial:
        """Both parts as one."""
        first = min(self, other, key=lambda p: (-p.max_ulp, p.worst[0] < 0, p.worst))
        return Partial(
            count=self.count + other.count,
            over=self.over + other.over,
            nonfinite=self.nonfinite + other.nonfinite,
            unbound=self.unbound + other.unbound,
            max_abs=max(self.max_abs, other.max_abs),
            max_rel=max(self.max_rel, other.max_rel),
            sum_dd=self.sum_dd + other.sum_dd,
            sum_rr=self.sum_rr + other.sum_rr,
            sum_ss=self.sum_ss + other.sum_ss,
            row_l2_max=max(self.row_l2_max, other.row_l2_max),
            gain_max=max(self.gain_max, other.gain_max),
            line_max=max((x for x in (self.line_max, other.line_max) if x is not None), default=None),
            max_ulp=first.max_ulp,
            worst=first.worst,
            worst_got=first.worst_got,
            worst_want=first.worst_want,
        )

    def finish(self) -> dict[str, float]:
        """The metrics of everything merged; all finite."""
        return {
            "max_abs": min(self.max_abs, CAP),
            "max_rel": self.max_rel,
            "rel_l2": _ratio(self.sum_dd, max(self.sum_rr, self.sum_ss)) ** 0.5,
            "row_l2_max": self.row_l2_max,
            "gain_max": self.gain_max,
            **({} if self.line_max is None else {"line_max": min(self.line_max, CAP)}),
            "max_ulp": self.max_ulp,
            "mismatch_ratio": self.over / self.count if self.count else 0.0,
            "nonfinite": self.nonfinite,
            "count": self.count,
            "worst_row": self.worst[0],
            "worst_column": self.worst[1],
            "worst_got": self.worst_got,
            "worst_want": self.worst_want,
        }


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return min(part / whole, CAP) if whole > 0 else CAP


def compare(
    stored: Array,
    reference: Array,
    dtype: str,
    *,
    squared_scale: Array | None = None,
    spread: Array | None = None,
    row_numbers: Array | None = None,
    decoded: bool = False,
) -> Partial:
    """Compare rows of an output (storage array [rows, ...]; its values, if `decoded`) with the same rows of its
    reference (float64).

    `squared_scale` is [rows, 1] or shaped as the output; `spread` bool [rows, 1]; `row_numbers` int [rows] names the
    rows in the whole tensor (0.. if left out).
    """
    total = Partial()
    if not stored.size:
        return total
    rows = stored.shape[0]
    stored, reference = stored.reshape(rows, -1), reference.reshape(rows, -1)
    width = stored.shape[1]
    if squared_scale is not None:
        squared_scale = squared_scale.reshape(rows, -1)
    step = max(1, _CHUNK // width)
    for at in range(0, rows, step):
        part = slice(at, min(at + step, rows))
        numbers = np.arange(part.start, part.stop) if row_numbers is None else row_numbers[part]
        total = total.merge(
            _compare_chunk(
                stored[part] if decoded else decode(stored[part], dtype),
                np.asarray(reference[part], dtype=np.float64),
                dtype,
                None if squared_scale is None else squared_scale[part],
                None if spread is None else spread[part].reshape(-1),
                numbers,
            )
        )
    return total


def _compare_chunk(
    got: Array, want: Array, dtype: str, squared_scale: Array | None, spread: Array | None, numbers: Array
) -> Partial:
    got = np.asarray(got, dtype=np.float64)
    size = np.abs(want)
    nonfinite = unbound = 0
    if not np.isfinite(got).all() or not (size <= LARGEST.get(dtype, np.inf) * _NEAR_OVERFLOW).all():
        got, want, nonfinite, unbound = _mask_nonfinite(got, want, dtype)
        size = np.abs(want)
        if squared_scale is not None:  # terms that are not finite are of elements that are not compared
            squared_scale = np.where(np.isfinite(squared_scale), squared_scale, 0.0)
    rows, width = got.shape
    diff = got - want
    sums, terms = _row_sums(diff, want, squared_scale)
    error = np.abs(diff, out=diff)
    floors = np.maximum(size, 1e-3 * np.sqrt(_dot(want, want) / width)[:, None])
    max_rel = _largest_ratio(error, floors)
    if squared_scale is not None:
        np.maximum(size, np.sqrt(squared_scale), out=size)
    max_abs = float(error.max())
    in_ulp = np.divide(error, ulp(size, dtype), out=size)
    at = int(in_ulp.argmax())
    i, j = divmod(at, width)
    return Partial(
        count=rows * width,
        over=int(np.count_nonzero(in_ulp > 1)),
        nonfinite=nonfinite,
        unbound=unbound,
        max_abs=max_abs,
        max_rel=max_rel,
        max_ulp=min(float(in_ulp[i, j]), CAP),
        worst=(int(numbers[i]), j),
        worst_got=float(got[i, j]),
        worst_want=float(want[i, j]),
        **_row_metrics(sums, terms, spread),
    )


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("ij,ij->i", a, b)


def _row_sums(diff: Array, want: Array, squared_scale: Array | None) -> tuple[list[Array], Array]:
    """<d, d>, <r, r>, <d, r> of each row, and the squared norm of the terms."""
    rows, width = diff.shape
    if squared_scale is None:
        terms = np.zeros(rows)
    elif squared_scale.shape[1] == 1:
        terms = squared_scale[:, 0] * width
    else:
        scale = np.sqrt(squared_scale)
        some = scale > 0
        diff, want = (np.divide(a, scale, out=np.zeros_like(a), where=some) for a in (diff, want))
        terms = some.sum(axis=1).astype(np.float64)
    return [_dot(diff, diff), _dot(want, want), _dot(diff, want)], terms


def _mask_nonfinite(got: Array, want: Array, dtype: str) -> tuple[Array, Array, int, int]:
    """Zero the elements that cannot be subtracted, and count those that are wrong for it.

    A reference at the dtype's edge may come out as infinity or as a large number of its sign; one that is NaN must not
    come out finite; every other one must.
    """
    large = LARGEST.get(dtype, np.inf)
    with np.errstate(invalid="ignore"):
        bound = np.abs(want) <= large * _NEAR_OVERFLOW
        fine = np.isfinite(got)
        saturated = (np.abs(got) >= large / 2) & (np.signbit(got) == np.signbit(want))
    right = np.where(bound, fine, np.where(np.isnan(want), ~fine, saturated))
    keep = bound & fine
    return (
        np.where(keep, got, 0.0),
        np.where(keep, want, 0.0),
        int(np.count_nonzero(~right)),
        int(bound.size - bound.sum()),
    )


def _largest_ratio(error: Array, floors: Array) -> float:
    if floors.min() > 0:
        return float((error / floors).max())
    some = error > 0  # an error against an all-zero row is beyond all measure
    with np.errstate(divide="ignore"):
        return min(float((error[some] / floors[some]).max(initial=0.0)), CAP)


def _row_metrics(sums: list[Array], terms: Array, spread: Array | None) -> dict[str, float]:
    dd, rr, dr = sums
    norm = np.maximum(rr, terms)
    counted = norm > 0
    if spread is not None:
        counted &= spread
    dd, rr, dr, terms, norm = (a[counted] for a in (dd, rr, dr, terms, norm))
    return {
        "sum_dd": float(dd.sum()),
        "sum_rr": float(rr.sum()),
        "sum_ss": float(terms.sum()),
        "row_l2_max": min(float(np.sqrt(dd / norm).max(initial=0.0)), CAP),
        "gain_max": min(float((np.abs(dr) / norm).max(initial=0.0)), CAP),
    }
