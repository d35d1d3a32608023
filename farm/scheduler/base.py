"""What the scheduler knows, and the few changes that all of its rooms make to it.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from farm.cell import Owner, Status
from farm.scheduler import health
from farm.scheduler.events import Action, Attempt, AwayNode, CellPool, Conclude, Ended, Submitted
from farm.scheduler.state import OUT, CellState, DeviceState
from farm.scheduler.workqueue import WorkQueue

MAX_ATTEMPTS = 2  # one retry
#: After round 0, which compiles and judges in full, what it took counts as so many estimated seconds: a round that is
#: timed only is several times as fast, and its leases are to be as long.
ROUND_0_SECONDS = 5.0
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
    backend; `quiet[i]` is of farm.cell.QUIET.  `arms[i]` (0 or 1) is the arm of cell i in a comparison; `mates` maps a
    cell of the first arm to the same cell of the second: such a pair is granted, tried again and concluded as one.  A
    pool without a device waits `grace` seconds for one, and without a limit while a node that could serve it is only
    drained; 0: not at all."""

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
        arms: Sequence[int] | None = None,
        mates: Mapping[int, int] | None = None,
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
        self._groups, self._arms, self._round = groups, arms, 0
        self._more = bool(mates)  # whether further rounds may be submitted
        both = {a: b for a, b in (mates or {}).items() if (a in self._settled) == (b in self._settled)}
        self._pairs = {cell: pair for pair in both.items() for cell in pair}
        self._ended_of: dict[int, dict[int, Conclude | None]] = {}  # pair's first -> ends in this round; None: again
        self._queues = self._queued(i for i in range(len(self._work)) if i not in self._settled)
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

    def _queued(self, cells: Iterable[int]) -> dict[CellPool, WorkQueue]:
        """The queues of these cells; a pair waits as its first."""
        waiting: dict[CellPool, list[tuple[int, Hashable, float]]] = {pool: [] for pool in dict.fromkeys(self._pool)}
        for i in cells:
            if self._lead(i) == i:
                waiting[self._pool[i]].append((i, self._groups[i] if self._groups else i, self._seconds(i)))
        return {pool: WorkQueue(found) for pool, found in waiting.items()}

    def _pair(self, cell: int) -> tuple[int, ...]:
        """The cells that are granted and concluded together with this one, itself included."""
        return self._pairs.get(cell, (cell,))

    def _lead(self, cell: int) -> int:
        return self._pair(cell)[0]

    def _seconds(self, lead: int) -> float:
        return sum(self._work[cell].seconds for cell in self._pair(lead))

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
        if self._work[cell].done:
            return []
        return self._settle(cell, Conclude(cell, attempt, status, owner, reason, self._round))

    def _settle(self, cell: int, end: Conclude | None) -> list[Action]:
        """The cell has ended in this round, or must be tried again (None).  A pair is concluded, or tried again, once
        both have come so far: no result of one device stands beside one of another."""
        pair = self._pair(cell)
        ends = self._ended_of.setdefault(pair[0], {})
        ends[cell] = end
        if len(ends) < len(pair):
            return []
        del self._ended_of[pair[0]]
        out: list[Action] = [found for found in (ends[c] for c in pair) if found is not None]
        if len(out) < len(pair):
            alone = any(self._work[c].deaths >= health.ALONE_AFTER for c in pair)
            self._queues[self._pool[pair[0]]].push(pair[0], later=True, alone=alone)
            return []
        for c in pair:
            self._work[c].done = True
        self._open -= len(pair)
        return out

    def _submitted(self, e: Submitted) -> list[Action]:
        """Another round of some pairs; each begins without the faults of the rounds before."""
        if self._open or not e.cells:
            self._more = bool(self._open)
            return []
        if self._round == 0:
            self._took = {backend: _weighing(*took) for backend, took in self._took.items()}
        self._round = e.round
        cells = [cell for lead in e.cells for cell in self._pair(lead)]
        for cell in cells:
            work = self._work[cell]
            work.done, work.faults, work.avoid, work.avoid_hosts = False, 0, set(), set()
        self._open = len(cells)
        self._queues = self._queued(cells)
        return []

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
        for mate in self._pair(cell):
            self._work[mate].avoid.add(device)
            self._work[mate].avoid_hosts.add(self._devices[device].host)

    def _requeue(self, cell: int) -> None:
        self._settle(cell, None)

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


def _weighing(measured: float, estimated: float) -> tuple[float, float]:
    """The same pace, of at most `ROUND_0_SECONDS` estimated seconds."""
    share = min(1.0, ROUND_0_SECONDS / estimated) if estimated > 0 else 1.0
    return measured * share, estimated * share
