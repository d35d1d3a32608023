"""Who runs what next: `step(event) -> actions`.  Deterministic; owns its state; no Ray, no clock, no I/O.

Devices pull.  A lease is about a second of estimated work; when little is left leases shrink, so that all devices end
together.  Every cell is concluded exactly once.  A fault of the device or the farm is tried again, elsewhere if there
is an elsewhere; a fault of the kernel never is.  Time comes in with the events.

The state is rebuilt by feeding the same events again (the journal keeps them).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from farm.cell import Owner, Status
from farm.workqueue import WorkQueue

LEASE_SECONDS = 1.0
MAX_ATTEMPTS = 2  # one retry
MAX_DEVICE_FAULTS = 3  # then the device is retired
MAX_LEASE_CELLS = 64  # one lease's results stay well under 100 KiB on the wire


@dataclass(frozen=True)
class Attempt:
    """One try at a cell.  No two tries of a cell have one number; on the `last` one a fault is no longer excused."""

    cell: int
    number: int
    round: int = 0
    last: bool = False


@dataclass(frozen=True)
class Lease:
    """Work granted to a device, and by when it must be done (seconds, the events' clock)."""

    id: int
    device: str
    attempts: tuple[Attempt, ...]
    deadline: float


# Events: what happened.


@dataclass(frozen=True)
class Event:
    """`at`: seconds on one monotonic clock."""

    at: float


@dataclass(frozen=True)
class DeviceUp(Event):
    """A device is open and idle; cells of its backend may be granted to it."""

    device: str
    backend: str


@dataclass(frozen=True)
class DeviceDown(Event):
    """A device's actor died, hung or could not open its device.  `final`: another try is pointless."""

    device: str
    reason: str
    final: bool = False


@dataclass(frozen=True)
class Started(Event):
    """The device began an attempt."""

    device: str
    cell: int
    attempt: int


@dataclass(frozen=True)
class MeasuredEvent(Event):
    """The child is done with an attempt; the judge has it now, and the device goes on."""

    device: str
    cell: int
    attempt: int


@dataclass(frozen=True)
class Ended(Event):
    """An attempt has its status: judged, or failed before it could be measured."""

    device: str
    cell: int
    attempt: int
    status: Status
    owner: Owner | None = None
    reason: str = ""


@dataclass(frozen=True)
class LeaseDone(Event):
    """The device has been through its lease."""

    device: str
    lease: int


@dataclass(frozen=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class Interrupted(Event):
    """Somebody wants the run to end now."""


# Actions: what to do.


@dataclass(frozen=True)
class Grant:
    """Send this lease to its device.  `coming`: cells that wait behind it, whose inputs may be made meanwhile."""

    lease: Lease
    coming: tuple[int, ...] = ()


@dataclass(frozen=True)
class Conclude:
    """The cell has its one status."""

    cell: int
    attempt: int
    status: Status
    owner: Owner | None
    reason: str


@dataclass(frozen=True)
class Replace:
    """Kill the device's actor and start another in its place."""

    device: str
    reason: str


@dataclass(frozen=True)
class Retire:
    """Give the device up for this run."""

    device: str
    reason: str


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do."""


Action = Grant | Conclude | Replace | Retire | Finish


@dataclass
class _Device:
    backend: str
    state: str = "starting"  # starting, idle, busy, gone
    lease: Lease | None = None
    running: Attempt | None = None
    since: float = 0.0
    open: dict[int, Attempt] = field(default_factory=dict)  # granted, neither measured nor ended
    judging: dict[int, Attempt] = field(default_factory=dict)  # measured here, with the judge now
    faults: int = 0


@dataclass
class _Work:
    """A cell's standing."""

    seconds: float
    deadline: float
    attempts: int = 0  # granted so far: the next one's number is one more
    faults: int = 0  # attempts that ended by a fault of the device or the farm
    avoid: set[str] = field(default_factory=set)
    done: bool = False


class Scheduler:
    """`backends[i]`, `seconds[i]` (estimate) and `deadline[i]` (longest allowed) speak of cell i; `settled` are cells
    with a status before anything starts (skipped, unsupported); `devices` maps device to backend; cells of one
    `groups[i]` are kept on one device while there is other work (default: each cell is a group of its own)."""

    def __init__(
        self,
        backends: Sequence[str],
        seconds: Sequence[float],
        deadlines: Sequence[float],
        devices: Mapping[str, str],
        settled: Mapping[int, tuple[Status, str]] | None = None,
        groups: Sequence[Hashable] | None = None,
    ):
        self._work = [_Work(s, d) for s, d in zip(seconds, deadlines)]
        self._backend = list(backends)
        self._devices = {name: _Device(backend) for name, backend in devices.items()}
        self._settled = dict(settled or {})
        waiting: dict[str, list[tuple[int, Hashable, float]]] = {b: [] for b in dict.fromkeys(backends)}
        for i, backend in enumerate(backends):
            if i not in self._settled:
                waiting[backend].append((i, groups[i] if groups else i, seconds[i]))
        self._queues = {backend: WorkQueue(cells) for backend, cells in waiting.items()}
        self._lease_id = 0
        self._open = len(self._work)
        self._interrupted = False
        self._finished = False
        self._took: dict[str, tuple[float, float]] = {}  # backend -> (measured, estimated) seconds of what is done

    def begin(self, at: float) -> list[Action]:
        """The first actions, before any event."""
        out: list[Action] = []
        for cell, (status, reason) in self._settled.items():
            out += self._conclude(cell, 0, status, None, reason)
        return out + self._sweep(at)

    @property
    def open_cells(self) -> int:
        """Cells without a status."""
        return self._open

    def remaining_seconds(self, backend: str) -> float:
        """Estimated device seconds of what is queued or granted on a backend, by the pace seen so far."""
        waiting = self._queues[backend].seconds if backend in self._queues else 0.0
        held = sum(self._work[i].seconds for d in self._devices.values() if d.backend == backend for i in d.open)
        live = sum(d.backend == backend and d.state != "gone" for d in self._devices.values())
        return max(0.0, (waiting + held) * self._pace(backend) / max(1, live))

    def _pace(self, backend: str) -> float:
        """Measured seconds per estimated second; 1 before anything is measured."""
        measured, estimated = self._took.get(backend, (0.0, 0.0))
        return measured / estimated if estimated > 0 else 1.0

    def step(self, event: Event) -> list[Action]:
        """What follows from an event.  Events of attempts that are no longer current change nothing."""
        if self._finished:
            return []
        if isinstance(event, Interrupted):
            self._interrupted = True
            self._finished = True
            return [Finish()]
        handler = {
            DeviceUp: self._up,
            DeviceDown: self._down,
            Started: self._started,
            MeasuredEvent: self._measured,
            Ended: self._ended,
            LeaseDone: self._lease_done,
            Tick: self._tick,
        }[type(event)]
        out: list[Action] = handler(event)  # type: ignore[operator]
        return out + self._sweep(event.at)

    # one handler an event

    def _up(self, e: DeviceUp) -> list[Action]:
        device = self._devices[e.device]
        if device.state == "starting":
            device.state = "idle"
        return []

    def _down(self, e: DeviceDown) -> list[Action]:
        device = self._devices[e.device]
        if device.state == "gone":
            return []
        running, held, judging = device.running, device.open, device.judging
        device.lease, device.running, device.open, device.judging = None, None, {}, {}
        device.faults += 1
        out: list[Action] = []
        for cell, attempt in reversed(list(held.items())):
            if running is not None and cell == running.cell:
                out += self._retry_or_end(e.device, attempt, Status.INFRA_ERROR, Owner.INFRA, e.reason)
            else:
                self._requeue(cell)
        for cell in judging:  # its outputs may be gone with it, and nobody waits for the judge
            self._requeue(cell)
        if device.backend in self._queues:
            self._queues[device.backend].release(e.device)
        if e.final or device.faults >= MAX_DEVICE_FAULTS:
            device.state = "gone"
            return [*out, Retire(e.device, e.reason)]
        device.state = "starting"
        return [*out, Replace(e.device, e.reason)]

    def _started(self, e: Started) -> list[Action]:
        device = self._devices[e.device]
        attempt = device.open.get(e.cell)
        if attempt and attempt.number == e.attempt:
            device.running, device.since = attempt, e.at
        return []

    def _measured(self, e: MeasuredEvent) -> list[Action]:
        device = self._devices[e.device]
        attempt = device.open.get(e.cell)
        if attempt and attempt.number == e.attempt:
            device.judging[e.cell] = device.open.pop(e.cell)
            self._learn(device, e.cell, e.at)
        return []

    def _ended(self, e: Ended) -> list[Action]:
        device = self._devices[e.device]
        held = device.judging if e.cell in device.judging else device.open
        attempt = held.get(e.cell)
        if attempt is None or attempt.number != e.attempt:
            return []
        del held[e.cell]
        if held is device.open and device.running == attempt:
            self._learn(device, e.cell, e.at)
        if e.owner in (Owner.DEVICE, Owner.INFRA):
            return self._retry_or_end(e.device, attempt, e.status, e.owner, e.reason)
        return self._conclude(e.cell, attempt.number, e.status, e.owner, e.reason)

    def _lease_done(self, e: LeaseDone) -> list[Action]:
        device = self._devices[e.device]
        if device.lease is None or device.lease.id != e.lease:
            return []
        for cell in reversed(list(device.open)):  # granted, and the device says nothing of them
            self._requeue(cell)
        device.state, device.lease, device.running, device.open = "idle", None, None, {}
        return []

    def _tick(self, e: Tick) -> list[Action]:
        out: list[Action] = []
        for name, device in self._devices.items():
            if device.lease and e.at > device.lease.deadline:
                out += self._down(DeviceDown(e.at, name, "its lease ran out: the device answered nothing in time"))
        return out

    # what they share

    def _retry_or_end(self, device: str, a: Attempt, status: Status, owner: Owner, reason: str) -> list[Action]:
        work = self._work[a.cell]
        work.faults += 1
        if work.faults < MAX_ATTEMPTS:
            work.avoid.add(device)
            self._requeue(a.cell)
            return []
        return self._conclude(a.cell, a.number, status, owner, reason)

    def _requeue(self, cell: int) -> None:
        self._queues[self._backend[cell]].push(cell)

    def _conclude(self, cell: int, attempt: int, status: Status, owner: Owner | None, reason: str) -> list[Action]:
        work = self._work[cell]
        if work.done:
            return []
        work.done = True
        self._open -= 1
        return [Conclude(cell, attempt, status, owner, reason)]

    def _learn(self, device: _Device, cell: int, at: float) -> None:
        measured, estimated = self._took.get(device.backend, (0.0, 0.0))
        self._took[device.backend] = (measured + max(0.0, at - device.since), estimated + self._work[cell].seconds)
        device.running, device.since = None, at

    def _sweep(self, at: float) -> list[Action]:
        """Grant work to every idle device; end what no device can do any more; finish."""
        out: list[Action] = []
        for name, device in self._devices.items():
            if device.state == "idle":
                lease = self._take(name, device, at)
                if lease:
                    out.append(Grant(lease, self._queues[device.backend].ahead(name)))
        for backend, queue in self._queues.items():
            if queue and not any(d.backend == backend and d.state != "gone" for d in self._devices.values()):
                while (cell := queue.pop("")) is not None:
                    reason = f"no device of backend {backend} was left to run it"
                    out += self._conclude(cell, self._work[cell].attempts, Status.LOST, Owner.INFRA, reason)
        if self._open == 0 and not self._finished:
            self._finished = True
            out.append(Finish())
        return out

    def _take(self, name: str, device: _Device, at: float) -> Lease | None:
        queue = self._queues.get(device.backend)
        if not queue:
            return None
        peers = [n for n, d in self._devices.items() if d.backend == device.backend and d.state != "gone"]
        pace = max(1e-3, self._pace(device.backend))
        budget = min(LEASE_SECONDS, queue.seconds * pace / (2 * len(peers)))
        taken: list[Attempt] = []
        passed: list[int] = []
        spent = allowed = 0.0
        while len(taken) < MAX_LEASE_CELLS and (not taken or spent < budget):
            cell = queue.pop(name)
            if cell is None:
                break
            work = self._work[cell]
            if name in work.avoid and any(p not in work.avoid for p in peers):
                passed.append(cell)
                continue
            work.attempts += 1
            taken.append(Attempt(cell, work.attempts, last=work.faults + 1 >= MAX_ATTEMPTS))
            spent += work.seconds * pace
            allowed += work.deadline
        for cell in reversed(passed):
            queue.push(cell)
        if not taken:
            return None
        self._lease_id += 1
        device.lease = Lease(self._lease_id, name, tuple(taken), at + allowed + 30.0)
        device.open = {a.cell: a for a in taken}
        device.state, device.since, device.running = "busy", at, None
        return device.lease
