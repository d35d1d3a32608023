"""Failing cells of a run, those with one and the same fault together.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

#: The sentence of farm.accuracy.places: output, how many, which and what they hold, the first and the numbers.
_PLACE = re.compile(
    r"(?P<output>.*?): (?P<much>every element is|[\d,]+ of [\d,]+ elements (?:is|are)) wrong(?P<what>.*?)"
    r"(?P<rest>; first .*)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Folded:
    """Cells that fail in the same way: `words` say how, without the cell's own numbers, and `own` has those of each."""

    words: str
    rows: tuple[Row, ...]
    own: tuple[str, ...]


def fault(row: Row) -> tuple[str, str]:
    """What a failing cell's reason says of the fault, and the numbers that are the cell's own (how many elements, the
    first, the metric); of a reason that names no place all is the fault."""
    reason = row["reason"] or ""
    found = _PLACE.fullmatch(reason)
    if found is None:
        return reason, ""
    what, rest, much = found["what"], found["rest"] or "", found["much"]
    if much.startswith("every"):
        return f"{found['output']}: every element is wrong{what}", rest.removeprefix("; ")
    return f"{found['output']}: wrong{what}", f"{much.rpartition(' ')[0]}{rest}"


def key(row: Row) -> tuple[str, ...]:
    """Equal for two cells that fail in the same way: one kernel on one backend, one status, one fault."""
    names = ("backend", "op", "provider", "mode", "operation", "status")
    return (*(str(row.get(name) or "") for name in names), fault(row)[0])


def fold(rows: Iterable[Row]) -> list[Folded]:
    """The failing cells in groups of one fault, in the order of their first cells."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [Folded(fault(of[0])[0], tuple(of), tuple(fault(r)[1] for r in of)) for of in groups.values()]


def lines(rows: Sequence[Row], most: int, cells: int = 3) -> list[tuple[str, Row | None]]:
    """The failing cells for a terminal, each fault once: at most `most` faults with at most `cells` cells each.  Beside
    the last line of each fault its first cell, whose log to name."""
    out: list[tuple[str, Row | None]] = []
    faults = fold(rows)
    for one in faults[:most]:
        first, *others = one.rows
        if not others:
            out.append((f"{first['status']}: {first['cell_id']}: {first['reason']}", first))
            continue
        out.append((f"{len(one.rows)} cells: {first['status']}: {one.words}", None))
        out += [(f"  {row['cell_id']}{f': {own}' if own else ''}", None) for row, own in zip(one.rows[:cells], one.own)]
        if len(one.rows) > cells:
            out.append((f"  and {len(one.rows) - cells} more", None))
        out[-1] = (out[-1][0], first)
    left = sum(len(one.rows) for one in faults[most:])
    if left:
        out.append((f"and {left} more {'cell' if left == 1 else 'cells'}", None))
    return out
