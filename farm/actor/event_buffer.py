"""What an actor says, one event after the other, and how it is heard: in bundles."""

from __future__ import annotations

import queue
import time
from collections import deque
from contextlib import suppress
from typing import Any

from farm.deadline import Deadline

#: What is said of cells waits so long for more of it, since each answer to a poll costs both sides a call: with 16
#: devices and answers of one event the coordinator did little else.  What is said of the device or a lease never waits.
LINGER_SECONDS = 0.1
OF_CELLS = frozenset({"started", "progress", "measured", "judged", "ended"})
MOST_EVENTS = 200  # of one answer


class EventBuffer:
    """Events of one device; any thread may `add`, one may `hear`."""

    def __init__(self, device: str):
        self._device = device
        self._events: queue.SimpleQueue[tuple[float, dict[str, Any]]] = queue.SimpleQueue()  # with when each was
        self._progress: deque[tuple[float, dict[str, Any]]] = deque(maxlen=1)

    def add(self, kind: str, **fields: Any) -> None:
        """An event of this moment."""
        if kind != "judged":  # which other threads add
            self._progress.clear()
        self._events.put((time.monotonic(), {"event": kind, "device": self._device, **fields}))

    def progress(self, cell: int, attempt: int, phase: str, up_to_s: float) -> None:
        """What is being done now, and for how long that may take.  Only the latest is heard, with what else there is:
        most phases take milliseconds, and the next one says as much."""
        fields = {"cell": cell, "attempt": attempt, "phase": phase, "up_to_s": up_to_s}
        self._progress.append((time.monotonic(), {"event": "progress", "device": self._device, **fields}))

    def hear(self, wait_s: float) -> list[dict[str, Any]]:
        """Events since the last time, oldest first, then the latest progress; waits up to `wait_s` for the first, and
        then LINGER_SECONDS for others.  `age_s` of each: how long ago it was."""
        out: list[tuple[float, dict[str, Any]]] = []
        try:
            out.append(self._events.get(timeout=wait_s))
            linger = Deadline(LINGER_SECONDS)
            while len(out) < MOST_EVENTS:
                waits = out[-1][1]["event"] in OF_CELLS and not linger.expired
                out.append(self._events.get(timeout=linger.remaining) if waits else self._events.get_nowait())
        except queue.Empty:
            with suppress(IndexError):
                out.append(self._progress.popleft())
        now = time.monotonic()
        return [{**event, "age_s": now - at} for at, event in out]
