"""What two revisions' kernels take, side by side: cells paired by id, their kernels by phase and name.  Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.cell import FARM_FAULTS, FINDINGS, Status
from farm.compile import instructions

Row = Mapping[str, Any]
#: What is compared, in the order in which it is told: key of a kernel's resources -> words.
MEASURES: Mapping[str, str] = {
    "registers": "registers",
    "spill_store_bytes": "spill stores, bytes",
    "spill_load_bytes": "spill loads, bytes",
    "stack_bytes": "stack, bytes",
    "shared_bytes": "shared memory, bytes",
    "warps": "warps",
    "blocks_per_core": "blocks a core",
    "occupancy": "occupancy",
    "ub_bytes": "Unified Buffer, bytes",
    "ub_overflow_bytes": "Unified Buffer needed, bytes",
    "buffers": "buffers",
    "multi_buffered": "multi-buffered",
    "scalar_accesses": "scalar accesses",
    "syncs": "waits",
    "vector_calls": "vector calls",
    "ir_bytes": "text before the binary, bytes",
    "code_bytes": "code, bytes",
    "grid": "grid",
    "launches": "launches",
}
_BRIEF = {
    "registers": "registers",
    "spill_store_bytes": "bytes spilled",
    "shared_bytes": "bytes of shared memory",
    "ub_bytes": "bytes of Unified Buffer",
}
_SHOWN_CELLS = 3


@dataclass(frozen=True)
class BuildChange:
    """Kernels of one name and phase that changed alike, in `cells`."""

    target: str
    kernel: str
    phase: str
    measures: tuple[tuple[str, Any, Any], ...]  # (words, before, after)
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """Everything that differs between the revisions `names`."""

    names: tuple[str, str]
    cells: int
    changes: tuple[BuildChange, ...] = ()
    moved: tuple[tuple[str, str, str], ...] = ()  # (cell, kernels before, kernels after)
    statuses: tuple[tuple[str, str, str], ...] = ()  # (cell, before, after)
    same: int = 0  # cells whose kernels are the same machine code
    rewritten: int = 0  # other code that takes the same
    unread: int = 0  # not built in both, or not for the farm's sake in one
    cell_states: Mapping[str, str] = field(default_factory=dict)  # cell -> same, rewritten, differs, unread
    faults: tuple[str, ...] = field(default=())
    worse: bool = False  # a cell that was no finding is one

    @property
    def exit_code(self) -> int:
        """3: the farm failed on some cell.  1: the second revision has findings that the first has not.  Else 0."""
        return 3 if self.faults else 1 if self.worse else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data: every change with every cell."""
        return {
            "revisions": list(self.names),
            "cells": self.cells,
            "same": self.same,
            "rewritten": self.rewritten,
            "unread": self.unread,
            "changes": [
                {
                    "target": c.target,
                    "kernel": c.kernel,
                    "phase": c.phase,
                    "cells": list(c.cells),
                    "measures": {words: [before, after] for words, before, after in c.measures},
                }
                for c in self.changes
            ],
            "kernels": [{"cell": c, "before": a, "after": b} for c, a, b in self.moved],
            "statuses": [{"cell": c, "before": a, "after": b} for c, a, b in self.statuses],
            "faults": list(self.faults),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.names[0]} -> {self.names[1]}: {self.cells} cells"
        yield from self.change_lines()
        yield from _grouped("status", self.statuses)
        yield ""
        for fault in self.faults[:_SHOWN_CELLS]:
            yield f"the farm failed: {fault}"
        touched = self.cells - self.same - self.rewritten - self.unread
        yield (
            f"cells: {touched} with different resources, {self.rewritten} with only different code or names, "
            f"{self.same} with the same machine code"
            f"{f', {self.unread} not built in both' if self.unread else ''}"
        )

    def change_lines(self) -> Iterator[str]:
        """What moved in the machine code, a blank line before each."""
        for change in self.changes:
            yield ""
            yield f"{change.target}: {change.kernel} ({change.phase})"
            wide = max(len(words) for words, _, _ in change.measures)
            for words, before, after in change.measures:
                yield f"    {words:<{wide}}  {_text(before)} -> {_text(after)}"
            yield from _some(change.cells)
        yield from _grouped("kernels", self.moved)


def _grouped(title: str, entries: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for cell, before, after in entries:
        grouped.setdefault((before, after), []).append(cell)
    for (before, after), cells in grouped.items():
        yield ""
        yield f"{title}: {before} -> {after}"
        yield from _some(cells)


def compare(names: tuple[str, str], before: Sequence[Row], after: Sequence[Row]) -> Difference:
    """The difference of two compilations of the same plan."""
    old, new = ({r["cell_id"]: r for r in rows} for rows in (before, after))
    grouped: dict[tuple[Any, ...], list[str]] = {}
    moved, statuses, faults = [], [], []
    states: dict[str, str] = {}
    worse = False
    both = [c for c in old if c in new]
    for cell in both:
        a, b = old[cell], new[cell]
        faults += [f"{cell}: {r['reason']}" for r in (a, b) if Status(r["status"]) in FARM_FAULTS]
        told = _told(a), _told(b)
        differs = told[0] != told[1]
        if differs:
            statuses.append((cell, *told))
            worse |= Status(b["status"]) in FINDINGS and Status(a["status"]) not in FINDINGS
        kernels = [json.loads(r["resources"] or "[]") for r in (a, b)]
        labels = [_names(k) for k in kernels]
        pairs = list(_pairs(*kernels))
        rewritten = labels[0] != labels[1]  # by another name alone it takes no more
        if rewritten:
            moved.append((cell, *(_briefly(k) for k in kernels)))
            differs |= len(pairs) < max(len(k) for k in kernels)
        for x, y in pairs:
            measures = _measures(x, y)
            if measures:
                name = x["kernel"] if x["kernel"] == y["kernel"] else f"{x['kernel']} -> {y['kernel']}"
                key = (cell.rpartition("@")[2], name, x["phase"], measures)
                grouped.setdefault(key, []).append(cell)
                differs = True
            rewritten |= _identity(x) != _identity(y)
        unread = _unread(Status(a["status"]), Status(b["status"]))
        states[cell] = "unread" if unread else "differs" if differs else "rewritten" if rewritten else "same"
    counts = Counter(states.values())
    changes = tuple(BuildChange(*(*key, tuple(cells))) for key, cells in grouped.items())
    return Difference(
        names,
        len(both),
        changes,
        tuple(moved),
        tuple(statuses),
        counts["same"],
        counts["rewritten"],
        counts["unread"],
        states,
        tuple(faults),
        worse,
    )


def _pairs(before: Sequence[Row], after: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Kernels of one phase and name, first with first; then, of a phase that has one left on either side, those two: a
    kernel that was renamed."""
    left, unpaired = list(after), []
    for a in before:
        match = next((b for b in left if (b["phase"], b["kernel"]) == (a["phase"], a["kernel"])), None)
        if match is None:
            unpaired.append(a)
            continue
        left.remove(match)
        yield a, match
    for phase in ("forward", "backward"):
        alone = [[k for k in side if k["phase"] == phase] for side in (unpaired, left)]
        if [len(side) for side in alone] == [1, 1]:
            yield alone[0][0], alone[1][0]


def _measures(before: Row, after: Row) -> tuple[tuple[str, Any, Any], ...]:
    found = [
        (words, _plain(before.get(key)), _plain(after.get(key)))
        for key, words in MEASURES.items()
        if before.get(key) != after.get(key)
    ]
    a, b = before.get("instructions") or {}, after.get("instructions") or {}
    for kind in instructions.KINDS:
        mine, other = a.get(kind) or {}, b.get(kind) or {}
        if mine != other:
            words = f"{kind.replace('_', ' ')} ({b.get('counted_in') or a.get('counted_in')})"
            found.append((words, _widths(mine), _widths(other)))
    return tuple(found)


def _plain(value: Any) -> Any:
    """A grid as `64 x 1 x 1`."""
    return " x ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _widths(counts: Mapping[str, int]) -> str:
    """`4 (128 bits), 1 (32 bits)`."""
    told = (f"{n} ({width} bits)" if width.isdigit() else f"{n} ({width})" for width, n in counts.items())
    return ", ".join(told) or "0"


def _unread(a: Status, b: Status) -> bool:
    """Whether two statuses leave open if the code differs: it does where one arm alone builds, for its own sake."""
    if a == b == Status.BUILT:
        return False
    return Status.BUILT not in (a, b) or bool({a, b} & {*FARM_FAULTS, Status.SKIPPED})


def _identity(kernel: Row) -> tuple[str, ...]:
    """Of the machine code, of all variants that tuning has; where there is none to read, of source and options."""
    return (str(kernel.get("code_digest") or kernel["hash"]), *kernel.get("rivals", ()))


def _names(kernels: Sequence[Row]) -> str:
    return ", ".join(f"{k['kernel']} ({k['phase']})" for k in kernels) or "none"


def _briefly(kernels: Sequence[Row]) -> str:
    """The kernels with what each takes: those that have no partner on the other side are compared by nothing else."""
    told = []
    for kernel in kernels:
        counts = kernel.get("instructions") or {}
        moves = (f"{sum(counts[k].values())} {k.replace('_', ' ')}" for k in instructions.KINDS if counts.get(k))
        sizes = (f"{_text(kernel[k])} {words}" for k, words in _BRIEF.items() if kernel.get(k))
        told.append(f"{kernel['kernel']} ({', '.join((kernel['phase'], *sizes, *moves))})")
    return " + ".join(told) or "none"


def _told(row: Row) -> str:
    return f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{100 * value:.0f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _some(cells: Sequence[str]) -> Iterator[str]:
    """A line per cell, of many the first."""
    for cell in cells[:_SHOWN_CELLS]:
        yield f"    in {cell}"
    if len(cells) > _SHOWN_CELLS:
        yield f"    and in {len(cells) - _SHOWN_CELLS} more"
