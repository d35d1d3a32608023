"""Where a run's own cells are worst, as lists: below the roof, behind a peer, `auto` behind another mode of ours, near
the tolerance.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.format import number, percent, ratio, sig
from farm.report.nights import against_peers
from farm.report.queries import extrapolated, is_subject, races, same_cell, speed_counts

Row = Mapping[str, Any]
LIMIT = 12
BELOW_ROOF, BEATEN, NEAR = 0.6, 1.05, 0.5


@dataclass(frozen=True)
class Ranking:
    """A list, worst first: its title, how many cells qualify, and (row, what is said of it) of the first."""

    title: str
    count: int
    entries: tuple[tuple[Row, str], ...]
    short: str = ""  # after a number of cells, where a front page says it too


def rankings(rows: Sequence[Row], limit: int = LIMIT) -> list[Ranking]:
    """The lists that are not empty."""
    found = (
        ("slower than the best peer", _behind(rows), "slower than the best peer"),
        ("auto slower than another mode of ours, by 5 % at least", _beaten(rows), "where auto is not our fastest mode"),
        ("below 60 % of the roof", _below(rows), ""),
        ("passed nearest the tolerance, at least half of it", _near(rows), ""),
    )
    return [
        Ranking(title, len(of), tuple((r, text) for _, r, text in of[:limit]), short)
        for title, of, short in found
        if of
    ]


_Ranked = list[tuple[float, Row, str]]


def _sorted(found: _Ranked) -> _Ranked:
    return sorted(found, key=lambda f: (-f[0], str(f[1].get("cell_id"))))


def _behind(rows: Sequence[Row]) -> _Ranked:
    return _sorted([(by, r, f"{by:.2f}x the best peer's time") for r, by in against_peers(rows) if by > 1.02])


def _beaten(rows: Sequence[Row]) -> _Ranked:
    best: dict[tuple[Any, ...], tuple[float, str]] = {}
    for r in rows:
        if is_subject(r) and speed_counts(r) and r.get("mode") not in ("auto", "", None):
            key, time = (same_cell(r), r.get("provider")), float(r["time_us_p50"])
            if time < best.get(key, (math.inf, ""))[0]:
                best[key] = time, str(r.get("mode"))
    out = []
    for r in rows:
        if is_subject(r) and races(r) and r.get("mode") == "auto":
            time, mode = best.get((same_cell(r), r.get("provider")), (math.inf, ""))
            by = float(r["time_us_p50"]) / time
            if by >= BEATEN:
                ran = f", auto ran {r['mode_resolved']}" if r.get("mode_resolved") else ""
                out.append((by, r, f"{by:.2f}x the time of {mode} ({sig(time)} µs){ran}"))
    return _sorted(out)


def _below(rows: Sequence[Row]) -> _Ranked:
    out = []
    for r in rows:
        share = number(r.get("share_of_roof"))
        if is_subject(r) and races(r) and share is not None and share < BELOW_ROOF and not extrapolated(r):
            out.append((1 - share, r, f"{percent(share)} of the roof"))
    return _sorted(out)


def _near(rows: Sequence[Row]) -> _Ranked:
    out = []
    for r in rows:
        over = number(r.get("worst_ratio"))
        if is_subject(r) and r.get("status") == "passed" and over is not None and NEAR <= over <= 1:
            out.append((over, r, f"error {ratio(over)}x tolerance"))
    return _sorted(out)
