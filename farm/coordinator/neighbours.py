"""How many devices of a module were at work while a cell was measured: dies of one package, partitions of one device
share memory, power and cooling.  Pure.

What a device says comes in bundles, later than it was and between what others say; so it goes by when each thing was.
"""

from __future__ import annotations

from collections import deque
from math import inf

#: Grants of a device that are remembered after their end: a cell that began during one of them may be told of later.
REMEMBERED = 16


class Neighbours:
    """A device counts as at work from the grant of a lease to its end.  `at`: seconds, by one clock."""

    def __init__(self) -> None:
        self._place: dict[str, tuple[str, str]] = {}  # device -> host, module
        self._busy: dict[str, deque[tuple[float, float]]] = {}  # device -> begin and end of its leases; inf: going on
        self._seen: dict[str, tuple[int, float]] = {}  # device -> the cell it measures, since when

    def placed(self, device: str, host: str, module: str) -> None:
        """Where a device is; `module` is "" where its neighbours are not known."""
        self._place[device] = host, module

    def busy(self, device: str, at: float) -> None:
        leases = self._busy.setdefault(device, deque(maxlen=REMEMBERED))
        if not leases or leases[-1][1] != inf:
            leases.append((at, inf))

    def idle(self, device: str, at: float) -> None:
        leases = self._busy.get(device)
        if leases and leases[-1][1] == inf:
            leases[-1] = (leases[-1][0], at)
        self._seen.pop(device, None)

    def started(self, device: str, cell: int, at: float) -> None:
        self._seen[device] = cell, at

    def measured(self, device: str, cell: int, at: float) -> int | None:
        """Of a cell that began on the device; None where its neighbours are not known."""
        of, since = self._seen.pop(device, (-1, at))
        known = self._place.get(device, ("", ""))[1] != ""
        if not known or of != cell:
            return None
        return sum(
            any(begin <= at and end >= since for begin, end in leases)
            for other, leases in self._busy.items()
            if self._near(other, device)
        )

    def _near(self, one: str, other: str) -> bool:
        here = self._place.get(one)
        return one != other and here is not None and here[1] != "" and here == self._place.get(other)
