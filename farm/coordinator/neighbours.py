"""How many devices of a module were at work while a cell was measured: dies of one package, partitions of one device
share memory, power and cooling.  Pure."""

from __future__ import annotations


class Neighbours:
    """A device counts as at work from the grant of a lease to its end."""

    def __init__(self) -> None:
        self._place: dict[str, tuple[str, str]] = {}  # device -> host, module
        self._busy: set[str] = set()
        self._seen: dict[str, tuple[int, set[str]]] = {}  # device -> the cell it measures, who was at work since

    def placed(self, device: str, host: str, module: str) -> None:
        """Where a device is; `module` is "" where its neighbours are not known."""
        self._place[device] = host, module

    def busy(self, device: str) -> None:
        self._busy.add(device)
        for other, (_, seen) in self._seen.items():
            if self._near(device, other):
                seen.add(device)

    def idle(self, device: str) -> None:
        self._busy.discard(device)
        self._seen.pop(device, None)

    def started(self, device: str, cell: int) -> None:
        self._seen[device] = cell, {other for other in self._busy if self._near(other, device)}

    def measured(self, device: str, cell: int) -> int | None:
        """Of a cell that began on the device; None where its neighbours are not known."""
        of, seen = self._seen.pop(device, (-1, set()))
        known = self._place.get(device, ("", ""))[1] != ""
        return len(seen) if known and of == cell else None

    def _near(self, one: str, other: str) -> bool:
        here = self._place.get(one)
        return one != other and here is not None and here[1] != "" and here == self._place.get(other)
