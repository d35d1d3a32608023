"""What drifts over the nights, as a page and the terminal show it: groups of cells, and devices.  Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.compare import drift, trend
from farm.report.findings import where
from farm.report.format import cells
from farm.report.night_series import Night, Series
from farm.report.pairs import span

Row = Mapping[str, Any]
OURS, PEER, HOST = "ours", "a peer's", "the host's or a device's"


@dataclass(frozen=True)
class Drift:
    """Cells of one backend, op, provider and mode that became slower or faster little by little; or, of a HOST,
    what all cells of devices share.  It accuses nobody.

    whose: OURS, PEER or HOST; what: `rms_norm torch/auto`, or the devices; rows: of the newest night, none of a HOST;
    of: cells alike; least, most: ratios of the newest level to the oldest; since: the night in which it began, nearly;
    nights: from then to the newest.
    """

    whose: str
    backend: str
    target: str
    what: str
    rows: tuple[Row, ...]
    of: int
    where: tuple[str, ...]
    least: float
    most: float
    since: Night
    nights: int

    @property
    def slower(self) -> bool:
        return self.most > 1

    @property
    def by(self) -> str:
        """`+8 % to +11 %`, the smaller change first."""
        ends = sorted((self.least, self.most), key=lambda r: abs(r - 1))
        return span(*ends)

    @property
    def a_night(self) -> float:
        """The log ratio of one night, in the middle of the group."""
        return (math.log(self.least) + math.log(self.most)) / 2 / max(1, self.nights)

    @property
    def text(self) -> str:
        """`drift +7.6 % to +8.4 % over 21 nights, about +0.4 % a night: rms_norm torch/auto (a peer's); ...`"""
        count = (f"{len(self.rows)} of {cells(self.of)}",) if self.rows else ()
        parts = [f"{self.what} on {self.target or self.backend} ({self.whose})", *self.where, *count]
        slope = f"about {100 * math.expm1(self.a_night):+.1f} % a night"
        return f"drift {self.by} over {self.nights} nights, {slope}: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        names = ("whose", "backend", "target", "what", "of", "least", "most", "nights", "text")
        out = {name: getattr(self, name) for name in names}
        named = [str(r.get("cell_id")) for r in self.rows]
        return out | {"since": self.since.id, "where": list(self.where), "cells": named[:40], "count": len(named)}


def drifts(found: Series) -> list[Drift]:
    """Slower before faster; ours before those of peers and hosts."""
    out = [*_of_cells(found), *_of_devices(found)]
    order = (OURS, PEER, HOST)
    return sorted(out, key=lambda d: (order.index(d.whose), not d.slower, -len(d.rows), d.target, d.what))


def _of_cells(found: Series) -> list[Drift]:
    some = found.drifts
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, r in enumerate(found.rows):
        if found.status[at, found.last]:
            alike[tuple(str(r.get(n) or "") for n in ("backend", "target", "op", "provider", "mode"))].append(at)
    out = []
    for (backend, target, op, provider, mode), members in alike.items():
        for slower in (True, False):
            mine = [at for at in members if some.since[at] >= 0 and (some.size[at] > 0) == slower]
            if not mine:
                continue
            rows = [found.rows[at] for at in mine]
            began = int(np.median(some.since[mine]))
            out.append(
                Drift(
                    PEER if found.control[mine[0]] else OURS,
                    backend,
                    target,
                    f"{op} {provider}" + (f"/{mode}" if mode else ""),
                    tuple(rows),
                    len(members),
                    where(rows, [found.rows[at] for at in members]),
                    math.exp(float(some.size[mine].min())),
                    math.exp(float(some.size[mine].max())),
                    found.nights[began],
                    found.last - began,
                )
            )
    return out


def _of_devices(found: Series) -> list[Drift]:
    """Devices whose cells drift together."""
    if not found.shifts.size:
        return []
    some = drift.drifts(found.shifts, trend.steps(found.shifts))
    together: dict[tuple[str, bool], list[tuple[str, int]]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for (target, name), number in found.devices.items():
        if number < len(found.shifts) and np.isfinite(found.shifts[number]).any():
            count[target] += 1
            if some.since[number] >= 0:
                together[target, bool(some.size[number] > 0)].append((name, number))
    out = []
    for (target, _), those in together.items():
        numbers = [number for _, number in those]
        everywhere = len(those) == count[target]
        what = "all devices" if everywhere and len(those) > 1 else ", ".join(sorted(name for name, _ in those))
        least, most = (math.exp(float(f(some.size[numbers]))) for f in (np.min, np.max))
        began = int(np.median(some.since[numbers]))
        nights = found.last - began
        backend = target.partition(":")[0]
        out.append(Drift(HOST, backend, target, what, (), 0, (), least, most, found.nights[began], nights))
    return out


def sentence(found: Sequence[Drift]) -> str:
    """`8 cells drift (+8 %, a peer's)`; "" without any."""
    parts = []
    for whose in (OURS, PEER, HOST):
        mine = [d for d in found if d.whose == whose]
        if mine:
            largest = max(mine, key=lambda d: len(d.rows))
            count = sum(len(d.rows) for d in mine)
            what = f"{cells(count)} drift{'s' if count == 1 else ''}" if count else f"{largest.what} drift"
            parts.append(f"{what} ({largest.by}{'' if whose == OURS else ', ' + whose})")
    return " · ".join(parts)
