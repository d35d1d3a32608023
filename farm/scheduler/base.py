"""What the scheduler knows, and the few changes that all of its rooms make to it.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from farm.cell import Owner, Status
from farm.scheduler import health
from farm.scheduler.events import Action, Attempt, AwayNode, CellPool, Conclude, Ended
from farm.scheduler.state import OUT, CellState, DeviceState
from farm.scheduler.workqueue import WorkQueue

MAX_ATTEMPTS = 2  # one retry
SLACK_SECONDS = 90.0  # beyond a phase's limit, until its device is taken to be stuck


def some(names: Sequence[str]) -> str:
    """`rocm:0`, or `rocm:0 and 7 more`: devices that share one reason."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class SchedulerState:
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

    def tried(self, attempts: Mapping[int, int]) -> None:
        """Before `begin`: the highest attempt numbers that cells had in a run which was interrupted and goes on."""
        for cell, number in attempts.items():
            self._work[cell].attempts = number

    @property
    def open_cells(self) -> int:
        """Cells without a status."""
        return self._open

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

    def _conclude(self, cell: int, attempt: int, status: Status, owner: Owner | None, reason: str) -> list[Action]:
        work = self._work[cell]
        if work.done:
            return []
        work.done = True
        self._open -= 1
        return [Conclude(cell, attempt, status, owner, reason)]

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

    def _rest(self, device: DeviceState) -> None:
        """The device is up and has no lease."""
        device.state = "suspect" if device.health.suspect else "ready"

    def _await(self, device: DeviceState, at: float, limit: float, what: str) -> None:
        device.until, device.awaited = at + limit + self._slack, what

    def _learn(self, device: DeviceState, cell: int, at: float) -> None:
        measured, estimated = self._took.get(device.backend, (0.0, 0.0))
        self._took[device.backend] = (measured + max(0.0, at - device.since), estimated + self._work[cell].seconds)
        device.running, device.since = None, at
