"""Charts over nights: a backend's line, a device among its siblings, a cell's history, a roof.  Values in, SVG out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from farm.dashboards import svg
from farm.dashboards.time_axis import TimeAxis
from farm.report.format import FARM_FAULTS, cells, label, sig
from farm.report.pairs import change

#: Lines of nights share one scale: so much either side of the middle.
SPAN = 0.15


def night_line(
    created: Sequence[str], failing: Sequence[int], pace: Sequence[float | None], faulty: Sequence[int] = ()
) -> Markup:
    """Nights along an axis of time: bars for failing cells, hollow ones on top of them for cells without a result (the
    infrastructure's), a curve for the time relative to its own median (up is slower), dots where nothing ran."""
    width, height, middle, foot = 330, 76, 22.0, 60.0
    axis, faulty = TimeAxis(created, 10, width - 10), faulty or [0] * len(created)
    wide = axis.bar()
    most = max([1, *(max(bad, 0) + lost for bad, lost in zip(failing, faulty, strict=True))])
    shapes = [svg.line([(4, middle), (width - 4, middle)], "tick"), svg.line([(4, foot), (width - 4, foot)], "tick")]
    ys: list[float | None] = []
    for i, (bad, lost, by) in enumerate(zip(failing, faulty, pace, strict=True)):
        x, top, date = axis.x(i) - wide / 2, foot, created[i][:10]
        for n, name, words in ((bad, "failing", "failing"), (lost, "faulty", "without a result (infrastructure)")):
            if n > 0:
                high = max(3.0, 16.0 * n / most)
                top -= high
                shapes.append(svg.bar(x, top, wide, high, name, f"{date}: {cells(n)} {words}"))
        if bad < 0 and not lost:
            shapes.append(svg.text(axis.x(i), foot - 1, "·", "tick", "middle"))
        off = None if by is None else max(-1.0, min(1.0, (by - 1) / SPAN))
        ys.append(None if off is None else middle - 20 * off)
    shapes.append(svg.line(axis.line(ys), "pace"))
    shapes += _dates(axis, height - 3, width, 6)
    failed = next((f"{cells(n)} failing in the newest" for n in reversed(failing) if n >= 0), "no results")
    failed += f", {cells(faulty[-1])} without a result (infrastructure)" if faulty and faulty[-1] else ""
    return svg.picture(width, height, f"{_nights(axis, len(created))}, {failed}", shapes, "nights")


def _nights(axis: TimeAxis, count: int) -> str:
    """`28 nights with 1 gap`"""
    gaps = f" with {len(axis.gaps)} gap{'s' if len(axis.gaps) > 1 else ''}" if axis.gaps else ""
    return f"{count} night{'' if count == 1 else 's'}{gaps}"


def nights(created: Sequence[str], most: int = 4) -> str:
    """`27 nights, none between 2026-09-28 and 2026-09-30`: the newest gaps first."""
    out = f"{len(created)} night{'' if len(created) == 1 else 's'}"
    gaps = [f"{created[i - 1][:10]} and {created[i][:10]}" for i in reversed(TimeAxis(created, 0, 1).gaps)]
    more = f" and {len(gaps) - most} more" if len(gaps) > most else ""
    return out + (f", none between {', '.join(gaps[:most])}{more}" if gaps else "")


def _dates(axis: TimeAxis, y: float, width: float, most: int) -> list[str]:
    """Dates below a chart, with the last one inside it."""
    out = []
    for x, date in axis.ticks(most):
        anchor, at = "middle", x
        if x > width - 20:
            anchor, at = "end", min(x + 8, width)
        elif x < 20:
            anchor, at = "start", max(x - 8, 0)
        out.append(svg.text(at, y, date, "tick", anchor))
    return out


def sibling_strip(created: Sequence[str], by: Sequence[float | None], span: float = 0.05) -> Markup:
    """A device's nights relative to its siblings, along an axis of time; up is slower, the edge is `span`."""
    width, height = 120, 26
    axis = TimeAxis(created, 2, width - 2)
    ys = [None if v is None else height / 2 - (height / 2 - 2) * max(-1.0, min(1.0, (v - 1) / span)) for v in by]
    told = f"{change(by[-1])} against its siblings" if by and by[-1] is not None else "no times in the newest night"
    middle = svg.line([(2, height / 2), (width - 2, height / 2)], "tick")
    return svg.picture(width, height, told, [middle, svg.line(axis.line(ys), "pace")], "nights")


@dataclass(frozen=True)
class Point:
    """One night of a value: when, the value (None: none that counts), its spread, what happened, what changed."""

    date: str
    value: float | None
    low: float | None = None
    high: float | None = None
    status: str = "passed"
    changed: str = ""  # `driver 575 → 580`


#: A chart's text has 11 to 16 of its own units, the more the narrower the window (farm.css): what stands beside other
#: text has room for this.
LETTER, LINE = 9.4, 17
LONGEST = 19


def history(
    points: Sequence[Point], unit: str, lines: Sequence[tuple[str, float]] = (), width: int = 660, since: str = ""
) -> Markup:
    """A value over nights, along an axis of time, with its spread, failing nights as crosses, changes of the tool chain
    as dashed lines.  `lines`: (name, value) of levels to hold it against; `since`: the night from which on it is
    shaded."""
    names = {name: name if len(name) <= LONGEST else name[: LONGEST - 1] + "…" for name, _ in lines}
    height, left, top, bottom = 240, 62, 28, 34
    right = round(max([34.0, *(14 + LETTER * len(name) for name in names.values())]))
    known = [v for p in points for v in (p.value, p.low, p.high) if v is not None]
    levels = [v for _, v in lines]
    if not known:
        return Markup("")
    low, high = min([*known, *levels]), max([*known, *levels])
    middle = (low + high) / 2 or 1.0
    low, high = min(low, middle * (1 - SPAN)), max(high, middle * (1 + SPAN))
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
    axis = TimeAxis([p.date for p in points], left + 8, width - right)
    half = min(axis.step / 2, 8.0)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - (value - low) / (high - low))

    shapes = []
    began = next((i for i, p in enumerate(points) if since and p.date >= since), None)
    if began is not None:
        edge = axis.x(began) - half
        tip = f"since {since[:10]}"
        shapes.append(svg.bar(edge, top, width - right + 4 - edge, height - top - bottom, "since", tip))
    for i in range(5):
        at = low + (high - low) * i / 4
        shapes.append(svg.line([(left, y(at)), (width - right, y(at))], "tick"))
        shapes.append(svg.text(left - 6, y(at) + 4, sig(at), "tick", "end"))
    shapes.append(svg.text(0, 13, unit, "cap"))
    for x, date in axis.ticks():
        shapes.append(svg.line([(x, height - bottom), (x, height - bottom + 4)], "tick"))
        shapes.append(svg.text(x, height - 11, date, "tick", "middle"))
    for i, p in enumerate(points):
        if p.changed:
            shapes.append(svg.line([(axis.x(i) - half, top), (axis.x(i) - half, height - bottom)], "changed"))
    below = 0.0
    for name, at in sorted(((name, y(value)) for name, value in lines), key=lambda one: one[1]):
        below = max(at, below + LINE)  # labels that do not cover each other
        shapes.append(svg.line([(left, at), (width - right, at)], "level"))
        shapes.append(svg.text(width - right + 6, below + 4, names[name]))
    band = [(axis.x(i), y(p.low), y(p.high)) for i, p in enumerate(points) if p.low is not None and p.high is not None]
    shapes += [svg.line([(a, b), (a, c)], "spread") for a, b, c in band]
    shapes.append(svg.line(axis.line([None if p.value is None else y(p.value) for p in points]), "pace"))
    for i, p in enumerate(points):
        if p.value is not None:
            tip = f"{p.date[:16]}: {sig(p.value, 4)} {unit}{f'; {p.changed}' if p.changed else ''}"
            shapes.append(svg.dot(axis.x(i), y(p.value), "ours", tip, 2.2))
        elif p.status not in ("passed", ""):
            sign = "!" if p.status in FARM_FAULTS else "×"
            shapes.append(svg.text(axis.x(i), height - bottom - 2, sign, "over", "middle"))
    newest = next(p for p in reversed(points) if p.value is not None)
    told = f"{_nights(axis, len(points))} of {unit}, the newest {sig(newest.value or 0.0)}, {label(points[-1].status)}"
    return svg.picture(width, height, told, shapes, "history")
