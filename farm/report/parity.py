"""One op on several vendors' devices side by side: the share of each one's own roof, error, mode, and where statuses
differ.  Pure.

Speeds of unlike devices say little beside each other; what each reaches of its own roof does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from farm.report.format import HARM, number, short_dtype
from farm.report.nights import against_peers
from farm.report.queries import extrapolated, is_subject, own_rest, races, speed_counts

Row = Mapping[str, Any]
#: Kinds of evidence of a device that played its part in a comparison; what was only compiled has no status of a device.
RAN = ("executed", "interpreted", "simulated")
ORDER = ("cuda", "rocm", "ascend", "cpu", "sim")
#: Shares of the roof so far apart are listed.
APART = 0.15
MOST = 400


@dataclass(frozen=True)
class Place:
    """A column: a backend's target; `seen`: the night of its results, "" for the newest one."""

    backend: str
    target: str
    simulated: bool = False
    seen: str = ""


@dataclass(frozen=True)
class Entry:
    """A cell on one target.  share: of the roof, None if unknown or extrapolated; error: relative to the tolerance; by:
    its time / the best peer's."""

    status: str
    share: float | None
    error: float | None
    ran: str
    time_us: float | None
    by: float | None
    row: Row

    def to_dict(self) -> dict[str, Any]:
        out = {n: getattr(self, n) for n in ("status", "share", "error", "ran", "time_us")}
        return {**out, "ratio_to_best_peer": self.by, "cell": str(self.row.get("cell_id"))}


@dataclass(frozen=True)
class Line:
    """The same cell on each of the places; None where it is not planned."""

    provider: str
    mode: str
    operation: str
    dtype: str
    shape: str
    rest: str
    entries: tuple[Entry | None, ...]

    @property
    def name(self) -> str:
        """`farm/auto`"""
        return f"{self.provider}/{self.mode}" if self.mode else self.provider

    @property
    def differs(self) -> bool:
        """Whether it passes on one and fails, or is not possible, on another."""
        statuses = {e.status for e in self.entries if e and e.status != "skipped"}
        return len(statuses) > 1

    @property
    def apart(self) -> float:
        """How far apart its shares of the roof are."""
        shares = [e.share for e in self.entries if e and e.share is not None]
        return max(shares) - min(shares) if len(shares) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        names = ("provider", "mode", "operation", "dtype", "shape", "rest", "differs")
        out = {n: getattr(self, n) for n in names}
        return {**out, "on": [e.to_dict() if e else None for e in self.entries]}


@dataclass(frozen=True)
class Summary:
    """`auto` cells of one provider, operation and dtype on one place."""

    cells: int
    passed: int
    failed: int
    share: float | None  # median share of the roof
    by: float | None  # geometric mean of the time / the best peer's
    wins: int
    races: int
    error: float | None  # worst, relative to the tolerance
    modes: tuple[tuple[str, int], ...]  # what `auto` ran, most often first


@dataclass(frozen=True)
class Parity:
    """An op on several places.  lines: every cell of subjects; summaries: (provider, operation, dtype) -> per place."""

    op: str
    places: tuple[Place, ...]
    lines: tuple[Line, ...]
    summaries: Mapping[tuple[str, str, str], tuple[Summary | None, ...]]

    @property
    def differ(self) -> list[Line]:
        """Where the status differs: failures first, then what one of them does not support."""
        found = [line for line in self.lines if line.differs]
        return sorted(found, key=lambda line: (not _harmed(line), line.mode not in ("auto", ""), _name(line)))

    @property
    def apart(self) -> list[Line]:
        """`auto` cells of which one device reaches much more of its roof than another, farthest apart first."""
        found = [x for x in self.lines if x.mode in ("auto", "") and x.apart >= APART]
        return sorted(found, key=lambda x: (-x.apart, _name(x)))

    @property
    def simulated(self) -> bool:
        return any(p.simulated for p in self.places)


def _harmed(line: Line) -> bool:
    return any(e is not None and e.status in HARM for e in line.entries)


def _name(line: Line) -> tuple[str, ...]:
    return line.provider, line.mode, line.operation, line.dtype, line.shape, line.rest


def ops(rows: Iterable[Row]) -> list[str]:
    """The ops that ran on at least two targets."""
    found: dict[str, set[str]] = defaultdict(set)
    for r in rows:
        if r.get("evidence") in RAN and r.get("target"):
            found[str(r["op"])].add(str(r["target"]))
    return sorted(op for op, targets in found.items() if len(targets) > 1)


def parity(rows: Sequence[Row], op: str, seen: Mapping[str, str] = {}) -> Parity:
    """An op on every target that has rows of it.  `seen`: backend or target -> the night of its rows,
    where not the newest."""
    mine = [r for r in rows if r.get("op") == op]
    targets = dict.fromkeys((str(r["backend"]), str(r["target"])) for r in mine if r.get("evidence") in RAN)
    order = sorted(targets, key=lambda t: (ORDER.index(t[0]) if t[0] in ORDER else len(ORDER), t))
    alone = Counter(backend for backend, _ in order)
    fake = {r.get("target") for r in mine if r.get("evidence") == "simulated"}
    places = tuple(Place(b, t, t in fake, seen.get(b, seen.get(t, ""))) for b, t in order)
    column = {t: i for i, t in enumerate(order)}
    only = {b: (b, t) for b, t in order if alone[b] == 1}
    by = {id(r): ratio for r, ratio in against_peers(mine)}
    found: dict[tuple[str, ...], list[Entry | None]] = {}
    for r in mine:
        if not is_subject(r) or r.get("evidence") == "compiled":
            continue
        # a cell that never began has no target
        where = (str(r["backend"]), str(r["target"])) if r.get("target") else only.get(str(r["backend"]))
        if where not in column:
            continue
        names = tuple(str(r.get(n) or "") for n in ("provider", "mode", "operation", "dtype", "shape"))
        line = found.setdefault((*names, own_rest(r)), [None] * len(order))
        line[column[where]] = _entry(r, by.get(id(r)))
    fields = ("provider", "mode", "operation", "dtype", "shape", "rest")
    lines = tuple(Line(**dict(zip(fields, key)), entries=tuple(entries)) for key, entries in found.items())
    return Parity(op, places, lines, _summaries(lines, len(order)))


def _entry(r: Row, by: float | None) -> Entry:
    timed = speed_counts(r)
    share = number(r.get("share_of_roof")) if timed and not extrapolated(r) else None
    time = number(r.get("time_us_p50")) if timed else None
    return Entry(
        str(r.get("status")), share, number(r.get("worst_ratio")), str(r.get("mode_resolved") or ""), time, by, r
    )


def _summaries(lines: Sequence[Line], places: int) -> dict[tuple[str, str, str], tuple[Summary | None, ...]]:
    groups: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.mode in ("auto", ""):
            groups[line.provider, line.operation, line.dtype].append(line)
    return {
        key: tuple(_summary([e for line in of if (e := line.entries[i])]) for i in range(places))
        for key, of in sorted(groups.items())
    }


def _summary(entries: Sequence[Entry]) -> Summary | None:
    if not entries:
        return None
    shares = [e.share for e in entries if e.share is not None and races(e.row)]
    ratios = [e.by for e in entries if e.by is not None]
    errors = [e.error for e in entries if e.error is not None]
    modes = Counter(e.ran for e in entries if e.ran)
    return Summary(
        len(entries),
        sum(e.status == "passed" for e in entries),
        sum(e.status in HARM for e in entries),
        median(shares) if shares else None,
        geometric_mean(ratios) if ratios else None,
        sum(r < 1 for r in ratios),
        len(ratios),
        max(errors, default=None),
        tuple(modes.most_common(3)),
    )


def sentence(found: Parity) -> str:
    """`rms_norm on 3 targets: 4 of 96 cells differ in status; 8 auto cells are 15 % of the roof apart`"""
    both = [x for x in found.lines if sum(e is not None for e in x.entries) > 1]
    out = f"{found.op} on {len(found.places)} targets: "
    out += f"{len(found.differ):,} of {len(both):,} cells differ in status"
    if found.apart:
        out += f"; {len(found.apart):,} auto cell{'s' if len(found.apart) > 1 else ''} at least 15 % of the roof apart"
    return out


def to_dict(found: Parity) -> dict[str, Any]:
    """As data; at most MOST lines, those that differ first."""
    shown = list({id(x): x for x in (*found.differ, *found.apart, *found.lines)}.values())[:MOST]
    return {
        "op": found.op,
        "summary": sentence(found),
        "simulated": found.simulated,
        "places": [vars(p) for p in found.places],
        "differ_in_status": len(found.differ),
        "summaries": [
            {"provider": p, "operation": o, "dtype": short_dtype(d), "on": [vars(s) if s else None for s in of]}
            for (p, o, d), of in found.summaries.items()
        ],
        "cells": [x.to_dict() for x in shown],
        "left_out": max(0, len(found.lines) - len(shown)),
    }
