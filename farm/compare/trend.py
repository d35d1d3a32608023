"""When did a cell become slower or faster?  Steps in series of nights.  Pure.

x is ln(time in microseconds), of shape (cells, nights), NaN where a night gave no time that counts.

1. `environment` is what the cells of a device share in a night: the median distance of its control cells from their own
   median over the nights.  Controls are peers where a device has five of them, since their code did not change, else
   all cells.  It is subtracted: a sick device or a slower clock is the device's, not a kernel's.
2. A cell's noise is that of one night to the next (so that a step does not count as noise), drawn towards the typical
   noise of all cells as in `farm.compare.noise`.
3. A step counts if the medians before and after it differ by more than 2 % and by more than SIGMAS standard errors,
   with at least FEWEST_BEFORE nights before it.  Of those, it lies where the values are nearest to their side's median.

One night after a step makes it *suspected*, two make it a *regression* or an *improvement*.  Nothing here is confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.compare.noise import FLOOR, PRIOR_FREEDOM, Array, median

Codes = NDArray[np.int64]
FEWEST_BEFORE = 4
FEWEST_CONTROLS = 5
LEAST = math.log1p(0.02)
#: Standard errors beyond which a step counts, of one night after it and of more.
SIGMAS_OF_ONE, SIGMAS = 4.5, 5.0
_PER_MAD = 1.4826
#: Standard error of a median over that of a mean, of many normal values.
_OF_MEDIAN = 1.2533


@dataclass(frozen=True)
class Steps:
    """Per cell: `at`, the first night after its step, -1 without one; `size`, the step's log ratio; `after`, the nights
    with a time since; `sigma`, its noise from night to night."""

    at: Codes
    size: Array
    after: Codes
    sigma: Array

    @property
    def suspected(self) -> NDArray[np.bool_]:
        """Steps that one night alone shows."""
        return (self.at >= 0) & (self.after == 1)


def environment(x: Array, device: Codes, control: NDArray[np.bool_]) -> Array:
    """What the cells of a device share in a night, for each cell and night: (cells, nights).

    device: (cells, nights), a number per device, -1 where the cell has none; control: (cells,).
    """
    away = x - median(x)[:, None]
    out = np.zeros_like(x)
    for night in range(x.shape[1]):
        known = np.isfinite(away[:, night])
        for number in np.unique(device[known, night]):
            mine = device[:, night] == number
            chosen = mine & known & control
            if chosen.sum() < FEWEST_CONTROLS:
                chosen = mine & known
            if chosen.sum() >= FEWEST_CONTROLS:
                out[mine, night] = np.median(away[chosen, night])
    return out


def noise(x: Array) -> Array:
    """Each cell's standard deviation of one night, (cells,), from the differences of successive nights with a time."""
    cells, nights = x.shape
    last = np.full(cells, np.nan)
    steps = np.full((cells, max(nights - 1, 0)), np.nan)
    for night in range(nights):
        if night:
            steps[:, night - 1] = (x[:, night] - last) / math.sqrt(2)
        last = np.where(np.isfinite(x[:, night]), x[:, night], last)
    count = np.isfinite(steps).sum(axis=1)
    own = np.nan_to_num(_PER_MAD * median(np.abs(steps)))
    typical = float(np.median(own[count >= 4])) if (count >= 4).any() else 0.01
    total = PRIOR_FREEDOM + count
    return np.maximum(np.sqrt((PRIOR_FREEDOM * typical**2 + count * own**2) / total), FLOOR)


def steps(x: Array) -> Steps:
    """The clearest step of each cell's series."""
    cells, nights = x.shape
    sigma = noise(x)
    at, size = np.full(cells, -1), np.zeros(cells)
    after, best = np.zeros(cells, np.int64), np.full(cells, np.inf)
    some = np.flatnonzero(_spread(x) > LEAST)  # of a cell without a step, no two means differ by more
    for night in range(1, nights):
        mine = some[np.isfinite(x[some, night])]
        left, right = x[mine, :night], x[mine, night:]
        n, m = np.isfinite(left).sum(axis=1), np.isfinite(right).sum(axis=1)
        enough = n >= FEWEST_BEFORE
        mine, left, right, n, m = mine[enough], left[enough], right[enough], n[enough], m[enough]
        if not len(mine):
            continue
        base = median(left)
        step = _least(right - base[:, None], m)
        error = _OF_MEDIAN * sigma[mine] * np.sqrt(1 / n + 1 / m)
        bound = np.maximum(LEAST, np.where(m == 1, SIGMAS_OF_ONE, SIGMAS) * error)
        rest = _absolute(left) + _absolute(right)
        better = (np.abs(step) > bound) & (rest < best[mine])
        won = mine[better]
        at[won], size[won], after[won], best[won] = night, step[better], m[better], rest[better]
    return Steps(at, size, after, sigma)


def _least(away: Array, count: NDArray[np.int64]) -> Array:
    """How far the nights after a step are away: their median; of two nights the nearer one, 0 if they disagree on the
    side.  So one outlier is no regression."""
    middle = median(away)
    near = np.nanmin(np.abs(away), axis=1) * np.sign(middle)
    low, high = np.nanmin(away, axis=1), np.nanmax(away, axis=1)
    return np.where(count == 2, np.where(low * high > 0, near, 0.0), middle)


def _absolute(x: Array) -> Array:
    """Sum of each cell's distances from its median."""
    found: Array = np.nansum(np.abs(x - median(x)[:, None]), axis=1)
    return found


def _spread(x: Array) -> Array:
    """The range of each cell's values; 0 without any."""
    there = np.isfinite(x)
    high = np.where(there, x, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(there, x, np.inf).min(axis=1, initial=np.inf)
    return np.where(there.any(axis=1), high - low, 0.0)
