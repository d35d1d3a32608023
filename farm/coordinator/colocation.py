"""How many sibling devices were busy while a cell was measured: dies of one package, or partitions of one device, share
memory, power and cooling.  Pure.

Events of a device arrive late, in bundles, and interleaved with those of others.  So the time of each event counts.
"""

from __future__ import annotations

from collections import deque
from math import inf

#: Leases of a device that are remembered after their end: a cell that began during one of them may be reported later.
REMEMBERED = 16


class Colocation:
    """A device counts as busy from the grant of a lease to its end.  `at`: seconds, by one clock."""

    def __init__(self) -> None:
        self._place: dict[str, tuple[str, str]] = {}  # device -> host, module
        self._busy: dict[
            str, deque[tuple[float, float]]
        ] = {}  # device -> begin and end of its leases; inf: in progress
        self._seen: dict[str, tuple[int, float]] = {}  # device -> the cell it measures, since when

    def placed(self, device: str, host: str, module: str) -> None:
        """Where a device is; `module` is "" if its siblings are not known."""
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
        """The number of busy siblings since the cell began on the device; None if its siblings are not known."""
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
