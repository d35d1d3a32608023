"""The nights of a matrix: what is new, fixed, still failing, slower and faster since when, per backend.  Pure.

A night is a complete run; all of them have the same plan, or at least the same matrices.  What is known of a cell is
two series over the nights: its status, and its time where that counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farm.compare import trend
from farm.report.findings import where
from farm.report.format import FARM_FAULTS, HARM
from farm.report.pairs import change
from farm.report.queries import extrapolated, is_subject, parse, races, same_cell, speed_counts

Row = Mapping[str, Any]
#: Columns that are needed of every night, and those of the newest one besides.
OUTCOME: tuple[str, ...] = ("run", "cell_key", "named", "backend", "target", "role", "status", "evidence")
OUTCOME += ("time_us_p50", "timing_method", "timing_quality", "device")
NEWEST: tuple[str, ...] = (
    "cell_id",
    "matrix",
    "op",
    "provider",
    "mode",
    "mode_resolved",
    "operation",
    "dtype",
    "shape",
)
NEWEST += ("dims", "params", "index", "reason", "worst_ratio", "time_us_p20", "time_us_p80", "share_of_roof", "flags")
NEWEST += ("node", "sm_clock_mhz", "temperature_c", "power_w", "bandwidth_gbps", "tflops", "operations", "bytes_moved")
QUIET = ("ok", "launch_bound")
GOOD = ("passed", "built")
SHOWN = 40


@dataclass(frozen=True)
class Night:
    """A run: its id, when it was made, its revision."""

    id: str
    created: str
    revision: str


@dataclass(frozen=True)
class News:
    """Cells of one backend, op, provider and mode for which the same holds since the same night.

    kind: new, fixed, failing, slower, faster; since: the first night of it (of fixed: the newest night); before: the
    night before that in which the cell had a result; sure: of times, whether two nights show it; by: the median ratio.
    """

    kind: str
    backend: str
    target: str
    op: str
    provider: str
    mode: str
    status: str
    rows: tuple[Row, ...]  # of the newest night
    of: int
    where: tuple[str, ...]
    since: Night
    before: Night | None
    by: float | None = None
    sure: bool = True
    with_it: tuple[str, ...] = ()  # what else changed between the two nights: `driver 575 -> 580`

    @property
    def word(self) -> str:
        """`regression`, `suspected slower`, ..."""
        if self.kind == "slower":
            return "regression" if self.sure else "suspected slower"
        if self.kind == "faster":
            return "improvement" if self.sure else "suspected faster"
        return {"new": "new failure", "failing": "still failing", "fixed": "fixed"}[self.kind]

    @property
    def simulated(self) -> bool:
        return any(r.get("evidence") == "simulated" for r in self.rows)

    def to_dict(self) -> dict[str, Any]:
        names = ("kind", "word", "backend", "target", "op", "provider", "mode", "status", "of", "by", "sure")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        cells = [str(r.get("cell_id")) for r in self.rows]
        return out | {
            "cells": cells[:SHOWN],
            "count": len(cells),
            "where": list(self.where),
            "since": self.since.id,
            "since_created": self.since.created,
            "range": [self.before.revision if self.before else "", self.since.revision],
            "changed_with_it": list(self.with_it),
            "simulated": self.simulated,
        }


class _Told(NamedTuple):
    """What is to be told of one cell, by numbers of nights; `before` is -1 without an earlier result."""

    kind: str
    status: str
    since: int
    before: int
    sure: bool = True


class Nights:
    """Series of every cell over some nights.

    nights: oldest first; rows: every cell's newest row; status: (cells, nights) texts, "" without a row; x: (cells,
    nights) ln of the time in microseconds, NaN where none counts; device: (cells, nights) numbers, -1 without;
    tools: night -> backend -> name -> versions.
    """

    def __init__(
        self, nights: Sequence[Night], rows: Sequence[Row], tools: Mapping[str, Mapping[str, Mapping[str, str]]] = {}
    ):
        """`rows`: of all nights, with OUTCOME; those of the newest night also with NEWEST."""
        self.nights, self.tools = tuple(nights), tools
        column = {n.id: i for i, n in enumerate(nights)}
        cells: dict[tuple[str, str, str], int] = {}
        newest: list[Row] = []
        seen: list[int] = []
        kept: list[tuple[int, int, Row]] = []  # cell, night, row
        for row in rows:
            night = column.get(row["run"], -1)
            if night < 0:
                continue
            key = (row["cell_key"], row["named"], row["target"] if row["evidence"] else "")
            at = cells.setdefault(key, len(cells))
            kept.append((at, night, row))
            if at == len(newest):
                newest.append(row)
                seen.append(night)
            elif night >= seen[at]:
                newest[at], seen[at] = row, night
        self.rows = newest
        shape = (len(newest), len(nights))
        self.status: NDArray[Any] = np.full(shape, "", dtype=object)
        self.x = np.full(shape, np.nan)
        self.device = np.full(shape, -1)
        self.devices: dict[tuple[str, str], int] = {}
        for at, night, row in kept:
            self.status[at, night] = row["status"]
            if row["evidence"]:
                name = (str(row["target"]), str(row["device"]))
                self.device[at, night] = self.devices.setdefault(name, len(self.devices))
            time = row["time_us_p50"]
            like = row["timing_method"] == newest[at]["timing_method"]
            if row["status"] == "passed" and row["timing_quality"] in QUIET and time and time > 0 and like:
                self.x[at, night] = math.log(time)

    @property
    def last(self) -> int:
        return len(self.nights) - 1

    @cached_property
    def control(self) -> NDArray[np.bool_]:
        """Peers' cells: their code did not change with ours."""
        return np.array([not is_subject(r) for r in self.rows], dtype=bool)

    @cached_property
    def shared(self) -> NDArray[np.float64]:
        """What the cells of a device share, (cells, nights)."""
        return trend.environment(self.x, self.device, self.control)

    @cached_property
    def steps(self) -> trend.Steps:
        return trend.steps(self.x - self.shared)

    @cached_property
    def bad(self) -> NDArray[np.bool_]:
        return np.isin(self.status, HARM)

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        return np.isin(self.status, GOOD)

    @cached_property
    def silent(self) -> dict[str, Night]:
        """Backends that had results in an earlier night and have none in the newest one -> their last night."""
        some = self.bad | self.good
        out: dict[str, int] = {}
        for at, row in enumerate(self.rows):
            nights = np.flatnonzero(some[at])
            if len(nights):
                out[str(row["backend"])] = max(out.get(str(row["backend"]), -1), int(nights[-1]))
        return {backend: self.nights[night] for backend, night in out.items() if night < self.last}

    @cached_property
    def news(self) -> list[News]:
        """New first, then slower, still failing, faster, fixed; of subjects alone."""
        groups: dict[tuple[_Told, tuple[str, ...]], list[int]] = defaultdict(list)
        alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for at, row in enumerate(self.rows):
            place = tuple(str(row.get(n) or "") for n in ("backend", "target", "op", "provider", "mode"))
            alike[place].append(row)
            if is_subject(row) and (told := self._of(at)):
                groups[told, place].append(at)
        out = []
        for (told, place), members in groups.items():
            rows = tuple(self.rows[at] for at in members)
            timed = told.kind in ("slower", "faster")
            out.append(
                News(
                    kind=told.kind,
                    backend=place[0],
                    target=place[1],
                    op=place[2],
                    provider=place[3],
                    mode=place[4],
                    status=told.status,
                    rows=rows,
                    of=len(alike[place]),
                    where=where(rows, alike[place]),
                    since=self.nights[told.since],
                    before=self.nights[told.before] if told.before >= 0 else None,
                    by=math.exp(float(np.median(self.steps.size[members]))) if timed else None,
                    sure=told.sure,
                    with_it=self._changes(place[0], told.since, told.before) if told.kind != "fixed" else (),
                )
            )
        order = ("new", "slower", "failing", "faster", "fixed")
        return sorted(out, key=lambda n: (order.index(n.kind), n.simulated, _reverse(n.since.created), -len(n.rows)))

    def _of(self, at: int) -> _Told | None:
        """What is to be told of a cell in the newest night; None if it is nothing."""
        result = np.flatnonzero(self.bad[at] | self.good[at])
        if not len(result) or result[-1] != self.last:
            return None
        if self.bad[at, self.last]:
            streak = len(result) - 1
            while streak and self.bad[at, result[streak - 1]]:
                streak -= 1
            since, before = int(result[streak]), int(result[streak - 1]) if streak else -1
            kind = "new" if since == self.last else "failing"
            return _Told(kind, str(self.status[at, self.last]), since, before)
        if len(result) > 1 and self.bad[at, result[-2]]:
            return _Told("fixed", str(self.status[at, result[-2]]), self.last, int(result[-2]))
        step = int(self.steps.at[at])
        if step < 0:
            return None
        earlier = np.flatnonzero(np.isfinite(self.x[at, :step]))
        kind = "slower" if self.steps.size[at] > 0 else "faster"
        return _Told(kind, "", step, int(earlier[-1]), not bool(self.steps.suspected[at]))

    def _changes(self, backend: str, since: int, before: int) -> tuple[str, ...]:
        """What else changed for a backend between two nights."""
        if before < 0:
            return ()
        a, b = self.nights[before], self.nights[since]
        had, has = (self.tools.get(n.id, {}).get(backend, {}) for n in (a, b))
        out = [f"{n} {had[n]} → {has[n]}" for n in sorted(had.keys() & has.keys()) if had[n] != has[n]]
        return (*((f"revision {a.revision[:10]}..{b.revision[:10]}",) if a.revision != b.revision else ()), *out)

    def failing(self, backend: str) -> list[int]:
        """Failing cells of a backend's subjects per night; -1 where the backend has no result."""
        mine = np.array([r["backend"] == backend for r in self.rows], dtype=bool)
        some = ((self.bad | self.good) & mine[:, None]).any(axis=0)
        bad = (self.bad & (mine & ~self.control)[:, None]).sum(axis=0)
        return [int(n) if known else -1 for n, known in zip(bad, some)]

    def pace(self, backend: str) -> list[float | None]:
        """Per night: the median, over a backend's subjects, of their time relative to their own median."""
        mine = np.array([r["backend"] == backend for r in self.rows], dtype=bool) & ~self.control
        away = self.x[mine] - trend.median(self.x[mine])[:, None]
        found = trend.median(away.T) if mine.any() else np.full(len(self.nights), np.nan)
        return [math.exp(v) if math.isfinite(v) else None for v in found]


def _reverse(text: str) -> tuple[int, ...]:
    return tuple(-ord(c) for c in text)


@dataclass(frozen=True)
class Standing:
    """A backend in the newest night: what is new, how near to the roof and to the best peer its `auto` cells are."""

    backend: str
    targets: tuple[str, ...]
    counts: dict[str, int]  # kind of news -> cells
    share: float | None
    ratio: float | None  # geometric mean of our time / the best peer's
    wins: int
    races: int
    failing: tuple[int, ...]
    pace: tuple[float | None, ...]
    simulated: bool
    faults: int
    throttled: int

    @property
    def bad(self) -> bool:
        return bool(self.counts.get("new") or self.counts.get("slower") or self.faults)


def standings(found: Nights) -> list[Standing]:
    """Every backend that has results in the newest night."""
    out = []
    last = [r for at, r in enumerate(found.rows) if found.status[at, found.last]]
    for backend in dict.fromkeys(str(r["backend"]) for r in last):
        rows = [r for r in last if r["backend"] == backend and r["run"] == found.nights[-1].id]
        told: Counter[str] = Counter()
        for news in found.news:
            told[news.kind] += len(news.rows) if news.backend == backend else 0
        ratios = [ratio for _, ratio in against_peers(rows)]
        shares = [float(r["share_of_roof"]) for r in rows if is_subject(r) and races(r) and _share(r)]
        out.append(
            Standing(
                backend,
                tuple(dict.fromkeys(str(r["target"]) for r in rows if r["evidence"])),
                {kind: n for kind, n in told.items() if n},
                float(np.median(shares)) if shares else None,
                geometric_mean(ratios) if ratios else None,
                sum(r < 1 for r in ratios),
                len(ratios),
                tuple(found.failing(backend)),
                tuple(found.pace(backend)),
                any(r["evidence"] == "simulated" for r in rows),
                sum(r["status"] in FARM_FAULTS for r in rows),
                sum(r["timing_quality"] == "throttled" for r in rows),
            )
        )
    return out


def _share(row: Row) -> bool:
    value = row.get("share_of_roof")
    return value is not None and not math.isnan(value) and not extrapolated(row)


def against_peers(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """(subject's row, its time / the best peer's) for each cell where the subject races and a peer has a speed, in
    whichever of its modes."""
    best: dict[tuple[str, ...], float] = {}
    for r in rows:
        if not is_subject(r) and speed_counts(r) and float(r["time_us_p50"]) > 0:
            cell = same_cell(r)
            best[cell] = min(best.get(cell, math.inf), float(r["time_us_p50"]))
    mine = [(r, same_cell(r)) for r in rows if is_subject(r) and races(r)]
    return [(r, float(r["time_us_p50"]) / best[cell]) for r, cell in mine if cell in best]


def line(news: News) -> str:
    """`regression +16 % since 2026-10-10: rms_norm farm/auto; operation backward; 8 of 32 cells`."""
    name = f"{news.op} {news.provider}" + (f"/{news.mode}" if news.mode else "")
    by = f" {change(news.by)}" if news.by is not None else ""
    parts = [name, *news.where, f"{len(news.rows)} of {news.of} cells", *news.with_it]
    return f"{news.word}{by}: {'; '.join(parts)}"


def tools(fingerprints: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """(run, backend, fingerprint's JSON) -> run -> backend -> name -> its versions, without what names one device."""
    found: dict[str, dict[str, dict[str, dict[str, None]]]] = {}
    for run, backend, text in fingerprints:
        for name, value in parse(text).items():
            if isinstance(value, str | int | float) and name not in ("uuid", "node", "pid", "pci"):
                names = found.setdefault(run, {}).setdefault(backend, {})
                names.setdefault(str(name), {})[str(value)] = None
    return {
        run: {b: {n: ", ".join(sorted(v)) for n, v in names.items()} for b, names in of.items()}
        for run, of in found.items()
    }
