"""Is one side faster than the other?  An interval of the ratio from paired rounds of fresh processes.  Pure.

The unit of noise is the process (memory layout, clocks, what the driver did), not the sample: a thousand samples of one
process say nothing of the next one.  So each round runs a fresh process per side, one after the other, in alternating
order, and gives one number: x = ln(peer's time / our time), above 0 where we are faster.  Drift between rounds hits
both sides of a pair and falls out of x.

With n rounds, mean m and standard deviation s of x (divisor n - 1), the interval of the mean at level p is

    m -+ t(1 - (1 - p)/2; n - 1) s / sqrt(n)

and its ends, exponentiated, bound the ratio of speeds (their geometric mean over processes).  Source: "Student", "The
probable error of a mean", Biometrika 6 (1908), for the paired difference; NIST/SEMATECH e-Handbook, section 1.3.5.2.
Exact where x is normal; five rounds cannot tell whether it is, and the simulation in the tests holds the coverage.

At 99 %, one case in a hundred that is truly equal is told apart, in one direction or the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.99
#: Fewer rounds give an interval that says nothing (t = 63.7 of two).
MIN_ROUNDS = 3
SLOWER, FASTER, SAME, UNKNOWN = "confirmed slower", "confirmed faster", "not distinguishable", "not measured"


@dataclass(frozen=True)
class Interval:
    """The ratio of speeds, ours over the peer's: estimate, bounds, and how many rounds they rest on."""

    ratio: float
    low: float
    high: float
    rounds: int


def t_probability(t: float, freedom: int) -> float:
    """P(|T| <= t) of Student's t with a whole number of degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom are at least 1; got {freedom}")
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(2 if odd else 1, freedom, 2):  # each term is the last one times k/(k + 1) cos^2
        total += term
        term *= k / (k + 1) * cosine * cosine
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(probability: float, freedom: int) -> float:
    """The t that |T| stays within with `probability` (0 < p < 1), by bisection to the last bits."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability is between 0 and 1; got {probability}")
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def interval(ours_us: Sequence[float], peer_us: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval of ours/peer speed from paired rounds (microseconds, same order); None below MIN_ROUNDS pairs."""
    if len(ours_us) != len(peer_us):
        raise ValueError(f"rounds come in pairs; got {len(ours_us)} of ours and {len(peer_us)} of the peer")
    if not all(math.isfinite(v) and v > 0 for v in (*ours_us, *peer_us)):
        raise ValueError("times are finite and above zero")
    n = len(ours_us)
    if n < MIN_ROUNDS:
        return None
    logs = [math.log(p / o) for o, p in zip(ours_us, peer_us)]
    mean = math.fsum(logs) / n
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1))
    reach = t_quantile(level, n - 1) * deviation / math.sqrt(n)
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), n)


def verdict(found: Interval | None) -> str:
    """What the interval says of the two sides."""
    if found is None:
        return UNKNOWN
    if found.high < 1.0:
        return SLOWER
    return FASTER if found.low > 1.0 else SAME


def under(found: Interval | None, bar: float) -> bool:
    """Whether the whole interval lies below the bar: only then is a cell *confirmed* to miss it."""
    return found is not None and found.high < bar


def upper_bound(count: int, of: int, level: float) -> float | None:
    """The largest probability under which `count` or fewer of `of` happen with probability 1 - level; None for none.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika
    26 (1934), one-sided.
    """
    if of <= 0:
        return None
    if count >= of:
        return 1.0
    low, high = count / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(count, of, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, of: int, p: float) -> float:
    """P(X <= count) of a binomial."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    log_p, log_q = math.log(p), math.log1p(-p)
    logs = (
        math.lgamma(of + 1) - math.lgamma(i + 1) - math.lgamma(of - i + 1) + i * log_p + (of - i) * log_q
        for i in range(count + 1)
    )
    return min(1.0, math.fsum(math.exp(v) for v in logs))
