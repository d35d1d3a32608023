"""Where an output is wrong: which elements, what they hold, and what both have in common.

Wrong elements are marked block by block (`mark`), marks merge in the order of the blocks, and `finish` makes the report
of one output: JSON of at most a few KiB.  `farm.accuracy.place_words` finds the pattern.  An element is wrong where it
exceeds an element-wise limit of the output (`max_ulp`, `max_abs`), where it is NaN or infinite and its reference is not
(or vice versa), and where its row exceeds a limit of rows and at least half of the row is off.  Where a row has several
axes (a batch of heads), that holds of each of its lines, the vectors along the last axis: so a head that is right stays
unmarked beside one that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.accuracy import elsewhere, fitted_words, poison_bits
from farm.accuracy.dtypes import LARGEST, decode, is_float, ulp
from farm.accuracy.place_words import Pattern, plural
from farm.accuracy.value_words import LineSample, by_kind, values_text

Array = Any  # numpy.ndarray

MAP_ROWS, MAP_COLUMNS = 24, 64  # of the map: rows are all axes but the last
_LINES, _IN_LINE = 256, 64  # of the sample of values
_EXAMPLES = 6
_PANEL = 64  # columns of a line that are looked at, whatever is wrong there
_NEAR_OVERFLOW = 1 - 2.0**-6


@dataclass
class Marks:
    """Wrong elements in some rows of an output of `shape`; `rows` are the numbers of those with a wrong element, and
    `in_row` how many each has.  `first`, `last`: row-major positions; `step`: the greatest common divisor of the
    distances between wrong elements."""

    shape: tuple[int, ...]
    count: int = 0
    rows: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    in_row: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    axes: tuple[Array, ...] = ()  # wrong elements by index, of each axis but the first
    first: int = -1
    last: int = -1
    step: int = 0
    #: What they hold (unwritten, spread, nan, infinite, finite, zero) -> how many in each of `rows`.
    held: dict[str, Array] = field(default_factory=dict)
    #: Of each axis the squares of plain errors and of what is expected there, by index (of the first axis: by `rows`).
    errors: tuple[Array, ...] = ()
    lines: tuple[LineSample, ...] = ()
    examples: tuple[tuple[int, str, str], ...] = ()  # position, got, expected
    grid: Array = None

    def merge(self, other: Marks) -> Marks:
        """Both, `other` of later rows."""
        if not other.count or not self.count:
            return self if self.count else other
        lines = self.lines + other.lines
        while len(lines) > _LINES:
            lines = lines[::2]
        return Marks(
            self.shape,
            self.count + other.count,
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.in_row, other.in_row]),
            tuple(a + b for a, b in zip(self.axes, other.axes)),
            self.first,
            other.last,
            math.gcd(self.step, other.step, other.first - self.last),
            {
                k: np.concatenate([m.held.get(k, np.zeros(len(m.rows), np.int64)) for m in (self, other)])
                for k in {**self.held, **other.held}
            },
            tuple(
                a + b if axis else np.concatenate([a, b], axis=1)
                for axis, (a, b) in enumerate(zip(self.errors, other.errors))
            ),
            lines,
            _thinned((*self.examples, *other.examples)),
            self.grid + other.grid,
        )

    @property
    def kinds(self) -> dict[str, int]:
        """What wrong elements hold -> how many."""
        return {k: int(of.sum()) for k, of in self.held.items()}


def wrong_elements(
    stored: Array,
    want: Array,
    dtype: str,
    limits: Mapping[str, float],
    *,
    squared_scale: Array | None = None,
    spread: Array | None = None,
    loosely: bool = False,
    line: int = 0,
) -> Array:
    """Which elements of some rows (storage array [rows, width]) are wrong by these limits, bool [rows, width].
    `loosely`: also what is more than 1 ULP off, for an output that only a limit of the whole output refuses.
    `line`: the last axis of the output where a row has more than that, else 0."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        got = np.asarray(decode(stored, dtype), np.float64)
        large = LARGEST.get(dtype, np.inf)
        bound = np.abs(want) <= large * _NEAR_OVERFLOW
        fine = np.isfinite(got)
        saturated = (np.abs(got) >= large / 2) & (np.signbit(got) == np.signbit(want))
        wrong = ~np.where(bound, fine, np.where(np.isnan(want), ~fine, saturated))
        keep = bound & fine
        diff = np.where(keep, got - want, 0.0)
        size = np.where(keep, np.abs(want), 0.0)
        if squared_scale is not None:
            size = np.maximum(size, np.sqrt(np.where(np.isfinite(squared_scale), squared_scale, 0.0)))
        error = np.abs(diff)
        if not is_float(dtype):
            return wrong | (error > (0.0 if loosely or "max_abs" not in limits else limits["max_abs"]))
        in_ulp = error / ulp(size, dtype)
        if loosely:
            return wrong | (in_ulp > 1)
        if "max_ulp" in limits:
            wrong |= in_ulp > limits["max_ulp"]
        if "max_abs" in limits:
            wrong |= error > limits["max_abs"]
        base = np.where(keep, want, 0.0)
        rows_off = _off(diff, size, base, limits)
        if spread is not None:
            rows_off &= spread.reshape(-1)
        visible = in_ulp > 0.75
        if 0 < line < got.shape[1]:
            return wrong | (_lines_off(diff, size, base, visible, limits, line, rows_off) & (base != 0))
        rows_off &= np.count_nonzero(visible, axis=1) * 2 >= got.shape[1]
        return wrong | (rows_off[:, None] & (base != 0))


def _off(
    diff: Array, size: Array, base: Array, limits: Mapping[str, float], l2_room: float = 1.0, gain_room: float = 1.0
) -> Array:
    """Which rows exceed a limit of rows, times its room, bool [rows]."""
    rr = np.einsum("ij,ij->i", size, size)
    off = np.zeros(len(diff), bool)
    if "row_l2_max" in limits:
        off |= np.einsum("ij,ij->i", diff, diff) > (l2_room * limits["row_l2_max"]) ** 2 * rr
    if "gain_max" in limits:
        off |= np.abs(np.einsum("ij,ij->i", diff, base)) > gain_room * limits["gain_max"] * rr
    return off


def _lines_off(
    diff: Array, size: Array, base: Array, visible: Array, limits: Mapping[str, float], line: int, rows_off: Array
) -> Array:
    """Which elements are in lines that make their rows exceed a limit, bool [rows, width]; the whole row where no line
    does so alone.  A line is a smaller sample than a row: its rounding errors vary more, and average out less."""
    found = np.zeros(diff.shape, bool)
    if not rows_off.any():
        return found
    high, width = np.count_nonzero(rows_off), diff.shape[1]
    error, scale, wanted = (a[rows_off].reshape(-1, line) for a in (diff, size, base))
    off = _off(error, scale, wanted, limits, 2.0, 2 * math.sqrt(width / line))
    off &= np.count_nonzero(visible[rows_off].reshape(-1, line), axis=1) * 2 >= line
    chosen = np.repeat(off.reshape(high, -1), line, axis=1)
    half = np.count_nonzero(visible[rows_off], axis=1) * 2 >= width
    chosen[~chosen.any(axis=1) & half] = True
    found[rows_off] = chosen
    return found


def mark(wrong: Array, stored: Array, want: Array | None, dtype: str, shape: Sequence[int], numbers: Array) -> Marks:
    """The marks of rows `numbers` (ascending) of an output of `shape`: `wrong` and `stored` are [rows, width], `want`
    float64 likewise, or None where no reference is at hand."""
    shape = tuple(shape)
    count = int(np.count_nonzero(wrong))
    if not count:
        return Marks(shape)
    width, last = wrong.shape[1], shape[-1] if shape else 1
    i, j = np.nonzero(wrong)
    flat = numbers[i] * width + j
    in_row = np.count_nonzero(wrong, axis=1)
    some = in_row > 0
    axes, inner, rest = [], shape[1:], wrong.sum(axis=0, dtype=np.int64)
    if inner:
        rest = rest.reshape(inner)
        axes = [rest.sum(axis=tuple(a for a in range(len(inner)) if a != axis)) for axis in range(len(inner))]
    hold, plain, got = _hold(stored[i, j], dtype, None if want is None else want[i, j])
    held = {k: np.bincount(i[of], minlength=len(wrong))[some] for k, of in hold.items()}
    line = flat // last
    lines_total = max(1, math.prod(shape) // last)
    grid = np.zeros((min(MAP_ROWS, lines_total), min(MAP_COLUMNS, last)), np.int64)
    np.add.at(grid, (line * grid.shape[0] // lines_total, flat % last * grid.shape[1] // last), 1)
    steps = np.diff(flat)
    return Marks(
        shape,
        count,
        numbers[some],
        in_row[some].astype(np.int64),
        tuple(axes),
        int(flat[0]),
        int(flat[-1]),
        int(np.gcd.reduce(steps)) if steps.size else 0,
        held,
        () if want is None else _errors(got, want[i, j], plain, i, j, inner, some),
        () if want is None else _sample(flat, plain, got, stored, want, i, j, dtype, shape, numbers),
        _examples(flat, stored[i, j], None if want is None else want[i, j], dtype),
        grid,
    )


def _thinned(examples: tuple[tuple[int, str, str], ...]) -> tuple[tuple[int, str, str], ...]:
    """At most _EXAMPLES of them, the first and the last among them."""
    if len(examples) <= _EXAMPLES:
        return examples
    return tuple(examples[round(k * (len(examples) - 1) / (_EXAMPLES - 1))] for k in range(_EXAMPLES))


def _bits(stored: Array, dtype: str) -> Array:
    """Stored elements as unsigned integers, without the sign of floats."""
    raw = stored.view(f"u{stored.dtype.itemsize}") if stored.dtype.kind in "fV" else stored
    if dtype in poison_bits.SIGN:
        raw = raw & raw.dtype.type(~poison_bits.SIGN[dtype] & ((1 << 8 * raw.dtype.itemsize) - 1))
    return raw


def unwritten(stored: Array, dtype: str) -> Array:
    """Which elements still hold what the farm filled the memory with, bool."""
    return np.isin(_bits(stored, dtype), np.array(poison_bits.unwritten(dtype), _bits(stored[:0], dtype).dtype))


def _hold(stored: Array, dtype: str, want: Array | None) -> tuple[dict[str, Array], Array, Array]:
    """Which wrong elements hold what, which hold a plain value, and the values."""
    untouched = unwritten(stored, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        got = np.asarray(decode(stored, dtype), np.float64)
    spread = np.zeros_like(untouched)
    if poison_bits.spread(dtype):
        spread = ~untouched & np.isin(
            _bits(stored, dtype), np.array(poison_bits.spread(dtype), _bits(stored[:0], dtype).dtype)
        )
    nan, infinite = np.isnan(got), np.isinf(got)
    plain = ~untouched & ~nan & ~infinite
    found = {
        "unwritten": untouched,
        "spread": spread,
        "nan": nan & ~untouched & ~spread,
        "infinite": infinite & ~untouched,
        "zero": plain & (got == 0),
    }
    if want is not None:
        found["finite"] = plain & ~np.isfinite(want)  # where the reference is not
    return {k: v for k, v in found.items() if v.any()}, plain, got


def _errors(
    got: Array, want: Array, plain: Array, i: Array, j: Array, inner: tuple[int, ...], some: Array
) -> tuple[Array, ...]:
    """Of each axis the sums of squares of errors and of expected values, [2, indices]: of rows of those with a wrong
    element alone."""
    keep = plain & np.isfinite(want)
    dense = np.zeros((2, len(some), math.prod(inner)))
    dense[0, i[keep], j[keep]] = (got[keep] - want[keep]) ** 2
    dense[1, i[keep], j[keep]] = want[keep] ** 2
    rest = dense.sum(axis=1).reshape(2, *inner)
    axes = range(1, 1 + len(inner))
    return (dense.sum(axis=2)[:, some], *(rest.sum(axis=tuple(a for a in axes if a != axis)) for axis in axes))


def _sample(
    flat: Array,
    plain: Array,
    got: Array,
    stored: Array,
    want: Array,
    i: Array,
    j: Array,
    dtype: str,
    shape: tuple[int, ...],
    numbers: Array,
) -> tuple[LineSample, ...]:
    """Values of some wrong elements of some lines (a line is a vector along the last axis), with what is expected there
    and one place further in either direction."""
    keep = np.flatnonzero(plain & np.isfinite(want[i, j]))
    if not keep.size:
        return ()
    last = shape[-1] if shape else 1
    line, column = flat // last, flat % last
    names, begins = np.unique(line[keep], return_index=True)
    ends = np.append(begins[1:], len(keep))
    chosen = np.unique(np.linspace(0, len(names) - 1, min(len(names), _LINES // 4)).astype(int))
    each = max(_IN_LINE, 2048 // len(chosen))
    long = last if len(shape) > 1 else stored.size  # a vector may have come in parts
    panel = np.unique(np.linspace(0, long - 1, min(long, max(_PANEL, 2048 // len(chosen)))).astype(int))
    find = elsewhere.Finder(want, shape, numbers, dtype)
    out = []
    for number, k in enumerate(chosen):
        of = keep[begins[k] : ends[k]]
        moved = find.line(got[of], i[of], j[of]) if number % max(1, len(chosen) // elsewhere.LINES) == 0 else None
        of = of[np.unique(np.linspace(0, len(of) - 1, min(len(of), each)).astype(int))]
        row, at = i[of], j[of]
        left = np.where(column[of] > 0, want[row, np.maximum(at - 1, 0)], np.nan)
        right = np.where(column[of] < last - 1, want[row, np.minimum(at + 1, want.shape[1] - 1)], np.nan)
        begin = row[0] * want.shape[1] + at[0] - column[of][0] if len(shape) > 1 else 0
        held = stored.reshape(-1)[begin + panel]
        with np.errstate(invalid="ignore", over="ignore"):
            both = np.stack([np.asarray(decode(held, dtype), np.float64), want.reshape(-1)[begin + panel]])
        both[:, ~np.isfinite(both).all(axis=0) | unwritten(held, dtype)] = np.nan
        out.append(LineSample(got[of], want[row, at], left, right, int(numbers[row[0]]), both, moved))
    return tuple(out)


def _examples(flat: Array, stored: Array, want: Array | None, dtype: str) -> tuple[tuple[int, str, str], ...]:
    chosen = np.unique(np.linspace(0, len(flat) - 1, min(len(flat), _EXAMPLES)).astype(int))
    return tuple((int(flat[k]), *_pair(stored[k : k + 1], None if want is None else want[k], dtype)) for k in chosen)


def _pair(stored: Array, want: float | None, dtype: str) -> tuple[str, str]:
    """What one element holds and what is expected there, with as many digits as it takes to see that they differ."""
    if want is None:
        return got_text(stored, dtype), ""
    for digits in (6, 9, 17):
        got, expected = got_text(stored, dtype, digits), number_text(want, digits)
        if got != expected:
            break
    return got, expected


def got_text(stored: Array, dtype: str, digits: int = 6) -> str:
    """What one element holds, in words or as a number; `stored` has that element alone."""
    if unwritten(stored, dtype).any():
        return "never written"
    with np.errstate(invalid="ignore", over="ignore"):
        return number_text(np.asarray(decode(stored, dtype), np.float64)[0], digits)


def number_text(value: float, digits: int = 6) -> str:
    value = float(value)
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


def finish(
    marks: Marks,
    dtype: str,
    *,
    names: Sequence[str],
    kinds: Mapping[str, Array] | None = None,
    compared: Array | None = None,
) -> dict[str, Any]:
    """The report of one output.

    `names`: what one index of each axis is called (`row`, `head`).  `kinds`: kind of row -> the numbers of such rows.
    `compared`: the rows that were compared (ascending), None for all of them.  The keys: `count`, `of` (elements
    compared), `shape`, `axes` (names), `first` (multi-index), `box` ([first, last] of each axis), `pattern` and
    `values` (words), `kinds` (what they hold -> how many), `examples` ([{at, got, expected}]), `map` (lines of digits,
    0 none to 9 all wrong) and `compared_rows` (None for all).
    """
    shape, rows = marks.shape, marks.rows
    width = math.prod(shape[1:])
    total = (len(compared) if compared is not None else (shape[0] if shape else 1)) * width
    sets = [rows, *(np.flatnonzero(a) for a in marks.axes)] if shape else []
    pattern = Pattern(shape, sets, marks.count, names, kinds or {}, compared)
    flat = (marks.first, marks.last, marks.step) if compared is None else None
    pattern_text, held = pattern.text(flat), marks.kinds
    line = "row" if len(shape) == 2 else "line"
    values = values_text(held, marks.count, marks.lines, dtype, line, names)
    if "of kind" in pattern_text and not (values and held.keys() <= {"zero"}):
        values = by_kind(rows, marks.held, marks.in_row, marks.lines, kinds or {}, dtype, line, names) or values
    if not values or values.startswith(fitted_words.OPEN):
        trend = fitted_words.trend(sets, marks.errors, [plural(n) for n in names])
        values = ", ".join(part for part in (values, trend) if part)
    lines_total = max(1, math.prod(shape) // (shape[-1] if shape else 1))
    return {
        "count": marks.count,
        "of": total,
        "shape": list(shape),
        "first": _index(marks.first, shape),
        "box": [[int(s[0]), int(s[-1])] for s in sets],
        "axes": list(names),
        "pattern": pattern_text,
        "values": values,
        "kinds": held,
        "examples": [{"at": _index(p, shape), "got": got, "expected": want} for p, got, want in marks.examples],
        "map": _shades(
            marks.grid, lines_total, shape[-1] if shape else 1, compared, width // max(1, shape[-1]) if shape else 1
        ),
        "compared_rows": None if compared is None else len(compared),
    }


def _index(position: int, shape: tuple[int, ...]) -> list[int]:
    return [int(n) for n in np.unravel_index(position, shape)] if shape else []


def _shades(grid: Array, lines: int, columns: int, compared: Array | None, lines_of_row: int) -> list[str]:
    """The share of wrong elements in each part of the output as a digit: 0 none, 9 all."""
    high, wide = grid.shape
    if compared is None:
        tall = np.bincount(np.arange(high).repeat(_sizes(lines, high)), minlength=high)
    else:
        at = (compared[:, None] * lines_of_row + np.arange(lines_of_row)).reshape(-1)
        tall = np.bincount(at * high // lines, minlength=high)
    room = np.maximum(1, tall[:, None] * _sizes(columns, wide)[None, :])
    digits = np.where(grid > 0, np.clip(grid * 9 // room, 1, 9), 0)
    return ["".join(map(str, row)) for row in digits.tolist()]


def _sizes(total: int, parts: int) -> Array:
    """How many of `total` indices fall in each part, where index i falls in i * parts // total."""
    edges = -(-np.arange(parts + 1) * total // parts)
    return np.diff(edges)


def sentence(output: str, found: Mapping[str, Any]) -> str:
    """One clause for the terminal: how many, which, what they hold, and the first with what is expected there."""
    count, of = found["count"], found["of"]
    much = (
        "every element is"
        if count == of and of > 1
        else f"{count:,} of {of:,} elements {'is' if count == 1 else 'are'}"
    )
    text = f"{output}: {much} wrong"
    if found["pattern"] and count < of:
        text += f": {found['pattern']}"
    if found["values"]:
        text += f", {found['values']}"
    first = found["examples"][0] if found["examples"] else None
    if first and first["expected"]:
        got = "" if first["got"] == "never written" else f"got {first['got']}, "
        text += f"; first {_at(first['at'], found)}: {got}expected {first['expected']}"
    elif first:
        text += f"; first {_at(first['at'], found)}"
    if found.get("compared_rows") is not None:
        text += f" (in the {found['compared_rows']:,} rows that were compared)"
    return text


def _at(index: Sequence[int], found: Mapping[str, Any]) -> str:
    """`[0, 3, 0, 0] (batch, head, query, width)`; of a matrix the index alone."""
    names = found.get("axes") or ()
    return f"{index} ({', '.join(names)})" if len(names) == len(index) > 2 else str(index)


def report(output: str, found: Mapping[str, Any]) -> str:
    """The whole of it as text, for a log."""
    box = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in found["box"])
    lines = [sentence(output, found), f"  shape {found['shape']}, wrong elements within [{box}]"]
    lines += [
        f"  {e['at']}: got {e['got']}" + (f", expected {e['expected']}" if e["expected"] else "")
        for e in found["examples"]
    ]
    lines += ["  map (lines of the tensor downwards, last axis to the right; . none wrong, 9 all)"]
    lines += ["  " + row.replace("0", ".") for row in found["map"]]
    return "\n".join(lines)
