"""What wrong elements hold, in words: never written, computed NaN, scaled by 1.024.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.accuracy import elsewhere, fitted_words

Array = Any  # numpy.ndarray

_ENOUGH = 8  # values that tend the same way by chance once in 128
_LITTLE = 0.1
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class LineSample:
    """Wrong finite elements of one line: what they are, what is expected, and what is expected one place before and
    after (NaN where there is no such place).

    `row`: the number of the line's row.  `panel`: got and expected [2, columns] at the same few columns of every line,
    wrong or not, NaN where either is not finite.  `moved`: the index of the line's first wrong element, and those at
    which its wrong values are expected; None where they were not looked for.
    """

    got: Array
    want: Array
    before: Array
    after: Array
    row: int
    panel: Array
    moved: elsewhere.Moved | None = None


#: What wrong elements hold -> the words.
_HOLD = {
    "unwritten": "never written",
    "spread": "computed from memory that was never written",
    "nan": "computed NaN",
    "infinite": "infinite",
    "finite": "finite where NaN or infinity is expected",
}


def values_text(
    kinds: Mapping[str, int], count: int, lines: Sequence[LineSample], dtype: str, line: str, names: Sequence[str] = ()
) -> str:
    """What the wrong elements hold: `never written`, `scaled by 1.024`; "" where they have nothing in common.  `line`:
    what a vector along the last axis is called, `names`: one index of each axis."""
    odd = {k: kinds[k] for k in _HOLD if kinds.get(k)}
    plain = count - sum(odd.values())
    if odd and not plain and len(odd) == 1:
        return _HOLD[next(iter(odd))]
    parts = [f"{n:,} {_HOLD[k]}" for k, n in odd.items()]
    if plain:
        said = "holding zero" if kinds.get("zero", 0) >= plain else _common(lines, dtype, line, names)
        if not odd:
            return said
        parts.append(f"{plain:,} {said or 'with a wrong value'}")
    return ", ".join(parts)


def by_kind(
    rows: Array,
    held: Mapping[str, Array],
    in_row: Array,
    lines: Sequence[LineSample],
    kinds: Mapping[str, Array],
    dtype: str,
    line: str,
    names: Sequence[str],
) -> str:
    """`those of kind tiny scaled by 1.008, those of kind zero computed NaN`, where the wrong rows are of two or three
    kinds that differ in what they hold; "" elsewhere."""
    found: dict[str, list[str]] = {}
    for kind, numbers in kinds.items():
        mine = np.isin(rows, numbers)
        if mine.any():
            sums = {name: int(of[mine].sum()) for name, of in held.items()}
            some = [s for s in lines if np.isin(s.row, numbers)]
            words = values_text({k: n for k, n in sums.items() if n}, int(in_row[mine].sum()), some, dtype, line, names)
            found.setdefault(words, []).append(kind)
    if not 1 < len(found) <= 3 or "" in found:
        return ""
    return ", ".join(f"those of kind {', '.join(of)} {words}" for words, of in found.items())


def _common(lines: Sequence[LineSample], dtype: str, line: str, names: Sequence[str]) -> str:
    """What the plain wrong values of a sample have in common."""
    if not lines:
        return ""
    got, want, before, after = (
        np.concatenate([getattr(s, name) for s in lines]) for name in ("got", "want", "before", "after")
    )
    if len(got) > 1 and (got == got[0]).all() and not (want == want[0]).all():
        return f"all {got[0]:.6g}"
    if dtype not in _EPSILON:
        diff = got - want
        return f"off by {diff[0]:+g}" if len(diff) > 1 and (diff == diff[0]).all() else ""
    eps = _EPSILON[dtype]
    if _mostly(np.abs(got + want) <= 4 * eps * np.abs(want)):
        return "sign reversed"
    if len(got) > 3:
        for there, words in ((before, "one place before"), (after, "one place after")):
            apart = np.abs(want - there) > 16 * eps * np.abs(there)  # neighbours that are alike show nothing
            if apart.sum() > 3 and _mostly((np.abs(got - there) <= 4 * eps * np.abs(there))[apart]):
                return f"holding the value that is expected {words}"
    if moved := elsewhere.words([s.moved for s in lines], names):
        return moved
    factors = [_factor(s, eps) for s in lines]
    known_factors = [f for f in factors if f is not None]
    if known_factors and len(known_factors) >= 0.9 * len(factors) and _one_way(got, want, known_factors, eps):
        low, high = min(known_factors), max(known_factors)
        middle = float(np.median(known_factors))
        if high - low <= (4 * eps + 1e-3) * abs(middle) and f"{middle:.4g}" != "1":
            return f"scaled by {middle:.4g}"
        if all(len(s.got) > 3 for s in lines) and len(lines) > 1:
            return f"each {line} scaled by a factor of its own, {low:.4g} to {high:.4g}"
    diff = got - want
    middle = float(np.median(diff))
    if len(diff) > 3 and _mostly(np.abs(diff - middle) <= 4 * eps * (np.abs(want) + abs(middle))):
        return f"off by {middle:+.4g}"
    return fitted_words.fitted([s.panel for s in lines], line) or _tendency(diff, want)


def _one_way(got: Array, want: Array, factors: Sequence[float], eps: float) -> bool:
    """Whether factors next to 1, which the roundings of right values have as well, are a factor: all on one side."""
    middle = float(np.median(factors)) - 1
    if abs(middle) > 4 * eps:
        return True
    return len(got) >= 2 * _ENOUGH and _mostly((got - want) * want * middle > 0)


def _tendency(diff: Array, want: Array) -> str:
    """Which way values without a common factor are off, and how far where that is little: a wrong formula is off by as
    much as the values themselves, sums of too few digits are not."""
    if len(diff) < _ENOUGH:
        return ""
    if (diff > 0).all() or (diff < 0).all():
        low, high = np.abs(diff).min(), np.abs(diff).max()
        return f"too {'large' if diff[0] > 0 else 'small'} by {low:.3g} to {high:.3g}"
    typical = math.sqrt(float(np.mean(want**2)))
    off = math.sqrt(float(np.mean(diff**2)))
    return f"off by about {100 * off / typical:.2g} % in both directions" if 0 < off <= _LITTLE * typical else ""


def _factor(sample: LineSample, eps: float) -> float | None:
    """The one factor between a line's values and what is expected; None where there is none."""
    some = np.abs(sample.want) >= 1e-2 * np.sqrt(np.mean(sample.want**2))
    some &= sample.want != 0
    if not some.any():
        return None
    ratios = sample.got[some] / sample.want[some]
    middle = float(np.median(ratios))
    steady = np.abs(ratios - middle) <= (2 * eps + 1e-6) * max(1.0, abs(middle))
    return middle if _mostly(steady) and abs(middle - 1) > eps / 4 else None


def _mostly(which: Array) -> bool:
    return bool(which.size) and np.count_nonzero(which) >= 0.95 * which.size
