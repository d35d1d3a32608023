"""What the steps of `farm/compare/trend.py` find and invent, by simulation: the table in docs/dashboard.md."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks import trend_simulation as simulation


@pytest.mark.soak(seconds=20)
def test_few_regressions_are_invented(dice: random.Random) -> None:
    """1,000 unchanged series, looked at in each of 30 nights; 0.4 % of the processes are outliers.  Fewer than one on
    average: of ten worlds at most 14 (one in a hundred at an average of 0.8)."""
    rng = np.random.default_rng(dice.randrange(1 << 30))
    called, suspected = zip(*(simulation.false_regressions(rng, 30) for _ in range(10)))
    assert sum(called) <= 14 and sum(suspected) / 10 <= 8


@pytest.mark.soak(seconds=5)
@pytest.mark.parametrize("sd", sorted(simulation.LEAST_OF_TWO))
def test_a_step_of_five_percent_is_found(dice: random.Random, sd: float) -> None:
    rng = np.random.default_rng(dice.randrange(1 << 30))
    assert np.mean([simulation.found_after(rng, sd, 2) for _ in range(4)]) >= simulation.LEAST_OF_TWO[sd] - 0.01
    assert np.mean([simulation.found_after(rng, sd, 4) for _ in range(4)]) >= simulation.LEAST_OF_FOUR[sd] - 0.005
