"""How much a cell's log ratio varies from round to round.

The unit is a round: one fresh process of each arm.  x = ln(time of b / time of a).  A cell has few rounds of its own,
too few for its standard deviation; all cells of a run together have many.  So each cell's variance is drawn towards
that of the run, the more the fewer rounds it has:

    sigma^2 = (d0 s0^2 + d s^2) / (d0 + d)

with s^2 from d degrees of freedom of the cell's own, s0^2 the run's typical variance, d0 = PRIOR_FREEDOM.  Source:
Smyth, "Linear models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3 (2004),
with a fixed d0.

One process in some hundreds is an outlier by 3 to 20 %.  It must not hide a change by making its cell look noisy, so
the round that lies far off all others is left out of s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Rounds that the run's typical variance counts for.
PRIOR_FREEDOM = 4.0
#: No cell is quieter: timers tick, clocks step.
FLOOR = 0.001
#: How many times as far as the typical round an outlier lies: of three rounds, of more.
FAR_OF_THREE, FAR = 8.0, 6.0
#: Cells from which it is told whether a run is louder than its records.
FEWEST_COMPARED = 5


@dataclass(frozen=True)
class Known:
    """What A/A records of a target say of each cell: standard deviation of a round's log ratio, and its freedom.

    Both have shape (cells,); a cell without a record has freedom 0.
    """

    sigma: Array
    freedom: Array

    def of(self, cells: NDArray[np.int64]) -> Known:
        """The same of some cells."""
        return Known(self.sigma[cells], self.freedom[cells])


def count(x: Array) -> NDArray[np.int64]:
    """How many rounds of each cell gave a time.  x: (cells, rounds), NaN where a round gave none."""
    return np.isfinite(x).sum(axis=1)


def median(x: Array) -> Array:
    """Each cell's median over the rounds that it has; NaN where it has none.  x: (cells, rounds)."""
    if not x.shape[1]:
        return np.full(len(x), np.nan)
    ordered, n, rows = np.sort(x, axis=1), count(x), np.arange(len(x))  # NaN sorts last
    low, high = ordered[rows, np.maximum((n - 1) // 2, 0)], ordered[rows, np.minimum(n // 2, x.shape[1] - 1)]
    return np.where(n > 0, (low + high) / 2, np.nan)


def squares(x: Array) -> tuple[Array, Array]:
    """Sum of squared distances from the mean, and degrees of freedom, of each cell; outliers left out.

    x: (cells, rounds).  An outlier lies more than FAR times as far from the median as the median round does; of three
    rounds, it is the one that lies more than FAR_OF_THREE times as far as the second farthest.
    """
    if not x.size:
        return np.zeros(len(x)), np.zeros(len(x))
    away = np.abs(x - median(x)[:, None])
    order = np.sort(np.where(np.isfinite(away), away, -1.0), axis=1)
    second = order[:, -2] if x.shape[1] > 1 else order[:, -1]
    bound = np.where(count(x) > 3, FAR * np.maximum(median(away), FLOOR), FAR_OF_THREE * np.maximum(second, FLOOR))
    kept = np.where(away > bound[:, None], np.nan, x)
    n = count(kept)
    mean = np.nansum(kept, axis=1) / np.maximum(n, 1)
    return np.nansum((kept - mean[:, None]) ** 2, axis=1), np.maximum(n - 1, 0).astype(np.float64)


def typical(square: Array, freedom: Array) -> float:
    """The run's variance of a round, from each cell's sum of squares and freedom.

    It is a median, so that noisy cells do not raise it.  The median of chi-square over its mean is that of Wilson and
    Hilferty, PNAS 17 (1931).
    """
    some = freedom > 0
    if not some.any():
        return FLOOR**2
    return float(np.median(square[some] / freedom[some] / (1 - 2 / (9 * freedom[some])) ** 3))


def as_loud(known: Known, square: Array, freedom: Array) -> Known:
    """The records, made as loud as this run is where it is louder than they say; never quieter.

    Records say which cells are noisier than others; how noisy a device is today only the run's own rounds say: its
    clocks, neighbours and driver are not those of last week.  square, freedom: of the run's own rounds, per cell.
    """
    both = (known.freedom > 0) & (freedom > 0)
    if both.sum() < FEWEST_COMPARED:
        return known
    today = typical(square[both], freedom[both])
    then = typical((known.freedom * known.sigma**2)[both], known.freedom[both])
    louder = max(1.0, today / max(then, FLOOR**2))
    return Known(known.sigma * float(np.sqrt(louder)), known.freedom)


def sigma(x: Array, variance: float, known: Known | None = None) -> tuple[Array, Array]:
    """Each cell's standard deviation of one round's log ratio, and its degrees of freedom, the prior's included.

    x: (cells, rounds); variance: the run's typical one.
    """
    square, freedom = squares(x)
    if known is not None:
        square, freedom = square + known.freedom * known.sigma**2, freedom + known.freedom
    total = PRIOR_FREEDOM + freedom
    return np.maximum(np.sqrt((PRIOR_FREEDOM * variance + square) / total), FLOOR), total
