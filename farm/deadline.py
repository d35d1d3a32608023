"""A deadline as an object: no seconds are counted by hand."""

from __future__ import annotations

import time

#: A wait that takes so much longer than was asked for was not slowed by load: who waited was stopped itself, by Slurm's
#: `scontrol suspend` for example.
STALLED_SECONDS = 2.0


def stalled(since: float, asked_s: float) -> float:
    """Seconds for which this process did not run during a wait of `asked_s` seconds that began at `since` (monotonic)
    and has just ended; 0 for what a busy host explains."""
    late = time.monotonic() - since - asked_s
    return late if late > STALLED_SECONDS else 0.0


class Deadline:
    """So many seconds from now on the monotonic clock."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        return self.remaining <= 0

    def extend(self, seconds: float) -> None:
        """Let it end so much later: for time in which nobody could keep it."""
        self._end += seconds
