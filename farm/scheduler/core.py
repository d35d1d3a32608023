"""Who runs what next: `step(event) -> actions`.  Deterministic; owns its state; no Ray, no clock, no I/O.

Devices pull.  A lease is about a second of estimated work; when little is left leases shrink, so that all devices end
together.  Every cell is concluded exactly once.  A fault of the device or the farm is tried again, later, and elsewhere
if there is an elsewhere; a fault of the kernel never is.  Time comes in with the events.

The rooms: `base` is what is known, `granting` which cells an idle device gets, `trust` what follows from faults,
`stopping` when a run ends with open cells.  Cells lie in pools: those of a named target go to devices that are it, the
others to any device of their backend.  A cell that wants quiet waits until the loud work around it is done, and while
it runs its host (or its module) runs nothing else.  Devices may come and be asked back at any time.

A run that compares two arms has every cell twice.  Such a pair goes to one device in one lease, all of one arm before
all of the other, and ends as one: where a fault hits either, both are tried again.  When all have ended, further rounds
of some may be submitted.

A run that is resumed begins anew: its journal has the results and the numbers of attempts (`tried`), but no leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.cell import Owner, Status
from farm.errors import Message
from farm.scheduler.events import (
    Action,
    Away,
    DeviceAdded,
    DeviceDown,
    DeviceUp,
    DeviceWaits,
    Drain,
    Ended,
    Event,
    Finish,
    Grant,
    Interrupted,
    JudgeDown,
    LeaseDone,
    MeasuredEvent,
    Probed,
    Progress,
    Replace,
    Start,
    Started,
    Submitted,
    Tick,
)
from farm.scheduler.granting import Granting
from farm.scheduler.state import OUT, DeviceState
from farm.scheduler.stopping import Stopping
from farm.scheduler.trust import Trust

FARMS = (Owner.HARNESS, Owner.DEVICE, Owner.INFRA)  # owners whose faults are tried again
_OF_NO_DEVICE = (Tick, DeviceAdded, Away, Submitted)  # or of one that is not known yet
STALL_SECONDS = 10.0  # between two ticks, at most so much of a wait counts: what was said meanwhile is yet to come


class Scheduler(Granting, Trust, Stopping):
    """One run's scheduler: `begin`, then `step` for each event.  `SchedulerState` says what it is made from."""

    def begin(self, at: float) -> list[Action]:
        """The first actions, before any event."""
        out: list[Action] = []
        for cell, (status, reason) in self._settled.items():
            out += self._conclude(cell, 0, status, None, reason)
        return out + self._sweep(at)

    def step(self, event: Event) -> list[Action]:
        """What follows from an event.  Events of attempts that are no longer current, and of devices that nobody
        added, change nothing."""
        if self._finished:
            return []
        if isinstance(event, Interrupted):
            self._interrupted = True
            self._finished = True
            return [Finish()]
        if not isinstance(event, _OF_NO_DEVICE) and getattr(event, "device", None) not in self._devices:
            return []
        out = _HANDLERS[type(event)](self, event)
        if isinstance(event, (Started, Progress, MeasuredEvent)):
            return out  # nobody is idle by these who was not
        return out + self._sweep(event.at)

    def _added(self, e: DeviceAdded) -> list[Action]:
        known = self._devices.get(e.device)
        if known and known.state not in OUT:
            known.drain = None  # asked back, and given again before it had finished
            return []
        device = self._devices[e.device] = DeviceState(e.backend, e.host)
        self._hosts.setdefault(e.host, []).append(device)
        for work in self._work:
            work.avoid.discard(e.device)  # the name is all that the two have in common
            work.avoid_hosts.discard(e.host)
        self._hold()
        return [Start(e.device)]

    def _up(self, e: DeviceUp) -> list[Action]:
        device = self._devices[e.device]
        if device.state == "starting":
            device.target, device.module, device.waits = e.target, e.module, False
            self._rest(device)
            self._hold()
        return []

    def _waits(self, e: DeviceWaits) -> list[Action]:
        device = self._devices[e.device]
        device.waits = e.busy and device.state == "starting"
        return []

    def _down(self, e: DeviceDown) -> list[Action]:
        device = self._devices[e.device]
        if device.state in OUT:
            return []
        untried = device.state == "starting" or device.probe is not None
        present = [*device.judging.values(), *device.open.values()]  # what was measured may be gone with it
        device.lease, device.running, device.probe, device.open, device.judging = None, None, None, {}, {}
        out: list[Action] = []
        for attempt in present:
            out += self._died_beside(e.device, attempt, e.reason)
        self._release(e.device, device)
        device.kept, device.waits = e.busy, False
        if e.busy:
            return [*out, self._retire(e.device, e.reason, drained=True)]
        if e.final or device.drain is not None:
            return [*out, self._retire(e.device, e.reason)]
        out += self._fault(e.at, e.device, e.reason)
        if untried and device.health.suspect:  # one that cannot even start needs no probe to fail it
            return out + self._failed_probe(e.at, e.device, e.reason)
        device.state = "starting"
        return [*out, Replace(e.device, e.reason)]

    def _drain(self, e: Drain) -> list[Action]:
        device = self._devices[e.device]
        if device.state != "gone" and device.drain is None:
            device.drain = e.reason
            self._release(e.device, device)
            self._hold()
        return []

    def _started(self, e: Started) -> list[Action]:
        device = self._devices[e.device]
        attempt = device.open.get(e.cell)
        if attempt and attempt.number == e.attempt:
            device.running, device.since = attempt, e.at
            self._await(device, e.at, self._work[e.cell].deadline if e.limit is None else e.limit, "its inputs")
        return []

    def _progressed(self, e: Progress) -> list[Action]:
        device = self._devices[e.device]
        attempt = device.open.get(e.cell)
        if attempt and attempt.number == e.attempt:
            self._await(device, e.at, e.limit, f"the end of phase {e.phase}")
        return []

    def _measured(self, e: MeasuredEvent) -> list[Action]:
        device = self._devices[e.device]
        attempt = device.open.get(e.cell)
        if attempt and attempt.number == e.attempt:
            if not device.judging:
                device.judged_until = e.at + self._work[e.cell].deadline + self._slack
            device.judging[e.cell] = device.open.pop(e.cell)
            self._await(device, e.at, 0.0, "its next cell")
            self._learn(device, e.cell, e.at)
        return []

    def _ended(self, e: Ended) -> list[Action]:
        device = self._devices[e.device]
        held = device.judging if e.cell in device.judging else device.open
        attempt = held.get(e.cell)
        if attempt is None or attempt.number != e.attempt:
            return []
        del held[e.cell]
        if held is device.judging:
            device.judged_until = e.at + self._work[e.cell].deadline + self._slack
        else:
            self._await(device, e.at, 0.0, "its next cell")
        if held is device.open and device.running == attempt:
            self._learn(device, e.cell, e.at)
        if e.owner in FARMS and e.status is not Status.UNSUPPORTED:
            return self._blame(e, attempt)
        device.health.success()
        self._node(device).success()
        if e.status is Status.PASSED and device.target is not None:
            self._proven[device.target] = (e.cell, attempt.number)
        return self._conclude(e.cell, attempt.number, e.status, e.owner, e.reason)

    def _lease_done(self, e: LeaseDone) -> list[Action]:
        device = self._devices[e.device]
        if device.lease is None or device.lease.id != e.lease:
            return []
        silent, device.lease, device.running, device.open = device.open, None, None, {}
        self._rest(device)
        out: list[Action] = []
        why = "the device ended its lease without a result of the cell"
        for cell, attempt in silent.items():
            ended = Ended(e.at, e.device, cell, attempt.number, Status.INFRA_ERROR, Owner.INFRA, why)
            out += self._blame(ended, attempt)
        return out

    def _tick(self, e: Tick) -> list[Action]:
        """Replace the devices that show nothing any more of their lease, or of what they gave to a judge."""
        stalled = 0.0 if self._ticked is None else max(0.0, e.at - self._ticked - STALL_SECONDS)
        self._ticked = e.at
        out: list[Action] = []
        for name, device in self._devices.items():
            device.until += stalled
            device.judged_until += stalled
            device.probe_deadline += stalled
            if device.state == "quarantined":
                out += self._again(name, device) if e.at > device.health.until else []
                continue
            what = ""
            if device.lease and e.at > device.until:
                what = device.awaited
            elif device.judging and not device.lease and e.at > device.judged_until:
                what = "the judgement of a cell"
            elif device.probe is not None and e.at > device.probe_deadline:
                what = "the end of its probe"
            if what:
                reason = Message(f"the device is stuck: it did not show {what} in time", id="device-stuck")
                out += self._down(DeviceDown(e.at, name, reason))
        return out

    def _sweep(self, at: float) -> list[Action]:
        """Let drained devices go; grant work to every idle one; end what no device can do any more; finish."""
        out: list[Action] = []
        suspects = False
        for name, device in self._devices.items():
            suspects = suspects or device.state == "suspect"
            if device.drain is not None and device.state not in ("busy", *OUT) and not device.judging:
                out.append(self._retire(name, device.drain, drained=True))
        if self._isolated:
            held = {h: (d, c) for h, (d, c) in self._isolated.items() if any(x in d.held for x in self._pair(c))}
            self._isolated = held
        for quiet in (False, True) if self._hush else (False,):  # what is loud goes first: it ends, so quiet comes
            for name, device in self._devices.items():
                if device.state == "ready" and device.drain is None and device.host not in self._isolated:
                    lease = self._take(name, device, at, quiet)
                    if lease:
                        out.append(Grant(lease, self._queues[lease.pool].ahead(name)))
        out += self._isolate(at) if self._deadly else []
        out += self._probe(at) if suspects else []
        out += self._stop(at)
        if self._open == 0 and not self._more and not self._finished:
            self._finished = True
            out.append(Finish())
        return out


_HANDLERS: dict[type[Event], Callable[[Scheduler, Any], list[Action]]] = {
    DeviceAdded: Scheduler._added,
    DeviceUp: Scheduler._up,
    DeviceWaits: Scheduler._waits,
    DeviceDown: Scheduler._down,
    Drain: Scheduler._drain,
    Away: Scheduler._nodes_away,
    Started: Scheduler._started,
    Progress: Scheduler._progressed,
    MeasuredEvent: Scheduler._measured,
    Ended: Scheduler._ended,
    LeaseDone: Scheduler._lease_done,
    JudgeDown: Scheduler._judge_down,
    Probed: Scheduler._probed,
    Submitted: Scheduler._submitted,
    Tick: Scheduler._tick,
}
