"""The pattern of wrong elements in words: which indices of which axis.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray

_FEW = 6  # indices that are listed
_MOST = 0.5  # share of a pattern's elements that must be wrong for the pattern to be named
_NEARLY = 0.9  # share of an axis that chance leaves where many of its elements are wrong


@dataclass(frozen=True)
class Pattern:
    """Which elements: `sets` are the indices with a wrong element of each axis, `names` what one index of it is
    called."""

    shape: tuple[int, ...]
    sets: Sequence[Array]
    count: int
    names: Sequence[str]
    kinds: Mapping[str, Array]
    compared: Array | None

    def text(self, flat: tuple[int, int, int] | None) -> str:
        """The pattern in words, "" for a single number.  `flat`: first, last and step of the row-major positions."""
        if not self.shape:
            return ""
        box = math.prod(len(s) for s in self.sets)
        share = self.count / box
        if share == 1:
            return self._product()
        if flat and self.count > 2:
            first, last, step = flat
            if last - first + 1 == self.count:
                return f"{self.count:,} elements one after the other in memory, {self._end(first, last)}"
            if step > 1 and (last - first) // step + 1 == self.count:
                return f"every {ordinal(step)} element in memory, {self._end(first, last)}"
        some = [a for a in range(len(self.shape)) if not self._nearly_whole(a)]
        share = self.count / math.prod(
            self._total(a) if a not in some else len(self.sets[a]) for a in range(len(self.shape))
        )
        if share >= _MOST:
            product = self._product(some).removeprefix("all of ") if some else ""
            return f"{100 * share:.0f} % of {f'the elements of {product}' if product else 'all elements'}"
        parts = [self._axis(axis) for axis in some if len(self.sets[axis])]
        return f"scattered: {', '.join(parts)}" if parts else "scattered over all of it"

    def _end(self, first: int, last: int) -> str:
        if last == math.prod(self.shape) - 1:
            return f"from {_at(first, self.shape)} to the end"
        return f"from {_at(first, self.shape)} to {_at(last, self.shape)}"

    def _total(self, axis: int) -> int:
        return len(self.compared) if axis == 0 and self.compared is not None else self.shape[axis]

    def _whole(self, axis: int) -> bool:
        return len(self.sets[axis]) == self._total(axis)

    def _nearly_whole(self, axis: int) -> bool:
        """Whether an axis lacks so few indices that these may be those where, by chance, no element is wrong; but an
        axis without its first or its last indices is one with a structure."""
        found = self.sets[axis]
        if self._whole(axis):
            return True
        run = int(found[-1] - found[0]) + 1 == len(found)
        return not run and len(found) >= max(_FEW, _NEARLY * self._total(axis))

    def _axis(self, axis: int) -> str:
        kinds = self.kinds if axis == 0 else {}
        return indices(self.sets[axis], self.shape[axis], self.names[axis], kinds, self.compared if axis == 0 else None)

    def _product(self, some: Sequence[int] | None = None) -> str:
        """The elements whose index is in the set of each axis, of the axes `some` (default: those not whole)."""
        some = [a for a in range(len(self.shape)) if not self._whole(a)] if some is None else list(some)
        if not some:
            return "every element" if len(self.shape) > 1 else f"every {self.names[0]}"
        words = [self._axis(a) for a in some]
        if len(self.shape) > 1 and some == [len(self.shape) - 1]:
            one = all(n == 1 for n in self.shape[:-1])  # nobody is to read that all rows are wrong where there is one
            return f"{words[0]} of {'the only' if one else 'every'} {self.names[-2]}"
        if len(words) == 1 and len(self.shape) > 2:
            return words[0] if words[0].startswith("every ") else f"all of {words[0]}"
        return " of ".join(reversed(words))


def _at(position: int, shape: tuple[int, ...]) -> str:
    return str([int(n) for n in np.unravel_index(position, shape)])


def indices(found: Array, size: int, name: str, kinds: Mapping[str, Array], compared: Array | None = None) -> str:
    """Which of `size` indices: `found` is ascending.  `compared`: those that were looked at, None for all."""
    every = np.arange(size) if compared is None else compared
    many = plural(name)
    if len(found) == len(every):
        return f"every {name}"
    if len(found) == 1:
        return f"the last {name} ({found[0]})" if found[0] == size - 1 and size > 1 else f"{name} {found[0]}"
    places: Array = np.searchsorted(every, found)  # among those that were looked at
    if places[-1] - places[0] + 1 == len(found) == size - 1 > 3:
        return f"every {name} but the {f'last ({size - 1})' if found[0] == 0 else 'first (0)'}"
    if places[-1] - places[0] + 1 == len(found):  # before kinds, which repeat: a run of rows is of few by chance
        if found[-1] == every[-1] and len(found) > 1 and found[0] != every[0]:
            return f"{many} {found[0]} to {found[-1]} (the last {len(found)})"
        return f"{many} {found[0]} to {found[-1]}"
    of_kind = _of_kinds(found, size, many, kinds, every)
    if of_kind:
        return of_kind
    missing = np.setdiff1d(every, found, assume_unique=True)
    if len(missing) <= 3:
        return f"every {name} but {_list(missing, size)}"
    periodic = "" if compared is not None else _periodic(found, size, name, many)
    if periodic:
        return periodic
    if len(found) <= _FEW:
        return f"{many} {_list(found, size)}"
    return f"{len(found):,} of {len(every):,} {many}, from {found[0]} to {found[-1]}"


def _of_kinds(found: Array, size: int, many: str, kinds: Mapping[str, Array], every: Array) -> str:
    """`rows of kind large only (2, 7, 12, ...)` where that is what they are; "" where it is not."""
    kinds = {k: np.intersect1d(rows, every, assume_unique=True) for k, rows in kinds.items()}
    kinds = {k: rows for k, rows in kinds.items() if len(rows)}
    if len(kinds) < 2 or len(found) < 2:
        return ""
    plain, tail = found, ""
    touched = [k for k, rows in kinds.items() if np.isin(found, rows).any()]
    if found[-1] == size - 1 and len(found) > 2 and len(found) != sum(len(kinds[k]) for k in touched):
        without = [k for k, rows in kinds.items() if np.isin(found[:-1], rows).any()]
        if len(without) < len(touched):
            plain, touched, tail = found[:-1], without, f", and the last ({size - 1})"
    whole = sum(len(kinds[k]) for k in touched)
    if len(touched) == len(kinds) or len(plain) < 2 or len(plain) * 2 < whole:
        return ""
    some = "" if len(plain) == whole else f", {len(plain)} of {whole}"
    if len(touched) == len(kinds) - 1 and len(touched) > 2:
        (left,) = kinds.keys() - set(touched)
        return "" if some else f"all {many} but those of kind {left}{tail}"
    if len(touched) > 2:
        return ""
    return f"{many} of kind {' and '.join(touched)} only ({_list(plain, size)}{some}){tail}"


def _periodic(found: Array, size: int, name: str, many: str) -> str:
    """Every k-th index, or runs of equal length at equal distances; "" for anything else."""
    breaks = np.flatnonzero(np.diff(found) > 1) + 1
    starts = found[np.concatenate([[0], breaks])]
    lengths = np.diff(np.concatenate([[0], breaks, [len(found)]]))
    periods = np.diff(starts)
    if len(starts) < 3 or (periods != periods[0]).any() or (lengths[:-1] != lengths[0]).any():
        return ""
    period, length, begin = int(periods[0]), int(lengths[0]), int(starts[0])
    if lengths[-1] != min(length, size - starts[-1]):
        return ""
    whole = begin < period and starts[-1] + period >= size
    if length == 1:
        span = f"{found[0]}, {found[1]}, ..., {found[-1]}"
        return f"every {ordinal(period)} {name} ({span})" if whole else f"every {ordinal(period)} {name} of {span}"
    text = f"{many} {begin % period} to {begin % period + length - 1} of every {period}"
    return text if whole else f"{text}, from {found[0]} to {found[-1]}"


def _list(found: Array, size: int) -> str:
    shown = ", ".join(str(int(n)) for n in found[:_FEW])
    return shown if len(found) <= _FEW else f"{shown}, ..."


def plural(name: str) -> str:
    """The plural of an axis's name, where it is an English word."""
    if name.isupper() or "_" in name or len(name) < 3 or not name.isalpha():
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("ch", "sh", "x")) else f"{name}s"


def singular(name: str) -> str:
    """`heads` as `head`."""
    if len(name) > 3 and name.endswith("es") and name[:-2].endswith(("ch", "sh", "x")):
        return name[:-2]
    if name.endswith("ies") and len(name) > 4:
        return f"{name[:-3]}y"
    return name[:-1] if len(name) > 3 and name.endswith("s") and not name.endswith("ss") else name


def ordinal(n: int) -> str:
    """`64th`, `2nd`."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
