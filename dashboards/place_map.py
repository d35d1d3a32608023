"""A small map of an output: which parts of it are wrong, as inline SVG.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from farm.accuracy import places
from farm.report.queries import Row

WIDTH, LONGEST_SIDE, LEAST = 320, 160, 3


def of_row(row: Row) -> list[dict[str, Any]]:
    """{output, sentence, svg} of each output of a failed cell; a row from elsewhere may hold anything."""
    out = []
    try:
        for output, found in json.loads(row.get("places") or "{}").items():
            out.append({"output": str(output), "sentence": places.sentence(str(output), found), "svg": svg(found)})
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return []
    return out


def svg(found: Mapping[str, Any]) -> Markup:
    """`found`: a report of `farm.accuracy.places.finish`.  Lines of the tensor (all axes but the last) downwards, the
    last axis to the right; the darker a part, the more of it is wrong."""
    shades = [[int(digit) for digit in line[: places.MAP_COLUMNS]] for line in found["map"][: places.MAP_ROWS]]
    if not shades or not shades[0]:
        return Markup("")
    wide, high = len(shades[0]), len(shades)
    w = max(LEAST, WIDTH // wide)
    h = max(LEAST, min(w, LONGEST_SIDE // high))
    spots = []
    for y, line in enumerate(shades):
        x = 0
        for shade, run in groupby(line):  # one rectangle for neighbours of one shade: a page has many maps
            length = len(list(run))
            if shade:
                place = f'x="{x * w}" y="{y * h}" width="{length * w}" height="{h}"'
                spots.append(f'<rect class="wrong" {place} fill-opacity="{0.2 + 0.8 * shade / 9:.2f}"/>')
            x += length
    shape = " x ".join(str(int(n)) for n in found["shape"])
    told = escape(f"{found['count']:,} of {found['of']:,} elements of [{shape}] are wrong")
    size = f'width="{wide * w}" height="{high * h}" viewBox="0 0 {wide * w} {high * h}"'
    return Markup(f'<svg class="places" role="img" {size}><title>{told}</title>{"".join(spots)}</svg>')
