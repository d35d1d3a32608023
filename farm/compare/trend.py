"""When did a cell become slower or faster?  Steps in series of nights.  Pure.

x is ln(time in microseconds), of shape (cells, nights), NaN where a night gave no time that counts.

1. `environment` is what the cells of a device share in a night: the median distance of its control cells from their own
   median over the nights.  Controls are peers where a device has five of them, since their code did not change, else
   all cells; if many of these did not move at all, the device did not, either.  It is subtracted: a sick device or a
   slower clock is the device's, not a kernel's.
2. A cell's noise is that about its own level before and after a step (so that a step does not count as noise), drawn
   towards the typical noise of all cells as in `farm.compare.noise`.
3. A night is either an ordinary one, Student-t about the cell's level, or an outlier (one process in some hundreds),
   which may lie anywhere within OUTLIER_RANGE.  The evidence for a step is by how much the best pair of levels explains
   the nights better than any one level: a log likelihood ratio.  An outlier is as likely before as after a step, so
   one odd night is worth about 9 at most, however odd, and two that agree about 18.
4. A step also needs a size of LEAST (LARGE with few nights before it), a t-statistic beyond SCORE, and a newest night
   nearer to the level after it.  Cells of one `group` that step in one night in one direction support each other:
   AGREEING of them need less each.
5. What may be invented in a store is a budget, and it is spent where it buys most.  A quiet cell shows a step of 5 %
   many times over, so it needs more of a t-statistic once there are three nights; a noisy one needs less evidence from
   the third night to the eighth (NOISY_BARS), as long as few cells are noisy: each doubling of their share beyond FEW
   adds ln 2 to what they need, as an equal number of inventions asks for.

One night after a step makes it *suspected*; a *regression* or an *improvement* takes two nights with enough evidence.
Nothing here is confirmed.  The bounds are chosen by simulation (benchmarks/trend_simulation.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.compare.noise import FLOOR, PRIOR_FREEDOM, Array, median

Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: So many nights before a step; two are enough for a step of LARGE, which two outliers seldom make in one direction.
FEWEST_BEFORE, FEWEST_BEFORE_LARGE = 4, 2
LARGE = math.log(1.25)
FEWEST_CONTROLS = 5
LEAST = math.log1p(0.02)
#: Where so large a share of a device's cells are within UNMOVED of their level, the device is unmoved, whatever the
#: others do: a change of the code may well be that of half of the cells.
UNMOVED, UNMOVED_SHARE = 0.01, 1 / 3
#: One process in so many is an outlier, and where it may lie, as a width of log time.
OUTLIERS, OUTLIER_RANGE = 0.004, 0.5
#: Least log likelihood ratio of a step that one night shows, of two nights or more, and of one that others support.
EVIDENCE_OF_ONE, EVIDENCE, EVIDENCE_SUPPORTED = 7.0, 12.5, 6.0
#: Least t-statistic of the same, as a normal one.
SCORE_OF_ONE, SCORE, SCORE_SUPPORTED = 3.8, 4.6, 3.4
#: Least t-statistic of a quiet cell's step once three nights show it: what noise invents is mostly a noisy cell that
#: happens to look quiet.
SCORE_LATER = 5.0
#: A cell with at least such a standard deviation of a night is noisy, and so large a share of noisy cells is few.
NOISY, FEW = 0.011, 0.05
#: Nights after a step, at least -> (least evidence, least t-statistic) of a noisy cell.
NOISY_BARS = {0: (EVIDENCE, SCORE), 3: (8.0, 3.8), 4: (6.5, 3.5), 5: (8.5, 3.8), 9: (13.0, 4.2)}
#: The same of a noisy cell's step of two nights or more that is only suspected.
NOISY_SUSPECTED = 4.0, 2.7
#: More than what one night can be worth: a step of two nights or more that is only suspected has this.
EVIDENCE_SUSPECTED = 10.5
#: Cells of a group that step in one night support each other.
AGREEING = 3
#: Nights farther from a level than so many deviations do not count for the level, and for the noise.
OFF_LEVEL, OFF_NOISE = 3.0, 3.5
_PER_MAD = 1.4826
#: The variance of normal values within three deviations; the freedom of a successive difference.
_TRIMMED, _PER_DIFFERENCE = 0.973, 2 / 3
#: Logarithm of Student-t's constant, by degrees of freedom, from 1.
_CONSTANTS = np.array(
    [math.lgamma((v + 1) / 2) - math.lgamma(v / 2) - 0.5 * math.log(v * math.pi) for v in range(1, 500)]
)


@dataclass(frozen=True)
class Steps:
    """Per cell: `at`, the first night after its step, -1 without one; `size`, the step's log ratio; `after`, the nights
    with a time since; `sigma`, its noise of one night; `evidence`, the log likelihood ratio; `sure`: a regression or an
    improvement."""

    at: Codes
    size: Array
    after: Codes
    sigma: Array
    evidence: Array
    sure: Mask

    @property
    def suspected(self) -> Mask:
        """Steps that one night alone shows, or that several show only weakly."""
        return (self.at >= 0) & ~self.sure


def environment(x: Array, device: Codes, control: Mask) -> Array:
    """What the cells of a device share in a night, for each cell and night: (cells, nights).

    device: (cells, nights), a number per device, -1 where the cell has none; control: (cells,).
    """
    shared = device_shifts(x, device, control)
    if not shared.size:
        return np.zeros_like(x)
    found = shared[np.maximum(device, 0), np.arange(x.shape[1])]
    return np.where((device >= 0) & np.isfinite(found), found, 0.0)


def device_shifts(x: Array, device: Codes, control: Mask) -> Array:
    """How far the cells of each device were away from their own medians in each night, (devices, nights): the median of
    its controls, or of all its cells; NaN where there are fewer than FEWEST_CONTROLS."""
    nights = x.shape[1]
    out = np.full((int(device.max(initial=-1)) + 1, nights), np.nan)
    away = x - median(x)[:, None]
    known = np.isfinite(away) & (device >= 0)
    place = device * nights + np.arange(nights)  # a number per device and night
    for chosen in (known, known & control[:, None]):  # controls, where there are enough, replace all
        at, values = place[chosen], away[chosen]
        if len(at):
            order = np.lexsort((values, at))
            at, values = at[order], values[order]
            first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
            count = np.diff(np.r_[first, len(at)])
            middle = _middle(values, first, count)
            below = np.add.reduceat(values < -UNMOVED, first)
            unmoved = np.add.reduceat(values <= UNMOVED, first) - below
            split = (np.abs(middle) > UNMOVED) & (unmoved >= UNMOVED_SHARE * count)
            middle = np.where(split, _middle(values, first + below, np.maximum(unmoved, 1)), middle)
            enough = count >= FEWEST_CONTROLS
            out.reshape(-1)[at[first][enough]] = middle[enough]
    return out


def _middle(values: Array, first: Codes, count: Codes) -> Array:
    """The median of each stretch of `count` sorted values from `first` on."""
    last = len(values) - 1
    low, high = first + (count - 1) // 2, first + count // 2
    return (values[np.minimum(low, last)] + values[np.minimum(high, last)]) / 2


def noise(x: Array) -> tuple[Array, Array]:
    """Each cell's standard deviation of one night and its degrees of freedom, (cells,), from the differences of
    successive nights with a time; outliers left out."""
    order = np.argsort(~np.isfinite(x), axis=1, kind="stable")  # nights without a time last
    differences = np.diff(np.take_along_axis(x, order, axis=1), axis=1) / math.sqrt(2)
    count = np.isfinite(differences).sum(axis=1)
    square = (_PER_MAD * np.nan_to_num(median(np.abs(differences)))) ** 2
    freedom = count * 0.37  # the efficiency of a median absolute deviation
    found, total = _shrunk(square, freedom, count)
    for _ in range(2):
        kept = np.abs(differences) <= OFF_LEVEL * found[:, None]
        count = kept.sum(axis=1)
        square = np.where(kept, differences**2, 0.0).sum(axis=1) / np.maximum(count, 1) / _TRIMMED
        found, total = _shrunk(square, count * _PER_DIFFERENCE, count)
    return found, total


def _shrunk(square: Array, freedom: Array, count: Codes) -> tuple[Array, Array]:
    """(standard deviations, freedom), drawn towards the typical one of the cells with enough values."""
    enough = count >= 4
    typical = float(np.median(square[enough])) if enough.any() else 0.01**2
    total = PRIOR_FREEDOM + freedom
    return np.maximum(np.sqrt((PRIOR_FREEDOM * typical + freedom * square) / total), FLOOR), total


def steps(x: Array, group: Codes | None = None) -> Steps:
    """The clearest step of each cell's series.  group: (cells,), a number per cells that a change may well have in
    common."""
    cells, nights = x.shape
    sigma, _ = noise(x)
    found = _Best(cells, sigma)
    typical = float(np.median(sigma)) if cells else FLOOR
    there = np.isfinite(x)
    newest = nights - 1 - np.argmax(there[:, ::-1], axis=1) if nights else np.zeros(cells, np.int64)
    some = np.flatnonzero(_spread(x) > LEAST)  # of a cell without a step, no two levels differ by more
    whole = _level(x, sigma)
    for night in range(1, nights):
        mine = some[there[some, night]]
        n, m = there[mine, :night].sum(axis=1), there[mine, night:].sum(axis=1)
        enough = n >= FEWEST_BEFORE_LARGE
        mine, n, m = mine[enough], n[enough], m[enough]
        if not len(mine):
            continue
        left, right = x[mine, :night], x[mine, night:]
        before = _level(left, sigma[mine])
        after = _after(right, before, m, sigma[mine])
        last = x[mine, newest[mine]]
        least = np.where(n >= FEWEST_BEFORE, LEAST, LARGE)
        kept = (np.abs(after - before) > least) & (np.abs(last - after) <= np.abs(last - before))
        if not kept.any():
            continue
        mine, n, m, before, after = mine[kept], n[kept], m[kept], before[kept], after[kept]
        away = x[mine] - np.where(np.arange(nights) < night, before[:, None], after[:, None])
        own, freedom = _about(away, m, sigma[mine], typical)
        size = after - before
        nulls = [_likelihood(x[mine] - level[:, None], own, freedom) for level in (before, after, whole[mine])]
        evidence = _likelihood(away, own, freedom) - np.max(nulls, axis=0)
        score = normal_score(np.abs(size) / (own * np.sqrt(1 / n + 1 / m)), freedom)
        found.keep(night, mine, size, m, own, evidence, score)
    return found.steps(sigma, group)


class _Best:
    """Of each cell, the step with the most evidence so far: of those that its own nights show, and of those that would
    need others to support them."""

    def __init__(self, cells: int, sigma: Array):
        self.shown, self.weak = _Found(cells), _Found(cells)
        share = float((sigma >= NOISY).mean()) if cells else 0.0
        self._more = math.log(max(share / FEW, 1.0))

    def keep(self, night: int, mine: Codes, size: Array, m: Codes, own: Array, evidence: Array, score: Array) -> None:
        several, noisy = m >= 2, own >= NOISY
        least, least_score = self._bars(m, noisy)
        sure = several & (evidence > least) & (score > least_score)
        least = np.where(several, EVIDENCE_SUSPECTED, EVIDENCE_OF_ONE)
        shown = sure | ((evidence > least) & (score > SCORE_OF_ONE))
        shown |= several & noisy & (evidence > NOISY_SUSPECTED[0] + self._more) & (score > NOISY_SUSPECTED[1])
        weak = several & (evidence > EVIDENCE_SUPPORTED) & (score > SCORE_SUPPORTED)
        for found, kept in ((self.shown, shown), (self.weak, weak)):
            found.keep(mine[kept], night, size[kept], m[kept], own[kept], evidence[kept], sure[kept])

    def _bars(self, m: Codes, noisy: Mask) -> tuple[Array, Array]:
        """The least evidence and t-statistic of a step that m nights show, for it to be sure."""
        which = np.searchsorted(list(NOISY_BARS), m, side="right") - 1
        bars = np.array(list(NOISY_BARS.values()))[which]
        evidence = np.where(noisy, np.minimum(bars[:, 0] + self._more, np.maximum(bars[:, 0], EVIDENCE)), EVIDENCE)
        return evidence, np.where(noisy, bars[:, 1], np.where(m >= 3, SCORE_LATER, SCORE))

    def steps(self, sigma: Array, group: Codes | None) -> Steps:
        shown, weak = self.shown, self.weak
        supported = np.zeros(len(sigma), dtype=bool)
        some = np.flatnonzero(weak.at >= 0)
        if group is not None and len(some):
            direction = np.sign(weak.size[some]).astype(np.int64)
            places = np.stack([group[some], weak.at[some], direction], axis=1)
            _, which, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
            supported[some] = count[which.reshape(-1)] >= AGREEING
        supported &= ~shown.sure
        made = {
            n: np.where(supported, getattr(weak, n), getattr(shown, n)) for n in ("at", "size", "after", "evidence")
        }
        own = np.where(supported, weak.own, np.where(shown.at >= 0, shown.own, sigma))
        return Steps(made["at"], made["size"], made["after"], own, made["evidence"], shown.sure | supported)


class _Found:
    """One step for each cell; `at` is -1 where there is none."""

    def __init__(self, cells: int):
        self.at, self.size, self.after = np.full(cells, -1), np.zeros(cells), np.zeros(cells, np.int64)
        self.own, self.evidence, self.sure = np.zeros(cells), np.zeros(cells), np.zeros(cells, dtype=bool)

    def keep(
        self, cells: Codes, night: int, size: Array, after: Codes, own: Array, evidence: Array, sure: Mask
    ) -> None:
        won = evidence > self.evidence[cells]
        at = cells[won]
        self.at[at], self.size[at], self.after[at] = night, size[won], after[won]
        self.own[at], self.evidence[at], self.sure[at] = own[won], evidence[won], sure[won]


def _level(x: Array, sigma: Array) -> Array:
    """The mean of the nights that lie about the median, per cell; NaN without any."""
    middle = median(x)
    near = np.abs(x - middle[:, None]) <= OFF_LEVEL * sigma[:, None]
    count = near.sum(axis=1)
    return np.where(count > 0, np.where(near, x, 0.0).sum(axis=1) / np.maximum(count, 1), middle)


def _after(right: Array, before: Array, count: Codes, sigma: Array) -> Array:
    """The level after a step; of two nights that do not agree, the one nearer to the level before."""
    level = _level(right, sigma)
    two = np.flatnonzero(count == 2)
    if len(two):
        low, high = np.nanmin(right[two], axis=1), np.nanmax(right[two], axis=1)
        nearer = np.where(np.abs(low - before[two]) < np.abs(high - before[two]), low, high)
        level[two] = np.where(high - low > OFF_LEVEL * math.sqrt(2) * sigma[two], nearer, (low + high) / 2)
    return level


def _about(away: Array, after: Codes, sigma: Array, typical: float) -> tuple[Array, Array]:
    """The noise of the nights about their levels, and its freedom."""
    kept = np.abs(away) <= OFF_NOISE * sigma[:, None]
    freedom = np.maximum(kept.sum(axis=1) - 1 - (after > 1), 0).astype(np.float64)
    square = np.where(kept, away**2, 0.0).sum(axis=1)
    total = PRIOR_FREEDOM + freedom
    return np.maximum(np.sqrt((PRIOR_FREEDOM * typical**2 + square) / total), FLOOR), total


def _likelihood(away: Array, sigma: Array, freedom: Array) -> Array:
    """The log likelihood of nights that are `away` from their levels, per cell."""
    scaled = away / sigma[:, None]
    constant = (_CONSTANTS[np.clip(freedom.astype(np.int64), 1, len(_CONSTANTS)) - 1] - np.log(sigma))[:, None]
    ordinary = constant - (freedom[:, None] + 1) / 2 * np.log1p(scaled**2 / freedom[:, None])
    odd = math.log(OUTLIERS / OUTLIER_RANGE)
    ordinary = np.where(np.isfinite(away), ordinary + math.log1p(-OUTLIERS), 0.0)
    return np.where(np.isfinite(away), np.logaddexp(ordinary, odd), 0.0).sum(axis=1)


def normal_score(t: Array, freedom: Array) -> Array:
    """Student-t as the normal value of the same probability, nearly.  Source: Wallace, Annals of Mathematical
    Statistics 30 (1959)."""
    return (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t**2 / freedom))


def _spread(x: Array) -> Array:
    """The range of each cell's values; 0 without any."""
    there = np.isfinite(x)
    high = np.where(there, x, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(there, x, np.inf).min(axis=1, initial=np.inf)
    return np.where(there.any(axis=1), high - low, 0.0)
