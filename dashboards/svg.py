"""The few shapes that charts are made of, as SVG strings.  All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape


def picture(width: int, height: int, label: str, shapes: Iterable[str], name: str = "chart") -> Markup:
    """An image of its own size in pixels; `label` is what a reader who does not see it is told."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return Markup(f'<svg {size} role="img" class="{name}" aria-label="{escape(label)}">{"".join(shapes)}</svg>')


def simulated(drawn: Markup, is_so: bool) -> Markup:
    """A picture which says, to who sees it and to who hears it, that simulated devices are in it."""
    if not is_so or not drawn:
        return drawn
    told = str(drawn).replace('aria-label="', 'aria-label="simulated: ', 1).replace("<title>", "<title>simulated: ", 1)
    mark = '<text class="fakemark" x="50%" y="12" text-anchor="middle">simulated</text></svg>'
    return Markup(told.removesuffix("</svg>") + mark)


def text(x: float, y: float, what: str, name: str = "", anchor: str = "start") -> str:
    of = f' class="{name}"' if name else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of}>{escape(what)}</text>'


def line(points: Sequence[tuple[float, float] | None], name: str) -> str:
    """A line through the points; None interrupts it."""
    out, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        out.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "L"
    return f'<path class="{name}" d="{"".join(out)}"/>' if out else ""


def dot(x: float, y: float, name: str, tip: str = "", r: float = 2.5) -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}">{inside}</circle>'


def bar(x: float, y: float, width: float, height: float, name: str, tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{inside}</rect>'
