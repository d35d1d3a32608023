"""What pairs of identical code have shown of noise: records, what later comparisons take from them, a tally.  Pure.

A record is made by every comparison: of its control cells, and of all cells where an arm was compared with itself.
It stands in `<store>/noise/<run>.json` (docs/run-on-disk.md).  A later comparison takes from it each cell's standard
deviation of a round's log ratio, where all of (evidence, target, tool chain, timing policy, cell key) are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farm.compare.decide import Verdict
from farm.compare.intervals import upper_bound
from farm.compare.noise import Known
from farm.errors import FarmSignal
from farm.field_checks import BadField, integer, listed, number, one_of, optional, record, text, verify

SCHEMA = 1
#: Degrees of freedom that the records of a cell count for at most, the newest first: a run's own rounds have at most 9,
#: and noise changes with the device's state.
MOST_FREEDOM = 16.0
#: Of the bound on how often identical code is called changed.
LEVEL = 0.95
_CHANGED = (Verdict.REGRESSED.value, Verdict.IMPROVED.value)
_OPEN = (Verdict.INCONCLUSIVE.value, Verdict.UNFIT.value)


@dataclass(frozen=True)
class Kind:
    """What must be equal before the noise of one cell says anything of another's.  `tools`: the tool chain, as
    `farm.report.evidence.tool_chain` has it; `timing`: method and version, `rotating_graph/2`."""

    evidence: str
    target: str
    tools: str
    timing: str
    cell_key: str


@dataclass(frozen=True)
class CellNoise:
    """What one comparison measured of one pair of identical code.

    sd: standard deviation of a round's ln(time of b / time of a), outliers left out; freedom: its degrees of freedom;
    rounds: that gave a time; called: what the rule says of the pair (farm.compare.decide.Verdict).
    """

    kind: Kind
    cell: str
    rounds: int
    sd: float | None
    freedom: float
    called: str


@dataclass(frozen=True)
class Record:
    """One comparison's.  made: when, ISO 8601 in UTC; same: an arm was compared with itself, so that all its cells
    count; else its controls alone."""

    run: str
    made: str
    same: bool
    cells: tuple[CellNoise, ...]

    def to_dict(self) -> dict[str, Any]:
        """As it is stored."""
        kept = []
        for cell in self.cells:
            values = {**asdict(cell.kind), **asdict(cell)}
            del values["kind"]
            kept.append(values)
        return {"schema": SCHEMA, "run": self.run, "made": self.made, "same": self.same, "cells": kept}


class BadRecord(FarmSignal, ValueError):
    """A file that is no record; the message is the reason."""


_CELL = record(
    {
        **dict.fromkeys(("evidence", "target", "tools", "timing", "cell_key", "cell"), text(1000)),
        "rounds": integer(),
        "sd": optional(number(0)),
        "freedom": number(0),
        "called": one_of(*(v.value for v in Verdict)),
    }
)
_CELLS = listed(_CELL, 1_000_000)


def parse(data: Any) -> Record:
    """The record in a file's JSON.  BadRecord where it is none."""
    if not isinstance(data, dict):
        raise BadRecord("the file is not a JSON object")
    if data.get("schema") != SCHEMA:
        raise BadRecord(f"the record has schema {data.get('schema')!r}, but this farm reads schema {SCHEMA}")
    try:
        for name in ("run", "made"):
            verify(text(200), data.get(name), name)
        verify(_CELLS, data.get("cells"), "cells")
    except BadField as error:
        raise BadRecord(str(error)) from None
    of_kind = tuple(Kind.__dataclass_fields__)
    cells = []
    for kept in data["cells"]:
        rest = {name: value for name, value in kept.items() if name not in of_kind}
        cells.append(CellNoise(Kind(**{name: kept[name] for name in of_kind}), **rest))
    return Record(data["run"], data["made"], data.get("same") is True, tuple(cells))


def known(records: Iterable[Record], pairs: Sequence[tuple[Kind, Kind]], *, before: str = "") -> Known | None:
    """What the records made `before` a time (ISO 8601 in UTC, "" for any) say of each pair's noise; None for nothing.

    pairs: the kinds of cell of both arms.  They differ where the arms name modes or providers; the pair's variance is
    then the mean of both, since a record's is twice that of one process.
    """
    wanted = {kind for both in pairs for kind in both}
    found: dict[Kind, tuple[float, float]] = {}  # sum of squares, freedom
    for one in sorted(records, key=lambda r: (r.made, r.run), reverse=True):
        if before and one.made >= before:
            continue
        for cell in one.cells:
            if cell.kind not in wanted or cell.sd is None or cell.freedom <= 0:
                continue
            square, freedom = found.get(cell.kind, (0.0, 0.0))
            more = min(cell.freedom, MOST_FREEDOM - freedom)
            if more > 0:
                found[cell.kind] = square + more * cell.sd**2, freedom + more
    if not found:
        return None
    sigma, freedom_of = np.zeros(len(pairs)), np.zeros(len(pairs))
    for i, both in enumerate(pairs):
        sides = [found[kind] for kind in both if kind in found]
        if len(sides) == 2:
            sigma[i] = math.sqrt(sum(square / freedom for square, freedom in sides) / 2)
            freedom_of[i] = min(freedom for _, freedom in sides)
    return Known(sigma, freedom_of) if freedom_of.any() else None


@dataclass(frozen=True)
class Tally:
    """How often identical code was called changed, on one kind of evidence.

    pairs: measured ones that were decided; changed: called regressed or improved; open: not decided (inconclusive, or
    too few rounds gave a time), which are not among `pairs`; runs: comparisons; bound: the largest share of changed
    ones that is compatible with this, at LEVEL, one-sided, None without a pair.
    """

    evidence: str
    runs: int
    pairs: int
    changed: int
    open: int
    of_same: int  # of comparisons of an arm with itself; the others were controls
    bound: float | None
    first: str = ""  # "RUN: CELL" of the newest pair that was called changed

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tally(records: Sequence[Record]) -> list[Tally]:
    """One for each kind of evidence that there is: they are never summed."""
    out = []
    for evidence in sorted({cell.kind.evidence for one in records for cell in one.cells}):
        counts: Counter[str] = Counter()
        runs, first = set(), ""
        for one in sorted(records, key=lambda r: (r.made, r.run)):
            for cell in one.cells:
                if cell.kind.evidence != evidence:
                    continue
                runs.add(one.run)
                if cell.called in _OPEN:
                    counts["open"] += 1
                    continue
                counts["pairs"] += 1
                counts["same"] += one.same
                if cell.called in _CHANGED:
                    counts["changed"] += 1
                    first = f"{one.run}: {cell.cell}"
        n, k = counts["pairs"], counts["changed"]
        out.append(Tally(evidence, len(runs), n, k, counts["open"], counts["same"], upper_bound(k, n, LEVEL), first))
    return out


def tally_line(one: Tally) -> str:
    """`identical code (executed): 0 of 420 pairs called changed in 3 comparisons, so at most 0.71 % at 95 %`."""
    if one.bound is None:
        return f"identical code ({one.evidence}): no pair was decided, {one.open} open"
    runs = f"{one.runs} comparison" + ("" if one.runs == 1 else "s")
    pairs = f"{one.pairs} pair" + ("" if one.pairs == 1 else "s")
    more = f"; {one.open} not decided" if one.open else ""
    last = f"; the last: {one.first}" if one.first else ""
    bound = f"{float(f'{100 * one.bound:.2g}'):g} %"
    return (
        f"identical code ({one.evidence}): {one.changed} of {pairs} called changed in {runs}, so at most {bound} at "
        f"{100 * LEVEL:g} %{more}{last}"
    )
