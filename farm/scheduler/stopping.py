"""When a run ends with open cells, and what it says then.  Pure.

A pool that no device is left for waits for one: as long as the grace, and without a limit while a node that could serve
it is only drained.  Once all that is left waits in vain, or is not granted any more, the run stops with a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from farm.cell import Owner, Status
from farm.errors import Message
from farm.scheduler.base import SchedulerState, some
from farm.scheduler.events import Action, Away, CellPool, Finish
from farm.scheduler.state import OUT, serves

MAX_SHOWN = 3  # kinds of devices that the reason of a lost cell names


class Stopping(SchedulerState):
    """Pools without a device, and the end of a run for their sake."""

    def waiting(self) -> dict[CellPool, tuple[str, ...]]:
        """The backends and targets whose cells wait for a device because none is left, each with the drained nodes that
        could be restored for it."""
        return {CellPool(p.backend, p.target): self._drained_for(p) for p in self._alone if not self._finished}

    def why_waiting(self, pool: CellPool) -> str:
        """Why the pool has no device, in a clause; "" if it never had one."""
        return self._detail(pool)

    def _nodes_away(self, e: Away) -> list[Action]:
        for pool in self._alone:
            if self._drained_for(pool):
                self._alone[pool] = e.at  # the grace begins when they are no longer waited for
        self._away = e.nodes
        return []

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
        if not (left or held) or self._waiting((*left, *held)) < self._open:
            return []
        out: list[Action] = []
        what = self._why_stopped(left, held)
        for pool in left:
            reason = f"no device of {pool} remained to run the cell{self._why(pool)}"
            queue = self._queues[pool]
            while (cell := queue.pop("") if queue.ordinary else queue.pop_alone()) is not None:
                for one in self._pair(cell):
                    out += self._conclude(one, self._work[one].attempts, Status.LOST, Owner.INFRA, reason)
        self._finished = True
        return [*out, Finish(what)]

    def _why_stopped(self, left: Sequence[CellPool], held: Sequence[CellPool]) -> Message:
        """Why the run ends with open cells: pools without a device, and those that are not granted any more."""
        kinds = list(dict.fromkeys(self._held[pool] for pool in held))
        if not left:
            return Message(f"{'; '.join(kinds)}; see farm nodes and farm doctor", id="run-devices-out")
        cells = Counter(dict.fromkeys(map(str, left), 0))
        for pool in left:  # of which some may differ in `quiet` alone
            cells[str(pool)] += self._waiting((pool,))
        kinds = [f"{cells[name]} of {name}{why}" for name, why in {str(p): self._why(p) for p in left}.items()] + kinds
        more = f"; and {len(kinds) - MAX_SHOWN} more" if len(kinds) > MAX_SHOWN else ""
        what = f"no device is left for {self._open} cells: {'; '.join(kinds[:MAX_SHOWN])}{more}"
        away = " ".join(dict.fromkeys(name for pool in left for name in self._drained_for(pool)))
        what += f"; to restore what is drained, run farm nodes restore {away}" if away else ""
        return Message(what, id="run-lacks-devices")

    def _waiting(self, pools: Iterable[CellPool]) -> int:
        """Cells that wait in these pools."""
        queues = [self._queues[pool] for pool in pools]
        if not self._pairs:
            return sum(map(len, queues))
        return sum(len(self._pair(lead)) for queue in queues for lead in queue)

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
        kinds = [f"{some([n for n in said if said[n] == what])}{what}" for what in dict.fromkeys(said.values())]
        more = f"; and {len(kinds) - MAX_SHOWN} more" if len(kinds) > MAX_SHOWN else ""
        return f" ({'; '.join(kinds[:MAX_SHOWN])}{more})" if kinds else ""
