"""Rows of a run as tables: the heat map of every cell, and subjects compared with peers.  Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.dashboards.contents import CONTENTS, Others, Ratio, Value, others, time_ratio, values
from farm.dashboards.layout import Layout, by_width, lay_out
from farm.report.format import HARM, IMPOSSIBLE, QUALITY_MARKS, clip, glyph, label, number, ratio, sig
from farm.report.queries import (
    MEASURED,
    extrapolated,
    flop_bound,
    in_order,
    is_build,
    is_subject,
    parse,
    races,
    same_cell,
    speed_counts,
)
from farm.store.results import place

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Spot:
    """One cell in a heat map.  `level` in [0, 1] is its colour: a share of what is possible, or of the tolerance; -1:
    the share is unknown or extrapolated."""

    index: int
    kind: str  # speed, error, status
    level: float
    text: str  # shown in the cell; of a speed: the first of its values
    tip: str
    status: str
    anchor: str = ""  # of the group that reports its failure
    values: Mapping[str, Value] = field(default_factory=dict)  # of a speed: content -> what it says of the cell
    mark: str = ""  # timing quality, where it is not `ok`


@dataclass(frozen=True)
class Heat:
    """One backend's cells of one op at one dtype.  `layout` numbers its cells as `spots` does."""

    dtype: str
    unit: str  # of the speeds; "" where nothing was timed
    basis: str  # of the colour: roof, row, tolerance
    layout: Layout
    spots: Mapping[int, Spot]
    legend: tuple[tuple[str, int], ...]  # (status, cells) of what has no number
    failed: tuple[tuple[str, int], ...]  # (status, cells) of subjects' findings

    @property
    def contents(self) -> list[str]:
        """The contents that at least one cell has."""
        seen = {name for s in self.spots.values() for name in s.values}
        return [name for name in CONTENTS if name in seen]


@dataclass(frozen=True)
class Pace:
    """A subject's time divided by a peer's on the same cell."""

    ratio: Ratio
    tip: str


def heats(
    rows: Sequence[Row], anchors: Mapping[int, str], baseline: Sequence[Row] = (), only: tuple[str, str] | None = None
) -> dict[tuple[str, str], list[Heat]]:
    """(backend or named target, op) -> a heat map per dtype; each row that is not a build is in exactly one spot.

    `anchors`: id() of a failed row -> the anchor of the group that reports it; `baseline`: rows of an earlier run;
    `only`: just this backend and op.
    """
    found: dict[tuple[str, str], dict[str, list[tuple[int, Row]]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        if not is_build(row) and only in (None, (place(row), row["op"])):
            found[place(row), row["op"]][row.get("dtype") or ""].append((index, row))
    against = others(rows, baseline)
    return {
        key: [_heat(dtype, members, anchors, against) for dtype, members in sorted(panes.items(), key=by_width)]
        for key, panes in found.items()
    }


def _heat(dtype: str, members: Sequence[tuple[int, Row]], anchors: Mapping[int, str], against: Others) -> Heat:
    flops = flop_bound([r for _, r in members])
    timed = [r for _, r in members if speed_counts(r)]
    roof = bool(timed) and sum(number(r.get("share_of_roof")) is not None for r in timed) * 2 > len(timed)
    laid, of = lay_out(members), dict(members)
    spots: dict[int, Spot] = {}
    for body in laid.bodies:
        for line in body.lines:
            mine = {i: of[i] for i in line.cells if i is not None}
            speeds = [number(r.get("tflops" if flops else "bandwidth_gbps")) for r in mine.values() if speed_counts(r)]
            best = max((s for s in speeds if s), default=0.0)
            for i, row in mine.items():
                spots[i] = _spot(i, row, anchors.get(id(row), ""), _Scale(flops, best, roof, against))
    silent = Counter(s.status for s in spots.values() if s.kind == "status")
    unit = ("TFLOP/s" if flops else "GB/s") if timed else ""
    basis = ("roof" if roof else "row") if timed else "tolerance"
    failed = Counter(str(r["status"]) for _, r in members if is_subject(r) and r.get("status") in HARM)
    return Heat(dtype, unit, basis, laid, spots, tuple(silent.items()), tuple(in_order(failed).items()))


@dataclass(frozen=True)
class _Scale:
    """What the cells of one line are held against."""

    flops: bool
    best: float  # speed
    roof: bool
    others: Others


def _spot(index: int, row: Row, anchor: str, scale: _Scale) -> Spot:
    status, over = str(row.get("status") or ""), number(row.get("worst_ratio"))
    error = f"error {ratio(over)}x tolerance" if over is not None else ""
    if row.get("timing_quality") == "impossible" and status == "passed":
        tip = _join("impossible timing: no speed is shown", error, *_notes(row))
        return Spot(index, "status", 0.0, IMPOSSIBLE, tip, "impossible", "impossible")
    if speed_counts(row):
        return _speed(index, row, error, scale)
    if status == "passed" and over is not None:
        what = ".".join(p for p in (row.get("worst_output"), row.get("worst_metric")) if p)
        return Spot(index, "error", over, ratio(over), _join(what, *_notes(row)), status)
    measured = status == "inaccurate" and over is not None and 1 < over < MEASURED
    text = f"{glyph(status)} {ratio(over)}" if measured else glyph(status)
    tip = _join(label(status), clip(str(row.get("reason") or ""), 90), *_notes(row))
    return Spot(index, "status", 0.0, text, tip, status, anchor)


def _speed(index: int, row: Row, error: str, scale: _Scale) -> Spot:
    speed, share = number(row.get("tflops" if scale.flops else "bandwidth_gbps")), number(row.get("share_of_roof"))
    level = (speed or 0.0) / scale.best if scale.best else 0.0
    if scale.roof:
        level = -1.0 if share is None or extrapolated(row) else share
    quality = str(row.get("timing_quality"))
    note = "" if quality == "ok" else quality.replace("_", " ")
    shown = values(row, scale.flops, scale.others)
    return Spot(
        index,
        "speed",
        level,
        next(shown[name].text for name in CONTENTS if name in shown),
        _join(error, note, *_notes(row)),
        str(row.get("status")),
        values=shown,
        mark=QUALITY_MARKS.get(quality, note),
    )


def _notes(row: Row) -> list[str]:
    """What else a reader should know about a cell: the mode that `auto` chose, its launches, the bytes that it really
    moves, and its flags."""
    ran = str(row.get("mode_resolved") or "")
    notes = [f"ran {ran}"] if ran not in ("", row.get("mode")) else []
    counted, model = number(row.get("bytes_counted")), number(row.get("bytes_moved"))
    if counted is not None and model:
        notes.append(f"moves {counted / model:.2f}x the bytes that the model predicts")
    launched = number(row.get("kernels_per_call"))
    notes += [f"launches {launched:.3g} kernels per call"] if launched is not None and launched != 1 else []
    notes += ["simulated device"] if row.get("evidence") == "simulated" and row.get("backend") != "sim" else []
    return notes + flags(row)


def flags(row: Row) -> list[str]:
    """What the child and its supervisor noted about a cell."""
    found = parse(row.get("flags"))
    return [str(f) for f in found] if isinstance(found, list) else []


def _join(*parts: str) -> str:
    return ", ".join(p for p in parts if p)


@dataclass(frozen=True)
class Race:
    """One backend's paces of one op: columns `farm ÷ torch`, dtype -> operation and casting -> (shape, paces)."""

    columns: tuple[str, ...]
    panes: dict[str, dict[str, list[tuple[str, list[Pace | None]]]]]


def paces(rows: Sequence[Row]) -> dict[tuple[str, str], Race]:
    """(backend or named target, op) -> subjects' times divided by peers'.

    Only where a subject (mode `auto`, or its only one) and a peer have a time for the same cell, on one target, by one
    timing method.  Nothing else is compared.
    """
    same: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
    roles: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for r in rows:
        if races(r):
            same[same_cell(r)][str(r["provider"])] = r
            roles[place(r), r["op"]][str(r["provider"])] = str(r.get("role") or "subject")
    out = {}
    for key, found in roles.items():
        pairs = [(s, p) for s in found if found[s] != "peer" for p in found if found[p] == "peer"]
        panes: dict[str, dict[str, list[tuple[str, list[Pace | None]]]]] = defaultdict(lambda: defaultdict(list))
        targets = {cell[5] for cell in same if cell[:2] == key}
        for cell, by in same.items():
            line = [pace(by[s], by[p]) if s in by and p in by else None for s, p in pairs]
            if cell[:2] == key and any(line):
                where = cell[5] if len(targets) > 1 else ""
                panes[cell[2]][" · ".join(x for x in (cell[4], cell[7], where) if x)].append((cell[3], line))
        if panes:
            out[key] = Race(tuple(f"{s} ÷ {p}" for s, p in pairs), dict(sorted(panes.items(), key=by_width)))
    return out


def pace(subject: Row, peer: Row) -> Pace:
    mine, other = float(subject["time_us_p50"]), float(peer["time_us_p50"])
    return Pace(time_ratio(subject, peer), f"{sig(mine)} µs ÷ {sig(other)} µs")
