"""Laws that wrong values follow nearly, in words: a factor of each row, a share of what is expected, a trend.  Pure.

Each is said only where it explains nearly all of the error in nearly all lines: of errors at random none does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray

_EXPLAINED = 0.9  # share of the squared error
_LINES = 0.9  # share of the lines
_FEWEST = 16  # elements of a line
_POOLED = 64  # elements of all lines
_ROWS = 6
_LITTLE = 0.02
_BETTER = 0.25  # share of a simpler law's error that a law of more parameters may leave
_LEFT = 0.3  # share of a sum that must be left: any formula has a small part that is unrelated to the rest
_FAR = 4.0  # of values, in those of their lines
_ORDERED = 0.7, 4.0  # of a trend: the least correlation of ranks, and the least in standard deviations of chance
_TIMES = 2.5  # by which an error grows
_NORMAL = 5.0  # medians: what is larger would decide a fit alone
#: Values after which a trend says more.
OPEN = ("each ", "about ", "too ", "off by about ", "unrelated ")


def fitted(panels: Sequence[Array], line: str) -> str:
    """What got and expected values [2, columns] of some lines have in common; "" where no law holds."""
    lines = [p for p in map(_plain, panels) if p.shape[1] >= _FEWEST]
    if not lines:
        return ""
    return _of_columns(panels, line) or _of_each_line(lines, line) or _share(lines)


def _plain(panel: Array) -> Array:
    """What is finite, without the few elements that are far larger than the others."""
    panel = panel[:, np.isfinite(panel).all(axis=0)]
    size = np.abs(panel[1])
    middle = float(np.median(size)) if size.size else 0.0
    return panel[:, size <= _NORMAL * middle] if middle > 0 else panel[:, :0]


def _mostly(which: Sequence[bool]) -> bool:
    return bool(which) and sum(which) >= _LINES * len(which)


def _explained(diff: Array, rest: Array) -> float:
    """The share of the squared error that a fit explains."""
    whole = float((diff**2).sum())
    return 1 - float((rest**2).sum()) / whole if whole > 0 else 0.0


def _related(got: Array, want: Array, least: float = 0.9) -> bool:
    """Whether got follows expected: without that, a factor near 0 would be said of anything small."""
    norm = math.sqrt(float((got**2).sum() * (want**2).sum()))
    return norm > 0 and float((got * want).sum()) / norm >= least


def _of_each_line(lines: Sequence[Array], line: str) -> str:
    found, moved = [], []
    for got, want in lines:
        diff = got - want
        slope = float((diff * want).sum() / (want**2).sum())
        found.append((_explained(diff, diff - slope * want) if _related(got, want) else 0.0, 1 + slope))
        centred = want - want.mean()
        spread = float((centred**2).sum())
        slope = float((diff * centred).sum()) / spread if spread > 0 else 0.0
        constant = float(diff.mean()) - slope * float(want.mean())
        fits = spread > 0 and _related(got - got.mean(), centred)
        share = _explained(diff, diff - slope * want - constant) if fits else 0.0
        moved.append((share, 1 + slope, constant, _explained(diff, diff - diff.mean())))
    if _mostly([share >= _EXPLAINED for share, _ in found]):
        return _factors([f for _, f in found], line)
    if _mostly([share >= _EXPLAINED for *_, share in moved]):
        constants = [c for share, f, c, _ in moved]
        means = [float((got - want).mean()) for got, want in lines] if constants else []
        if len(lines) == 1:
            return f"off by about {means[0]:+.4g}"
        return f"each {line} off by about a constant of its own, {min(means):+.4g} to {max(means):+.4g}"
    if len(lines) > 1 and _mostly([share >= _EXPLAINED for share, *_ in moved]):
        return f"{_factors([f for _, f, *_ in moved], line)}, and moved by a constant"
    return ""


def _factors(factors: Sequence[float], line: str, about: str = "about ") -> str:
    low, middle, high = min(factors), float(np.median(factors)), max(factors)
    if high - low <= 0.1 * abs(middle - 1):
        return f"scaled by {about}{factor_text(middle)}" if middle != 1 else ""
    return f"each {line} scaled by {about}a factor of its own, {factor_text(low)} to {factor_text(high)}"


def factor_text(factor: float) -> str:
    """`1.024`; next to 1 by how little it differs."""
    near = abs(factor - 1) < 1e-3 and factor != 1
    return f"1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g}" if near else f"{factor:.4g}"


def _of_columns(panels: Sequence[Array], line: str) -> str:
    """Laws of rows and columns together, from lines of which the same columns are known."""
    if not panels or line != "row":
        return ""
    wide, _ = Counter(p.shape[1] for p in panels).most_common(1)[0]
    kept = [p for p in panels if p.shape[1] == wide and np.isfinite(p).all() and p[1].any()]
    if len(kept) < _ROWS or wide < _FEWEST:
        return ""
    got, want = (np.stack([p[k] for p in kept]) for k in (0, 1))
    size = np.sqrt((want**2).mean(axis=1, keepdims=True))
    got, want = got / size, want / size
    diff = got - want
    usual = np.abs(want) <= _NORMAL * np.median(np.abs(want))
    diff, want = np.where(usual, diff, 0.0), np.where(usual, want, 0.0)
    if not diff.any():
        return ""
    free = got.size / (got.size - len(kept) - wide)  # what this many parameters fit by chance
    per_row = (diff * want).sum(axis=1, keepdims=True) / np.maximum((want**2).sum(axis=1, keepdims=True), 1e-300)
    room = min(1 - _EXPLAINED, _BETTER * (1 - _explained(diff, diff - per_row * want))) / free
    by_column = (diff * want).sum(axis=0) / np.maximum((want**2).sum(axis=0), 1e-300)
    if 1 - _explained(diff, diff - by_column * want) <= room:
        return (
            f"each column scaled by about a factor of its own, "
            f"{factor_text(1 + by_column.min())} to {factor_text(1 + by_column.max())}"
        )
    slope = np.array([_slope(w, d) for w, d in zip(want, diff)])
    for _ in range(30):
        toward = (slope[:, None] * (slope[:, None] * want - diff)).sum(axis=0) / max(float((slope**2).sum()), 1e-300)
        apart = np.where(usual, want - toward, 0.0)
        slope = (diff * apart).sum(axis=1) / np.maximum((apart**2).sum(axis=1), 1e-300)
    if 1 - _explained(diff, diff - slope[:, None] * apart) > room or np.abs(toward).mean() > _FAR:
        return ""
    if (slope <= -1).any() or ((slope > 0).any() and (slope < 0).any()):
        return ""
    text = _factors([1 + float(s) for s in slope], line)
    which = "pulled toward" if (slope < 0).all() else "pushed away from"
    return f"{text}, {which} a value of each column's own (as a bias is)"


def _slope(want: Array, diff: Array) -> float:
    centred = want - want.mean()
    spread = float((centred**2).sum())
    return float((diff * centred).sum()) / spread if spread > 0 else 0.0


def _share(lines: Sequence[Array]) -> str:
    """Which share of the expected is there, if a rest is not; or that got has nothing to do with it."""
    sizes = [math.sqrt(float((want**2).mean())) for _, want in lines]
    got, want = (np.concatenate([p[k] / size for p, size in zip(lines, sizes)]) for k in (0, 1))
    n = len(got)
    if n < _POOLED or not got.any():
        return ""
    share, error = _least_squares(got, want)
    alike = []  # a mean of unlike lines would be true of none
    far = float(((got - want) ** 2).mean())
    for (one, its), size in zip(lines, sizes):
        own, around = _least_squares(one / size, its / size)
        error_of = float(((one - its) ** 2).mean()) / size**2
        alike.append(abs(own - share) <= 4 * around + 0.1 and far / 3 <= error_of <= far * 3)
    if not _mostly(alike):
        return ""
    chance = 3 / math.sqrt(n)
    related = float((got * want).sum()) / math.sqrt(float((got**2).sum() * (want**2).sum()))
    size = math.sqrt(float((got**2).mean()))
    if abs(related) < chance and 0.25 <= size <= 2:
        return "unrelated to what is expected"
    if abs(share - 1) <= max(_LITTLE, 6 * error):
        return ""
    missing = want - got
    apart = float((got * missing).sum()) / math.sqrt(float((got**2).sum() * (missing**2).sum()))
    if abs(apart) < chance and _LEFT < share < 1 - _LITTLE:
        return f"about {share:.2g} of what is expected, as a sum without {100 * (1 - share):.0f} % of its terms"
    return f"about {share:.2g} of what is expected, and a rest unrelated to it" if related >= 0.5 else ""


def _least_squares(got: Array, want: Array) -> tuple[float, float]:
    """The factor between them, and its standard error whatever the errors' sizes."""
    whole = float((want**2).sum())
    slope = float((got * want).sum()) / whole
    return slope, math.sqrt(float(((got - slope * want) ** 2 * want**2).sum())) / whole


def trend(sets: Sequence[Array], errors: Sequence[Array], names: Sequence[str]) -> str:
    """`the error grows along the queries, from 2 % to 120 %`: relative to what is expected, where its size follows the
    index of an axis.  `errors`: of each axis the squares of errors and of expected values [2, indices]; of the first
    one, those of the indices in `sets`."""
    best, said = _ORDERED[0], ""
    for axis, (found, name) in enumerate(zip(errors, names)):
        some = (found > 0).all(axis=0)
        if np.count_nonzero(some) < max(3, 0.5 * found.shape[1]) or axis >= len(sets):
            continue
        size = np.sqrt(found[0][some] / found[1][some])
        order = float(np.corrcoef(np.argsort(np.argsort(size)), np.arange(len(size)))[0, 1])
        few = max(3, len(size) // 8)
        first, last = float(np.median(size[:few])), float(np.median(size[-few:]))
        if abs(order) * math.sqrt(len(size) - 1) < _ORDERED[1]:
            continue
        if abs(order) > best and max(first, last) >= _TIMES * min(first, last):
            how = "grows" if order > 0 else "falls"
            best, said = abs(order), f"the error {how} along the {name}, from {_percent(first)} to {_percent(last)}"
    return said


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):g} %" if share < 100 else f"{share:.2g} times what is expected"
