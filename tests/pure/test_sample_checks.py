"""Samples that the supervisor's own clock contradicts are refused, true ones never."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.guard.sample_checks import refusal, without_samples


def timing(*samples: Any, launches: Any = 1, **more: Any) -> dict[str, Any]:
    return {"method": "rotating_graph", "samples_us": list(samples), "launches": launches, **more}


@pytest.mark.parametrize(
    ("told", "wall_s", "words"),
    [
        (timing(*[1e6] * 20), 0.5, "the samples sum to 20 s in a phase that took 0.5 s"),
        (timing(*[5e3] * 20, launches=100), 2.0, "the samples sum to 10 s"),  # a sample is of many calls
        (timing(*[1e-4] * 20), 5.0, "the samples sum to only 0.002 us in a phase that took 5 s"),
        (timing(5.0, math.nan), 1.0, "nan us"),
        (timing(5.0, math.inf), 1.0, "inf us"),
        (timing(5.0, "6.0"), 1.0, "'6.0' us"),
        (timing(5.0, True), 1.0, "True us"),
        (timing(5.0, host_us=[None]), 1.0, "None us"),
        (timing(5.0, launches=0), 1.0, "0 calls each"),
        (timing(5.0, launches=1.5), 1.0, "1.5 calls each"),
    ],
)
def test_what_cannot_be_is_refused(told: dict[str, Any], wall_s: float, words: str) -> None:
    assert words in (refusal(told, wall_s) or "")


@pytest.mark.parametrize(
    ("told", "wall_s"),
    [
        (timing(), 1.0),
        (timing(*[6.8] * 20, launches=64), 0.08),
        (timing(*[2.0] * 20), 10.0),  # a phase in which something compiled
        (timing(*[0.0] * 20), 0.1),  # `impossible`, and shown as that
    ],
)
def test_what_can_be_is_believed(told: dict[str, Any], wall_s: float) -> None:
    assert refusal(told, wall_s) is None


@given(
    st.lists(st.floats(min_value=1.0, max_value=1e5), min_size=1, max_size=200),
    st.integers(min_value=1, max_value=500),
    st.floats(min_value=1.0, max_value=1e3),
)
def test_no_sample_of_a_true_clock_is_refused(samples: list[float], launches: int, overhead: float) -> None:
    """A phase takes as long as what is timed in it, and up to a thousand times as long for what is not."""
    wall_s = sum(samples) * launches / 1e6 * overhead
    assert refusal(timing(*samples, launches=launches), wall_s) is None


def test_refused_samples_are_gone() -> None:
    assert without_samples(timing(1.0, host_us=[2.0])) == timing(host_us=[])
