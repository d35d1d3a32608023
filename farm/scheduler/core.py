"""Who runs what next: `step(event) -> actions`.  Deterministic; owns its state; no Ray, no clock, no I/O.

Devices pull.  A lease is about a second of estimated work; when little is left leases shrink, so that all devices end
together.  Every cell is concluded exactly once.  A fault of the device or the farm is tried again, later, and elsewhere
if there is an elsewhere; a fault of the kernel never is.  Time comes in with the events.

A device that fails again and again is suspect, must pass a probe, and is quarantined if it does not
(farm.scheduler.health); what fails on a suspect is not charged to the cell until the probe has decided whose fault it
was.  A cell that was there when actors, nodes or judges died runs alone and last after the second of these deaths, and
is given up after the third.  Where over half of the devices for some cells, or the only one, are quarantined, those
cells are not granted any more: they stay open, and the run stops when nothing else is left.

Cells lie in pools: those of a named target go to devices that are it, the others to any device of their backend.  A
lease is of one pool, so stealing stays inside a target.  A cell that wants quiet waits until the loud work around it
is done, and while it runs its host (or its module) runs nothing else.  Devices may come and be asked back at any time.
A pool that no device is left for waits for one; once all that is left waits in vain, the run stops with a sentence.

A run that is resumed begins anew: its journal has the results and the numbers of attempts (`tried`), but no leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from farm.cell import DEADLY, Owner, Status
from farm.errors import Message
from farm.scheduler import health, leases
from farm.scheduler.events import (
    Action,
    Attempt,
    Away,
    AwayNode,
    CellPool,
    Conclude,
    DeviceAdded,
    DeviceDown,
    DeviceUp,
    DeviceWaits,
    Drain,
    Ended,
    Event,
    Finish,
    Grant,
    HealthChanged,
    Interrupted,
    JudgeDown,
    Lease,
    LeaseDone,
    MeasuredEvent,
    Probed,
    ProbeGrant,
    Progress,
    Replace,
    Retire,
    Start,
    Started,
    Tick,
)
from farm.scheduler.state import OUT, CellState, DeviceState, must_wait, serves
from farm.scheduler.workqueue import WorkQueue

MAX_ATTEMPTS = 2  # one retry
FARMS = (Owner.HARNESS, Owner.DEVICE, Owner.INFRA)  # owners whose faults are tried again
MAX_SHOWN = 3  # kinds of devices that the reason of a lost cell names
SLACK_SECONDS = 90.0  # beyond a phase's limit, until its device is taken to be stuck
STALL_SECONDS = 10.0  # between two ticks, at most so much of a wait counts: what was said meanwhile is yet to come


def _some(names: Sequence[str]) -> str:
    """`rocm:0`, or `rocm:0 and 7 more`: devices that share one reason."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class Scheduler:
    """`backends[i]`, `seconds[i]` (estimate) and `deadlines[i]` (the longest that it may show nothing, judging too)
    speak of cell i; a device that shows nothing of its lease for its phase's limit and `slack` is replaced.  `settled`
    are cells with a status before anything starts (skipped, unsupported); `devices` maps device to backend, `hosts` to
    the host that it is on; cells of one `groups[i]` are kept on one device while there is other work (default: each
    cell is a group of its own).  `targets[i]` is a pattern of farm.device_pattern, or "" for any device of the
    backend; `quiet[i]` is of farm.cell.QUIET.  A pool without a device waits `grace` seconds for one, and without a
    limit while a node that could serve it is only drained; 0: not at all."""

    def __init__(
        self,
        backends: Sequence[str],
        seconds: Sequence[float],
        deadlines: Sequence[float],
        devices: Mapping[str, str],
        settled: Mapping[int, tuple[Status, str]] | None = None,
        groups: Sequence[Hashable] | None = None,
        *,
        targets: Sequence[str] | None = None,
        quiet: Sequence[str] | None = None,
        hosts: Mapping[str, str] | None = None,
        grace: float = 0.0,
        slack: float = SLACK_SECONDS,
    ):
        self._work = [CellState(s, d) for s, d in zip(seconds, deadlines)]
        self._pool = [
            CellPool(b, t, q)
            for b, t, q in zip(backends, targets or [""] * len(backends), quiet or ["none"] * len(backends))
        ]
        self._devices = {name: DeviceState(backend, (hosts or {}).get(name, "")) for name, backend in devices.items()}
        self._hosts: dict[str, list[DeviceState]] = {}  # those that are still part of the run
        for device in self._devices.values():
            self._hosts.setdefault(device.host, []).append(device)
        self._settled = dict(settled or {})
        waiting: dict[CellPool, list[tuple[int, Hashable, float]]] = {pool: [] for pool in dict.fromkeys(self._pool)}
        for i, pool in enumerate(self._pool):
            if i not in self._settled:
                waiting[pool].append((i, groups[i] if groups else i, seconds[i]))
        self._queues = {pool: WorkQueue(cells) for pool, cells in waiting.items()}
        self._hush = any(pool.quiet != "none" for pool in self._queues)
        self._grace, self._slack = grace, slack
        self._ticked: float | None = None
        self._server: dict[CellPool, DeviceState] = {}  # the last that was found to be left for a pool
        self._alone: dict[CellPool, float] = {}  # pools with work and no device for it: since when
        self._away: tuple[AwayNode, ...] = ()  # what operators have drained
        self._nodes: dict[str, health.NodeHealth] = {}  # by host
        self._held: dict[CellPool, str] = {}  # pools that are not granted any more, and why
        self._isolated: dict[str, tuple[DeviceState, int]] = {}  # host -> the cell that runs alone there, and where
        self._proven: dict[str, tuple[int, int]] = {}  # target -> the last cell, and its attempt, that passed on it
        self._probe_id = 0
        self._deadly = False  # whether a cell must run alone, or had to
        self._lease_id = 0
        self._open = len(self._work)
        self._interrupted = False
        self._finished = False
        self._took: dict[str, tuple[float, float]] = {}  # backend -> (measured, estimated) seconds of what is done
        self._handlers: dict[type[Event], Callable[[Any], list[Action]]] = {
            DeviceAdded: self._added,
            DeviceUp: self._up,
            DeviceWaits: self._waits,
            DeviceDown: self._down,
            Drain: self._drain,
            Away: self._nodes_away,
            Started: self._started,
            Progress: self._progressed,
            MeasuredEvent: self._measured,
            Ended: self._ended,
            LeaseDone: self._lease_done,
            JudgeDown: self._judge_down,
            Probed: self._probed,
            Tick: self._tick,
        }

    def begin(self, at: float) -> list[Action]:
        """The first actions, before any event."""
        out: list[Action] = []
        for cell, (status, reason) in self._settled.items():
            out += self._conclude(cell, 0, status, None, reason)
        return out + self._sweep(at)

    def tried(self, attempts: Mapping[int, int]) -> None:
        """Before `begin`: the highest attempt numbers that cells had in a run which was interrupted and goes on."""
        for cell, number in attempts.items():
            self._work[cell].attempts = number

    @property
    def open_cells(self) -> int:
        """Cells without a status."""
        return self._open

    def waiting(self) -> dict[CellPool, tuple[str, ...]]:
        """The backends and targets whose cells wait for a device because none is left, each with the drained nodes that
        could be restored for it."""
        return {CellPool(p.backend, p.target): self._drained_for(p) for p in self._alone if not self._finished}

    def why_waiting(self, pool: CellPool) -> str:
        """Why the pool has no device, in a clause; "" if it never had one."""
        return self._detail(pool)

    def attempt_at(self, device: str, cell: int) -> Attempt | None:
        """The attempt of the cell that the device, or its judge, has now."""
        found = self._devices.get(device)
        return (found.open.get(cell) or found.judging.get(cell)) if found else None

    def remaining_seconds(self, backend: str) -> float:
        """Estimated seconds until what is queued or granted on a backend is done, by the pace seen so far: all of it
        on all of its devices, or a target's on those that are it, whichever takes longer."""
        mine = {pool: queue.seconds for pool, queue in self._queues.items() if pool.backend == backend}
        held = sum(self._work[i].seconds for d in self._devices.values() if d.backend == backend for i in d.open)
        live = [d for d in self._devices.values() if d.backend == backend and d.state not in OUT and not d.waits]
        longest = (sum(mine.values()) + held) / max(1, len(live))
        for pool, seconds in mine.items():
            if pool.target and seconds:
                longest = max(longest, seconds / max(1, sum(d.serves(pool) for d in live)))
        return max(0.0, longest * self._pace(backend))

    def _pace(self, backend: str) -> float:
        """Measured seconds per estimated second; 1 before anything is measured."""
        measured, estimated = self._took.get(backend, (0.0, 0.0))
        return measured / estimated if estimated > 0 else 1.0

    def step(self, event: Event) -> list[Action]:
        """What follows from an event.  Events of attempts that are no longer current, and of devices that nobody
        added, change nothing."""
        if self._finished:
            return []
        if isinstance(event, Interrupted):
            self._interrupted = True
            self._finished = True
            return [Finish()]
        if not isinstance(event, (Tick, DeviceAdded, Away)) and getattr(event, "device", None) not in self._devices:
            return []
        out = self._handlers[type(event)](event)
        if isinstance(event, (Started, Progress, MeasuredEvent)):
            return out  # nobody is idle by these who was not
        return out + self._sweep(event.at)

    # one handler an event

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

    def _nodes_away(self, e: Away) -> list[Action]:
        for pool in self._alone:
            if self._drained_for(pool):
                self._alone[pool] = e.at  # the grace begins when they are no longer waited for
        self._away = e.nodes
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

    def _await(self, device: DeviceState, at: float, limit: float, what: str) -> None:
        device.until, device.awaited = at + limit + self._slack, what

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

    # health

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

    def _rest(self, device: DeviceState) -> None:
        """The device is up and has no lease."""
        device.state = "suspect" if device.health.suspect else "ready"

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
                text = f"{which} of {pool} failed {health.MAX_PROBES} probes in a row ({_some(out)}: "
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

    # what they share

    def _charge(self, e: Ended, a: Attempt) -> list[Action]:
        """Try the cell again, or end it."""
        work = self._work[a.cell]
        work.faults += 1
        if work.faults < MAX_ATTEMPTS:
            self._avoid(a.cell, e.device)
            self._requeue(a.cell)
            return []
        return self._conclude(a.cell, a.number, e.status, e.owner, e.reason)

    def _avoid(self, cell: int, device: str) -> None:
        self._work[cell].avoid.add(device)
        self._work[cell].avoid_hosts.add(self._devices[device].host)

    def _requeue(self, cell: int) -> None:
        alone = self._work[cell].deaths >= health.ALONE_AFTER
        self._queues[self._pool[cell]].push(cell, later=True, alone=alone)

    def _release(self, name: str, device: DeviceState) -> None:
        """Its groups are anybody's."""
        for pool, queue in self._queues.items():
            if pool.backend == device.backend:
                queue.release(name)

    def _retire(self, name: str, reason: str, *, drained: bool = False) -> Retire:
        device = self._devices[name]
        device.state, device.reason, device.probe = "gone", reason, None
        self._hosts[device.host].remove(device)
        self._acquit(device)
        self._hold()
        return Retire(name, reason, drained)

    def _conclude(self, cell: int, attempt: int, status: Status, owner: Owner | None, reason: str) -> list[Action]:
        work = self._work[cell]
        if work.done:
            return []
        work.done = True
        self._open -= 1
        return [Conclude(cell, attempt, status, owner, reason)]

    def _learn(self, device: DeviceState, cell: int, at: float) -> None:
        measured, estimated = self._took.get(device.backend, (0.0, 0.0))
        self._took[device.backend] = (measured + max(0.0, at - device.since), estimated + self._work[cell].seconds)
        device.running, device.since = None, at

    def _sweep(self, at: float) -> list[Action]:
        """Let drained devices go; grant work to every idle one; end what no device can do any more; finish."""
        out: list[Action] = []
        suspects = False
        for name, device in self._devices.items():
            suspects = suspects or device.state == "suspect"
            if device.drain is not None and device.state not in ("busy", *OUT) and not device.judging:
                out.append(self._retire(name, device.drain, drained=True))
        if self._isolated:
            self._isolated = {h: (d, c) for h, (d, c) in self._isolated.items() if c in d.open or c in d.judging}
        for quiet in (False, True) if self._hush else (False,):  # what is loud goes first: it ends, so quiet comes
            for name, device in self._devices.items():
                if device.state == "ready" and device.drain is None and device.host not in self._isolated:
                    lease = self._take(name, device, at, quiet)
                    if lease:
                        out.append(Grant(lease, self._queues[lease.pool].ahead(name)))
        out += self._isolate(at) if self._deadly else []
        out += self._probe(at) if suspects else []
        out += self._stop(at)
        if self._open == 0 and not self._finished:
            self._finished = True
            out.append(Finish())
        return out

    def _isolate(self, at: float) -> list[Action]:
        """Grant cells that run alone and last: one to a host where all else is done."""
        out: list[Action] = []
        for pool in [p for p, queue in self._queues.items() if len(queue) > queue.ordinary]:
            for name, device in self._devices.items():
                if device.state != "ready" or not device.may_run(pool) or any(p.ordinary for p in self._of(device)):
                    continue
                host = self._hosts[device.host]
                if device.host in self._isolated or any(d.lease or d.judging or d.probe is not None for d in host):
                    continue
                lease = self._granted(name, device, at, pool, self._from(pool, name, alone=True))
                if lease:
                    self._isolated[device.host] = (device, lease.attempts[0].cell)
                    out.append(Grant(lease))
        return out

    def _of(self, device: DeviceState) -> list[WorkQueue]:
        """The queues of what the device may be granted."""
        return [queue for pool, queue in self._queues.items() if pool not in self._held and device.serves(pool)]

    def _stop(self, at: float) -> list[Action]:
        """End the run once all that is left waits in pools that have had no device for longer than the grace, or that
        are not granted any more."""
        left: list[CellPool] = []
        held = [pool for pool, queue in self._queues.items() if queue and pool in self._held]
        for pool, queue in self._queues.items():
            if not queue or pool in self._held or self._has_server(pool):
                self._alone.pop(pool, None)
            elif self._given_up(pool, at):
                left.append(pool)
        if not (left or held) or sum(len(self._queues[pool]) for pool in (*left, *held)) < self._open:
            return []
        out: list[Action] = []
        what = self._why_stopped(left, held)
        for pool in left:
            reason = f"no device of {pool} remained to run the cell{self._why(pool)}"
            queue = self._queues[pool]
            while (cell := queue.pop("") if queue.ordinary else queue.pop_alone()) is not None:
                out += self._conclude(cell, self._work[cell].attempts, Status.LOST, Owner.INFRA, reason)
        self._finished = True
        return [*out, Finish(what)]

    def _why_stopped(self, left: Sequence[CellPool], held: Sequence[CellPool]) -> Message:
        """Why the run ends with open cells: pools without a device, and those that are not granted any more."""
        kinds = list(dict.fromkeys(self._held[pool] for pool in held))
        if not left:
            return Message(f"{'; '.join(kinds)}; see farm nodes and farm doctor", id="run-devices-out")
        cells = Counter(dict.fromkeys(map(str, left), 0))
        for pool in left:  # of which some may differ in `quiet` alone
            cells[str(pool)] += len(self._queues[pool])
        kinds = [f"{cells[name]} of {name}{why}" for name, why in {str(p): self._why(p) for p in left}.items()] + kinds
        more = f"; and {len(kinds) - MAX_SHOWN} more" if len(kinds) > MAX_SHOWN else ""
        what = f"no device is left for {self._open} cells: {'; '.join(kinds[:MAX_SHOWN])}{more}"
        away = " ".join(dict.fromkeys(name for pool in left for name in self._drained_for(pool)))
        what += f"; to restore what is drained, run farm nodes restore {away}" if away else ""
        return Message(what, id="run-lacks-devices")

    def _given_up(self, pool: CellPool, at: float) -> bool:
        """Whether a pool without a device has waited for one as long as it may."""
        since = self._alone.setdefault(pool, at)
        if self._grace and self._drained_for(pool):
            return False
        return self._kept(pool) or at - since >= self._grace

    def _kept(self, pool: CellPool) -> bool:
        """Whether the run has waited already, for a device that another one did not give back."""
        return any(d.kept and d.state == "gone" and d.serves(pool) for d in self._devices.values())

    def _drained_for(self, pool: CellPool) -> tuple[str, ...]:
        """The drained nodes that could serve the pool."""
        return tuple(dict.fromkeys(n.name for n in self._away if serves(pool, n.backend, n.target)))

    def _has_server(self, pool: CellPool) -> bool:
        """Whether a device is left that serves the pool; asked after each event, so the last answer is tried first."""
        known = self._server.get(pool)
        if known is None or known.state in OUT or not known.serves(pool):
            known = next((d for d in self._devices.values() if d.state not in OUT and d.serves(pool)), None)
            if known is not None:
                self._server[pool] = known
        return known is not None

    def _why(self, pool: CellPool) -> str:
        waited = f" within {self._grace:g} s" if self._grace and not self._kept(pool) else ""
        return f"{waited}{self._detail(pool)}"

    def _detail(self, pool: CellPool) -> str:
        """Why the pool's devices were retired, and which other devices there are."""
        mine = {name: d for name, d in self._devices.items() if d.backend == pool.backend}
        said = {name: f": {d.reason}" for name, d in mine.items() if d.state in OUT and d.serves(pool)}
        said |= {n: f" is {d.target}" for n, d in mine.items() if d.target is not None and not d.serves(pool)}
        kinds = [f"{_some([n for n in said if said[n] == what])}{what}" for what in dict.fromkeys(said.values())]
        more = f"; and {len(kinds) - MAX_SHOWN} more" if len(kinds) > MAX_SHOWN else ""
        return f" ({'; '.join(kinds[:MAX_SHOWN])}{more})" if kinds else ""

    def _take(self, name: str, device: DeviceState, at: float, quiet: bool) -> Lease | None:
        """A lease for an idle device, of the first pool that has something for it."""
        if self._hush and must_wait(device, self._hosts[device.host], "none"):
            return None
        for pool in self._pools_for(device, quiet):
            if quiet and must_wait(device, self._hosts[device.host], pool.quiet):
                continue
            lease = self._granted(name, device, at, pool, self._from(pool, name))
            if lease:
                return lease
        return None

    def _granted(self, name: str, device: DeviceState, at: float, pool: CellPool, taken: list[Attempt]) -> Lease | None:
        if not taken:
            return None
        self._lease_id += 1
        device.lease = Lease(self._lease_id, name, tuple(taken), pool)
        device.open = {a.cell: a for a in taken}
        device.state, device.since, device.running = "busy", at, None
        self._await(device, at, 0.0, "the beginning of its lease")
        return device.lease

    def _pools_for(self, device: DeviceState, quiet: bool) -> Iterator[CellPool]:
        """Pools with work that a device may take, those of named targets first: others can do the rest."""
        mine = [
            p
            for p, queue in self._queues.items()
            if queue.ordinary and (p.quiet != "none") == quiet and p not in self._held and device.serves(p)
        ]
        if len(mine) > 1:
            share = {p: self._queues[p].seconds / len(self._peers(p)) for p in mine}
            mine.sort(key=lambda p: (not p.target, -share[p]))
        yield from mine

    def _peers(self, pool: CellPool) -> list[str]:
        """Devices that may run the pool's cells, now or later."""
        return [name for name, d in self._devices.items() if d.may_run(pool)]

    def _from(self, pool: CellPool, name: str, *, alone: bool = False) -> list[Attempt]:
        """The attempts of a device's next lease."""
        queue, peers = self._queues[pool], self._peers(pool)
        pace = max(1e-3, self._pace(pool.backend))

        def tries(cell: int) -> bool:
            """Elsewhere: on another host, else on another device, else here."""
            work = self._work[cell]
            if not work.avoid:
                return True
            return self._bad_for(work, name) == min(self._bad_for(work, p) for p in peers)

        if alone:
            cells = leases.take_alone(queue, tries=tries)
        else:
            cells = leases.take(
                queue,
                name,
                budget=leases.budget(queue.seconds * pace, len(peers)),
                seconds=lambda cell: self._work[cell].seconds * pace,
                tries=tries,
            )
        taken = []
        for cell in cells:
            work = self._work[cell]
            work.attempts += 1
            taken.append(Attempt(cell, work.attempts, last=work.faults + 1 >= MAX_ATTEMPTS))
        return taken

    def _bad_for(self, work: CellState, name: str) -> int:
        """How little a device suits a cell that failed: there, on its host, or elsewhere."""
        return 2 if name in work.avoid else int(self._devices[name].host in work.avoid_hosts)
