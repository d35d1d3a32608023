"""What waits for the devices of one backend: cells in groups, each group worked through by one device.  Pure.

Cells of a group share their inputs and most of their compiled kernels, so a device that keeps to a group loads both
once (docs/facts.md: two H200 that shared every group gained 1.6 times over one).  When every group that is left
belongs to somebody, an idle device takes from the far end of the largest: nobody waits while there is work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, islice

GROUPS_AHEAD = 4


class WorkQueue:
    """Cells in groups, in the order of `cells`; `seconds` of each are estimates."""

    def __init__(self, cells: Iterable[tuple[int, Hashable, float]]):
        self._seconds: dict[int, float] = {}
        self._groups: dict[Hashable, deque[int]] = {}
        for cell, group, seconds in cells:
            self._groups.setdefault(group, deque()).append(cell)
            self._seconds[cell] = seconds
        self._free: deque[Hashable] = deque(self._groups)
        self._mine: dict[str, Hashable] = {}  # device -> the group it works through
        self._again: deque[int] = deque()  # given back: taken first
        self._later: deque[int] = deque()  # failed: taken when no group is left
        self._alone: deque[int] = deque()  # to run alone and last: `pop_alone`
        self._waiting = len(self._seconds)
        self.seconds = sum(self._seconds.values())

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[int]:
        """All that wait, in no order."""
        yield from chain(self._again, self._later, self._alone, *self._groups.values())

    def pop(self, device: str) -> int | None:
        """The next cell for a device; None when nothing waits."""
        if self._again:
            return self._gone(self._again.popleft())
        group = self._mine.get(device)
        if group not in self._groups:
            group = self._claim(device)
        if group is not None:
            return self._gone(self._from(group, front=True))
        if not self._groups:
            return self._gone(self._later.popleft()) if self._later else None
        largest = max(self._groups, key=lambda g: len(self._groups[g]))
        return self._gone(self._from(largest, front=False))

    @property
    def ordinary(self) -> int:
        """How many wait that need not run alone."""
        return self._waiting - len(self._alone)

    def pop_alone(self) -> int | None:
        """The next cell that must run alone."""
        return self._gone(self._alone.popleft()) if self._alone else None

    def push(self, cell: int, *, later: bool = False, alone: bool = False) -> None:
        """Give a cell back.  It is taken before all others; `later`: after them; `alone`: by `pop_alone` only."""
        if alone:
            self._alone.append(cell)
        elif later:
            self._later.append(cell)
        else:
            self._again.appendleft(cell)
        self._waiting += 1
        self.seconds += self._seconds[cell]

    def release(self, device: str) -> None:
        """The device is gone or starts anew: its group is anybody's."""
        group = self._mine.pop(device, None)
        if group in self._groups:
            self._free.appendleft(group)

    def ahead(self, device: str) -> tuple[int, ...]:
        """One cell of each group that comes next: the device's own, then those that nobody has begun."""
        own = [g for g in (self._mine.get(device),) if g in self._groups]
        coming = [*own, *islice((g for g in self._free if g in self._groups), GROUPS_AHEAD)]
        return tuple(c for g in coming for c in self._samples(g))

    def _samples(self, group: Hashable) -> Iterator[int]:
        """The first and the last of a group: a forward's reference and a backward's are two."""
        cells = self._groups[group]
        yield cells[0]
        if len(cells) > 1:
            yield cells[-1]

    def _claim(self, device: str) -> Hashable | None:
        self._mine.pop(device, None)
        while self._free:
            group = self._free.popleft()
            if group in self._groups:
                self._mine[device] = group
                return group
        return None

    def _from(self, group: Hashable, *, front: bool) -> int:
        cells = self._groups[group]
        cell = cells.popleft() if front else cells.pop()
        if not cells:
            del self._groups[group]
        return cell

    def _gone(self, cell: int) -> int:
        self._waiting -= 1
        self.seconds = self.seconds - self._seconds[cell] if self._waiting else 0.0
        return cell
