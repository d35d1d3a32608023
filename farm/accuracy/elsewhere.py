"""Whether the wrong values of a line are those that are expected elsewhere: in another head, row or column.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.accuracy.place_words import plural

Array = Any  # numpy.ndarray
#: The index of a line's first wrong element, and the indices at which its wrong values are expected.
Moved = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]

LINES = 4  # of a block that are looked for
_FEWEST, _MOST = 8, 64  # elements of a line that are compared
_LARGEST = 1 << 22  # elements of a block in which to look
_NAMED = 4  # places of one line that are kept
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Finder:
    """Finds lines among what is expected in some rows (float64 [rows, width]) of an output of `shape`; `numbers` are
    those of the rows."""

    def __init__(self, want: Array, shape: Sequence[int], numbers: Array, dtype: str) -> None:
        self._want, self._width = want.reshape(-1), want.shape[1]
        self._inner, self._numbers = tuple(shape[1:]), numbers
        self._near = 2 * _EPSILON.get(dtype, 0.0)

    def line(self, got: Array, i: Array, j: Array) -> Moved | None:
        """Where the values `got` of elements [i, j] of one line are expected together, at the same distances from each
        other; None where too few differ from each other to tell."""
        want = self._want
        if not self._near or len(got) < _FEWEST or want.size > _LARGEST:
            return None
        some = np.unique(np.linspace(0, len(got) - 1, min(len(got), _MOST)).astype(int))
        values, at = got[some], i[some] * self._width + j[some]
        distinct, which, times = np.unique(values, return_index=True, return_counts=True)
        if len(distinct) * 2 < len(values):
            return None
        alone = which[times == 1]  # others may be what fills a line up
        if len(alone) < _FEWEST // 2:
            return None
        order = alone[np.argsort(-np.abs(values[alone]), kind="stable")]
        steps = np.flatnonzero(self._alike(want, values[order[0]])) - at[order[0]]
        for k in order[1:4]:
            there = at[k] + steps
            inside = (there >= 0) & (there < want.size)
            steps = steps[self._alike(want[np.clip(there, 0, want.size - 1)], values[k]) | ~inside]
        found = [int(s) for s in steps[np.argsort(np.abs(steps), kind="stable")] if s and self._holds(at + s, values)]
        return self._index(at[0]), tuple(self._index(at[0] + s) for s in found[:_NAMED])

    def _alike(self, want: Array, value: float) -> Array:
        return np.abs(want - value) <= self._near * abs(value)

    def _holds(self, there: Array, values: Array) -> bool:
        """Whether the values are expected there; where a tensor ends nothing is."""
        inside = (there >= 0) & (there < self._want.size)
        if not inside[0] or np.count_nonzero(inside) < max(_FEWEST, 0.75 * len(there)):
            return False
        alike = np.abs(self._want[there[inside]] - values[inside]) <= self._near * np.abs(values[inside])
        return bool(np.count_nonzero(alike) >= 0.85 * len(alike))

    def _index(self, position: int) -> tuple[int, ...]:
        row, rest = divmod(int(position), self._width)
        inner = np.unravel_index(rest, self._inner) if self._inner else ()
        return (int(self._numbers[row]), *(int(n) for n in inner))


def words(lines: Sequence[Moved | None], names: Sequence[str]) -> str:
    """`holding the value that is expected 1 head before`; "" where not nearly all lines that were looked for are
    expected elsewhere."""
    looked = [one for one in lines if one is not None]
    found = [(own, there) for own, there in looked if there]
    if not found or len(found) < 0.9 * len(looked):
        return ""
    names = names or [f"index of axis {axis}" for axis in range(len(found[0][0]))]
    steps = [{tuple(b - a for a, b in zip(own, at)) for at in there} for own, there in found]
    if same := set.intersection(*steps):
        step = min(same, key=lambda s: (sum(n != 0 for n in s), sum(map(abs, s)), s))
        parts = [
            f"{abs(n)} {name if abs(n) == 1 else plural(name)} {'further' if n > 0 else 'before'}"
            for n, name in zip(step, names)
            if n
        ]
        return f"holding the value that is expected {' and '.join(parts)}"
    nearest = [min(there, key=lambda at, own=own: sum(a != b for a, b in zip(own, at))) for own, there in found]  # type: ignore[misc]
    axes = [a for a in range(len(names)) if any(own[a] != at[a] for (own, _), at in zip(found, nearest))]
    if len(axes) == 1:
        (axis,) = axes
        targets = {at[axis] for at in nearest}
        if len(targets) == 1 and len(found) > 1:
            return f"holding the value that is expected in {names[axis]} {targets.pop()}"
        return f"holding values that are expected in another {names[axis]}"
    return f"holding values that are expected elsewhere (another {' and '.join(names[a] for a in axes)})"
