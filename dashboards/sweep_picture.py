"""A sweep as one SVG file: the best peer's time over ours by the matrix's size, a panel per operation.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farm.dashboards import svg
from farm.report.format import sig
from farm.report.sweep import LOSS, Sweep, SweepCell

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 760, 190, 56, 16, 44, 42
#: Okabe and Ito's colours, by op in the sweep's order.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.axis{stroke:#999;fill:none}"
    ".grid{stroke:#ddd;fill:none}.even{stroke:#222;fill:none}.loss{stroke:#d55e00;fill:none;stroke-dasharray:4 3}"
    "circle{fill-opacity:.75}.under{stroke:#d55e00;stroke-width:2}"
)
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
NOTHING = "no cell has a ratio"


def picture(found: Sweep, title: str) -> str:
    """A complete SVG document; a dot per cell, those under LOSS with a ring, and drawn last."""
    cells = found.compared
    operations = list(dict.fromkeys(c.operation for c in sorted(cells, key=lambda c: c.operation)))
    ops = list(dict.fromkeys(c.op for c in sorted(cells, key=lambda c: c.op)))
    height = TOP + max(1, len(operations)) * (PANEL + GAP)
    colours = {f"o{i}": COLOURS[i % len(COLOURS)] for i in range(len(ops))}
    style = STYLE + "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())
    shapes = [
        f"<style>{style}</style>",
        svg.bar(0, 0, WIDTH, height, "page").replace("<rect ", '<rect fill="#fff" '),
        svg.text(LEFT, 18, title, "title"),
    ]
    at = float(LEFT)
    for i, op in enumerate(ops):
        shapes += [svg.dot(at + 5, 32, f"o{i}", r=4), svg.text(at + 14, 36, op)]
        at += 30 + 7.5 * len(op)
    if not cells:
        shapes.append(svg.text(LEFT, TOP + 20, NOTHING))
    for i, operation in enumerate(operations):
        mine = [c for c in cells if c.operation == operation]
        shapes += _panel(operation, mine, cells, ops, TOP + i * (PANEL + GAP))
    label = f"{title}: {len(found.losses)} of {len(cells)} cells under {LOSS}"
    drawn = str(svg.picture(WIDTH, height, label, shapes, "sweep"))
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _panel(
    operation: str, mine: Sequence[SweepCell], cells: Sequence[SweepCell], ops: Sequence[str], top: float
) -> list[str]:
    sizes = [math.log2(max(c.nbytes, 1)) for c in cells]
    low, high = math.floor(min(sizes)), max(math.ceil(max(sizes)), math.floor(min(sizes)) + 1)
    ratios = [c.ratio or 1.0 for c in cells]
    least, most = min(0.8, *ratios) / 1.05, max(1.25, *ratios) * 1.05

    def x(nbytes: float) -> float:
        return LEFT + (math.log2(max(nbytes, 1)) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(ratio: float) -> float:
        return top + PANEL - math.log(ratio / least) / math.log(most / least) * PANEL

    out = [svg.text(WIDTH - RIGHT, top + 12, operation, "title", "end")]
    for tick in TICKS:
        if least <= tick <= most:
            name = "even" if tick == 1 else "grid"
            out.append(svg.line([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], name))
            out.append(svg.text(LEFT - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    out.append(svg.line([(LEFT, y(LOSS)), (WIDTH - RIGHT, y(LOSS))], "loss"))
    for power in range(low, high + 1):
        if power % 5 == 0:
            out.append(svg.line([(x(2.0**power), top), (x(2.0**power), top + PANEL)], "grid"))
            out.append(svg.text(x(2.0**power), top + PANEL + 16, _size(power), anchor="middle"))
    out.append(svg.line([(LEFT, top), (LEFT, top + PANEL), (WIDTH - RIGHT, top + PANEL)], "axis"))
    for cell in sorted(mine, key=lambda c: -(c.ratio or 0.0)):
        under = " under" if (cell.ratio or 0.0) < LOSS else ""
        tip = f"{cell.name}: {cell.ratio:.3f} of {cell.best}, {sig(cell.us or 0)} us"
        out.append(svg.dot(x(cell.nbytes), y(cell.ratio or 1.0), f"o{ops.index(cell.op)}{under}", tip, r=3.5))
    return out


def _size(power: int) -> str:
    unit, rest = (
        ("GiB", 30) if power >= 30 else ("MiB", 20) if power >= 20 else ("KiB", 10) if power >= 10 else ("B", 0)
    )
    return f"{2 ** (power - rest)} {unit}"
