"""Values to HTML and SVG strings.  Does not know the store; all text is escaped here.

Colours: viridis for speed, one warm hue for errors within their tolerance, blue to red for time ratios, Okabe-Ito for
backends (farm.css).  A failure always has a glyph, never a colour alone.  Scales are CSS classes, so that a page of
4,000 cells stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup, escape

from farm.dashboards import builds
from farm.dashboards.contents import CONTENTS, Ratio, Value
from farm.dashboards.heat import Heat, Pace, Spot
from farm.dashboards.layout import Layout, providers
from farm.report.cards import Strip
from farm.report.format import count, glyph, label, ratio, short_dtype

STEPS = 20
PACES = 5  # steps of colour on either side of equal times; the last is for twice as fast and more
# viridis at 0, 0.1 .. 1 (van der Walt and Smith, CC0)
VIRIDIS = ("440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725")
FITS = 10  # columns of a table that needs no box on a wide screen
UNSURE = '<span class="ramp"><i class="unsure"></i></span>'
NAMES = {"impossible": "impossible timing"}
GLYPHS = {"impossible": "⊘"}


def esc(text: object) -> str:
    return str(escape(text))


def viridis(level: float) -> tuple[int, int, int]:
    """`level` in [0, 1] as red, green, blue in 0 .. 255."""
    at = min(max(level, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(at), len(VIRIDIS) - 2)
    a, b = (tuple(int(VIRIDIS[i][k : k + 2], 16) for k in (0, 2, 4)) for i in (low, low + 1))
    r, g, b_ = (round(x + (y - x) * (at - low)) for x, y in zip(a, b, strict=True))
    return r, g, b_


def luminance(rgb: tuple[int, int, int]) -> float:
    """WCAG relative luminance in [0, 1]."""
    r, g, b = (c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def scale_css() -> str:
    """The classes v0 .. v20 (speed), e0 .. e10 (error relative to its tolerance), d0 .. d10 without d5 (time ratio)."""
    out = []
    for i in range(STEPS + 1):
        r, g, b = viridis(i / STEPS)
        dark = luminance((r, g, b)) < 0.179  # where white and black contrast alike; 4.5:1 at least on either side
        out.append(f".v{i}{{background:#{r:02x}{g:02x}{b:02x};color:#{'fff' if dark else '000'}}}")
    out += [f".e{i}{{background:rgb(230 159 0/{0.03 + 0.055 * i:.2f})}}" for i in range(11)]
    for i in range(1, PACES + 1):  # the faintest is still a colour: a sure ratio is never white
        depth = f"{0.16 + 0.54 * i / PACES:.2f}"
        out.append(
            f".d{PACES - i}{{background:rgb(0 114 178/{depth})}}.d{PACES + i}{{background:rgb(213 94 0/{depth})}}"
        )
    return "".join(out)


def status_bar(counts: Mapping[str, int], missing: Mapping[str, int] | None = None) -> Markup:
    """A bar whose parts are as long as their counts; a single cell stays visible.

    `missing`: cells without evidence, thinner parts at the end.
    """
    shown = [(f"s-{s}", n, f"{count(n)} {label(s)}") for s, n in counts.items() if n]
    shown += [(f"bare s-{s}", n, f"{count(n)} {label(s)}, not run") for s, n in (missing or {}).items() if n]
    total = sum(n for _, n, _ in shown) or 1
    parts = "".join(
        f'<i class="{esc(name)}" style="flex-grow:{n / total:.4f}" title="{esc(text)}"></i>' for name, n, text in shown
    )
    words = ", ".join(text for _, _, text in shown)
    return Markup(f'<span class="bar" role="img" aria-label="{esc(words)}">{parts}</span>')


def status_list(counts: Mapping[str, int]) -> Markup:
    """`■ 3,710 passed  ■ ≠ 12 inaccurate`: the labels of a bar."""
    parts = (
        f'<span class="key"><i class="s-{esc(s)}"></i>'
        + (f"<em>{esc(glyph(s))}</em> " if s not in ("passed", "built") else "")
        + f"<b>{count(n)}</b> {esc(label(s))}</span>"
        for s, n in counts.items()
        if n
    )
    return Markup(" ".join(parts))


# ---- heat maps ----


def legend(heat: Heat) -> Markup:
    """What the numbers, colours and glyphs in this table mean."""
    if heat.basis == "tolerance":
        text, ramp = "number and colour: worst error / tolerance, 0 to 1", "".join(_swatch("e", range(11)))
    else:
        of = {"roof": "share of the roof", "row": "speed relative to the best in the same row"}[heat.basis]
        text, ramp = f"speed in {heat.unit}; colour: {of}, 0 to 1", "".join(_swatch("v", range(STEPS + 1)))
    spots = heat.spots.values()
    marks = {s.mark for s in spots if s.mark}
    words = {"ʟ": "launch-bound", "~": "noisy", "↓": "throttled"}
    parts = [f'<span class="ramp">{ramp}</span> {esc(text)}']
    parts += [f"<span>{UNSURE} no share, or an extrapolated one</span>"] if any(s.level < 0 for s in spots) else []
    parts += [f"<span><em>{esc(m)}</em> {esc(words.get(m, m))}</span>" for m in sorted(marks)]
    for status, n in heat.legend:
        sign, name = GLYPHS.get(status) or glyph(status), NAMES.get(status) or label(status)
        parts.append(f'<span><em class="s-{esc(status)}">{esc(sign)}</em> {esc(name)} {count(n)}</span>')
    missing = [CONTENTS[name] for name in CONTENTS if heat.unit and name not in heat.contents]
    parts += [f"<span>not known here: {esc(', '.join(missing))}</span>"] if missing else []
    return Markup(f'<p class="legend">{" ".join(parts)}</p>')


def _swatch(letter: str, steps: Iterable[int]) -> Iterable[str]:
    return (f'<i class="{letter}{i}"></i>' for i in steps)


def picker(titles: Mapping[str, str], present: Iterable[str]) -> Markup:
    """The choice of what every table of cells shows: radio buttons, which `content_css` acts on.  `titles`: content ->
    its name, in the order of the paragraphs in a cell."""
    names = set(present)
    numbered = [(i, name) for i, name in enumerate(titles, 1) if name in names]
    inputs = "".join(
        f'<input type="radio" name="content" id="show{i}" value="{name}"{" checked" if n == 0 else ""}>'
        for n, (i, name) in enumerate(numbered)
    )
    labels = "".join(f'<label for="show{i}">{esc(titles[name])}</label>' for i, name in numbered)
    return Markup(f'{inputs}<div class="picker">{labels}</div>' if numbered else "")


def content_css() -> str:
    """Of a cell's paragraphs, the chosen one is shown; a ratio and a number of registers have no colour of speed."""
    numbers = range(1, len(CONTENTS) + 1)

    def rule(select: str, numbers: Iterable[int], then: str) -> str:
        return ",".join(select.format(i) for i in numbers) + then

    plain = [i for i, name in enumerate(CONTENTS, 1) if name in ("peer", "baseline", "registers")]
    chosen = "{color:var(--ink);border-color:var(--ink);font-weight:600}"
    return (
        rule("#show{0}:checked~.blocks .heat p:nth-of-type({0})", numbers, "{display:block}")
        + rule("#show{0}:checked~.picker label[for=show{0}]", numbers, chosen)
        + rule("#show{0}:focus-visible~.picker label[for=show{0}]", numbers, "{outline:2px solid var(--link)}")
        + rule(
            "#show{0}:checked~.blocks .heat:not(.builds) td:is([class^=v],.unsure)",
            plain,
            "{background:none;color:inherit}",
        )
    )


def heat_table(heat: Heat, link: Callable[[int], str | None] = lambda index: None, *, anchored: bool = True) -> Markup:
    """Every cell of one backend, op and dtype; rows are shapes, columns providers and their modes.  `link`: a cell's
    number -> the address of its page; `anchored`: whether a cell that is a link has an anchor too (both for 4,000
    cells would be 12 kB of a page that may have 150)."""
    return table(heat.layout, "heat", lambda i: _heat_td(heat.spots[i], link(i), anchored))


def table(layout: Layout, name: str, td: Callable[[int], str]) -> Markup:
    """A table of a layout's cells.  `td`: a cell's number -> its element."""
    of = providers(layout.columns)
    top = "".join(f'<th colspan="{n}" scope="colgroup">{_breakable(p)}</th>' for p, n in of)
    sub = "".join(f"<th scope=col>{_breakable(m)}</th>" for _, m in layout.columns)
    wide = len(layout.columns)
    starts = {i for i, c in enumerate(layout.columns) if i and c[0] != layout.columns[i - 1][0]}
    groups = "".join(f"<col{' class=first' if i in starts else ''}>" for i in range(wide))
    out = [f'<table class="{name}"{_scaled(wide)}><colgroup><col>{groups}</colgroup>']
    out.append(f"<thead><tr><th rowspan=2>shape</th>{top}</tr><tr>{sub}</tr></thead>")
    for body in layout.bodies:
        out.append(f"<tbody><tr><th class=body colspan={wide + 1}>{esc(body.label)}</th></tr>")
        for line in body.lines:
            tag = f" <small>{esc(line.tag)}</small>" if line.tag else ""
            cells = "".join("<td>" if i is None else td(i) for i in line.cells)
            out.append(f"<tr><th scope=row>{esc(line.shape)}{tag}</th>{cells}</tr>")
        out.append("</tbody>")
    return Markup("\n".join([*out, "</table>"]))


def boxed(table: Markup, columns: int) -> Markup:
    """A table in a box that scrolls where it is too wide; a narrow one has no box on a wide screen, so that its head
    stays in the window."""
    return Markup(f'<div class="scroll{" fits" if columns <= FITS else ""}" tabindex=0>{table}</div>')


def _scaled(columns: int) -> str:
    """A table's number of columns, by which paper scales it: there nothing scrolls."""
    return f' style="--n:{columns}"'


def _heat_td(spot: Spot, address: str | None, anchored: bool) -> str:
    """A failed cell leads to its finding, any other to its page.  A link has no end tag: it ends with its cell."""
    if spot.kind == "status":
        text = f"<a href=#{esc(spot.anchor)}>{esc(spot.text)}</a>" if spot.anchor else esc(spot.text)
        name = f"s-{esc(spot.status)}"
    else:
        mark = f"<sup>{esc(spot.mark)}</sup>" if spot.mark else ""
        text = _values(spot.values, mark) if spot.values else esc(spot.text) + mark
        steps = STEPS if spot.kind == "speed" else 10
        name = f"{spot.kind[0].replace('s', 'v')}{round(min(spot.level, 1) * steps)}" if spot.level >= 0 else "unsure"
    lead = f"<a href={esc(address)}>" if address and not spot.anchor else ""
    anchor = "" if lead and not anchored else f" id=c{spot.index}"
    return f'<td{anchor} class={name} data-t="{esc(spot.tip)}">{lead}{text}'


def _values(shown: Mapping[str, Value], mark: str) -> str:
    """A cell's contents, a paragraph each, of which one is shown.  They have no end tags: a page has 20,000."""
    out, trailing = [], 0
    for name in CONTENTS:
        value = shown.get(name)
        trailing = 0 if value else trailing + 1
        if value is None:
            out.append("<p>")
            continue
        below = f"<small>{value.below}</small>" if value.below else ""
        shade = f" class={ratio_shade(value.ratio)}" if value.ratio else ""
        out.append(f"<p{shade}>{value.text}{mark}{below}")
    return "".join(out[: len(out) - trailing])


def ratio_shade(ratio: Ratio) -> str:
    """The class of a time ratio: blue is faster, red slower, grey where the two spreads overlap."""
    octaves = math.log2(ratio.value) if ratio.value > 0 else -1.0
    step = max(1, math.ceil(min(abs(octaves), 1.0) * PACES))
    return f"d{PACES + (step if octaves > 0 else -step)}" if ratio.sure else "unsure"


def failures(failed: Iterable[tuple[str, int]]) -> str:
    """`≠14 ×2`: subjects' findings behind a tab."""
    return " ".join(f"{glyph(status)}{n}" for status, n in failed)


def build_legend(table: builds.Table) -> Markup:
    """What the numbers and colours of a table of builds mean."""
    if table.backend == "ascend":
        ramp, text = (
            _swatch("e", range(11)),
            "share of the Unified Buffer (colour, 0 to 1), buffers; below: multi-buffered, waits",
        )
    else:
        memory = builds.MEMORY.get(table.backend, "shared memory")
        ramp, text = (
            _swatch("v", range(STEPS + 1)),
            f"registers and occupancy (colour, 0 to 1); below: {memory} per block, and what limits occupancy",
        )
    parts = [f'<span class="ramp">{"".join(ramp)}</span> {esc(text)}']
    if any("+" in s.side for s in table.spots.values()):
        parts.append("<span><em>+n</em> more kernels</span>")
    for status, n in table.legend:
        parts.append(
            f'<span><em class="s-{esc(status)}">{esc(glyph(status))}</em> {esc(label(status))} {count(n)}</span>'
        )
    return Markup(f'<p class="legend">{" ".join(parts)}</p>')


def build_table(found: builds.Table) -> Markup:
    """Every cell of one target, op and dtype; rows are shapes, columns providers and their modes."""
    return table(found.layout, "heat builds", lambda i: _build_td(found.spots[i]))


def _build_td(spot: builds.BuildSpot) -> str:
    tip = f'data-t="{esc(spot.tip)}"'
    if spot.kind == "status":
        text = f"<a href=#{esc(spot.anchor)}>{esc(spot.main)}</a>" if spot.anchor else esc(spot.main)
        return f"<td id=c{spot.index} class=s-{esc(spot.status)} {tip}>{text}"
    steps, letter = (10, "e") if spot.kind == "buffer" else (STEPS, "v")
    name = f"{letter}{round(min(max(spot.level, 0), 1) * steps)}"
    trouble = f"<strong>{esc(spot.trouble)}</strong>" if spot.trouble else ""
    text = f"<b>{esc(spot.main)}</b> {esc(spot.side)}{trouble}<i>{esc(spot.below)}</i>"
    return f"<td id=c{spot.index} class={name} {tip}>{text}"


def _breakable(name: str) -> str:
    """A mode's name that may wrap after its underscores, so that a column is as narrow as its numbers."""
    return esc(name).replace("_", "_<wbr>")


def content_legend() -> Markup:
    """What numbers and colours of the contents mean."""
    faster, slower = ("".join(_swatch("d", range(a, b))) for a, b in ((0, PACES), (PACES + 1, 2 * PACES + 1)))
    return Markup(
        f'<p class="legend"><span>µs: median, ± half of p20–p80. ÷: a time ratio, faster below 1 <span class="ramp">'
        f'{faster}</span>, slower above 1 <span class="ramp">{slower}</span>, {UNSURE} within noise (p20–p80 overlap)'
        "</span></p>"
    )


def pace_legend() -> Markup:
    """What the colours of time ratios mean."""
    faster, slower = ("".join(_swatch("d", range(a, b))) for a, b in ((0, PACES), (PACES + 1, 2 * PACES + 1)))
    return Markup(
        f'<p class="legend"><span>our kernel is faster: ½ <span class="ramp">{faster}</span> 1</span>'
        f'<span>slower: 1 <span class="ramp">{slower}</span> 2</span>'
        f"<span>{UNSURE} within noise (p20–p80 overlap)</span></p>"
    )


def pace_table(columns: Sequence[str], bodies: Mapping[str, Sequence[tuple[str, Sequence[Pace | None]]]]) -> Markup:
    """Subject's time divided by the peer's: blue is faster, red slower, grey where the two spreads overlap."""
    heads = "".join(f"<th scope=col>{_breakable(c)}</th>" for c in columns)
    out = [f"<table class=heat{_scaled(len(columns))}><thead><tr><th>shape</th>{heads}</tr></thead>"]
    for body, lines in bodies.items():
        out.append(f"<tbody><tr><th class=body colspan={len(columns) + 1}>{esc(body)}</th></tr>")
        out += [f"<tr><th scope=row>{esc(shape)}</th>{''.join(map(_pace_td, paces))}</tr>" for shape, paces in lines]
        out.append("</tbody>")
    return Markup("\n".join([*out, "</table>"]))


def _pace_td(pace: Pace | None) -> str:
    if pace is None:
        return "<td>"
    return f'<td class={ratio_shade(pace.ratio)} data-t="{esc(pace.tip)}">{pace.ratio.value:.2f}'


# ---- error relative to tolerance ----

WIDTH, LABEL, ROW, BINS = 430, 158, 20, 54  # three side by side on a wide page


def strip_chart(strips: Sequence[Strip], dtype: str) -> Markup:
    """A histogram of error relative to tolerance per provider and mode on a log axis; dots exceed the tolerance."""
    values = [v for s in strips for v in s.values if math.isfinite(v)]
    high = max(1, math.ceil(math.log10(max([1e-9, *values]) * 1.01)))
    low = min(-1, max(-4, math.floor(math.log10(max(min([v for v in values if v > 0], default=0.1), 1e-9)))))
    plot, height = WIDTH - LABEL - 60, ROW * len(strips) + 34

    def x(value: float) -> float:
        at = math.log10(value) if value > 0 else low
        return LABEL + plot * (min(max(at, low), high) - low) / (high - low)

    out = [
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" class="strips" '
        f'aria-label="error relative to tolerance, {esc(dtype)}">'
        f'<text x="0" y="11" class="cap">{esc(short_dtype(dtype))}</text>'
    ]
    for power in range(low, high + 1):
        at = x(10.0**power)
        name = "gate" if power == 0 else "tick"
        out.append(f'<path class="{name}" d="M{at:.1f} 18V{height - 14}"/>')
        text = "tolerance" if power == 0 else f"{10.0**power:g}×"
        if power in (0, low, high) or high - low <= 4:  # more labels than that would touch
            out.append(f'<text class="{name}" x="{at:.1f}" y="{height - 3}" text-anchor="middle">{text}</text>')
    for i, strip in enumerate(strips):
        base = 18 + ROW * (i + 1) - 3
        out.append(f'<text x="{LABEL - 8}" y="{base - 3}" text-anchor="end">{esc(strip.name)}</text>')
        out.append(f'<path class="hist" d="{_histogram(strip.values, x, base)}"/>')
        worst = max(strip.values)
        out.append(f'<text class="{"over" if worst > 1 else "max"}" x="{WIDTH - 4}" y="{base - 3}" ')
        out.append(f'text-anchor="end">max {ratio(worst)}</text>')
        for value, tip in strip.outliers:
            out.append(f'<circle cx="{x(value):.1f}" cy="{base - 5}" r="3"><title>{esc(tip)}</title></circle>')
    return Markup("".join([*out, "</svg>"]))


def _histogram(values: Sequence[float], x: Callable[[float], float], base: float) -> str:
    """Bars of the values within the tolerance; the tallest in the strip has full height."""
    bins: dict[int, int] = {}
    step = (WIDTH - LABEL - 60) / BINS
    for v in values:
        if v <= 1:
            at = int((x(v) - LABEL) / step)
            bins[at] = bins.get(at, 0) + 1
    top = max(bins.values(), default=1)
    bars = (
        f"M{LABEL + (b + 0.5) * step:.1f} {base}v{-max(1.5, (ROW - 5) * n / top):.1f}" for b, n in sorted(bins.items())
    )
    return "".join(bars)
