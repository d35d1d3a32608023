"""What the supervisor thinks of a child's samples by its own clock.  Pure, standard library.

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
    """Why `timing` (samples in microseconds per call, `launches` calls a sample), from a phase of `wall_s` seconds,
    cannot be true; None where it can."""
    samples, calls = timing.get("samples_us") or [], timing.get("launches", 1)
    if not samples:
        return None
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 1:
        return f"its samples are of {calls!r} calls each"
    odd = [s for s in [*samples, *(timing.get("host_us") or [])] if not _is_time(s)]
    if odd:
        return f"one of its samples is {odd[0]!r} us"
    total = sum(samples) * calls / 1e6
    if total > wall_s * 1.05 + SLACK_SECONDS:
        return f"its samples sum to {total:.3g} s in a phase that took {wall_s:.3g} s"
    if 0 < total < wall_s * LEAST_SHARE:  # no time at all, or less, is `impossible` and shown as that
        return f"its samples sum to only {total * 1e6:.3g} us in a phase that took {wall_s:.3g} s"
    return None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def without_samples(timing: Mapping[str, Any]) -> dict[str, Any]:
    """`timing` as that of a cell that was not timed."""
    return {**timing, "samples_us": [], "host_us": []}
