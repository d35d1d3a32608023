"""The cards and the accuracy strips of a run's page: the facts that they show.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from farm.errors import Message
from farm.report.format import cells, number
from farm.report.queries import (
    Row,
    RunLike,
    by,
    counts,
    extrapolated,
    flop_bound,
    is_subject,
    races,
    same_cell,
    speed_counts,
    worst_error,
    worst_row,
)
from farm.store.results import place


class Paired(NamedTuple):
    """A subject's time divided by a peer's: the geometric mean over the cells that both have a time for."""

    subject: str
    ratio: float
    cells: int


@dataclass(frozen=True)
class Part:
    """One line of a card: one provider's cells of one op, without skipped ones."""

    op: str
    provider: str
    role: str
    cells: int  # planned, with evidence or without
    passed: int
    missing: dict[str, int]  # those without evidence
    failed: dict[str, int]  # those with evidence that did not pass
    worst_ratio: float | None
    timed: int  # of a subject: timed cells of mode `auto`, which every other timed subject of the op has too
    speed: float | None  # median over these cells
    unit: str  # of `speed`: GB/s, or TFLOP/s where operations are the limit
    share: float | None  # of the roof, median over the same cells without extrapolated ones
    beyond: int  # the cells that are left out of `share`
    against: tuple[Paired, ...]  # of a peer: each subject's time relative to its own


@dataclass(frozen=True)
class Card:
    """One backend, one target, one kind of evidence; counts are never summed over cards."""

    backend: str
    target: str
    evidence: str
    counts: dict[str, int]
    not_run: dict[str, int]  # cells of this backend without evidence: on its first card only, never in `counts`
    devices: tuple[str, ...]
    parts: tuple[Part, ...]
    place: str = ""  # the backend, or `cuda@GB200`
    rows: tuple[Row, ...] = ()  # those that are counted in `counts`

    @property
    def name(self) -> str:
        """`cuda`, `cuda GB200` where a device was named, or `sm_90` where nothing ran."""
        if self.evidence == "compiled":
            return self.target.rpartition(":")[2]
        return " ".join(w for w in (self.place or self.backend).split("@") if w)

    @property
    def timed(self) -> bool:
        return any(p.speed is not None or p.against for p in self.parts)

    @property
    def no_speed(self) -> str:
        """Why the card has no speed; "" where a cell has one, and for compiled cells."""
        if not self.counts or self.evidence == "compiled" or any(speed_counts(r) for r in self.rows):
            return ""
        if self.evidence == "interpreted":
            return Message(
                "no speeds: times in the interpreter say nothing about the speed of a kernel",
                id="report-no-speed-interpreted",
            )
        return Message("no speeds: no cell that passed was timed", id="report-no-speed-untimed")

    @property
    def roof(self) -> bool:
        return any(p.share is not None for p in self.parts)

    @property
    def notes(self) -> tuple[Message, ...]:
        """What a reader of the shares must know."""
        out = []
        if beyond := sum(p.beyond for p in self.parts):
            text = f"of roof: without {cells(beyond)} outside the calibrated sizes, whose roof is extrapolated"
            out.append(Message(text, id="report-share-extrapolated"))
        if any(p.share is not None and round(100 * p.share) > 100 for p in self.parts):
            text = "of roof: above 100 %, a kernel is faster than the best copy that moves as many bytes"
            out.append(Message(text, id="report-share-above"))
        return tuple(out)

    @property
    def missing(self) -> dict[str, int]:
        """Cells that were requested and have no evidence: the part of the bar that proves nothing."""
        return {s: n for s, n in self.not_run.items() if s != "skipped"}


@dataclass(frozen=True)
class Strip:
    """Errors relative to their tolerance, of one provider and mode at one dtype."""

    name: str
    values: tuple[float, ...]
    outliers: tuple[tuple[float, str], ...]  # (ratio, which cell)


def cards(run: RunLike) -> list[Card]:
    """One per backend (or target that was named), target and evidence."""
    out = []
    places: dict[str, list[Row]] = defaultdict(list)
    for r in run.rows:
        places[place(r)].append(r)
    for where, rows in places.items():
        backend = where.partition("@")[0]
        bare = [r for r in rows if not r.get("evidence")]
        proven = by((r for r in rows if r.get("evidence")), "target", "evidence")
        for (target, evidence), members in proven.items() or {("", ""): []}.items():
            parts = tuple(_parts([*members, *bare]))
            target = target or str(bare[0].get("target") or "") if bare else target
            seen = _devices(members)
            done = (counts(members), counts(bare), seen, parts, where, tuple(members))
            out.append(Card(backend, target, evidence, *done))
            bare = []
    return out


def _devices(rows: Sequence[Row]) -> tuple[str, ...]:
    """`2 devices on node-a`; counted from the cells, so it states what really ran."""
    if rows and all(r.get("evidence") == "compiled" for r in rows):
        return (Message("compiled, not run on a device", id="report-compiled-only"),)
    seen = {(str(r.get("node") or ""), str(r.get("device") or "")) for r in rows}
    found = Counter(node for node, _ in seen)
    return tuple(
        f"{n} device{'s' if n > 1 else ''} on {node or 'an unnamed node'}" for node, n in sorted(found.items())
    )


def _parts(rows: Sequence[Row]) -> Iterable[Part]:
    asked = sorted(  # subjects first, whatever the matrix lists first
        (r for r in rows if r.get("status") != "skipped"), key=lambda r: (not is_subject(r), r.get("index") or 0)
    )
    groups = by(asked, "op", "provider")
    times = {key: {same_cell(r): r for r in members if races(r)} for key, members in groups.items()}
    for (op, provider), members in groups.items():
        subjects = {p: t for (o, p), t in times.items() if o == op and t and is_subject(groups[o, p][0])}
        mine, leads = times[op, provider], subjects or {p: t for (o, p), t in times.items() if o == op and t}
        common = set(mine).intersection(*leads.values()) if provider in leads else set()
        timed = [r for cell, r in mine.items() if cell in common]
        flops = flop_bound(members)
        yield Part(
            op=op,
            provider=provider,
            role=str(members[0].get("role") or "subject"),
            cells=len(members),
            passed=sum(r.get("status") in ("passed", "built") for r in members),
            missing=counts(r for r in members if not r.get("evidence")),
            failed=counts(r for r in members if r.get("evidence") and r.get("status") not in ("passed", "built")),
            worst_ratio=number((worst_row(members) or {}).get("worst_ratio")),
            timed=len(timed),
            speed=_median(r.get("tflops" if flops else "bandwidth_gbps") for r in timed),
            unit="TFLOP/s" if flops else "GB/s",
            share=_median(r.get("share_of_roof") for r in timed if not extrapolated(r)),
            beyond=sum(map(extrapolated, timed)),
            against=() if provider in leads else tuple(_paired(leads, mine)),
        )


def _paired(subjects: Mapping[str, Mapping[Any, Row]], peer: Mapping[Any, Row]) -> Iterable[Paired]:
    for name, mine in subjects.items():
        if both := mine.keys() & peer.keys():
            ratios = [float(mine[c]["time_us_p50"]) / float(peer[c]["time_us_p50"]) for c in both]
            yield Paired(name, geometric_mean(ratios), len(both))


def _median(values: Iterable[Any]) -> float | None:
    known = [v for v in map(number, values) if v is not None]
    return median(known) if known else None


def strips(run: RunLike) -> dict[tuple[str, str], dict[str, list[Strip]]]:
    """(backend or named target, op) -> dtype -> one strip per provider and mode that was judged.  Where a place has
    both, errors of simulated devices are separate from a real device's, under `<place> simulated`."""
    out: dict[tuple[str, str], dict[str, list[Strip]]] = defaultdict(lambda: defaultdict(list))
    judged = [r for r in run.rows if number(r.get("worst_ratio")) is not None]
    real = {place(r) for r in judged if r.get("evidence") != "simulated"}
    apart: dict[str, list[Row]] = defaultdict(list)
    for r in judged:
        apart[place(r) + (" simulated" if r.get("evidence") == "simulated" and place(r) in real else "")].append(r)
    groups = [
        (where, *rest) for where, mine in apart.items() for rest in by(mine, "op", "dtype", "provider", "mode").items()
    ]
    for where, (op, dtype, provider, mode), rows in groups:
        over = sorted((r for r in rows if float(r["worst_ratio"]) > 1), key=lambda r: -float(r["worst_ratio"]))
        outliers = tuple((float(r["worst_ratio"]), f"{r['cell_id']}: {worst_error(r)}") for r in over[:30])
        strip = Strip(f"{provider}/{mode}", tuple(float(r["worst_ratio"]) for r in rows), outliers)
        out[where, op][dtype].append(strip)
    return out
