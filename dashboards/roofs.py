"""The roofs that a run was compared with: each calibration's curve with the run's cells below it.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from farm.calibration import report
from farm.dashboards import svg
from farm.errors import Message
from farm.report.evidence import numbered
from farm.report.format import count, number
from farm.report.provenance import devices
from farm.report.queries import RunLike, flop_bound, is_subject, speed_counts
from farm.timing import roof
from farm.timing.roof import Calibration, Point

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 660, 300, 54, 14, 20, 34
#: A dot: (bytes moved, 1e9 B/s, whether it is a subject's).
Dot = tuple[int, float, bool]


@dataclass(frozen=True)
class RoofNote:
    """One calibration as a page shows it."""

    id: str
    backend: str
    device: str  # on which it was measured
    evidence: str
    made: str
    policy: str
    remarks: tuple[str, ...]
    chart: Markup
    dots: int  # cells of the run in the chart
    points: tuple[tuple[str, str, str, str], ...]  # moved, us, GB/s, configuration
    gemm: tuple[tuple[str, str, str], ...]  # dtype, 1e12 op/s, size: 4096³
    floors: tuple[tuple[str, str], ...]  # policy, us
    drift: str


def roofs(run: RunLike) -> list[RoofNote]:
    """Every calibration that the run was compared with, in the order of its devices, without damaged ones."""
    serves: dict[str, list[dict[str, Any]]] = {}
    for _, device in devices(run):
        choice = device.get("calibration")
        if isinstance(choice, Mapping) and choice.get("id"):
            serves.setdefault(str(choice["id"]), []).append(device)
    kept = run.head.get("calibrations") or {}
    out = []
    for name, mine in serves.items():
        try:
            calibration = roof.parse(kept.get(name))
            out.append(_note(calibration, mine, _dots(run, {str(d.get("name")) for d in mine})))
        except (ValueError, TypeError, KeyError, AttributeError):  # `parse` checks only what shares need
            continue
    return out


def _note(calibration: Calibration, mine: Sequence[Mapping[str, Any]], dots: Sequence[Dot]) -> RoofNote:
    record, device = calibration.record, str(calibration.record.get("device") or calibration.id)
    others = [str(d.get("name")) for d in mine if not d["calibration"].get("own")]
    remarks: list[str] = []
    if others:
        verb = "uses" if len(others) == 1 else "use"
        shared = f"Measured on {device}; {', '.join(numbered(others))} {verb} the same roof."
        remarks.append(Message(shared, id="roof-shared"))
    if any(d["calibration"].get("stale") for d in mine):
        remarks.append(Message(f"More than {roof.STALE.days} days old when the run started.", id="roof-stale"))
    remarks += report.remarks(record)
    best = report.best_gemms(record)
    return RoofNote(
        calibration.id,
        str(calibration.target.get("backend") or ""),
        device,
        str(record.get("evidence") or ""),
        str(record["made"]),
        f"{calibration.policy.get('method')} version {calibration.policy.get('version')}",
        tuple(remarks),
        svg.simulated(chart(calibration.curve, dots, device), str(record.get("evidence")) == "simulated"),
        len(dots),
        tuple((report.size(p.nbytes), f"{p.us:.2f}", f"{p.gbps:.0f}", p.config) for p in calibration.curve),
        tuple((dtype, f"{g['tflops']:.0f}", f"{g['edge']}³" if g.get("edge") else "") for dtype, g in best.items()),
        tuple((method, f"{us:.2f}") for method, us in (record.get("floors") or {}).items()),
        report.drift(record),
    )


def _dots(run: RunLike, names: set[str]) -> list[Dot]:
    """Cells of these devices that have a share of the roof and whose speed is in bytes per second."""
    return [
        (int(r["bytes_moved"]), float(r["bandwidth_gbps"]), is_subject(r))
        for r in run.rows
        if r.get("device") in names
        and speed_counts(r)
        and number(r.get("share_of_roof")) is not None
        and (number(r.get("bytes_moved")) or 0) > 0
        and number(r.get("bandwidth_gbps")) is not None
        and not flop_bound([r])
    ]


def chart(curve: Sequence[Point], dots: Sequence[Dot], device: str) -> Markup:
    """Bandwidth of the best copy over the bytes it moves (logarithmic), with the run's cells as dots."""
    low = math.log2(min([curve[0].nbytes, *(n for n, _, _ in dots)]))
    high = max(low + 1, math.log2(max([curve[-1].nbytes, *(n for n, _, _ in dots)])))
    top = _ceiling(max([*(p.gbps for p in curve), *(g for _, g, _ in dots)]))

    def x(nbytes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(nbytes) - low) / (high - low)

    def y(gbps: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - gbps / top)

    first, last = curve[0], curve[-1]
    words = (
        f"copy bandwidth of {device}: {first.gbps:.0f} GB/s at {report.size(first.nbytes)} to {last.gbps:.0f} GB/s at "
        f"{report.size(last.nbytes)}; {count(len(dots))} cells of this run"
    )
    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" class="curve" '
        f'aria-label="{escape(words)}"><text x="0" y="11" class="cap">GB/s</text>'
    ]
    for i in range(5):
        at, value = y(top * i / 4), top * i / 4
        out.append(f'<path class="tick" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    step = max(1, math.ceil((high - low) / 8))
    for power in range(math.ceil(low), math.floor(high) + 1, step):
        at = x(2.0**power)
        out.append(f'<path class="tick" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        name = report.size(2**power) if power >= 0 else ""
        out.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{name}</text>')
    out.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">bytes moved</text>')
    seen = sorted({(subject, round(x(n)), round(y(g))) for n, g, subject in dots})  # peers first: ours are on top
    kinds = {True: 'class="ours" r="2.5"', False: 'class="theirs" r="3"'}
    out += [f'<circle {kinds[subject]} cx="{a}" cy="{b}"/>' for subject, a, b in seen]
    path = "L".join(f"{x(p.nbytes):.1f} {y(p.gbps):.1f}" for p in curve)
    out.append(f'<path class="roof" d="M{path}"/>')
    return Markup("".join([*out, "</svg>"]))


def _ceiling(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 5, 6, 8 times a power of ten, of which a quarter is a short number."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if m * power >= value * (1 - 1e-9))
