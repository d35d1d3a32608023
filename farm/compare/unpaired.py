"""Times of two runs that were not made in turn: which cells are suspected to be slower or faster.  Pure.

Each run gives one process per cell, at another time, perhaps on another device.  So nothing here is a verdict: a cell
is `slower` where three things hold, and `farm ab` decides.

    the spreads within both processes (p20 to p80) do not overlap
    the log ratio is beyond max(2 %, 5 sigma), sigma being how much the log ratios of all cells of the target vary
    neither time is marked noisy or throttled

By simulation (tests/pure/test_compare_times.py; noise of docs/compare.md), of 3,900 unchanged cells some 60 are
suspected, half of them outlier processes, and 95 % of the cells that became 5 % slower.

What peers of one version share is the environment's, and is taken off first: their code did not change.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from farm.compare.decide import DEFAULT, Rule

#: Sigmas beyond which a cell is suspected: each has one round only, and a run has thousands of cells.
SIGMAS = 5.0
#: Cells from which the spread of a target is taken, and what is assumed of fewer.
FEWEST, ASSUMED_SIGMA = 20, 0.01
#: Standard deviation over median absolute deviation of a normal distribution.
PER_MAD = 1.4826


class Claim(enum.Enum):
    """What two unpaired times say of a cell: b against a."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "within noise"
    NOISY = "too noisy to say"


@dataclass(frozen=True)
class Times:
    """One cell's times.  x: ln(time of b / time of a); apart: whether the spreads within the processes are; noisy:
    whether one is marked so; control: a cell whose code is known to be the same in both."""

    x: float
    apart: bool
    noisy: bool = False
    control: bool = False


@dataclass(frozen=True)
class Judged:
    """Claims in the order of the cells.  shift: the log ratio that was taken off; threshold: of a log ratio."""

    claims: tuple[Claim, ...]
    shift: float
    sigma: float
    threshold: float


def judge(cells: Sequence[Times], rule: Rule = DEFAULT) -> Judged:
    """The claims of the cells of one target."""
    quiet = [c.x for c in cells if not c.noisy]
    controls = [c.x for c in cells if c.control and not c.noisy]
    shift = median(controls) if len(controls) >= rule.fewest_controls else 0.0
    sigma = ASSUMED_SIGMA
    if len(quiet) >= FEWEST:
        middle = median(quiet)
        sigma = PER_MAD * median(abs(x - middle) for x in quiet)
    threshold = max(math.log1p(rule.floor), SIGMAS * sigma)
    return Judged(tuple(_claim(c, c.x - shift, threshold) for c in cells), shift, sigma, threshold)


def _claim(cell: Times, x: float, threshold: float) -> Claim:
    if cell.noisy:
        return Claim.NOISY
    if not cell.apart or abs(x) <= threshold:
        return Claim.SAME
    return Claim.SLOWER if x > 0 else Claim.FASTER
