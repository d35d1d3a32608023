"""What follows from faults: who is suspect, who has to pass a probe, who is quarantined, what a cell is charged with.
Pure; `farm.scheduler.health` has the records.

A device that fails again and again is suspect, must pass a probe, and is quarantined if it does not; what fails on a
suspect is not charged to the cell until the probe has decided whose fault it was.  A cell that was there when actors,
nodes or judges died runs alone and last after the second of these deaths, and is given up after the third.  Where over
half of the devices for some cells, or the only one, are quarantined, those cells are not granted any more.
"""

from __future__ import annotations

from farm.cell import DEADLY, Owner, Status
from farm.errors import Message
from farm.scheduler import health
from farm.scheduler.base import SchedulerState, some
from farm.scheduler.events import (
    Action,
    Attempt,
    Ended,
    HealthChanged,
    JudgeDown,
    Probed,
    ProbeGrant,
    Replace,
    Retire,
    Start,
)
from farm.scheduler.state import OUT, DeviceState, must_wait


class Trust(SchedulerState):
    """The health of devices and nodes, and the cells that suffer from it."""

    def _node(self, device: DeviceState) -> health.NodeHealth:
        return self._nodes.setdefault(device.host, health.NodeHealth())

    def _fault(self, at: float, name: str, reason: str, part: str = "") -> list[Action]:
        """Count a fault of a device, or of another `part` of its node."""
        device = self._devices[name]
        newly = [] if part or not device.health.fault(at, reason) else [name]
        if self._node(device).fault(at, part or name) and device.host:
            alike = [n for n, d in self._devices.items() if d.host == device.host and d.state not in OUT]
            newly += [n for n in alike if self._devices[n].health.doubt(f"others of its node failed ({reason})")]
        for n in newly:
            if self._devices[n].state == "ready":
                self._rest(self._devices[n])
        return [HealthChanged(n, "suspect", self._devices[n].health.reason) for n in newly]

    def _judge_down(self, e: JudgeDown) -> list[Action]:
        return self._fault(e.at, e.device, e.reason, part=f"judge until {e.at}")

    def _blame(self, e: Ended, attempt: Attempt) -> list[Action]:
        """What follows from an attempt that failed, and not by its kernel."""
        device = self._devices[e.device]
        out = self._fault(e.at, e.device, e.reason)
        if e.judge_died:
            return out + self._died_beside(e.device, attempt, e.reason)
        if device.health.suspect:
            device.doubts.append((attempt, e))
            return out
        return out + self._charge(e, attempt)

    def _probed(self, e: Probed) -> list[Action]:
        device = self._devices[e.device]
        if device.probe != e.probe:
            return []
        device.probe = None
        if not e.passed:
            return self._failed_probe(e.at, e.device, e.reason)
        device.health.passed()
        self._rest(device)
        doubts, device.doubts = device.doubts, []
        out: list[Action] = [HealthChanged(e.device, "ready", "the device passed its probe")]
        for attempt, ended in doubts:
            out += self._charge(ended, attempt)
        return out

    def _failed_probe(self, at: float, name: str, reason: str) -> list[Action]:
        """Once more with another actor, then quarantine."""
        device = self._devices[name]
        if not device.health.fail(at, reason):
            device.state = "starting"
            return [Replace(name, reason)]
        device.state, device.reason = "quarantined", reason
        self._hosts[device.host].remove(device)
        self._release(name, device)
        self._acquit(device)
        self._hold()
        return [HealthChanged(name, "quarantined", reason), Retire(name, reason)]

    def _acquit(self, device: DeviceState) -> None:
        """What failed on the device was not the cells' fault."""
        for attempt, ended in device.doubts:
            self._avoid(attempt.cell, ended.device)
            self._requeue(attempt.cell)
        device.doubts = []

    def _again(self, name: str, device: DeviceState) -> list[Action]:
        """The end of a quarantine: it is probed, if there is work that it could do."""
        if device.drain is not None or not self._wanted(device):
            return []
        device.state = "starting"
        self._hosts[device.host].append(device)
        return [Start(name)]

    def _wanted(self, device: DeviceState) -> bool:
        return any(queue and p not in self._held and device.serves(p) for p, queue in self._queues.items())

    def _hold(self) -> None:
        """Find the pools of which over half of the devices, or the only one, are quarantined."""
        self._held = {}
        for pool in self._queues:
            mine = {n: d for n, d in self._devices.items() if d.state != "gone" and d.drain is None and d.serves(pool)}
            out = [name for name, d in mine.items() if d.state == "quarantined"]
            if 2 * len(out) > len(mine):
                which = f"{len(out)} of the {len(mine)} devices" if len(mine) > 1 else "the only device"
                text = f"{which} of {pool} failed {health.MAX_PROBES} probes in a row ({some(out)}: "
                self._held[pool] = f"{text}{mine[out[0]].reason})"

    def _probe(self, at: float) -> list[Action]:
        """Have suspects prove themselves that could be given work, or whose failed cells wait for it."""
        out: list[Action] = []
        for name, device in self._devices.items():
            if device.state != "suspect" or device.probe is not None or device.judging or device.drain is not None:
                continue
            if not device.doubts and not self._wanted(device):
                continue
            if self._hush and must_wait(device, self._hosts[device.host], "none"):
                continue
            self._probe_id += 1
            cell, attempt = self._proven.get(device.target or "", (None, 1))
            seconds = health.PROBE_SECONDS + (0.0 if cell is None else self._work[cell].deadline)
            device.probe, device.probe_deadline = self._probe_id, at + seconds + self._slack
            out.append(ProbeGrant(name, self._probe_id, cell, attempt))
        return out

    def _died_beside(self, device: str, a: Attempt, reason: str) -> list[Action]:
        """An actor, a node or a judge died that had this attempt."""
        work = self._work[a.cell]
        work.deaths += 1
        self._avoid(a.cell, device)
        self._deadly = self._deadly or work.deaths >= health.ALONE_AFTER
        if work.deaths < health.MAX_DEATHS:
            self._requeue(a.cell)
            return []
        text = f"{DEADLY} {work.deaths} times while they had the cell, the last time alone"
        why = Message(f"{text} (last: {reason})", id="cell-deaths")
        return self._conclude(a.cell, a.number, Status.INFRA_ERROR, Owner.INFRA, why)

    def _retire(self, name: str, reason: str, *, drained: bool = False) -> Retire:
        device = self._devices[name]
        device.state, device.reason, device.probe = "gone", reason, None
        self._hosts[device.host].remove(device)
        self._acquit(device)
        self._hold()
        return Retire(name, reason, drained)
