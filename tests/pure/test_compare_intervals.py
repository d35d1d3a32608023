"""The interval that decides whether one side is faster: its t, its coverage, what it does to equal and slower sides."""

from __future__ import annotations

import math
import random

import pytest

from farm.compare import intervals as iv


@pytest.mark.parametrize(
    "probability, freedom, want",
    [  # published tables, two-sided
        (0.99, 1, 63.657),
        (0.99, 2, 9.925),
        (0.99, 3, 5.841),
        (0.99, 4, 4.604),
        (0.99, 6, 3.707),
        (0.99, 9, 3.250),
        (0.95, 4, 2.776),
        (0.95, 30, 2.042),
        (0.90, 5, 2.015),
    ],
)
def test_t_is_that_of_the_tables(probability: float, freedom: int, want: float) -> None:
    assert iv.t_quantile(probability, freedom) == pytest.approx(want, abs=5e-4)


@pytest.mark.parametrize("probability, freedom", [(1.0, 4), (0.0, 4), (0.99, 0)])
def test_wrong_arguments_are_told(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="got"):
        iv.t_quantile(probability, freedom)


def simulate(seed: int, slow_down: float = 0.0, process: float = 0.007, drift: float = 0.01, rounds: int = 5):
    """Rounds of two sides: drift that a round's both sides share, and each process's own noise."""
    rng = random.Random(seed)
    ours, peer = [], []
    for _ in range(rounds):
        here = 40.0 * math.exp(rng.gauss(0, drift))
        ours.append(here * (1 + slow_down) * math.exp(rng.gauss(0, process)))
        peer.append(here * math.exp(rng.gauss(0, process)))
    return ours, peer


def rate(condition, count: int, **options: float) -> float:
    return sum(condition(iv.interval(*simulate(seed, **options))) for seed in range(count)) / count


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    slow = 0.03
    covered = rate(lambda i: i.low <= 1 / (1 + slow) <= i.high, 6000, slow_down=slow)
    assert 0.985 <= covered <= 0.995  # three standard errors of 6,000 draws are 0.0039


def test_equal_sides_are_not_confirmed_but_for_the_level() -> None:
    told_apart = rate(lambda i: iv.verdict(i) != iv.SAME, 6000)
    assert 0.005 <= told_apart <= 0.015


def test_a_planted_slow_down_is_confirmed() -> None:
    """3 % with 0.4 % between processes, what an H200 shows in the median cell; and never the wrong way round."""
    assert rate(lambda i: iv.verdict(i) == iv.SLOWER, 2000, slow_down=0.03, process=0.004) > 0.97
    assert rate(lambda i: iv.verdict(i) == iv.FASTER, 2000, slow_down=0.03, process=0.004) == 0
    assert rate(lambda i: iv.verdict(i) == iv.FASTER, 2000, slow_down=-0.03, process=0.004) > 0.97


def test_pairing_removes_what_a_round_shares() -> None:
    """Drift of 20 % between rounds leaves the interval as it was: unpaired it could confirm nothing."""
    assert rate(lambda i: iv.verdict(i) == iv.SLOWER, 500, slow_down=0.03, process=0.003, drift=0.2) > 0.97


def test_a_bar_is_missed_only_by_the_whole_interval() -> None:
    found = iv.Interval(0.975, 0.96, 0.985, 5)
    assert iv.verdict(found) == iv.SLOWER
    assert not iv.under(found, 0.98) and iv.under(found, 0.99)
    assert not iv.under(None, 1.0)


def test_the_ratio_is_of_speeds_and_its_bounds_enclose_it() -> None:
    found = iv.interval([10.0, 10.1, 9.9], [20.0, 20.1, 20.0])
    assert found is not None and found.rounds == 3
    assert found.ratio == pytest.approx(2.0, rel=0.01) and found.low < found.ratio < found.high
    mirrored = iv.interval([20.0, 20.1, 20.0], [10.0, 10.1, 9.9])
    assert mirrored is not None and mirrored.low == pytest.approx(1 / found.high)


def test_too_few_rounds_say_nothing_and_bad_ones_are_refused() -> None:
    assert iv.interval([1.0, 1.0], [1.0, 1.0]) is None
    assert iv.verdict(None) == iv.UNKNOWN
    with pytest.raises(ValueError, match="pairs"):
        iv.interval([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="above zero"):
        iv.interval([1.0, 0.0, 1.0], [1.0, 1.0, 1.0])
