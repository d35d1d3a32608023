"""What a set of samples says: quantiles, the median's interval, when to stop, what quality.  Pure, standard library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics of an ascending sequence (type 7, NumPy's default)."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_half_width(samples: Sequence[float]) -> float:
    """Relative half-width of the median's 95 % interval by order statistics (binomial, normal approximation).

    Distribution-free: ranks n/2 -+ 0.98 sqrt(n).  inf below six samples, where no such interval exists.
    """
    n = len(samples)
    if n < 6:
        return math.inf
    ordered = sorted(samples)
    reach = 0.98 * math.sqrt(n)
    low = ordered[max(0, math.floor(n / 2 - reach))]
    high = ordered[min(n - 1, math.ceil(n / 2 + reach) - 1)]
    middle = quantile(ordered, 0.5)
    return (high - low) / 2 / middle if middle > 0 else math.inf


def enough(samples: Sequence[float], elapsed_s: float, policy: Mapping[str, Any]) -> bool:
    """Stop: the target width is reached within at least min_samples, or a bound on samples or time is.

    A call of seconds gets by with six samples after 4 x max_seconds, and with what there is after 20 x: so few have no
    interval and are `noisy`, but the phase's deadline stays far.
    """
    n = len(samples)
    if n >= policy["max_samples"]:
        return True
    if n < policy["min_samples"]:
        return (n >= 6 and elapsed_s > 4 * policy["max_seconds"]) or (n >= 1 and elapsed_s > 20 * policy["max_seconds"])
    return elapsed_s >= policy["max_seconds"] or median_half_width(samples) <= policy["target_rel_width"]


@dataclass(frozen=True)
class Summary:
    """Quantiles in microseconds, and the median absolute deviation relative to the median."""

    p20: float
    p50: float
    p80: float
    rel_mad: float
    count: int


def summarize(samples_us: Sequence[float]) -> Summary | None:
    """None for no samples."""
    if not samples_us:
        return None
    ordered = sorted(samples_us)
    middle = quantile(ordered, 0.5)
    spread = quantile(sorted(abs(s - middle) for s in ordered), 0.5)
    return Summary(
        quantile(ordered, 0.2), middle, quantile(ordered, 0.8), spread / middle if middle else math.inf, len(ordered)
    )


#: Above this relative half-width of the median a number says too little to be compared.
NOISY_HALF_WIDTH = 0.05
#: Data that may come from the last-level cache may come this much faster than memory gives it.
CACHE_FACTOR = 5.0
#: Under three launch floors of the same policy a kernel's own time cannot be told from the launch.
FLOORS = 3.0
#: Nothing that must come from memory is so much faster than the best copy of as many bytes, from this many bytes on;
#: below, a copy is mostly latency, and what overlaps it better may well be faster.
ROOF_MARGIN, ROOF_BYTES = 1.05, 64 << 20


@dataclass(frozen=True)
class Bounds:
    """What a time of a call is held against.

    `bytes_moved`, and `operations`, are the model's; `peak_gbps` is the datasheet's memory bandwidth, 1e9 B/s;
    `peak_tflops` its densest matrix rate, 1e12 op/s; None where the part is not in the table.  `cold`: the data came
    from memory.  `roof_us`: what the best copy kernel takes for as many bytes on this device, by the same policy, cold;
    None where it was not calibrated.  Where all are None only a time that no clock gives is impossible.  `outside`: the
    device worked on after the timed stream had finished, so the samples are of something else.
    """

    bytes_moved: int
    cold: bool
    peak_gbps: float | None = None
    operations: int = 0
    peak_tflops: float | None = None
    roof_us: float | None = None
    outside: bool = False


def impossible_because(samples_us: Sequence[float], bounds: Bounds) -> str:
    """The first bound that the samples violate, in words without a number; "" if they violate none or there are no
    samples."""
    summary = summarize(samples_us)
    if summary is None:
        return ""
    if bounds.outside:
        return "the call works outside the timed stream"
    if not all(s > 0 and math.isfinite(s) for s in samples_us):
        return "the time is not a positive number"
    us, moved = summary.p50, bounds.bytes_moved
    if bounds.cold and bounds.roof_us and moved >= ROOF_BYTES and us * ROOF_MARGIN < bounds.roof_us:
        return "faster than the best copy of the same bytes on this device"
    if bounds.peak_gbps and moved / (us * 1e3) > bounds.peak_gbps * (1.0 if bounds.cold else CACHE_FACTOR):
        if bounds.cold:
            return "faster than the memory bandwidth in the device's datasheet"
        return "faster than any cache of this device"
    if bounds.peak_tflops and bounds.operations / (us * 1e6) > bounds.peak_tflops:
        return "faster than the peak matrix throughput in the device's datasheet"
    return ""


def quality(samples_us: Sequence[float], floor_us: float | None, bounds: Bounds) -> str:
    """One of ok, launch_bound, noisy, impossible, none.  `throttled` is not in the samples
    (`farm.guard.telemetry.quality`).

    `floor_us`: what the policy reads for the smallest kernel.
    """
    summary = summarize(samples_us)
    if summary is None:
        return "none"
    if impossible_because(samples_us, bounds):
        return "impossible"
    if floor_us and summary.p50 < FLOORS * floor_us:
        return "launch_bound"
    if median_half_width(samples_us) > NOISY_HALF_WIDTH:
        return "noisy"
    return "ok"
