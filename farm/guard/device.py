"""The Guard of a device: its lock, its telemetry, and its memory after a child's end.

Each actor has one `Guard`.  All methods are called from the actor's working thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from farm.backends.api import Counters, HostSide
from farm.deadline import Deadline
from farm.errors import DeviceUnfit
from farm.guard import locks, telemetry
from farm.guard.sampler import Sampler, own_pids

LOOK_SECONDS = 0.05
#: A longer attempt is not repeated: a lease has a deadline, and a long disturbance is not one unlucky moment.
MAX_REPEATED_SECONDS = 60.0


class Guard:
    """`config`: the actor's, of which device_id, device, options, spool, run_id and wait_s are used.  `backend`: reads
    the device."""

    def __init__(self, config: Mapping[str, Any], stopping: Callable[[], bool], backend: HostSide):
        self._config = config
        self._stopping = stopping
        self._lock: locks.DeviceLock | None = None
        self._watch: Sampler | None = None
        self._baseline: float | None = None
        self._children = 0
        self._root = 0
        self._theirs: set[int] = set()  # pids of children, and of what they started, seen on the device
        self._remark = ""
        self._before = Counters()
        self._begun: float | None = None
        self._likeness = ""
        self._capped: dict[str, list[float]] = {}  # likeness -> SM clocks of blocks at the power limit
        self._hopeless = 0
        self._backend = backend

    def take(self, waiting: Callable[[str], None]) -> None:
        """Lock the device and start its telemetry.  LockRefused names the holder; `waiting(text)` is called if the lock
        has to be waited for."""
        place = (self._config["device_id"], self._config.get("options", {}))
        physical = self._backend.physical_id(*place)
        if physical:
            holder = {"run": self._config.get("run_id", ""), "device": self._config["device"]}
            wait_s = locks.wait_seconds(self._config.get("wait_s"))
            self._lock = locks.acquire(physical, holder, wait_s, waiting=waiting, stop=self._stopping)
        reader = self._backend.telemetry(*place, self._config.get("spool", ""))
        if reader is not None:
            self._watch = Sampler(reader)

    def release(self) -> None:
        """Release the device; a second call does nothing."""
        watch, self._watch = self._watch, None
        if watch:
            watch.close()
        lock, self._lock = self._lock, None
        if lock:
            lock.release()

    # children

    def before_child(self) -> None:
        """Wait until the memory of the previous child is free.  DeviceUnfit if one of our processes still holds it at
        the deadline.  Memory of other processes on a shared device is only reported."""
        self._children += 1
        if self._watch is None:
            return
        if self._children == 1:
            self._baseline = self._watch.memory_used_mib()
            return
        deadline = Deadline(self._backend.MEMORY_SECONDS)
        while (held := telemetry.memory_held(self._baseline, self._watch.memory_used_mib())) is not None:
            if self._stopping():
                return
            if deadline.expired:
                self._not_back(held)
                return
            time.sleep(LOOK_SECONDS)

    def _not_back(self, held: float) -> None:
        """Find out whose memory stays in use after a child's end.  DeviceUnfit if it is the child's."""
        assert self._watch is not None and self._baseline is not None
        deadline_s = self._backend.MEMORY_SECONDS
        processes = self._watch.counters().processes or ()
        seen = ", ".join(f"{p.name or 'unnamed'} (pid {p.pid})" for p in processes) or "no visible process"
        if {p.pid for p in processes} & self._theirs:
            raise DeviceUnfit(
                f"{held:.0f} MiB of device memory was still in use {deadline_s:g} s after the child exited (before "
                f"the first child: {self._baseline:.0f} MiB; processes on the device now: {seen}); free the device "
                "or reset it"
            )
        self._baseline += held  # otherwise the wait would repeat after every later child
        self._remark = (
            f"{held:.0f} MiB more device memory is in use than before the run, but not by a process of this run "
            f"(processes on the device now: {seen})"
        )

    def remark(self) -> str:
        """A remark on the device for the next cell, given once; "" for none."""
        remark, self._remark = self._remark, ""
        return remark

    def company(self) -> str:
        """Which other processes use the device or its memory, for a call that ran out of memory; "" for none."""
        if self._watch is None:
            return ""
        processes = self._watch.counters().processes
        others = telemetry.strangers(processes, own_pids(self._root, processes) | {os.getpid()})
        named = ", ".join(f"{p.name or 'unnamed'} (pid {p.pid})" for p in others or ())
        return self.remark() or (f"also on the device: {named}" if named else "")

    def child_ready(self, pid: int) -> None:
        """A new child is ready: changes of the counters count from here on."""
        self._root = pid
        self._theirs.add(pid)
        if self._watch:
            self._before = self._watch.counters()

    # timed blocks

    def begin(self, likeness: str = "") -> None:
        """The child starts to time a cell with this `telemetry.likeness`; "" for no cell."""
        self._likeness = likeness
        if self._watch:
            self._begun = time.monotonic()
            self._watch.begin()

    def end(self) -> dict[str, Any] | None:
        """The summary of the block since `begin`, with raw samples; None if there was none or nothing can be read."""
        begun, self._begun = self._begun, None
        if begun is None or self._watch is None:
            return None
        samples, after = self._watch.end()
        if self._watch.failed:
            return None
        alike = sorted(self._capped.get(self._likeness, ()))
        usual = alike[len(alike) // 2] if alike else None
        # This process waits while its child is timed; inline it may be a user's, with the device open.
        children = own_pids(self._root, after.processes)
        self._theirs |= children
        ours = children | {os.getpid()}
        summary = telemetry.summarize(samples, self._before, after, ours, usual)
        self._before = after
        if summary["sm_clock_mhz"] and telemetry.POWER_CAP in summary["throttle"] and not summary["throttled"]:
            self._capped.setdefault(self._likeness, []).append(summary["sm_clock_mhz"][1])
        return {**summary, "raw": telemetry.raw(samples, begun)}

    @property
    def failed(self) -> str:
        """Why telemetry ended; "" while it runs, or if there never was any."""
        return self._watch.failed if self._watch else ""

    def pause(self, summary: Mapping[str, Any] | None, tries: int, took_s: float) -> bool:
        """Whether to time the block once more; waits before it returns True."""
        seconds = (
            telemetry.again(summary, tries, self._hopeless, self._backend.PAUSES)
            if took_s <= MAX_REPEATED_SECONDS
            else None
        )
        if seconds is None:
            if summary is not None:
                self._hopeless = self._hopeless + 1 if telemetry.complaint(summary) else 0
            return False
        deadline = Deadline(seconds)
        while not deadline.expired and not self._stopping():
            time.sleep(min(LOOK_SECONDS, deadline.remaining))
        return not self._stopping()
