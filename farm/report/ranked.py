"""Where a run's own cells are worst, as lists: below the roof, behind a peer, `auto` behind another mode of ours, near
the tolerance.  Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farm.report.format import number, percent, ratio, sig
from farm.report.night_series import Series
from farm.report.nights import against_peers
from farm.report.queries import extrapolated, is_subject, races, same_cell, speed_counts

Row = Mapping[str, Any]
LIMIT = 12
BELOW_ROOF, BEATEN, NEAR = 0.6, 1.05, 0.5
BEATEN_TITLE = "auto slower than another mode of ours"


class Entry(NamedTuple):
    """A cell of a list: its row, what is said of it, since which night it is so ("" where nights are not known), and
    the rows that it is held against, which are repeated with it."""

    row: Row
    text: str
    since: str = ""
    beside: tuple[Row, ...] = ()

    @property
    def whole(self) -> str:
        return f"{self.text}; {self.since}" if self.since else self.text


@dataclass(frozen=True)
class Ranking:
    """A list, worst first: its title, how many cells qualify, and the first of them."""

    title: str
    count: int
    entries: tuple[Entry, ...]
    short: str = ""  # after a number of cells, where a front page says it too

    @property
    def rows(self) -> list[Row]:
        """Those of its entries, and what they are held against."""
        return [row for e in self.entries for row in (e.row, *e.beside)]


def rankings(rows: Sequence[Row], limit: int = LIMIT, nights: Series | None = None) -> list[Ranking]:
    """The lists that are not empty.  `nights`: of which the newest has these rows."""
    found = (
        ("slower than the best peer", _behind(rows), "slower than the best peer"),
        (f"{BEATEN_TITLE}, by 5 % at least", _beaten(rows), "where auto is not our fastest mode"),
        ("below 60 % of the roof", _below(rows), ""),
        ("passed nearest the tolerance, at least half of it", _near(rows), ""),
    )
    out = []
    for title, of, short in found:
        first = [entry for _, entry in of[:limit]]
        if nights and title.startswith(BEATEN_TITLE):
            since = _since(nights, [e.row for e in first])
            first = [e._replace(since=text) for e, text in zip(first, since, strict=True)]
        if of:
            out.append(Ranking(title, len(of), tuple(first), short))
    return out


_Ranked = list[tuple[float, Entry]]


def _since(nights: Series, rows: Sequence[Row]) -> list[str]:
    """For each cell of mode `auto`: since which night another mode of its provider beats it, as far back as both have
    times.  A night in which auto is by less than half of the bound slower ends it."""
    wanted = {(same_cell(r), r.get("provider")) for r in rows}
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    at: dict[tuple[Any, ...], int] = {}
    for i, r in enumerate(nights.rows):
        if is_subject(r) and r.get("cell_id") and (key := (same_cell(r), r.get("provider"))) in wanted:
            if r.get("mode") == "auto":
                at[key] = i
            elif r.get("mode"):
                alike[key].append(i)
    out = []
    for r in rows:
        key = (same_cell(r), r.get("provider"))
        if key not in at or not alike[key]:
            out.append("")
            continue
        others = nights.x[alike[key]]
        best = np.where(np.isfinite(others), others, np.inf).min(axis=0)
        by = nights.x[at[key]] - best
        known = np.flatnonzero(np.isfinite(by))
        ended = np.flatnonzero(by[known] < math.log(BEATEN) / 2)
        streak = known[ended[-1] + 1 :] if len(ended) else known
        if not len(streak):
            out.append("")
        elif len(ended):
            out.append(f"since {nights.nights[streak[0]].created[:10]}")
        else:
            out.append(f"since {nights.nights[streak[0]].created[:10]} at least, the first night with both times")
    return out


def _sorted(found: _Ranked) -> _Ranked:
    return sorted(found, key=lambda f: (-f[0], str(f[1].row.get("cell_id"))))


def _behind(rows: Sequence[Row]) -> _Ranked:
    return _sorted([(by, Entry(r, f"{by:.2f}x the best peer's time")) for r, by in against_peers(rows) if by > 1.02])


def _beaten(rows: Sequence[Row]) -> _Ranked:
    best: dict[tuple[Any, ...], tuple[float, Row]] = {}
    for r in rows:
        if is_subject(r) and speed_counts(r) and r.get("mode") not in ("auto", "", None):
            key, time = (same_cell(r), r.get("provider")), float(r["time_us_p50"])
            if time < best.get(key, (math.inf, {}))[0]:
                best[key] = time, r
    out = []
    for r in rows:
        if is_subject(r) and races(r) and r.get("mode") == "auto":
            time, other = best.get((same_cell(r), r.get("provider")), (math.inf, {}))
            by = float(r["time_us_p50"]) / time
            if by >= BEATEN:
                ran = f", auto ran {r['mode_resolved']}" if r.get("mode_resolved") else ""
                text = f"{by:.2f}x the time of {other.get('mode')} ({sig(time)} µs){ran}"
                out.append((by, Entry(r, text, beside=(other,))))
    return _sorted(out)


def _below(rows: Sequence[Row]) -> _Ranked:
    out = []
    for r in rows:
        share = number(r.get("share_of_roof"))
        if is_subject(r) and races(r) and share is not None and share < BELOW_ROOF and not extrapolated(r):
            out.append((1 - share, Entry(r, f"{percent(share)} of the roof")))
    return _sorted(out)


def _near(rows: Sequence[Row]) -> _Ranked:
    out = []
    for r in rows:
        over = number(r.get("worst_ratio"))
        if is_subject(r) and r.get("status") == "passed" and over is not None and NEAR <= over <= 1:
            out.append((over, Entry(r, f"error {ratio(over)}x tolerance")))
    return _sorted(out)
