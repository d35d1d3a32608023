"""Which cells an idle device gets.  Pure.

Devices pull.  A lease is of one pool, so stealing stays inside a target.  A cell that wants quiet waits until the loud
work around it is done.  A cell in whose presence actors, nodes or judges died runs alone and last.
"""

from __future__ import annotations

from collections.abc import Iterator

from farm.scheduler import leases
from farm.scheduler.base import MAX_ATTEMPTS, SchedulerState
from farm.scheduler.events import Action, Attempt, CellPool, Grant, Lease
from farm.scheduler.state import CellState, DeviceState, must_wait
from farm.scheduler.workqueue import WorkQueue


class Granting(SchedulerState):
    """Leases for idle devices."""

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
                budget=leases.budget(queue.seconds * pace, len(peers), rounds=self._arms is not None),
                seconds=lambda cell: self._seconds(cell) * pace,
                tries=tries,
                most=leases.MAX_LEASE_CELLS if self._arms is None else leases.MAX_ROUND_CELLS,
            )
        taken = []
        for cell in self._in_order([c for lead in cells for c in self._pair(lead)]):
            work = self._work[cell]
            work.attempts += 1
            taken.append(Attempt(cell, work.attempts, self._round, work.faults + 1 >= MAX_ATTEMPTS))
        return taken

    def _in_order(self, cells: list[int]) -> list[int]:
        """All cells of one arm, then those of the other, which is first in odd rounds."""
        arms = self._arms
        return sorted(cells, key=lambda c: arms[c] != self._round % 2) if arms else cells

    def _bad_for(self, work: CellState, name: str) -> int:
        """How little a device suits a cell that failed: there, on its host, or elsewhere."""
        return 2 if name in work.avoid else int(self._devices[name].host in work.avoid_hosts)
