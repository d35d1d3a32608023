"""From rounds to verdicts: screen every cell, decide on those in doubt, confirm what would be called a change.

    screen    3 rounds of every cell; where the median lies within half of the cell's threshold, it is `same`
    decide    7 fresh rounds of the others; the one round that lies 6 sigma off the median is measured once more
    confirm   5 fresh rounds of what would be called a change: on the same side, beyond half of the threshold

Of screening and deciding, more than half of the rounds come first: 2 of 3, 4 of 7.  A cell of which so many lie within
the bound at the least threshold has its median there, whatever the others would say, and gets no more of them.

A round without a time is asked for again, at most twice a stage.  The threshold of a cell is max(2 %, 2.5 sigma), sigma
being its own (farm/compare/noise.py): a smaller change is not claimed, and a cell whose threshold is above 10 % is
never called the same.  x is always ln(time of b / time of a), of shape (cells, rounds), NaN where a round gave no time.
What the control cells of a round share (the same machine code in both arms) is the environment's, and is taken off
first.  Controls go through the same stages as all others, so that `called` says what the rule makes of identical code;
but their verdict is never a change.

What the rule finds and what it invents is simulated by benchmarks/compare_simulation.py: docs/compare.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farm.compare import noise
from farm.compare.intervals import t_quantile
from farm.compare.noise import Array, Known, Mask, count, median

Cells = NDArray[np.int64]


class Verdict(enum.Enum):
    """What the rounds say of a cell: b against a."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    UNFIT = "unfit"  # too few rounds gave a time


class Stage(enum.Enum):
    SCREEN = "screen"
    DECIDE = "decide"
    REDO = "redo"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Rule:
    """How many rounds a stage has, and what it takes for a change."""

    screen: int = 3
    decide: int = 7
    confirm: int = 5
    spare: int = 2  # rounds a stage, in place of those without a time
    floor: float = 0.02
    sigmas: float = 2.5
    level: float = 0.99
    redo_sigmas: float = 6.0
    widest: float = 0.10  # a cell whose threshold is larger is not called the same
    fewest: int = 2  # rounds that screen or confirm
    fewest_decided: int = 4
    fewest_controls: int = 5

    def __post_init__(self) -> None:
        if self.fewest < 2 or self.screen < self.fewest or self.confirm < self.fewest:
            raise ValueError("a stage has at least two rounds")
        if self.decide < self.fewest_decided or self.fewest_decided < 3:
            raise ValueError("deciding takes at least three rounds")

    def threshold(self, sigma: Array) -> Array:
        """The smallest log ratio that is called a change, per cell."""
        return np.maximum(math.log1p(self.floor), self.sigmas * sigma)

    def rounds(self, stage: Stage) -> int:
        """How many rounds a stage has, those in place of lost ones aside."""
        return {Stage.SCREEN: self.screen, Stage.DECIDE: self.decide, Stage.CONFIRM: self.confirm, Stage.REDO: 1}[stage]

    def most(self, stage: Stage) -> int:
        """More than half of a stage's rounds; all of one whose bound is no upper one."""
        full = self.rounds(stage)
        return full // 2 + 1 if stage in (Stage.SCREEN, Stage.DECIDE) else full

    def settled(self, x: Array, stage: Stage) -> Mask:
        """Cells whose median over the stage is within its bound whatever further rounds say: most of them lie there,
        and no threshold is below the floor.  x: (cells, rounds)."""
        bound = {Stage.SCREEN: math.log1p(self.floor) / 2, Stage.DECIDE: math.log1p(self.floor)}.get(stage, -1.0)
        return np.asarray((np.abs(x) <= bound).sum(axis=1) >= self.most(stage))


DEFAULT = Rule()


@dataclass(frozen=True)
class Batch:
    """Rounds to run: each cell `rounds` times in each arm, in fresh processes; `first` is the number of the first."""

    stage: Stage
    cells: tuple[int, ...]
    rounds: int
    first: int


@dataclass(frozen=True)
class Outcome:
    """What is known of a cell: ratio of times b/a with the bounds of its interval, and what they rest on.

    `threshold` and `sigma` are relative (0.02 is 2 %).  Ratio and bounds are NaN where no round gave a time.
    """

    verdict: Verdict
    ratio: float
    low: float
    high: float
    threshold: float
    sigma: float
    rounds: int
    stage: Stage


def order(number: int) -> tuple[str, str]:
    """The arms of a round in their order: a b, b a, a b, so that neither is always on the warmer device."""
    return ("a", "b") if number % 2 == 0 else ("b", "a")


def shift(controls: Array, rule: Rule = DEFAULT) -> Array:
    """What the control cells of each round share, (rounds,); 0 where too few of them gave a time.

    controls: (control cells, rounds).
    """
    by_round = controls.T
    return np.where(count(by_round) >= rule.fewest_controls, np.nan_to_num(median(by_round)), 0.0)


def shift_of_others(controls: Array, rule: Rule = DEFAULT) -> Array:
    """For each control cell what the other ones share, (control cells, rounds): a cell is not compared with itself.  0
    where `shift` is 0 for all."""
    known = shift(controls, rule) != 0
    others = [shift(np.delete(controls, i, axis=0), replace(rule, fewest_controls=1)) for i in range(len(controls))]
    return np.where(known[None, :], np.array(others).reshape(controls.shape), 0.0)


def outliers(x: Array, sigma: Array, rule: Rule = DEFAULT) -> Mask:
    """The one round of each cell that lies farthest off its median, if by over `redo_sigmas`; (cells, rounds)."""
    away = np.abs(x - median(x)[:, None])
    away = np.where(np.isfinite(away), away, -1.0)
    return (away == away.max(axis=1, keepdims=True)) & (away > rule.redo_sigmas * sigma[:, None])


@cache
def _t(level: float, freedom: int) -> float:
    return t_quantile(level, freedom)


def reach(sigma: Array, freedom: Array, rounds: NDArray[np.int64], level: float) -> Array:
    """Half of each cell's t interval of the mean; infinite without a round."""
    t = np.array([_t(level, int(f)) for f in freedom])
    return np.where(rounds > 0, t * sigma / np.sqrt(np.maximum(rounds, 1)), np.inf)


class Comparison:
    """The course of one comparison: `next()` says what to run, `told()` takes what came of it.

    controls: cells whose arms are known to be the same code; they are measured in each batch, and never accused.
    known: what earlier records say of each cell's noise.
    """

    def __init__(self, cells: int, controls: Sequence[int] = (), known: Known | None = None, rule: Rule = DEFAULT):
        self.rule, self.known = rule, known
        self.controls = np.array(sorted(set(controls)), np.int64)
        if cells < 0 or (len(self.controls) and (self.controls[0] < 0 or self.controls[-1] >= cells)):
            raise ValueError(f"controls are among the {cells} cells; got {list(controls)}")
        #: What the rule says of each cell, controls too; and what is said of it.
        self.called = np.full(cells, Verdict.UNFIT, dtype=object)
        self.stages = np.full(cells, Stage.SCREEN, dtype=object)
        self._x: dict[Stage, Array] = {s: np.full((cells, 0), np.nan) for s in Stage}
        self._open: Cells = np.arange(cells)  # of the stage
        self._stage = Stage.SCREEN
        self._variance = noise.FLOOR**2
        self._redo: NDArray[np.int64] | None = None
        self._asked = 0
        self._number = 0
        self._batch: Batch | None = None
        self._ask(rule.most(Stage.SCREEN), self._open)

    def next(self) -> Batch | None:
        """What to run now; None where all is decided."""
        return self._batch

    def told(self, x: Array) -> None:
        """The log ratios of the batch, (cells of the batch, its rounds), NaN where one of the arms gave no time."""
        batch = self._batch
        if batch is None or x.shape != (len(batch.cells), batch.rounds):
            raise ValueError(f"told {x.shape} of {batch}")
        cells = np.array(batch.cells, np.int64)
        if len(self.controls):
            at = np.isin(cells, self.controls)
            taken = np.broadcast_to(shift(x[at], self.rule), x.shape).copy()
            taken[at] = shift_of_others(x[at], self.rule)
            x = x - taken
        kept = np.full((len(self.verdicts), batch.rounds), np.nan)
        kept[cells] = x
        if batch.stage is Stage.REDO:
            self._redone(kept)
        else:
            self._x[batch.stage] = np.concatenate([self._x[batch.stage], kept], axis=1)
        self._go_on(batch.stage)

    @property
    def verdicts(self) -> NDArray[np.object_]:
        """Each cell's verdict: as `called`, but a control that gave times is the same."""
        out = self.called.copy()
        timed = self.controls[out[self.controls] != Verdict.UNFIT]
        out[timed] = Verdict.SAME
        return out

    def spread(self) -> tuple[Array, Array, Cells]:
        """Each cell's own noise, from the rounds of screening and deciding: the standard deviation of a round's log
        ratio (NaN below two rounds), its degrees of freedom, and how many rounds gave a time.  Outliers left out."""
        x = np.concatenate([self._x[Stage.SCREEN], self._x[Stage.DECIDE]], axis=1)
        square, freedom = noise.squares(x)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(freedom > 0, np.sqrt(square / freedom), np.nan), freedom, count(x)

    def outcomes(self) -> list[Outcome]:
        """Each cell's verdict with its numbers, in the order of the cells."""
        x = np.concatenate([self._x[Stage.DECIDE], self._x[Stage.CONFIRM]], axis=1)
        x = np.concatenate([x, np.where((count(x) == 0)[:, None], self._x[Stage.SCREEN], np.nan)], axis=1)
        sigma, freedom = self._sigma(np.arange(len(x)))
        rounds = count(x)
        mean = np.where(rounds > 0, np.nansum(x, axis=1) / np.maximum(rounds, 1), np.nan)
        half = reach(sigma, freedom, rounds, self.rule.level)
        threshold, verdicts = self.rule.threshold(sigma), self.verdicts
        with np.errstate(over="ignore", invalid="ignore"):
            ratio, low, high = np.exp(mean), np.exp(mean - half), np.exp(mean + half)
        return [
            Outcome(
                verdicts[i],
                float(ratio[i]),
                float(low[i]),
                float(high[i]),
                math.expm1(threshold[i]),
                float(sigma[i]),
                int(rounds[i]),
                self.stages[i],
            )
            for i in range(len(x))
        ]

    def _sigma(self, cells: Cells) -> tuple[Array, Array]:
        """From all rounds of the cells, each stage about its own mean would lose freedom: they are of one cell."""
        x = np.concatenate([self._x[Stage.SCREEN][cells], self._x[Stage.DECIDE][cells]], axis=1)
        return noise.sigma(x, self._variance, self.known.of(cells) if self.known else None)

    def _ask(self, rounds: int, cells: Cells, stage: Stage | None = None) -> None:
        stage = stage or self._stage
        wanted = np.union1d(cells, self.controls) if len(cells) else cells
        if not len(wanted) or not rounds:
            self._batch = None
            return
        self._batch = Batch(stage, tuple(int(c) for c in wanted), rounds, self._number)
        self._number += rounds
        if stage is not Stage.REDO:
            self._asked += rounds

    def _go_on(self, stage: Stage) -> None:
        rule = self.rule
        if stage is not Stage.REDO:
            full, x = rule.rounds(stage), self._x[stage][self._open]
            lack = np.where(rule.settled(x, stage), 0, full - count(x))
            if (lack > 0).any() and self._asked < full + rule.spare:
                again = min(int(lack.max()), full + rule.spare - self._asked)
                self._ask(full - self._asked if self._asked < full else again, self._open[lack > 0])
                return
        if stage is Stage.SCREEN:
            self._screened()
        elif stage is Stage.DECIDE:
            self._decided(redo=True)
        elif stage is Stage.REDO:
            self._decided(redo=False)
        else:
            self._confirmed()

    def _enter(self, stage: Stage, cells: Cells) -> None:
        self._stage, self._open, self._asked = stage, cells, 0
        self.stages[cells] = stage
        self._ask(self.rule.most(stage), cells)

    def _screened(self) -> None:
        x = self._x[Stage.SCREEN]
        # What is typical follows from the rounds that every cell has: only the noisy ones have more.
        first = np.cumsum(np.isfinite(x), axis=1) <= self.rule.most(Stage.SCREEN)
        square, freedom = noise.squares(np.where(first, x, np.nan))
        if self.known is not None:
            self.known = noise.as_loud(self.known, square, freedom)
            square, freedom = square + self.known.freedom * self.known.sigma**2, freedom + self.known.freedom
        self._variance = noise.typical(square, freedom)
        sigma, _ = self._sigma(np.arange(len(x)))
        enough = count(x) >= self.rule.fewest
        near = np.abs(np.nan_to_num(median(x))) <= self.rule.threshold(sigma) / 2
        near &= self.rule.threshold(sigma) <= math.log1p(self.rule.widest)
        self.called[enough & near] = Verdict.SAME
        self._enter(Stage.DECIDE, np.flatnonzero(enough & ~near))

    def _decided(self, redo: bool) -> None:
        cells, rule = self._open, self.rule
        x = self._x[Stage.DECIDE][cells]
        sigma, freedom = self._sigma(cells)
        if redo:
            odd = outliers(x, sigma, rule)
            again = odd.any(axis=1)
            if again.any():
                self._redo = np.where(again, odd.argmax(axis=1), -1)
                self._ask(1, cells[again], Stage.REDO)
                return
        threshold = rule.threshold(sigma)
        rounds = count(x)
        mean = np.nansum(x, axis=1) / np.maximum(rounds, 1)
        enough = rounds >= rule.fewest_decided
        beyond = np.abs(np.nan_to_num(median(x))) > threshold
        apart = np.abs(mean) > reach(sigma, freedom, rounds, rule.level)
        self.called[cells] = Verdict.INCONCLUSIVE
        self.called[cells[enough & ~beyond & (threshold <= math.log1p(rule.widest))]] = Verdict.SAME
        self._enter(Stage.CONFIRM, cells[enough & beyond & apart])

    def _redone(self, fresh: Array) -> None:
        """The fresh round takes the outlier's place; where it gave no time, the outlier goes."""
        assert self._redo is not None
        at = self._redo >= 0
        self._x[Stage.DECIDE][self._open[at], self._redo[at]] = fresh[self._open[at], 0]

    def _confirmed(self) -> None:
        cells = self._open
        threshold = self.rule.threshold(self._sigma(cells)[0])
        first, fresh = median(self._x[Stage.DECIDE][cells]), self._x[Stage.CONFIRM][cells]
        again = np.nan_to_num(median(fresh)) * np.sign(first) > threshold / 2
        sure = again & (count(fresh) >= self.rule.fewest)
        self.called[cells[sure & (first > 0)]] = Verdict.REGRESSED
        self.called[cells[sure & (first < 0)]] = Verdict.IMPROVED
        self._enter(Stage.CONFIRM, cells[:0])
