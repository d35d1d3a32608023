"""A deadline as an object: no seconds are counted by hand."""

from __future__ import annotations

import time


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
