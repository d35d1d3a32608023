"""Which cells became slower or faster little by little?  Drifts in series of nights.  Pure.

x is ln(time in microseconds), of shape (cells, nights), NaN where a night gave no time that counts; what a device's
cells share is taken off, as for steps (`farm.compare.trend`).

A drift is a level of the last NEAR nights that is off that of the first NEAR ones by LEAST at least, and by SCORE
standard errors of both medians, in a window of SPAN nights or more, where no single step explains it: either no step
was found, or a level that bends once and then rises or falls evenly explains the nights better than two levels do.
One cell that drifts accuses nobody: caches, drivers, the host, dust.  The bounds are chosen by simulation
(benchmarks/trend_simulation.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from farm.compare.noise import Array, median
from farm.compare.trend import OFF_NOISE, Codes, Mask, Steps, noise, normal_score

#: Nights of each level, the fewest of them with a time, and the fewest nights of a window.
NEAR, FEWEST, SPAN = 7, 5, 21
LEAST = math.log1p(0.03)
SCORE = 5.0
#: The standard error of a median over that of a mean.
_OF_MEDIAN = 1.2533
#: By how much the residuals of a bend are smaller than those of two levels.
BETTER = 1.1
#: How large they may be, in deviations of a night.
FITS = 1.5
#: The fewest nights on either side of a bend or a step.
_EDGE = 3


@dataclass(frozen=True)
class Drifts:
    """Per cell: `since`, the night in which its drift began, nearly, -1 without one; `size`, the log ratio of the
    newest level to the oldest."""

    since: Codes
    size: Array

    @property
    def some(self) -> Mask:
        return self.since >= 0


def drifts(x: Array, steps: Steps) -> Drifts:
    """The drift of each cell's series.  `steps`: what `trend.steps` found in it."""
    cells, nights = x.shape
    since, size = np.full(cells, -1), np.zeros(cells)
    if nights < SPAN or not cells:
        return Drifts(since, size)
    first, last = x[:, :NEAR], x[:, -NEAR:]
    n, m = np.isfinite(first).sum(axis=1), np.isfinite(last).sum(axis=1)
    sigma, freedom = noise(x)
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = median(last) - median(first)
        t = np.abs(moved) / (_OF_MEDIAN * sigma * np.sqrt(1 / n + 1 / m))
        enough = (n >= FEWEST) & (m >= FEWEST) & (np.abs(moved) > LEAST) & (normal_score(t, freedom) > SCORE)
    mine = np.flatnonzero(enough)
    if not len(mine):
        return Drifts(since, size)
    cap = OFF_NOISE * sigma[mine]
    bent, bend = _best(x[mine], cap, [np.maximum(0.0, np.arange(nights) - at) for at in range(nights - NEAR)])
    whole, _ = _best(
        x[mine], cap, [(np.arange(nights) >= at).astype(np.float64) for at in range(_EDGE, nights - _EDGE + 1)]
    )
    even = (bent <= FITS * sigma[mine]) & (BETTER * bent < whole)  # else several steps, and the clearest is told
    drifting = (steps.at[mine] < 0) | even
    since[mine[drifting]], size[mine[drifting]] = bend[drifting], moved[mine[drifting]]
    return Drifts(since, size)


def without(steps: Steps, found: Drifts) -> Steps:
    """The steps of cells that do not drift."""
    some = found.some
    return Steps(
        np.where(some, -1, steps.at),
        np.where(some, 0.0, steps.size),
        np.where(some, 0, steps.after),
        steps.sigma,
        np.where(some, 0.0, steps.evidence),
        steps.sure & ~some,
    )


def _best(x: Array, cap: Array, courses: list[Array]) -> tuple[Array, Codes]:
    """(root mean square of what is left, number of the course), of the course that with a level and a factor explains
    each cell's nights best.  A night that is far off counts as `cap`."""
    there = np.isfinite(x)
    best, which = np.full(len(x), np.inf), np.zeros(len(x), np.int64)
    for number, course in enumerate(courses):
        away = _away(x, there, course)
        near = there & (np.abs(away) <= np.maximum(cap, 3 * median(np.abs(away)))[:, None])
        away = _away(x, near, course)
        square = np.where(there, np.minimum(np.abs(away), cap[:, None]) ** 2, 0.0).sum(axis=1) / there.sum(axis=1)
        better = square < best
        best[better], which[better] = square[better], number
    return np.sqrt(best), which


def _away(x: Array, kept: Mask, course: Array) -> Array:
    """How far the nights are from the line through those that are kept, over a course."""
    weight = kept.astype(np.float64)
    total = np.maximum(weight.sum(axis=1), 1.0)
    value = np.where(kept, x, 0.0)
    middle, level = weight @ course / total, value.sum(axis=1) / total
    across = course[None, :] - middle[:, None]
    square = (weight * across**2).sum(axis=1)
    factor = (across * value).sum(axis=1) / np.where(square > 0, square, np.inf)
    # values of nights that are not kept are 0, and `across` sums to 0 over the others
    factor -= level * (across * weight).sum(axis=1) / np.where(square > 0, square, np.inf)
    return np.where(np.isfinite(x), x - level[:, None] - factor[:, None] * across, np.nan)
