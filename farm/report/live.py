"""A run while it is running: what is done, what each device does now, at what rate, and when it may end.  Pure.

Made from the events of the run's journal, one by one as they come, so that a page need not read the journal again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from farm.report.format import FARM_FAULTS, HARM, duration

Line = Mapping[str, Any]
#: The rate is that of the last so many seconds.
WINDOW_SECONDS = 300.0
#: Fewer results say nothing of a rate.
FEWEST = 3
#: A journal without news for so long is said to be silent.
SILENT_SECONDS = 120.0
LAST, FAILURES, NOTES = 20, 400, 8


@dataclass
class Device:
    """A device as its events describe it.  `cell`, `since`: what it measures now, from when (Unix time)."""

    name: str
    backend: str = ""
    target: str = ""
    node: str = ""
    state: str = "starting"
    note: str = ""
    simulated: bool = False
    cell: int | None = None
    attempt: int = 1
    since: float = 0.0
    judging: set[int] = field(default_factory=set)  # cells that are measured and not judged yet
    done: int = 0
    failed: int = 0


@dataclass
class _Backend:
    planned: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    times: deque[float] = field(default_factory=deque)  # of the last results of cells that ran
    ran: int = 0
    first: float = 0.0  # when its first cell began
    simulated: bool = False

    @property
    def pending(self) -> int:
        return self.planned - sum(self.counts.values())


class Live:
    """The state of a run after the events that `add` was given, in order."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.devices: dict[str, Device] = {}
        self.backends: dict[str, _Backend] = {}
        self.ids: dict[int, tuple[str, str]] = {}  # cell -> (backend, id), until it has a result
        self.failures: deque[Line] = deque(maxlen=FAILURES)  # rows of subjects that failed
        self.failed = self.faults = self.rounds = self.resumed = 0
        self.last: deque[dict[str, Any]] = deque(maxlen=LAST)
        self.notes: deque[tuple[float, str]] = deque(maxlen=NOTES)
        self.now = self.began = 0.0
        self.over = ""  # finished, interrupted

    def add(self, line: Line) -> None:
        """The next event.  One that is not understood changes nothing."""
        time = line.get("time")
        if isinstance(time, int | float):
            self.now = max(self.now, float(time))
        hear = _HEARD.get(str(line.get("event")))
        if hear:
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # a line that this farm did not write
                hear(self, line)

    # events

    def _run(self, line: Line) -> None:
        self.head = {n: str(line.get(n) or "") for n in ("run_id", "created", "command")}
        named = (m for m in line.get("matrices") or () if isinstance(m, Mapping))
        self.head["matrices"] = [str(m.get("name")) for m in named]
        try:
            self.began = datetime.fromisoformat(str(line.get("created"))).timestamp()
        except ValueError:
            self.began = 0.0
        self.now = self.began

    def _cell(self, line: Line) -> None:
        cell = line["cell"]
        backend = str(cell["backend"])
        self.ids[int(cell["index"])] = backend, str(cell["cell_id"])
        self.backends.setdefault(backend, _Backend()).planned += 1

    def _device(self, line: Line) -> Device:
        name = str(line.get("device"))
        return self.devices.setdefault(name, Device(name, str(line.get("backend") or name.partition(":")[0])))

    def _added(self, line: Line) -> None:
        self._device(line).state = "starting"

    def _up(self, line: Line) -> None:
        device, target = self._device(line), line.get("target") or {}
        device.backend = str(line.get("backend") or device.backend)
        device.target = ":".join(str(v) for v in target.values()) if isinstance(target, Mapping) else str(target)
        device.node, device.state, device.note = str(line.get("node") or ""), "ready", ""
        device.simulated = line.get("evidence") == "simulated"
        device.cell, device.judging = None, set()
        if device.simulated and device.backend in self.backends:
            self.backends[device.backend].simulated = True

    def _waits(self, line: Line) -> None:
        device = self._device(line)
        device.state, device.note = "waiting", str(line.get("reason") or "")

    def _down(self, line: Line) -> None:
        device = self._device(line)
        device.state, device.note = ("gone" if line.get("final") else "restarting"), str(line.get("reason") or "")
        device.cell, device.judging = None, set()
        self.notes.append((self.now, f"{device.name}: {device.note}"))

    def _drained(self, line: Line) -> None:
        device = self._device(line)
        device.state, device.note = "drained", str(line.get("reason") or "")

    def _health(self, line: Line) -> None:
        device = self._device(line)
        device.state, device.note = str(line.get("state") or ""), str(line.get("reason") or "")
        if device.state == "ready":
            device.note = ""
        self.notes.append((self.now, f"{device.name}: {device.state}{f' ({device.note})' if device.note else ''}"))

    def _wait_for_devices(self, line: Line) -> None:
        self.notes.append((self.now, str(line.get("reason") or "")))

    def _started(self, line: Line) -> None:
        device = self._device(line)
        device.cell, device.attempt, device.since = int(line["cell"]), int(line.get("attempt") or 1), self.now
        known = self.ids.get(device.cell)
        if known and (backend := self.backends[known[0]]) and not backend.first:
            backend.first = self.now

    def _measured(self, line: Line) -> None:
        device = self._device(line)
        device.judging.add(int(line["cell"]))
        if device.cell == line["cell"]:
            device.cell = None

    def _ended(self, line: Line) -> None:
        device, cell = self._device(line), int(line["cell"])
        device.judging.discard(cell)
        if device.cell == cell:
            device.cell = None
        device.done += 1
        device.failed += line.get("status") not in ("passed", "built", "unsupported", "skipped")

    def _result(self, line: Line) -> None:
        row = line["row"]
        status, index = str(row.get("status")), int(row["index"])
        backend = self.backends.setdefault(str(row.get("backend")), _Backend())
        if self.ids.pop(index, None) is None:  # a line that is there twice
            return
        backend.counts[status] += 1
        if row.get("attempt"):
            backend.ran += 1
            backend.times.append(self.now)
            while backend.times and backend.times[0] < self.now - WINDOW_SECONDS:
                backend.times.popleft()
            names = ("cell_id", "status", "reason", "time_us_p50", "timing_quality", "device", "evidence")
            self.last.appendleft({"at": self.now, **{n: row.get(n) for n in names}})
        if row.get("evidence") == "simulated":
            backend.simulated = True
        if status in HARM and row.get("role") == "subject":
            self.failed += 1
            self.failures.append(row)
        self.faults += status in FARM_FAULTS

    def _round(self, line: Line) -> None:
        self.rounds += 1

    def _resumed(self, line: Line) -> None:
        self.resumed, self.over = self.resumed + 1, ""
        self.devices.clear()
        for backend in self.backends.values():
            backend.times.clear()

    def _finished(self, line: Line) -> None:
        self.over = str(line["event"])
        for device in self.devices.values():
            device.cell, device.judging = None, set()

    # what a reader is told

    def view(self, now: float) -> dict[str, Any]:
        """The run at `now` (Unix time) as plain data; seconds and Unix times."""
        backends = [self._backend(name, of, now) for name, of in self.backends.items()]
        counts: Counter[str] = Counter()
        for of in self.backends.values():
            counts.update(of.counts)
        planned = sum(b.planned for b in self.backends.values())
        done = sum(counts.values())
        lefts = [b["left_seconds"] for b in backends if b["pending"]]
        left = max((s for s in lefts if s is not None), default=None) if None not in lefts else None
        rates = [b["per_second"] for b in backends if b["per_second"]]
        return {
            "run": self.head.get("run_id", ""),
            "created": self.head.get("created", ""),
            "command": self.head.get("command", ""),
            "matrices": self.head.get("matrices", []),
            "over": self.over,
            "simulated": any(b.simulated for b in self.backends.values()),
            "planned": planned,
            "done": done,
            "pending": planned - done,
            "failed": self.failed,
            "infrastructure_failures": self.faults,
            "counts": dict(counts),
            "rounds": self.rounds,
            "resumed": self.resumed,
            "seconds": max(0.0, now - self.began) if self.began else None,
            "per_second": sum(rates) if rates else None,
            "left_seconds": left,
            "ends": _utc(now + left) if left is not None and planned > done and not self.over else "",
            "silent_seconds": now - self.now if now - self.now > SILENT_SECONDS and not self.over else None,
            "backends": backends,
            "devices": [self._of_device(d, now) for d in sorted(self.devices.values(), key=lambda d: d.name)],
            "notes": [{"at": _utc(at), "text": text} for at, text in reversed(self.notes)],
            "last": [{**row, "at": _utc(row["at"])} for row in self.last],
        }

    def _backend(self, name: str, of: _Backend, now: float) -> dict[str, Any]:
        rate = None
        if of.ran >= FEWEST and of.times and not self.over:
            begin = max(of.first, now - WINDOW_SECONDS)
            recent = [t for t in of.times if t >= begin]
            rate = len(recent) / max(now - begin, 1.0) or None
        devices = [d for d in self.devices.values() if d.backend == name]
        state = "" if any(d.state != "gone" for d in devices) or not of.pending else "no device"
        return {
            "backend": name,
            "simulated": of.simulated,
            "planned": of.planned,
            "done": of.planned - of.pending,
            "pending": of.pending,
            "counts": dict(of.counts),
            "per_second": rate,
            "left_seconds": of.pending / rate if rate and of.pending else None if of.pending else 0.0,
            "state": state,
        }

    def _of_device(self, d: Device, now: float) -> dict[str, Any]:
        known = self.ids.get(d.cell) if d.cell is not None else None
        busy = d.cell is not None and d.state in ("ready", "suspect", "drained")
        doing = "measures" if busy else {"ready": "idle"}.get(d.state, d.state)
        if doing == "idle" and d.judging:
            doing = "waits for the judge"
        return {
            "device": d.name,
            "backend": d.backend,
            "target": d.target,
            "node": d.node,
            "simulated": d.simulated,
            "state": d.state,
            "doing": "" if self.over else doing,
            "cell": known[1] if known and busy else "",
            "attempt": d.attempt if busy else None,
            "for_seconds": max(0.0, now - d.since) if busy else None,
            "judging": len(d.judging),
            "note": d.note,
            "done": d.done,
            "failed": d.failed,
        }


_HEARD: dict[str, Any] = {
    "run": Live._run,
    "cell": Live._cell,
    "device_added": Live._added,
    "device_up": Live._up,
    "device_waits": Live._waits,
    "device_down": Live._down,
    "drain": Live._drained,
    "health": Live._health,
    "cells_wait": Live._wait_for_devices,
    "started": Live._started,
    "measured": Live._measured,
    "judged": Live._ended,
    "ended": Live._ended,
    "result": Live._result,
    "round": Live._round,
    "resumed": Live._resumed,
    "finished": Live._finished,
    "interrupted": Live._finished,
}


def sentence(view: Mapping[str, Any]) -> str:
    """`Running for 7 min: 1,204 of 3,754 cells done, 2,550 pending; 9.1 cells/s, about 5 min left; 2 failures`"""
    words = {"finished": "Finished", "interrupted": "Interrupted"}.get(view["over"], "Running")
    since = f" for {duration(view['seconds'])}" if view["seconds"] is not None and not view["over"] else ""
    out = f"{words}{since}: {view['done']:,} of {view['planned']:,} cells done"
    out += f", {view['pending']:,} pending" if view["pending"] and not view["over"] else ""
    if view["per_second"] and view["pending"] and not view["over"]:
        out += f"; {rate(view['per_second'])}"
        out += f", about {duration(view['left_seconds'])} left" if view["left_seconds"] is not None else ""
    out += f"; {view['failed']:,} failure{'s' if view['failed'] > 1 else ''} so far" if view["failed"] else ""
    return out


def rate(per_second: float) -> str:
    """`9.1 cells/s`, `14 cells/min`"""
    return f"{per_second:.1f} cells/s" if per_second >= 1 else f"{60 * per_second:.2g} cells/min"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
