"""Checks a child's samples against the supervisor's own clock.  Pure, standard library.

Samples are raw and every statistic is made of them here, outside the process that the code under test shares; this asks
whether they can be true at all.  A wrong factor within what the wall clock allows is the roof's to see (quality
`impossible`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: The sum of what was timed may be this much longer than the phase in which it was: messages take a moment.
SLACK_SECONDS = 0.05
#: And no smaller share of it.  Preparing buffer sets, compiling and capturing take up to 10,000 times as long as the
#: smallest kernels that are then timed; a patched clock reads what it likes.
LEAST_SHARE = 1e-6


def refusal(timing: Mapping[str, Any], wall_s: float) -> str | None:
    """Why `timing` (samples in microseconds per call, `launches` calls per sample) is impossible for a phase of
    `wall_s` seconds; None if it is possible."""
    samples, calls = timing.get("samples_us") or [], timing.get("launches", 1)
    if not samples:
        return None
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        return f"the child reports samples of {calls!r} calls each"
    odd = [s for s in [*samples, *(timing.get("host_us") or [])] if not _is_time(s)]
    if odd:
        return f"the child reports a sample of {odd[0]!r} us"
    total = sum(samples) * calls / 1e6
    if total > wall_s * 1.05 + SLACK_SECONDS:
        return f"the samples sum to {total:.3g} s in a phase that took {wall_s:.3g} s"
    if 0 < total < wall_s * LEAST_SHARE:  # a total of 0 or less is marked `impossible` instead
        return f"the samples sum to only {total * 1e6:.3g} us in a phase that took {wall_s:.3g} s"
    return None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def without_samples(timing: Mapping[str, Any]) -> dict[str, Any]:
    """`timing` without its samples, as for a cell that was not timed."""
    return {**timing, "samples_us": [], "host_us": []}
