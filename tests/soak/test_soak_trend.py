"""What the steps of `farm/compare/trend.py` find and invent, by simulation: the table in docs/dashboard.md."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from farm.compare import trend


def series(rng: np.random.Generator, sd: np.ndarray, nights: int) -> np.ndarray:
    x: np.ndarray = rng.normal(0, 1, (len(sd), nights)) * sd[:, None]
    return x


@pytest.mark.soak(seconds=5)
def test_few_regressions_are_invented(dice: random.Random) -> None:
    """1,000 unchanged series, looked at in each of 30 nights; 0.4 % of the processes are outliers."""
    rng = np.random.default_rng(dice.randrange(1 << 30))
    sd = np.clip(rng.lognormal(math.log(0.0045), 0.5, 1000), 0.002, 0.016)
    x = series(rng, sd, 50)
    x += (rng.random(x.shape) < 0.004) * rng.uniform(0.03, 0.2, x.shape)
    regressions, suspected = set[tuple[int, int]](), 0
    for nights in range(20, 50):
        found = trend.steps(x[:, :nights])
        suspected += int(found.suspected.sum())
        regressions |= {(int(i), int(found.at[i])) for i in np.flatnonzero((found.at >= 0) & ~found.suspected)}
    assert len(regressions) <= 8 and suspected / 30 <= 8


@pytest.mark.soak(seconds=5)
@pytest.mark.parametrize(
    ("sd", "least"), [(0.003, (0.99, 0.99, 0.99)), (0.005, (0.9, 0.99, 0.99)), (0.007, (0.55, 0.9, 0.97))]
)
def test_a_step_of_five_percent_is_found(dice: random.Random, sd: float, least: tuple[float, ...]) -> None:
    rng = np.random.default_rng(dice.randrange(1 << 30))
    x = series(rng, np.full(2000, sd), 23)
    x[:, 20:] += math.log(1.05)
    for nights, bound in zip((21, 22, 23), least, strict=True):
        found = trend.steps(x[:, :nights])
        assert ((np.abs(found.at - 20) <= 1) & (found.size > 0)).mean() >= bound, nights
