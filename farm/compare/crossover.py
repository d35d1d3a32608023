"""Where arm b is faster and where it is slower, along one axis: the crossover line.  Pure.

Only decided cells count.  An undecided cell is never read as either side and moves no line: it is counted beside it.
Nothing is fitted, nothing is interpolated: a zone ends at the last value of the axis at which a cell was decided to
have changed, and what lies between two zones is stated as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.compare.decide import Verdict

_FASTER, _SLOWER, _SAME = Verdict.IMPROVED, Verdict.REGRESSED, Verdict.SAME
_DECIDED = (_FASTER, _SLOWER, _SAME)


#: What a group shares: (what, value), as ("operation", "forward").
Names = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A timed cell.  `names`: what is not an axis, by which cells are parted from the last to the first; `dims`: the
    axes, whole numbers by name; `ratio`: time of b over time of a."""

    cell: str
    names: Names
    dims: Mapping[str, int]
    verdict: Verdict
    ratio: float


@dataclass(frozen=True)
class Zone:
    """The values of an axis at which cells changed to one side: from the first to the last such value, `cells` of the
    `of` decided cells between them; `extreme`: the cell that changed most."""

    first: int
    last: int
    cells: int
    of: int
    extreme: Cell


@dataclass(frozen=True)
class Line:
    """A crossover: every cell of `names` that b made faster lies on one side of an axis, every one that it made slower
    on the other.  `between`: decided cells, all the same, strictly between the zones; `undecided`: cells of `names`
    anywhere, about which nothing is known."""

    names: Names
    axis: str
    faster: Zone
    slower: Zone
    between: int
    undecided: int


@dataclass(frozen=True)
class Parted:
    """Cells alike in `names`, of which some became faster and some slower: `by` parts them (an operation, a dtype),
    with the values on either side, and how many cells; "" where nothing does."""

    names: Names
    by: str
    faster: tuple[str, ...]
    slower: tuple[str, ...]
    cells: tuple[int, int]


def lines(cells: Iterable[Cell], shared: int) -> list[Line | Parted]:
    """The crossovers, of as many cells together as one line parts: of all that are alike in the first `shared` names;
    where no line parts those, of all that are alike in one name more, and so on.  Groups in which nothing became
    slower, or nothing faster, have none."""
    groups: dict[Names, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.names[:shared]].append(cell)
    out: list[Line | Parted] = []
    for names, members in groups.items():
        faster, slower = ([c for c in members if c.verdict is v] for v in (_FASTER, _SLOWER))
        if not (faster and slower):
            continue
        if line := _line(names, members):
            out.append(line)
            continue
        counts = len(faster), len(slower)
        if shared == len(members[0].names):
            out.append(Parted(names, "", (), (), counts))
            continue
        values = [tuple(dict.fromkeys(c.names[shared][1] for c in of)) for of in (faster, slower)]
        if set(values[0]).isdisjoint(values[1]):
            out.append(Parted(names, members[0].names[shared][0], values[0], values[1], counts))
        else:
            out += lines(members, shared + 1)
    return out


def _line(names: Names, members: Sequence[Cell]) -> Line | None:
    """The line on the axis with the most decided values, of those axes that part the cells."""
    decided = [c for c in members if c.verdict in _DECIDED]
    axes = [axis for axis in decided[0].dims if all(axis in c.dims for c in decided)]
    found = [(len({c.dims[axis] for c in decided}), line) for axis in axes if (line := _along(names, axis, decided))]
    if not found:
        return None
    most = max(values for values, _ in found)
    line = next(line for values, line in found if values == most)
    undecided = len(members) - len(decided)
    return Line(names, line.axis, line.faster, line.slower, line.between, undecided)


def _along(names: Names, axis: str, decided: Sequence[Cell]) -> Line | None:
    """The line on one axis; None where the cells that changed are mixed along it."""
    at = {v: [c.dims[axis] for c in decided if c.verdict is v] for v in (_FASTER, _SLOWER)}
    low, high = sorted((_FASTER, _SLOWER), key=lambda v: min(at[v]))
    if max(at[low]) >= min(at[high]):
        return None
    between = sum(max(at[low]) < c.dims[axis] < min(at[high]) for c in decided)
    return Line(names, axis, _zone(axis, decided, _FASTER), _zone(axis, decided, _SLOWER), between, 0)


def _zone(axis: str, decided: Sequence[Cell], side: Verdict) -> Zone:
    mine = [c for c in decided if c.verdict is side]
    first, last = min(c.dims[axis] for c in mine), max(c.dims[axis] for c in mine)
    of = sum(first <= c.dims[axis] <= last for c in decided)
    extreme = (min if side is _FASTER else max)(mine, key=lambda c: c.ratio)
    return Zone(first, last, len(mine), of, extreme)
