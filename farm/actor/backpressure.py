"""How far a device may be ahead of its judge.

Timing the next cell does not wait for judging the last, so where judges are slower than devices the outputs that wait
for them pile up, in shared memory, until that is full and every call fails.  So a device waits once MOST_WAITING of its
cells do, or once little is left of the spool and any of them does.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable

MOST_WAITING = 64
#: Of the spool's file system, what is left for calls that are under way and for other devices.
FREE_SHARE = 0.25
LOOK_SECONDS = 0.2
#: For so long it is believed that enough is left: cells of milliseconds need not all ask the file system.
ENOUGH_SECONDS = 0.05


class Backpressure:
    """Of one device: `began` and `ended` judging a cell may be called by any thread.  `spool`: where outputs wait."""

    def __init__(self, spool: str):
        self._spool = spool
        self._waiting = 0
        self._enough_until = 0.0
        self._changed = threading.Condition()

    def began(self) -> None:
        with self._changed:
            self._waiting += 1

    def ended(self) -> None:
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def wait(self, stopping: Callable[[], bool], waits: Callable[[], None] = lambda: None) -> None:
        """Return once the next cell may begin, or the actor is being stopped.  `waits()` is called as the wait begins,
        and after each answer of a judge that does not end it."""
        seen = -1
        with self._changed:
            while self._full() and not stopping():
                if self._waiting != seen:
                    seen = self._waiting
                    waits()
                self._changed.wait(LOOK_SECONDS)

    def _full(self) -> bool:
        return self._waiting >= MOST_WAITING or (self._waiting > 0 and self._scarce())

    def _scarce(self) -> bool:
        now = time.monotonic()
        if now < self._enough_until:
            return False
        try:
            use = shutil.disk_usage(self._spool)
        except OSError:  # the run has ended: there is nothing to wait for
            return False
        if use.free < FREE_SHARE * use.total:
            return True
        self._enough_until = now + ENOUGH_SECONDS
        return False
