"""What a sweep over drawn shapes found: the best peer's time over ours as a distribution, losses first.  Pure.

A *cell* here is one op, operation, shape and dtype: a line of `farm.report.speed_table`.  Where a second run measured
all modes of the cell, its numbers count, since the best peer may only show there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import geometric_mean, median
from typing import Any

from farm.report.format import short_dtype, sig
from farm.report.queries import RunLike
from farm.report.speed_table import Line, Table, speed_tables

#: Where our kernels are less than so much faster than the best peer, a second phase measures every mode.
ASK_AGAIN = 1.02
#: A cell under this is a loss.
LOSS = 0.98
#: Fewer rows do not fill a device.
FEW_ROWS = 512
MIB = 1 << 20
#: Upper limits of the size classes, in bytes of one matrix.
CLASSES = ((1 * MIB, "under 1 MiB"), (16 * MIB, "1 to 16 MiB"), (256 * MIB, "16 to 256 MiB"), (None, "from 256 MiB"))
LISTED = 40
#: Cells that the line of a reason names.
NAMED = 3
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class SweepCell:
    """One cell.  `us`: our time, by our own choice of mode; `best`: the fastest peer (and mode); `ratio`: its time
    divided by ours; `share`: of the roof; `mode` and `mode_ratio`: our fastest named mode, and our own choice's time
    divided by that mode's, where modes were measured; `again`: they were; `word`: why there is no ratio."""

    target: str
    op: str
    operation: str
    rows: int
    hidden: int
    dtype: str
    us: float | None = None
    best: str = ""
    ratio: float | None = None
    share: float | None = None
    mode: str = ""
    mode_ratio: float | None = None
    again: bool = False
    word: str = ""

    @property
    def nbytes(self) -> int:
        """Of one matrix."""
        return self.rows * self.hidden * _BYTES.get(self.dtype, 2)

    @property
    def direction(self) -> str:
        return f"{self.op} {self.operation}"

    @property
    def name(self) -> str:
        return f"{self.direction} {self.rows}x{self.hidden} {short_dtype(self.dtype)}"

    @property
    def same(self) -> tuple[str, ...]:
        """What the two phases have in common of a cell."""
        return (self.target, self.op, self.operation, f"{self.rows}x{self.hidden}", self.dtype)


@dataclass(frozen=True)
class Group:
    """The ratios of one set of cells, of which `compared` have one; None where none has.  `share`: the
    geometric mean of the roof's share."""

    what: str
    cells: int
    compared: int
    mean: float | None
    least: float | None
    middle: float | None
    losses: int
    share: float | None


@dataclass(frozen=True)
class Sweep:
    """All cells, those without a ratio first, then the lowest ratio first; `of`: whose times are ours."""

    of: str
    cells: tuple[SweepCell, ...]
    groups: tuple[Group, ...]

    @property
    def compared(self) -> tuple[SweepCell, ...]:
        return tuple(c for c in self.cells if c.ratio is not None)

    @property
    def losses(self) -> tuple[SweepCell, ...]:
        return tuple(c for c in self.compared if (c.ratio or 0) < LOSS)


def sweep(first: RunLike, second: RunLike | None = None, of: str = "") -> Sweep:
    """The distribution of the first phase's run, and of the second's, if there is one."""
    found = speed_tables(first, "us", of=of)
    cells = {c.same: c for table in found.tables for c in _cells(table, found.of)}
    if second is not None:
        again = speed_tables(second, "us", of=found.of)
        for table in again.tables:
            for cell in _cells(table, again.of):
                if cell.ratio is not None:
                    cells[cell.same] = replace(cell, again=True)
    ordered = sorted(cells.values(), key=lambda c: (c.ratio is not None, c.ratio or 0.0, c.name))
    return Sweep(found.of, tuple(ordered), tuple(_groups(ordered)))


def ask_again(found: Sweep) -> list[SweepCell]:
    """The cells in which the best peer is not clearly slower."""
    return [c for c in found.compared if (c.ratio or 0.0) < ASK_AGAIN]


def _cells(table: Table, of: str) -> Iterable[SweepCell]:
    for line in table.lines:
        rows, _, hidden = line.shape.partition("x")
        if rows.isdigit() and hidden.isdigit():
            yield _cell(table, line, of, int(rows), int(hidden))


def _cell(table: Table, line: Line, of: str, rows: int, hidden: int) -> SweepCell:
    ours = line.entries[of]
    modes = {n: e.us for n, e in line.entries.items() if n.startswith(f"{of}/") and e.us and e.compared}
    mode = min(modes, key=lambda n: modes[n]) if modes else ""
    peer = "" if line.best else "no peer has a time"
    return SweepCell(
        target=table.target or table.place,
        op=line.op,
        operation=line.operation,
        rows=rows,
        hidden=hidden,
        dtype=line.dtype,
        us=ours.us,
        best=line.best,
        ratio=line.ratio,
        share=line.share,
        mode=mode.partition("/")[2],
        mode_ratio=ours.us / modes[mode] if ours.us and mode else None,
        word="" if line.ratio is not None else " ".join(filter(None, (ours.word, ours.reason))) or peer,
    )


def size_class(nbytes: int) -> str:
    return next(name for limit, name in CLASSES if limit is None or nbytes < limit)


def _groups(cells: Sequence[SweepCell]) -> Iterable[Group]:
    """Of each target and direction: all cells, then by size."""
    for target, direction in dict.fromkeys((c.target, c.direction) for c in sorted(cells, key=lambda c: c.same)):
        mine = [c for c in cells if (c.target, c.direction) == (target, direction)]
        yield _group(f"{target}: {direction}", mine)
        for _, name in CLASSES:
            some = [c for c in mine if size_class(c.nbytes) == name]
            if some:
                yield _group(f"{target}: {direction}, {name}", some)


def _group(what: str, cells: Sequence[SweepCell]) -> Group:
    ratios = [c.ratio for c in cells if c.ratio is not None]
    shares = [c.share for c in cells if c.share]
    return Group(
        what,
        len(cells),
        len(ratios),
        geometric_mean(ratios) if ratios else None,
        min(ratios, default=None),
        median(ratios) if ratios else None,
        sum(r < LOSS for r in ratios),
        geometric_mean(shares) if shares else None,
    )


def lines(found: Sweep) -> list[str]:
    """For a terminal: losses first, then the distribution."""
    compared = found.compared
    if not compared:
        return [_nothing(found)]
    losses = found.losses
    out = [
        f"{len(losses)} of {len(compared)} cells ({100 * len(losses) / len(compared):.1f} %) are under {LOSS} of the "
        f"best peer (its time divided by that of {found.of})"
    ]
    out += [f"  {_told(c)}" for c in losses[:LISTED]]
    if len(losses) > LISTED:
        out.append(f"  and {len(losses) - LISTED} more (--json has all)")
    many = [c for c in compared if c.rows >= FEW_ROWS]
    if many:
        out.append(f"lowest of the {len(many)} cells with at least {FEW_ROWS} rows: {_told(many[0])}")
    modes = [c for c in compared if (c.mode_ratio or 0) > ASK_AGAIN]
    if modes:
        out.append(f"cells in which a named mode of {found.of} is more than 2 % faster than its own choice:")
        modes.sort(key=lambda c: -(c.mode_ratio or 0))
        out += [f"  {c.name}: {c.mode} is {sig(c.mode_ratio or 0)} times as fast" for c in modes[:LISTED]]
    blank = [c for c in found.cells if c.ratio is None]
    if blank:
        out.append(f"{len(blank)} cells have no ratio:")
        out += [f"  {line}" for line in _by_word(blank)]
    again = sum(c.again for c in found.cells)
    out.append(f"{again} cells were measured again with every mode; the others met the peers' defaults only")
    width = max(len(g.what) for g in found.groups)
    out += ["", f"{'best peer / ours':<{width}}      cells   mean  least median  <{LOSS}  of roof"]
    for g in (g for g in found.groups if g.mean is not None):
        numbers = " ".join(f"{'-' if v is None else f'{v:.3f}':>6}" for v in (g.mean, g.least, g.middle))
        share = "-" if g.share is None else f"{g.share:.3f}"
        out.append(f"{g.what:<{width}} {f'{g.compared} of {g.cells}':>9} {numbers} {g.losses:>6} {share:>8}")
    return out


def _by_word(blank: Sequence[SweepCell]) -> Iterable[str]:
    """A line per reason, so that one that thousands of cells share hides no other."""
    words: dict[str, list[str]] = {}
    for c in blank:
        words.setdefault(c.word, []).append(c.name)
    for word, names in words.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"{', '.join(names[:NAMED])}{more}: {word}"


def _nothing(found: Sweep) -> str:
    seen: dict[str, int] = {}
    for c in found.cells:
        seen[c.word or "no time"] = seen.get(c.word or "no time", 0) + 1
    told = "; ".join(f"{n} x {word}" for word, n in seen.items()) or "no cells"
    return f"no cell has a speed of {found.of or 'ours'} and of a peer, so there is no distribution ({told})"


def _told(c: SweepCell) -> str:
    mode = f"; our {c.mode} would take {sig(c.us / c.mode_ratio)} us" if c.mode_ratio and c.us else ""
    share = f", {c.share:.2f} of the roof" if c.share else ""
    return f"{c.ratio:.3f}  {c.name}: {sig(c.us or 0)} us{share}; best peer {c.best}{mode}"


def as_json(found: Sweep, facts: dict[str, Any]) -> str:
    """`facts` (seed, count, runs, ...), the groups, and every cell."""
    cells = [{**asdict(c), "nbytes": c.nbytes, "size": size_class(c.nbytes)} for c in found.cells]
    for c in cells:
        c |= {n: _rounded(c[n]) for n in ("us", "ratio", "share", "mode_ratio")}
    groups = [asdict(g) for g in found.groups]
    for g in groups:
        g |= {n: _rounded(g[n]) for n in ("mean", "least", "middle", "share")}
    whole = {**facts, "of": found.of, "losses": len(found.losses), "compared": len(found.compared)}
    return json.dumps({**whole, "groups": groups, "cells": cells}, indent=1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
