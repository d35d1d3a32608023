"""Steps in series of nights: what is found, what is invented, and what one odd night may do.

The operating curve of docs/dashboard.md comes from `python -m benchmarks.trend_simulation`, whose worlds these are.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import trend_simulation as simulation
from farm.compare import drift, trend


def quiet(cells: int = 60, nights: int = 26, sd: float = 0.004) -> np.ndarray:
    x: np.ndarray = np.random.default_rng(3).normal(0, sd, (cells, nights))
    return x


def test_unchanged_series_are_not_called_regressions() -> None:
    """Of 1,000 series over 30 nights fewer than one is called on average; here over 12."""
    called, suspected = simulation.false_regressions(np.random.default_rng(simulation.SEED), 18, 12)
    assert called <= 1 and suspected < 8


@pytest.mark.parametrize(("sd", "nights", "least"), [(0.005, 2, 0.98), (0.007, 2, 0.97), (0.010, 4, 0.97)])
def test_a_step_of_five_percent_is_found(sd: float, nights: int, least: float) -> None:
    assert simulation.found_after(np.random.default_rng(7), sd, nights) >= least


def test_noisy_cells_that_step_together_support_each_other() -> None:
    alone, together = (simulation.found_after(np.random.default_rng(7), 0.013, 2, alone) for alone in (True, False))
    assert together > 0.8 > 0.6 > alone


def test_noisy_cells_need_the_evidence_of_their_own_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bars of quiet cells steps of noisy ones are missed; with lower ones some are invented."""

    def found() -> float:
        dice = [np.random.default_rng(seed) for seed in (7, 8, 9)]
        return float(np.mean([simulation.found_within(one, 0.016)[0][-1] for one in dice]))

    assert found() > 0.85
    monkeypatch.setattr(trend, "NOISY_BARS", {0: (trend.EVIDENCE, trend.SCORE)})
    assert found() < 0.75
    monkeypatch.setattr(trend, "NOISY_BARS", {0: (trend.EVIDENCE, trend.SCORE), 3: (4.0, 2.7)})
    assert simulation.false_regressions(np.random.default_rng(simulation.SEED), 18, 12)[0] > 1


@pytest.mark.parametrize("after", [(0.1,), (0.05, 0.11), (0.08, 0.0, 0.08), (0.08, 0.0)])
def test_odd_nights_that_do_not_agree_are_no_regression(after: tuple[float, ...]) -> None:
    x = quiet()
    x[5, -len(after) :] += after
    found = trend.steps(x)
    assert not found.sure.any()
    assert found.suspected[5] == (after[-1] > 0)


def test_two_nights_that_agree_are_a_regression_and_what_came_back_is_none() -> None:
    x = quiet()
    x[5, -2:] += 0.05
    x[6, 10:-1] += 0.05  # slow for long, and as before in the newest night
    x[7, 20:] -= 0.05
    x[7, 22] = np.nan
    found = trend.steps(x)
    assert np.flatnonzero(found.sure).tolist() == [5, 7]
    assert [int(found.at[i]) for i in (5, 7)] == [24, 20] and found.size[5] > 0 > found.size[7]
    assert found.at[6] == -1 or (found.suspected[6] and found.size[6] < 0)


def test_series_without_enough_nights_or_times_say_nothing() -> None:
    for x in (
        np.zeros((0, 30)),
        np.zeros((5, 0)),
        np.full((5, 30), np.nan),
        quiet(5, 1),
        quiet(5, 4) + [[0, 0, 0.2, 0.2]],
    ):
        found = trend.steps(x)
        assert not found.sure.any() and not found.suspected.any()


def test_a_longer_history_never_hides_a_plain_step() -> None:
    """The law: a step of ten deviations is found with its night, wherever it lies and whatever night gave no time."""
    rng = np.random.default_rng(11)
    x = rng.normal(0, 0.003, (300, 30))
    at = rng.integers(5, 28, 300)
    x += np.where(np.arange(30) >= at[:, None], math.log(1.04), 0.0)
    gone = rng.random(x.shape) < 0.1
    gone[np.arange(300), at] = gone[:, -1] = gone[:, -2] = False
    gone[:, :4] = False
    found = trend.steps(np.where(gone, np.nan, x))
    assert found.sure.mean() > 0.99
    assert (np.abs(found.at - at) <= 1)[found.sure].all()


def test_environment_takes_peers_where_a_device_has_enough() -> None:
    """Against the plain definition, device by device."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 0.01, (40, 6))
    x[rng.random(x.shape) < 0.2] = np.nan
    device, control = rng.integers(-1, 4, x.shape), rng.random(40) < 0.4
    away = x - np.nanmedian(x, axis=1)[:, None]
    expected = np.zeros_like(x)
    for night in range(6):
        for number in range(4):
            mine = device[:, night] == number
            known = mine & np.isfinite(x[:, night])
            chosen = known & control if (known & control).sum() >= trend.FEWEST_CONTROLS else known
            if chosen.sum() >= trend.FEWEST_CONTROLS:
                values = away[chosen, night]
                near = values[np.abs(values) <= trend.UNMOVED]
                split = abs(np.median(values)) > trend.UNMOVED and len(near) >= trend.UNMOVED_SHARE * len(values)
                expected[mine, night] = np.median(near if split else values)
    assert trend.environment(x, device, control) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_a_change_of_half_of_the_cells_is_not_taken_for_the_devices(share: float) -> None:
    """Without peers: what did not move is not called faster, and what did is not halved."""
    x = quiet(20)
    moved = np.arange(20) < 20 * share
    x[moved, 20:] += 0.08
    found = trend.steps(x - trend.environment(x, np.zeros(x.shape, np.int64), np.zeros(20, dtype=bool)))
    assert np.flatnonzero(found.sure).tolist() == np.flatnonzero(moved).tolist()
    assert found.size[moved] == pytest.approx(0.08, abs=0.01)


# drifts


def test_unchanged_series_do_not_drift_and_steps_are_no_drift() -> None:
    """Of 1,000 series over 30 nights fewer than one is said to drift on average; here over 4."""
    assert simulation.false_drifts(np.random.default_rng(simulation.SEED), 4) <= 1
    found, wrong = simulation.drifts_found(np.random.default_rng(1), 0.007, 0.004)
    assert found > 0.95 and wrong == 0


def test_a_drift_is_no_step_and_a_step_is_no_drift() -> None:
    x = quiet(nights=30)
    x[3] += 0.004 * np.maximum(0, np.arange(30) - 8)
    x[4] -= 0.004 * np.maximum(0, np.arange(30) - 8)
    x[5, 20:] += 0.06
    x[6, 10:] += 0.05
    x[6, 20:] += 0.05  # two regressions: the clearer one stays
    x[7, ::9] += 0.3  # odd nights
    x[8, 8:] = np.nan
    steps = trend.steps(x)
    found = drift.drifts(x, steps)
    assert np.flatnonzero(found.some).tolist() == [3, 4] and found.size[3] > 0.06 > -0.06 > found.size[4]
    assert abs(found.since[3] - 8) <= 2
    left = drift.without(steps, found)
    assert np.flatnonzero(left.sure).tolist() == [5, 6]
    for short in (x[:, :20], x[:0], np.full((5, 30), np.nan)):
        assert not drift.drifts(short, trend.steps(short)).some.any()
