"""What stands between an actor and its device: the device's lock, its telemetry, and its memory after a kill.

One `Guard` an actor.  All methods are called from the actor's working thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from farm import backends
from farm.deadline import Deadline
from farm.guard import locks, telemetry
from farm.guard.watch import Watch, own_pids

#: After a child's end, so long may its memory take to come back.
MEMORY_SECONDS = 10.0
LOOK_SECONDS = 0.05
#: An attempt that took longer is not repeated: a lease has a deadline, and a long one is not one unlucky moment.
MAX_REPEATED_SECONDS = 60.0


class Unfit(Exception):
    """The device is not fit for another child; the text says why."""


class Guard:
    """`config`: as the actor has it; device_id, backend, options, spool and run_id are read."""

    def __init__(self, config: Mapping[str, Any], stopping: Callable[[], bool]):
        self._config = config
        self._stopping = stopping
        self._lock: locks.Lock | None = None
        self._watch: Watch | None = None
        self._baseline: float | None = None
        self._children = 0
        self._root = 0
        self._theirs: set[int] = set()  # pids of children, and of what they started, seen on the device
        self._remark = ""
        self._before = telemetry.Counters()
        self._begun: float | None = None
        self._likeness = ""
        self._capped: dict[str, list[float]] = {}  # likeness -> SM clocks of blocks at the power limit
        self._hopeless = 0
        backend = backends.get(config["backend"])  # a fake heals, and frees its memory, sooner than a device
        self._pauses = getattr(backend, "PAUSES", telemetry.PAUSES)
        self._memory_s = getattr(backend, "MEMORY_SECONDS", MEMORY_SECONDS)

    def take(self, waiting: Callable[[str], None]) -> None:
        """Lock the device and begin to read it.  locks.Refused says who has it; `waiting(text)`: it has to be waited
        for."""
        backend = backends.get(self._config["backend"])
        place = (self._config["device_id"], self._config.get("options", {}))
        physical = getattr(backend, "physical_id", lambda *_: "")(*place)
        if physical:
            holder = {"run": self._config.get("run_id", ""), "device": self._config["device"]}
            wait_s = locks.wait_seconds()
            self._lock = locks.acquire(physical, holder, wait_s, waiting=waiting, stop=self._stopping)
        reader = getattr(backend, "telemetry", lambda *_: None)(*place, self._config.get("spool", ""))
        if reader is not None:
            self._watch = Watch(reader)

    def release(self) -> None:
        """Let the device go; a second call does nothing."""
        watch, self._watch = self._watch, None
        if watch:
            watch.close()
        lock, self._lock = self._lock, None
        if lock:
            lock.release()

    # children

    def before_child(self) -> None:
        """The memory of the child before must be back.  Unfit if it is not in time, and a process of ours is seen to
        hold it: what others take on a shared device is no reason to give that up, and only told."""
        self._children += 1
        if self._watch is None:
            return
        if self._children == 1:
            self._baseline = self._watch.memory_used_mib()
            return
        deadline = Deadline(self._memory_s)
        while (held := telemetry.memory_held(self._baseline, self._watch.memory_used_mib())) is not None:
            if self._stopping():
                return
            if deadline.expired:
                self._not_back(held)
                return
            time.sleep(LOOK_SECONDS)

    def _not_back(self, held: float) -> None:
        """Whose the memory is that stays in use after a child's end.  Unfit if it is the child's."""
        assert self._watch is not None and self._baseline is not None
        processes = self._watch.counters().processes or ()
        seen = ", ".join(f"{p.name or 'unnamed'} (pid {p.pid})" for p in processes) or "nobody that can be seen"
        if {p.pid for p in processes} & self._theirs:
            raise Unfit(
                f"{held:.0f} MiB of its memory did not come back within {self._memory_s:g} s of its child's end "
                f"({self._baseline:.0f} MiB were in use before the first one; on it now: {seen}): "
                "free the device, or reset it"
            )
        self._baseline += held  # or every later child would be waited for as long
        self._remark = (
            f"{held:.0f} MiB more of the device's memory are in use than before, and not by a process of this run "
            f"(on it now: {seen})"
        )

    def remark(self) -> str:
        """What is to be told of the device beside the next cell, once; "" for nothing."""
        told, self._remark = self._remark, ""
        return told

    def company(self) -> str:
        """Who else is on the device, or has taken memory of it: for a call that found too little.  "" for nobody."""
        if self._watch is None:
            return ""
        processes = self._watch.counters().processes
        others = telemetry.strangers(processes, own_pids(self._root, processes) | {os.getpid()})
        named = ", ".join(f"{p.name or 'unnamed'} (pid {p.pid})" for p in others or ())
        return self.remark() or (f"also on the device: {named}" if named else "")

    def child_ready(self, pid: int) -> None:
        """A new child is there: what an earlier one did to the counters is not its doing."""
        self._root = pid
        self._theirs.add(pid)
        if self._watch:
            self._before = self._watch.counters()

    # timed blocks

    def begin(self, likeness: str = "") -> None:
        """The child begins to time a cell of a `telemetry.likeness` ("" is none's)."""
        self._likeness = likeness
        if self._watch:
            self._begun = time.monotonic()
            self._watch.begin()

    def end(self) -> dict[str, Any] | None:
        """The summary of the block since `begin`, with raw samples; None if there was none or nothing can be read."""
        begun, self._begun = self._begun, None
        if begun is None or self._watch is None:
            return None
        samples, after = self._watch.end(), self._watch.counters()
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
        """Why telemetry ended, "" while it goes on or where there never was any."""
        return self._watch.failed if self._watch else ""

    def pause(self, summary: Mapping[str, Any] | None, tries: int, took_s: float) -> bool:
        """Whether to time the block once more; waits before it says so."""
        seconds = (
            telemetry.again(summary, tries, self._hopeless, self._pauses) if took_s <= MAX_REPEATED_SECONDS else None
        )
        if seconds is None:
            if summary is not None:
                self._hopeless = self._hopeless + 1 if telemetry.complaint(summary) else 0
            return False
        deadline = Deadline(seconds)
        while not deadline.expired and not self._stopping():
            time.sleep(min(LOOK_SECONDS, deadline.remaining))
        return not self._stopping()
