"""The cells of two arms side by side, as a page and the terminal show them: plain values.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from farm.report.findings import where
from farm.report.format import cells

Row = Mapping[str, Any]
SLOWER, FASTER, SAME, NOISY = "slower", "faster", "within noise", "too noisy to say"


@dataclass(frozen=True)
class Pair:
    """A cell of arms A and B.

    row: its columns, of B where B planned it; before, after: its status, "" where the arm did not plan it; change: a
    kind of `status_changes.CHANGES`; time: SLOWER, FASTER, SAME, NOISY, or "" where its times are not compared; a_us,
    b_us: medians in microseconds; a_gbps, b_gbps: bandwidths; ratio: b/a with its bounds; note: what the cell of a
    table says of it beyond that; more: what else differs, as short phrases.
    """

    row: Row
    before: str
    after: str
    change: str
    time: str = ""
    a_us: float | None = None
    b_us: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    a_gbps: float | None = None
    b_gbps: float | None = None
    more: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        kept = {name: self.row.get(name) for name in ("cell_id", "cell_key", "target", "role")}
        times = ("a_us", "b_us", "a_gbps", "b_gbps", "ratio", "low", "high")
        names = ("before", "after", "change", "time", *times, "note")
        return kept | {name: getattr(self, name) for name in names} | ({"more": list(self.more)} if self.more else {})


@dataclass(frozen=True)
class Moved:
    """Cells of one backend, op, provider and mode that moved the same way."""

    time: str
    backend: str
    op: str
    provider: str
    mode: str
    pairs: tuple[Pair, ...]  # the largest change first
    of: int  # timed pairs alike
    where: tuple[str, ...]  # what sets them apart

    @property
    def ratios(self) -> tuple[float, float, float]:
        """(least, median, most)"""
        found = [p.ratio for p in self.pairs if p.ratio is not None]
        return min(found), median(found), max(found)


def counts(pairs: Sequence[Pair]) -> dict[str, int]:
    """What the times say -> cells."""
    found = Counter(p.time for p in pairs if p.time)
    return {name: found[name] for name in (SLOWER, FASTER, SAME, NOISY) if found[name]}


def moved(pairs: Sequence[Pair]) -> list[Moved]:
    """Slower and faster cells by what they share; slower first, then by how many there are."""
    timed: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for p in pairs:
        if p.time:
            timed[tuple(str(p.row.get(n) or "") for n in ("backend", "op", "provider", "mode"))].append(p)
    out = []
    for names, alike in timed.items():
        for time in (SLOWER, FASTER):
            mine = sorted((p for p in alike if p.time == time), key=lambda p: -abs((p.ratio or 1.0) - 1.0))
            if mine:
                pattern = where([p.row for p in mine], [p.row for p in alike])
                backend, op, provider, mode = names
                out.append(Moved(time, backend, op, provider, mode, tuple(mine), len(alike), pattern))
    return sorted(out, key=lambda m: (m.time != SLOWER, -len(m.pairs), -abs(m.ratios[1] - 1)))


def suspected_parts(pairs: Sequence[Pair]) -> list[str]:
    """`8 cells slower, +15 % to +17 %, suspected in this pair` of two runs that were not made in turn."""
    out = []
    for time in (SLOWER, FASTER):
        if found := [p.ratio for p in pairs if p.time == time and p.ratio is not None]:
            out.append(f"{cells(len(found))} {time}, {span(min(found), max(found))}, suspected in this pair")
    return out


def span(least: float, most: float) -> str:
    """`+15 % to +17 %`."""
    return change(least) if change(least) == change(most) else f"{change(least)} to {change(most)}"


def change(ratio: float) -> str:
    """`+16 %`, `-3.1 %`."""
    by = 100 * (ratio - 1)
    return f"{by:+.0f} %" if abs(by) >= 9.95 else f"{round(by, 1) + 0.0:+.1f} %"


def moved_line(m: Moved) -> str:
    """`24 of 96 cells slower by +15 % to +16 %: cuda rms_norm farm/auto; hidden 16384, 32768`."""
    least, _, most = m.ratios
    by = span(least, most)
    name = f"{m.backend} {m.op} {m.provider}" + (f"/{m.mode}" if m.mode else "")
    return "; ".join([f"{len(m.pairs)} of {cells(m.of)} {m.time}, {by}: {name}", *m.where])
