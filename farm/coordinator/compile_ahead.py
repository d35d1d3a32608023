"""Which kernels a device's host is to build before their cells come: those of its lease, then those that wait.  Pure.

A host has one cache for all of its devices, and another one for each arm: a cell is told once to each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from farm import providers
from farm.cell import Cell, Evidence
from farm.compile import planning
from farm.contracts.call import provider_of

#: Cells that one grant tells beyond those of its lease.
MOST_WAITING = 64

Providers = Callable[[Cell], Mapping[str, Mapping[str, Any]]]


class CellsAhead:
    """`providers_of`: of a cell, those that are not the farm's, by name, as `provider_of` takes them."""

    def __init__(self, cells: Sequence[Cell], providers_of: Providers):
        self._cells, self._providers_of = cells, providers_of
        self._next: dict[str, int] = defaultdict(int)  # host -> cells before this one were told
        self._told: dict[str, set[int]] = defaultdict(set)  # host -> cells

    def order(
        self, host: str, device: Mapping[str, Any], lease: Sequence[int], done: Collection[int]
    ) -> dict[str, Any] | None:
        """What the device's actor is told with a lease of these cells: {"target", "cells": arm -> cells as
        `farm.child.compile_ahead` takes them}; None for nothing.  `device`: what it has told of itself; `done`: cells
        that have a result."""
        backend = str(device.get("backend", ""))
        target = planning.ahead_target(backend, device.get("fingerprint") or {})
        if target is None or device.get("evidence") != Evidence.EXECUTED.value:
            return None
        told, arms = self._told[host], defaultdict[str, list[dict[str, Any]]](list)
        for index in [*lease, *self._waiting(host, backend, lease, done)]:
            if index not in told:
                told.add(index)
                job = self._job(self._cells[index])
                if job is not None:
                    arms[self._cells[index].arm].append(job)
        return {"target": target, "cells": dict(arms)} if arms else None

    def _waiting(self, host: str, backend: str, lease: Sequence[int], done: Collection[int]) -> list[int]:
        """The next cells of the plan that the host was not told of."""
        out: list[int] = []
        at = self._next[host]
        while at < len(self._cells) and len(out) < MOST_WAITING:
            if self._cells[at].backend == backend and at not in done and at not in lease:
                out.append(at)
            at += 1
        self._next[host] = at
        return out

    def _job(self, cell: Cell) -> dict[str, Any] | None:
        """None for a cell whose provider launches no kernels of Triton's, as far as the farm knows."""
        provider = provider_of(cell, self._providers_of(cell))
        if not provider.get("path") and not providers.of_triton(cell.provider):
            return None
        try:
            job = planning.told(cell, provider)
        except Exception:  # the contract's fault: the cell will say so
            return None
        return {"cell": job.pop("index"), **job}
