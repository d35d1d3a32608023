"""What the thread of a device's actor spends its seconds on: always one thing, so that the sums leave nothing out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Phase of a child's conversation -> cause (farm.utilisation.CAUSES).
PHASES = {"import": "load", "compile": "compile", "check": "check", "timing": "timing"}


class Spent:
    """For one thread.  It begins with the actor's start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._cause, self._since = "start", clock()
        self._sums: dict[str, float] = {}

    def enter(self, cause: str) -> str:
        """From now on the time is this cause's; the one before it."""
        now = self._clock()
        self._sums[self._cause] = self._sums.get(self._cause, 0.0) + now - self._since
        before, self._cause, self._since = self._cause, cause, now
        return before

    @contextmanager
    def within(self, cause: str) -> Iterator[None]:
        """What the block takes is this cause's; then it is again that of the time before it.  While the actor starts
        or tries a capture, everything belongs to that."""
        before = self.enter(self._cause if self._cause in ("start", "trial") else cause)
        try:
            yield
        finally:
            self.enter(before)

    def phase(self, phase: str) -> None:
        """The child says that it begins a phase."""
        if self._cause != "trial":
            self.enter(PHASES.get(phase, "messages"))

    def of(self, cause: str) -> float:
        return self._sums.get(cause, 0.0) + (self._clock() - self._since if cause == self._cause else 0.0)

    def move(self, source: str, target: str, seconds: object, before: float = 0.0) -> None:
        """So much of what was booked to `source` beyond `before` was the `target`'s: a child says so, and is believed
        as far as the supervisor's clock allows."""
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            return
        taken = min(float(seconds), max(0.0, self._sums.get(source, 0.0) - before))
        self._sums[source] = self._sums.get(source, 0.0) - taken
        self._sums[target] = self._sums.get(target, 0.0) + taken

    def told(self) -> dict[str, float]:
        """The sums so far, in seconds."""
        self.enter(self._cause)
        return {cause: round(seconds, 4) for cause, seconds in self._sums.items() if seconds > 0}
