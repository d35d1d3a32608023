"""Reads a device's telemetry in a thread of the supervising side, so that nobody waits for a driver that hangs.

`Sampler` is the thread; `TelemetryReader` is what a backend gives it.  A call into a driver may hang with the device:
whoever asks waits for a bounded time.  After that there is no telemetry, and the sampler says so.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import replace
from typing import Any

from farm.backends.api import Counters, Process, Sample, TelemetryReader
from farm.guard.telemetry import own_tree
from farm.process import procfs

#: FARM_TELEMETRY_HZ says otherwise; 0: only before and after a block, as to see whether sampling moves a time.
RATE_HZ = 50.0
#: Of one core, what sampling may take: a reader that is slow is asked less often.
SHARE = 0.01
#: A reading that took longer than this is not taken anew, at a block's ends, before `REUSE` times as long has passed: a
#: tool that takes half a second to start is not started twice a cell.
SLOW_SECONDS = 0.05
REUSE = 20.0
ANSWER_SECONDS = 10.0


class Sampler:
    """One device's reader and its thread.  `failed` says why there is no telemetry any more, else ""."""

    def __init__(self, reader: TelemetryReader, *, answer_s: float | None = None):
        self._reader = reader
        self._answer_s = ANSWER_SECONDS if answer_s is None else answer_s
        self._rate = _rate()
        self._asks: queue.SimpleQueue[tuple[str, queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self._samples: list[Sample] = []
        self._last: Sample | None = None
        self._cost = self._cpu = 0.0  # seconds of the last reading: on the wall, of a core
        self.failed = ""
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Sample from now on, at once for the first time.  Does not wait."""
        self._asks.put(("begin", queue.SimpleQueue()))

    def end(self) -> tuple[list[Sample], Counters]:
        """One more sample, and all since `begin`; sampling stops.  With them errors and processes now, which is one
        question less.  Empty and unknown if the device does not answer."""
        found: tuple[list[Sample], Counters | None] = self._ask("end") or ([], None)
        return found[0], found[1] or Counters()

    def counters(self) -> Counters:
        """Errors and processes now; all unknown if the device does not answer."""
        return self._ask("counters") or Counters()

    def memory_used_mib(self) -> float | None:
        """MiB in use now, None if unknown."""
        found: float | None = self._ask("memory")
        return found

    def close(self) -> None:
        """End the thread; bounded in time."""
        self._asks.put(None)
        self._thread.join(timeout=1.0)

    def _ask(self, what: str) -> Any:
        if self.failed:
            return None
        box: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asks.put((what, box))
        try:
            return box.get(timeout=self._answer_s)
        except queue.Empty:
            self.failed = f"no telemetry: the driver did not answer within {self._answer_s:g} s"
            return None

    # the thread

    def _work(self) -> None:
        sampling = False
        while True:
            try:
                ask = self._asks.get(timeout=self._interval() if sampling else None)
            except queue.Empty:
                self._take()
                continue
            if ask is None:
                break
            what, box = ask
            if what == "begin":
                self._samples, sampling = [], True
                self._take(fresh=False)
            elif what == "end":
                sampling = False
                self._take(fresh=False)
                box.put((list(self._samples), self._safely(self._reader.counters)))
            else:
                read = self._reader.counters if what == "counters" else self._reader.memory_used_mib
                box.put(self._safely(read))
        self._safely(self._reader.close)

    def _interval(self) -> float | None:
        return max(1.0 / self._rate, self._cpu / SHARE) if self._rate else None

    def _take(self, fresh: bool = True) -> None:
        """Append a sample; an older one again, if it has just been taken by a reader that costs much."""
        begun, cpu = time.monotonic(), time.thread_time()
        slow = self._cost > SLOW_SECONDS
        if slow and not fresh and self._last and begun - self._last.at < REUSE * self._cost:
            self._samples.append(self._last)
            return
        sample = self._safely(self._reader.sample) or Sample(0.0)
        self._cost, self._cpu = time.monotonic() - begun, time.thread_time() - cpu
        self._last = replace(sample, at=begun)
        self._samples.append(self._last)

    def _safely(self, read: Any) -> Any:
        try:
            return read()
        except Exception:  # a reader that breaks its promise costs the reading, not the thread
            return None


def _rate() -> float:
    try:
        return min(1000.0, max(0.0, float(os.environ.get("FARM_TELEMETRY_HZ", RATE_HZ))))
    except ValueError:
        return RATE_HZ


def own_pids(root: int, processes: tuple[Process, ...] | None) -> set[int]:
    """`root` and those of `processes` that descend from it."""
    return own_tree(root, procfs.parent, [p.pid for p in processes or ()])
