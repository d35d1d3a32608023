"""Charts over nights: a backend's line, a device among its siblings, a cell's history, a roof.  Values in, SVG out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from farm.dashboards import svg
from farm.report.format import cells, label, sig
from farm.report.pairs import change

#: Lines of nights share one scale: so much either side of the middle.
SPAN = 0.15


def night_line(dates: Sequence[str], failing: Sequence[int], pace: Sequence[float | None]) -> Markup:
    """Nights in a line: bars for failing cells, a curve for the time relative to its own median (up is slower), dots
    for nights without results."""
    width, height, middle = 330, 58, 22.0
    step = (width - 8) / max(len(dates), 1)
    most = max([1, *failing])
    shapes = [svg.line([(4, middle), (width - 4, middle)], "tick")]
    points: list[tuple[float, float] | None] = []
    for i, (date, bad, by) in enumerate(zip(dates, failing, pace, strict=True)):
        x = 4 + i * step
        if bad > 0:
            high = max(2.0, 14.0 * bad / most)
            shapes.append(
                svg.bar(x, height - high, max(step - 1.5, 1.5), high, "failing", f"{date}: {cells(bad)} failing")
            )
        if bad < 0:
            shapes.append(svg.text(x, height - 1, "·", "tick"))
        off = None if by is None else max(-1.0, min(1.0, (by - 1) / SPAN))
        points.append(None if off is None else (x + step / 2, middle - 20 * off))
    shapes.append(svg.line(points, "pace"))
    failed = next((f"{cells(n)} failing in the newest" for n in reversed(failing) if n >= 0), "no results")
    return svg.picture(width, height, f"{len(dates)} nights, {failed}", shapes, "nights")


def sibling_strip(by: Sequence[float | None], span: float = 0.05) -> Markup:
    """A device's nights relative to its siblings, left to right; up is slower, the edge is `span`."""
    width, height = 120, 26
    step = (width - 4) / max(len(by), 1)
    points = [
        None if v is None else (2 + i * step, height / 2 - (height / 2 - 2) * max(-1.0, min(1.0, (v - 1) / span)))
        for i, v in enumerate(by)
    ]
    known = [v for v in by if v is not None]
    told = f"{change(known[-1])} against its siblings" if known else "no times"
    middle = svg.line([(2, height / 2), (width - 2, height / 2)], "tick")
    return svg.picture(width, height, told, [middle, svg.line(points, "pace")], "nights")


@dataclass(frozen=True)
class Point:
    """One night of a value: when, the value (None: none that counts), its spread, what happened, what changed."""

    date: str
    value: float | None
    low: float | None = None
    high: float | None = None
    status: str = "passed"
    changed: str = ""  # `driver 575 → 580`


def history(
    points: Sequence[Point], unit: str, lines: Sequence[tuple[str, float]] = (), width: int = 660, since: str = ""
) -> Markup:
    """A value over nights with its spread, failing nights as crosses, changes of the tool chain as dashed lines.
    `lines`: (name, value) of levels to hold it against; `since`: the night from which on it is shaded."""
    height, left, right, top, bottom = 226, 56, 90, 24, 30
    known = [v for p in points for v in (p.value, p.low, p.high) if v is not None]
    levels = [v for _, v in lines]
    if not known:
        return Markup("")
    low, high = min([*known, *levels]), max([*known, *levels])
    middle = (low + high) / 2 or 1.0
    low, high = min(low, middle * (1 - SPAN)), max(high, middle * (1 + SPAN))
    low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
    step = (width - left - right) / max(len(points) - 1, 1)

    def x(i: int) -> float:
        return left + i * step

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - (value - low) / (high - low))

    shapes = []
    began = next((i for i, p in enumerate(points) if since and p.date >= since), None)
    if began is not None:
        edge = x(began) - step / 2
        tip = f"since {since[:10]}"
        shapes.append(svg.bar(edge, top, width - right + step / 2 - edge, height - top - bottom, "since", tip))
    for i in range(5):
        at = low + (high - low) * i / 4
        shapes.append(svg.line([(left, y(at)), (width - right, y(at))], "tick"))
        shapes.append(svg.text(left - 6, y(at) + 4, sig(at), "tick", "end"))
    shapes.append(svg.text(0, 10, unit, "cap"))
    every = max(1, len(points) // 6)
    for i, p in enumerate(points):
        if i % every == 0:
            shapes.append(svg.text(x(i), height - 12, p.date[5:10], "tick", "middle"))
        if p.changed:
            shapes.append(svg.line([(x(i) - step / 2, top), (x(i) - step / 2, height - bottom)], "changed"))
    below = 0.0
    for name, at in sorted(((name, y(value)) for name, value in lines), key=lambda one: one[1]):
        below = max(at, below + 12)  # labels that do not cover each other
        shapes.append(svg.line([(left, at), (width - right, at)], "level"))
        shapes.append(svg.text(width - right + 5, below + 4, name))
    band = [(x(i), y(p.low), y(p.high)) for i, p in enumerate(points) if p.low is not None and p.high is not None]
    shapes += [svg.line([(a, b), (a, c)], "spread") for a, b, c in band]
    shapes.append(svg.line([None if p.value is None else (x(i), y(p.value)) for i, p in enumerate(points)], "pace"))
    for i, p in enumerate(points):
        if p.value is not None:
            shapes.append(svg.dot(x(i), y(p.value), "ours", f"{p.date[:16]}: {sig(p.value, 4)} {unit}", 2.2))
        elif p.status not in ("passed", ""):
            shapes.append(svg.text(x(i), height - bottom - 2, "×", "over", "middle"))
    newest = next(p for p in reversed(points) if p.value is not None)
    told = f"{len(points)} nights of {unit}, the newest {sig(newest.value or 0.0)}, {label(points[-1].status)}"
    return svg.picture(width, height, told, shapes, "history")
