"""The times of two runs, cell by cell, beside what became of their statuses.  Pure.

Two runs that were not made in turn on one device differ in time where nothing has changed, so a cell is only suspected
to be slower or faster (`farm.compare.unpaired`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from farm.compare import unpaired
from farm.errors import Message
from farm.report import pairs as paired
from farm.report.format import cells, number
from farm.report.pairs import Pair
from farm.report.queries import is_subject, speed_counts
from farm.report.status_changes import Change, Comparison

PROVES = Message(
    "The two runs were not made in turn on one device, so slower and faster cells are suspected, not proven; farm ab "
    "measures both sides in turn.",
    id="compare-unpaired",
)
#: The smallest shift of a target that is worth a word.
SHOWN_SHIFT = 0.0005
#: What two times must share, and its name.
_ALIKE = {"target": "target", "timing_method": "timing method", "evidence": "kind of evidence"}


@dataclass(frozen=True)
class TimeComparison:
    """Every cell of both runs as a pair; `unlike`: what differs where times were not compared, as sentences; `shifts`:
    target -> (log ratio that its peers share, threshold of a log ratio, pairs)."""

    pairs: tuple[Pair, ...]
    unlike: tuple[str, ...]
    shifts: dict[str, tuple[float, float, int]]

    @property
    def notes(self) -> list[str]:
        """What a reader of the ratios must know."""
        out = []
        for target, (shift, threshold, count) in self.shifts.items():
            text = f"{target}: {cells(count)} with both times; a change is beyond {100 * math.expm1(threshold):.1f} %"
            if abs(shift) >= SHOWN_SHIFT:
                text += f"; {paired.change(math.exp(shift))}, which the peers share, was taken off"
            out.append(text)
        return out

    def to_dict(self) -> dict[str, Any]:
        return {
            "proves": str(PROVES),
            "counts": paired.counts(self.pairs),
            "unlike": list(self.unlike),
            "targets": {
                target: {"shift": math.expm1(shift), "threshold": math.expm1(threshold), "pairs": count}
                for target, (shift, threshold, count) in self.shifts.items()
            },
            "moved": [
                {"text": paired.moved_line(m), "time": m.time, "cells": [p.row.get("cell_id") for p in m.pairs]}
                for m in paired.moved(self.pairs)
            ],
        }


def times(found: Comparison, *, unlike: bool = False) -> TimeComparison:
    """Compare times of cells that have one in both runs.  `unlike`: also of other targets, methods, evidence."""
    by_target: dict[str, list[int]] = defaultdict(list)
    differ: dict[str, int] = defaultdict(int)
    out: list[Pair] = []
    for i, c in enumerate(found.changes):
        pair = _pair(c)
        if c.before is not None and c.after is not None and speed_counts(c.before) and speed_counts(c.after):
            names = [what for name, what in _ALIKE.items() if c.before.get(name) != c.after.get(name)]
            for what in names:
                differ[what] += 1
            if unlike or not names:
                by_target[str(c.after.get("target"))].append(i)
        out.append(pair)
    shifts = {}
    for target, members in by_target.items():
        timed = [_times(found.changes[i]) for i in members]
        judged = unpaired.judge(timed)
        shifts[target] = (judged.shift, judged.threshold, len(members))
        for i, x, claim in zip(members, timed, judged.claims, strict=True):
            out[i] = _pair(found.changes[i], claim.value, math.exp(x.x - judged.shift))
    said = tuple(f"{cells(n)} ran with another {what} in B than in A" for what, n in differ.items())
    return TimeComparison(tuple(out), said, shifts)


def _pair(c: Change, time: str = "", ratio: float | None = None) -> Pair:
    before, after = (str(r.get("status") or "") if r is not None else "" for r in (c.before, c.after))
    a, b = (number(r.get("time_us_p50")) if r is not None and speed_counts(r) else None for r in (c.before, c.after))
    timed = ((c.before, a), (c.after, b))
    speeds = [number(r.get("bandwidth_gbps")) if r is not None and us else None for r, us in timed]
    return Pair(c.row, before, after, c.kind, time, a, b, ratio, a_gbps=speeds[0], b_gbps=speeds[1])


def _times(c: Change) -> unpaired.Times:
    a, b = c.before, c.after
    assert a is not None and b is not None
    ends = [number(r.get(n)) for r in (a, b) for n in ("time_us_p20", "time_us_p80")]
    apart = None not in ends and not (ends[0] <= ends[3] and ends[2] <= ends[1])  # type: ignore[operator]
    return unpaired.Times(
        math.log(float(b["time_us_p50"]) / float(a["time_us_p50"])),
        apart,
        any(r.get("timing_quality") in ("noisy", "throttled") for r in (a, b)),
        not is_subject(a) and a.get("provider_version") == b.get("provider_version"),
    )


def lines(found: TimeComparison, limit: int) -> Iterator[str]:
    """What a terminal shows below the statuses."""
    have = paired.counts(found.pairs)
    if not have:
        yield "times: no cell has a time in both runs that may be compared"
        return
    yield "times: " + ", ".join(f"{n:,} {name}" for name, n in have.items())
    yield from (f"  {note}" for note in found.notes)
    groups = paired.moved(found.pairs)
    yield from (f"  {paired.moved_line(m)}" for m in groups[:limit])
    if len(groups) > limit:
        yield f"  and {len(groups) - limit} more groups (--limit, --json or --page shows them)"
    yield str(PROVES)


def refusal(found: Sequence[str]) -> str:
    """Why times are not compared."""
    return f"{'; '.join(found)}; times of unlike cells are not compared: --unlike compares them nevertheless"
