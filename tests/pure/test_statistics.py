"""What samples say: order statistics, when to stop, what a number is worth."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.timing.statistics import Bounds, enough, impossible_because, median_half_width, quality, quantile, summarize

times = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=200)
POLICY = {"min_samples": 20.0, "max_samples": 200.0, "target_rel_width": 0.01, "max_seconds": 1.0}


@given(times, st.floats(0, 1))
def test_quantiles_are_numpys(samples: list[float], q: float) -> None:
    assert quantile(sorted(samples), q) == pytest.approx(float(np.quantile(samples, q)), rel=1e-9)


@given(times, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[float], dice: random.Random) -> None:
    shuffled = samples[:]
    dice.shuffle(shuffled)
    assert summarize(shuffled) == summarize(samples)


@given(times)
def test_a_summary_is_ordered_and_inside_its_samples(samples: list[float]) -> None:
    s = summarize(samples)
    assert s is not None
    tiny = 1e-9 * max(samples)  # interpolation may round
    assert min(samples) - tiny <= s.p20 <= s.p50 + tiny
    assert s.p50 <= s.p80 + tiny
    assert s.p80 <= max(samples) + tiny
    assert s.count == len(samples)
    assert s.rel_mad >= 0


def test_no_samples_have_no_summary() -> None:
    assert summarize([]) is None


def test_the_medians_interval_covers_it_as_often_as_it_says() -> None:
    dice = random.Random(1)
    inside = 0
    for _ in range(400):
        samples = [dice.lognormvariate(0.0, 0.3) for _ in range(40)]
        s = summarize(samples)
        assert s is not None
        half = median_half_width(samples) * s.p50
        ordered = sorted(samples)
        reach = 0.98 * math.sqrt(40)
        low, high = ordered[math.floor(20 - reach)], ordered[math.ceil(20 + reach) - 1]
        assert half == pytest.approx((high - low) / 2)
        inside += low <= 1.0 <= high
    assert 0.90 <= inside / 400 <= 0.995


@pytest.mark.parametrize("n", range(6))
def test_a_handful_of_samples_has_no_interval(n: int) -> None:
    assert median_half_width([1.0] * n) == math.inf


def test_an_interval_of_nothing_is_endless() -> None:
    assert median_half_width([0.0] * 20) == math.inf


def test_when_to_stop() -> None:
    quiet, wild = [1.0] * 20, [1.0, 2.0] * 10
    assert not enough([1.0] * 19, 0.5, POLICY)  # too few, however alike
    assert enough(quiet, 0.0, POLICY)
    assert not enough(wild, 0.5, POLICY)
    assert enough(wild, 1.0, POLICY)  # time is up
    assert enough([1.0, 2.0] * 100, 0.0, POLICY)  # as many as allowed
    assert not enough([1.0] * 6, 4.0, POLICY)
    assert enough([1.0] * 6, 4.1, POLICY)  # a kernel of seconds: six will do
    assert not enough([1.0] * 5, 20.0, POLICY)
    assert enough([1.0], 20.1, POLICY)  # a call of many seconds ends before the phase's deadline does
    assert not enough([], 1000.0, POLICY)


def test_quality() -> None:
    def of(samples: list[float], **more: Any) -> str:
        floor = more.pop("floor_us", None)
        return quality(samples, floor, Bounds(**{"bytes_moved": 1000, "cold": True, **more}))

    assert of([]) == "none"
    assert of([10.0] * 20) == "ok"
    assert of([10.0, 20.0] * 10) == "noisy"
    assert of([10.0] * 3) == "noisy"  # no interval at all
    assert of([10.0] * 20, floor_us=4.0) == "launch_bound"
    assert of([1e-3] * 20, peak_gbps=999.0) == "impossible"  # 1000 B in 1 ns are 1000 GB/s
    assert of([1e-3] * 20, peak_gbps=1001.0) == "ok"
    assert of([1e-3] * 20, peak_gbps=999.0, cold=False) == "ok"  # from a cache
    assert of([1e-3] * 20, peak_gbps=199.0, cold=False) == "impossible"  # no cache is that fast
    assert of([1e-3] * 20, operations=10**6, peak_tflops=999.0) == "impossible"  # 1e6 in 1 ns are 1000 Top/s
    assert of([1e-3] * 20, operations=10**6, peak_tflops=1001.0) == "ok"
    assert of([0.0] * 20) == "impossible"
    assert of([math.nan] * 20) == "impossible"
    assert of([-5.0] * 20, floor_us=1.0) == "impossible"
    assert of([10.0] * 19 + [0.0]) == "impossible"  # a clock that stood still once is none
    assert of([10.0] * 20, outside=True) == "impossible"


def test_quality_against_a_roof() -> None:
    def of(us: float, nbytes: int, roof: float | None, cold: bool = True) -> str:
        return quality([us] * 20, None, Bounds(nbytes, cold, peak_gbps=4800.0, roof_us=roof))

    big, small = 64 << 20, (64 << 20) - 1
    assert of(20.0, big, 20.0) == "ok"
    assert of(20.0, big, 20.99) == "ok"  # 1.0495 of the roof
    assert of(20.0, big, 21.01) == "impossible"  # 1.0505 of it
    assert of(20.0, big, 21.01, cold=False) == "ok"  # it may come from the cache
    assert of(20.0, big, None) == "ok"
    assert of(20.0, small, 40.0) == "ok"  # twice the best copy's pace, but too little to be sure of the copies
    assert of(small / 4800.0e3 * 1.001, small, None) == "ok"
    assert of(small / 4800.0e3 * 0.999, small, 1.0) == "impossible"  # the datasheet holds below the roof's bytes
    assert of(big / 4800.0e3 * 0.999, big, 1.0) == "impossible"  # and a roof that was measured too high does not help


@pytest.mark.parametrize(
    "us, more, words",
    [
        (10.0, {}, ""),
        (10.0, {"outside": True}, "outside the timed stream"),
        (-1.0, {}, "not a positive number"),
        (20.0, {"roof_us": 30.0}, "the best copy"),
        (20.0, {"peak_gbps": 3000.0}, "memory bandwidth"),
        (1.0, {"peak_gbps": 3000.0, "cold": False}, "any cache"),
        (20.0, {"operations": 10**9, "peak_tflops": 1.0}, "matrix throughput"),
    ],
)
def test_what_is_impossible_says_which_bound_it_breaks(us: float, more: dict[str, Any], words: str) -> None:
    found = impossible_because([us] * 20, Bounds(**{"bytes_moved": 64 << 20, "cold": True, **more}))
    assert words in found and bool(words) == bool(found)
    assert not any(c.isdigit() for c in found)  # an impossible number is told nowhere
