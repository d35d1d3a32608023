"""Where each cell of a table stands: shapes downwards, providers and modes to the right.  Pure; knows no contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.queries import own_rest

Row = Mapping[str, Any]
#: (provider, mode)
Column = tuple[str, str]


@dataclass(frozen=True)
class Line:
    """One row of a table: a shape, and per column the cell's number (None: not planned)."""

    shape: str
    tag: str
    cells: tuple[int | None, ...]


@dataclass(frozen=True)
class Body:
    """The lines that share operation, casting and everything else but the shape."""

    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Layout:
    columns: tuple[Column, ...]
    bodies: tuple[Body, ...]


def lay_out(members: Sequence[tuple[int, Row]], *, subjects_first: bool = True) -> Layout:
    """Place (number, row) pairs; each number stands exactly once."""
    rows = [r for _, r in members]
    columns = _columns(rows) if subjects_first else list(dict.fromkeys(map(_column, rows)))
    place = {c: i for i, c in enumerate(columns)}
    table: dict[str, dict[tuple[str, int], list[int | None]]] = {}
    tags: dict[tuple[str, str], str] = {}
    for number, row in members:
        body = " · ".join(p for p in (row.get("operation"), own_rest(row)) if p)
        lines, shape, at = table.setdefault(body, {}), str(row.get("shape")), place[_column(row)]
        twin = 0  # two cells with the same id are on separate lines
        while lines.setdefault((shape, twin), [None] * len(columns))[at] is not None:
            twin += 1
        lines[shape, twin][at] = number
        tags[body, shape] = str(row.get("tag") or "")
    return Layout(
        tuple(columns),
        tuple(
            Body(
                body,
                tuple(
                    Line(shape + (f" ({twin + 1})" if twin else ""), tags[body, shape], tuple(cells))
                    for (shape, twin), cells in lines.items()
                ),
            )
            for body, lines in table.items()
        ),
    )


def _column(row: Row) -> Column:
    return str(row.get("provider")), str(row.get("mode") or "")


def _columns(rows: Sequence[Row]) -> list[Column]:
    """Subjects before peers, a provider's modes together, otherwise in the plan's order."""
    first: dict[Column, tuple[int, int]] = {}
    providers: dict[str, int] = {}
    for i, r in enumerate(rows):
        providers.setdefault(_column(r)[0], i)
        first.setdefault(_column(r), (r.get("role") == "peer", i))
    return sorted(first, key=lambda c: (first[c][0], providers[c[0]], first[c][1]))


def providers(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """(provider, its columns), for the upper head."""
    out: list[tuple[str, int]] = []
    for provider, _ in columns:
        out = [*out[:-1], (provider, out[-1][1] + 1)] if out and out[-1][0] == provider else [*out, (provider, 1)]
    return out


def by_width(item: tuple[str, Any]) -> tuple[int, str]:
    """Sort key of (dtype, ...): narrow types first, they are the ones in production."""
    order = ("bfloat16", "float16", "float32", "float64")
    return (order.index(item[0]) if item[0] in order else len(order), item[0])
