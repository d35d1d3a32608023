"""Rows of a run laid out as tables: the heat map of every cell, its times, and subjects compared with peers.  Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.format import IMPOSSIBLE, QUALITY_MARKS, clip, glyph, label, number, percent, ratio, sig
from farm.report.queries import (
    MEASURED,
    extrapolated,
    flop_bound,
    is_build,
    own_rest,
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
    text: str  # shown in the cell
    tip: str
    status: str
    anchor: str = ""  # of the group that reports its failure
    time: str = ""  # p50 in microseconds
    spread: str = ""  # p20–p80
    mark: str = ""  # timing quality, where it is not `ok`


@dataclass(frozen=True)
class Line:
    """One row of a heat map: a shape, and a spot per column (None: not planned)."""

    shape: str
    tag: str
    spots: tuple[Spot | None, ...]


@dataclass(frozen=True)
class Body:
    """The lines that share operation, casting and everything else but the shape."""

    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Heat:
    """One backend's cells of one op at one dtype."""

    dtype: str
    unit: str  # of the numbers in timed cells; "" where nothing was timed
    basis: str  # of the colour: roof, row, tolerance
    columns: tuple[tuple[str, str], ...]  # (provider, mode)
    bodies: tuple[Body, ...]
    legend: tuple[tuple[str, int], ...]  # (status, cells) of what has no number

    @property
    def providers(self) -> list[tuple[str, int]]:
        """(provider, its columns), for the upper head."""
        out: list[tuple[str, int]] = []
        for provider, _ in self.columns:
            out = [*out[:-1], (provider, out[-1][1] + 1)] if out and out[-1][0] == provider else [*out, (provider, 1)]
        return out

    @property
    def timed(self) -> bool:
        return any(s and s.time for b in self.bodies for line in b.lines for s in line.spots)


@dataclass(frozen=True)
class Pace:
    """A subject's time divided by a peer's on the same cell; `sure` unless their p20-p80 overlap."""

    ratio: float
    sure: bool
    tip: str


def heats(rows: Sequence[Row], anchors: Mapping[int, str]) -> dict[tuple[str, str], list[Heat]]:
    """(backend or named target, op) -> a heat map per dtype; each row that is not a build is in exactly one spot.

    `anchors`: id() of a failed row -> the anchor of the group that reports it.
    """
    found: dict[tuple[str, str], dict[str, list[tuple[int, Row]]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        if not is_build(row):
            found[place(row), row["op"]][row.get("dtype") or ""].append((index, row))
    return {
        key: [_heat(dtype, members, anchors) for dtype, members in sorted(panes.items(), key=by_width)]
        for key, panes in found.items()
    }


def by_width(item: tuple[str, Any]) -> tuple[int, str]:
    """Narrow types first: they are the ones in production."""
    order = ("bfloat16", "float16", "float32", "float64")
    return (order.index(item[0]) if item[0] in order else len(order), item[0])


def _heat(dtype: str, members: Sequence[tuple[int, Row]], anchors: Mapping[int, str]) -> Heat:
    flops = flop_bound([r for _, r in members])
    timed = [r for _, r in members if speed_counts(r)]
    roof = bool(timed) and sum(number(r.get("share_of_roof")) is not None for r in timed) * 2 > len(timed)
    columns = _columns([r for _, r in members])
    place = {c: i for i, c in enumerate(columns)}
    table: dict[str, dict[tuple[str, int], list[tuple[int, Row] | None]]] = {}
    tags: dict[tuple[str, str], str] = {}
    for index, row in members:
        body = " · ".join(p for p in (row.get("operation"), own_rest(row)) if p)
        lines, shape, at = table.setdefault(body, {}), str(row.get("shape")), place[_column(row)]
        twin = 0  # two cells with the same id are on separate lines
        while lines.setdefault((shape, twin), [None] * len(columns))[at] is not None:
            twin += 1
        lines[shape, twin][at] = (index, row)
        tags[body, shape] = row.get("tag") or ""
    bodies = []
    for body, lines in table.items():
        done = (
            Line(shape + (f" ({twin + 1})" if twin else ""), tags[body, shape], _spots(found, anchors, flops, roof))
            for (shape, twin), found in lines.items()
        )
        bodies.append(Body(body, tuple(done)))
    silent: dict[str, int] = defaultdict(int)
    for b in bodies:
        for spot in (s for line in b.lines for s in line.spots if s and s.kind == "status"):
            silent[spot.status] += 1
    unit = ("TFLOP/s" if flops else "GB/s") if timed else ""
    basis = ("roof" if roof else "row") if timed else "tolerance"
    return Heat(dtype, unit, basis, tuple(columns), tuple(bodies), tuple(silent.items()))


def _column(row: Row) -> tuple[str, str]:
    return str(row.get("provider")), str(row.get("mode") or "")


def _columns(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Subjects before peers, a provider's modes together, otherwise in the plan's order."""
    first: dict[tuple[str, str], tuple[int, int]] = {}
    providers: dict[str, int] = {}
    for i, r in enumerate(rows):
        providers.setdefault(_column(r)[0], i)
        first.setdefault(_column(r), (r.get("role") == "peer", i))
    return sorted(first, key=lambda c: (first[c][0], providers[c[0]], first[c][1]))


def _spots(
    found: Sequence[tuple[int, Row] | None], anchors: Mapping[int, str], flops: bool, roof: bool
) -> tuple[Spot | None, ...]:
    speeds = [number(x[1].get("tflops" if flops else "bandwidth_gbps")) for x in found if x and speed_counts(x[1])]
    best = max((s for s in speeds if s), default=0.0)
    return tuple(x and _spot(x[0], x[1], anchors.get(id(x[1]), ""), flops, best, roof) for x in found)


def _spot(index: int, row: Row, anchor: str, flops: bool, best: float, roof: bool) -> Spot:
    status, over = str(row.get("status") or ""), number(row.get("worst_ratio"))
    error = f"error {ratio(over)}x tolerance" if over is not None else ""
    if row.get("timing_quality") == "impossible" and status == "passed":
        tip = _join("impossible timing: no speed is shown", error, *_notes(row))
        return Spot(index, "status", 0.0, IMPOSSIBLE, tip, "impossible", "impossible")
    if speed_counts(row):
        return _speed(index, row, error, flops, best, roof)
    if status == "passed" and over is not None:
        what = ".".join(p for p in (row.get("worst_output"), row.get("worst_metric")) if p)
        return Spot(index, "error", over, ratio(over), _join(what, *_notes(row)), status)
    measured = status == "inaccurate" and over is not None and 1 < over < MEASURED
    text = f"{glyph(status)} {ratio(over)}" if measured else glyph(status)
    tip = _join(label(status), clip(str(row.get("reason") or ""), 90), *_notes(row))
    return Spot(index, "status", 0.0, text, tip, status, anchor)


def _speed(index: int, row: Row, error: str, flops: bool, best: float, roof: bool) -> Spot:
    speed, share = number(row.get("tflops" if flops else "bandwidth_gbps")), number(row.get("share_of_roof"))
    level = (speed or 0.0) / best if best else 0.0
    if roof:
        level = -1.0 if share is None or extrapolated(row) else share
    quality = str(row.get("timing_quality"))
    p20, p80 = number(row.get("time_us_p20")), number(row.get("time_us_p80"))
    time = sig(float(row["time_us_p50"]))
    note = "" if quality == "ok" else quality.replace("_", " ")
    tip = _join(f"{time} µs", f"{percent(share)} of roof" if share is not None else "", error, note, *_notes(row))
    return Spot(
        index,
        "speed",
        level,
        _short(speed) if speed is not None else time,
        tip,
        str(row.get("status")),
        time=time,
        spread=f"{sig(p20)}–{sig(p80)}" if p20 is not None and p80 is not None else "",
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


def _short(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 100 else sig(speed)


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
    ends = [number(r.get(n)) for r in (subject, peer) for n in ("time_us_p20", "time_us_p80")]
    low_a, high_a, low_b, high_b = ends
    known = None not in ends
    overlap = known and low_a <= high_b and low_b <= high_a  # type: ignore[operator]
    return Pace(mine / other, known and not overlap, f"{sig(mine)} µs ÷ {sig(other)} µs")
