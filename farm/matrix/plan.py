"""A plan: the cells of several matrices in order, each once, with counts, an estimate, and a hash.  Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.cell import Cell
from farm.errors import InfraError, MatrixError, UsageError

from .expand import cells as expand
from .expand import select_rule
from .model import MAX_CELLS, Matrix, MatrixInfo
from .rules import lookup
from .targets import astray

SCHEMA = 1  # 1: first


@dataclass(frozen=True)
class Count:
    """Of one backend: planned cells, those that a matrix excludes, and estimated seconds on one device."""

    cells: int
    skipped: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Every cell of a run before anything starts."""

    cells: tuple[Cell, ...]
    matrices: tuple[MatrixInfo, ...]
    plan_hash: str
    backends: Mapping[str, Count]
    targets: Mapping[str, Count] = field(default_factory=dict)  # `cuda:GB200`: those of the named targets, again

    def matrix(self, cell: Cell) -> MatrixInfo:
        """The matrix that a cell came from."""
        return next(m for m in self.matrices if m.name == cell.matrix)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "plan_hash": self.plan_hash,
            "matrices": [m.to_dict() for m in self.matrices],
            "backends": {name: dict(count.__dict__) for name, count in self.backends.items()},
            "targets": {name: dict(count.__dict__) for name, count in self.targets.items()},
            "cells": [cell.to_dict() for cell in self.cells],
        }

    def to_json(self) -> str:
        """One JSON object, keys in a fixed order; `from_json` is the inverse."""
        return json.dumps(self.to_dict(), ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan as `to_json` wrote it; UsageError if it is none or was edited."""
        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                raise UsageError(f"the plan has schema {data['schema']}, this farm reads {SCHEMA}; plan again")
            found = tuple(Cell.from_dict(c) for c in data["cells"])
            matrices = tuple(MatrixInfo.from_dict(m) for m in data["matrices"])
            backends = {name: Count(**count) for name, count in data["backends"].items()}
            targets = {name: Count(**count) for name, count in data.get("targets", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"this is no plan of the farm ({type(error).__name__}: {error}); plan again") from None
        if plan_hash(found) != data["plan_hash"]:
            raise UsageError("the plan's cells do not fit its hash: it was edited or cut; plan again")
        return cls(found, matrices, data["plan_hash"], backends, targets)


def default_backends(matrices: Sequence[Matrix]) -> list[str]:
    """What `farm plan` plans for without `--backend`: what the matrices require, else cpu."""
    return list(dict.fromkeys(b for m in matrices for b in m.require)) or ["cpu"]


def plan(
    matrices: Sequence[Matrix],
    backends: Sequence[str] = (),
    *,
    select: str | None = None,
    named_targets: bool = True,
) -> Plan:
    """The plan of `matrices` on `backends` (default: `default_backends`), narrowed by `select`.

    The planned unit is a cell on a target, where the matrices name targets and `named_targets` is true.  One that two
    matrices share is planned once, as the first one's; where one of them excludes it, as the other's.
    """
    matrices = _distinct(matrices)
    backends = list(dict.fromkeys(backends)) or default_backends(matrices)
    rule = select_rule(select, matrices) if select else None
    for matrix in matrices:
        _check_tolerances(matrix, backends)
    places: dict[tuple[str, str], int] = {}
    found: list[Cell] = []
    for backend in backends:
        for matrix in matrices:
            for cell in expand(matrix, [backend], named_targets=named_targets):
                if rule and not rule.holds(lookup(cell)):
                    continue
                place = places.setdefault((cell.cell_key, cell.target), len(found))
                if place == len(found):
                    found.append(cell)
                elif found[place].skip_reason and not cell.skip_reason:
                    found[place] = cell
        if len(found) > MAX_CELLS:
            raise MatrixError(f"the matrices expand to more than {MAX_CELLS:,} cells; run fewer at a time")
    if not found:
        raise UsageError(f"--select {select} selects none of the matrices' cells; widen it")
    _number(found)
    infos = tuple(m.info for m in matrices)
    return Plan(tuple(found), infos, plan_hash(found), counts(found, backends), target_counts(found))


def _check_tolerances(matrix: Matrix, backends: Sequence[str]) -> None:
    for i, tolerance in enumerate(matrix.tolerances):
        wrong = astray(tolerance, expand(matrix, backends), lambda op: matrix.contract)
        if wrong:
            where = f"{matrix.path}: {matrix.name}: tolerances[{i}]"
            raise MatrixError(f"{where} names what its cells do not have: {wrong}")


def _distinct(matrices: Sequence[Matrix]) -> list[Matrix]:
    """The matrices without those named twice on the command line; two unlike ones of one name are an error."""
    out: dict[str, Matrix] = {}
    for matrix in matrices:
        other = out.setdefault(matrix.name, matrix)
        if other is not matrix and (other.sha256, other.exclude) != (matrix.sha256, matrix.exclude):
            raise MatrixError(f'{matrix.path}: name is "{matrix.name}", as in {other.path}; rename one')
    return list(out.values())


def _number(found: list[Cell]) -> None:
    """Give each cell its index.  The cells are this plan's own and nobody has seen them yet: set in place."""
    for index, cell in enumerate(found):
        object.__setattr__(cell, "index", index)
    if len({cell.cell_id for cell in found}) != len(found):
        raise InfraError("two cells with different keys have one id; this is a bug in farm.matrix.ids, report it")


def plan_hash(cells: Sequence[Cell]) -> str:
    """SHA-256 over id, key and skip reason of every cell in order."""
    digest = hashlib.sha256()
    for cell in cells:
        digest.update(f"{cell.cell_id}\t{cell.cell_key}\t{cell.skip_reason}\n".encode())
    return digest.hexdigest()


def counts(cells: Sequence[Cell], backends: Sequence[str]) -> dict[str, Count]:
    """Of each of `backends`."""
    return _counts(cells, lambda cell: cell.backend, backends)


def target_counts(cells: Sequence[Cell]) -> dict[str, Count]:
    """Of each named target."""
    named = [c for c in cells if c.target]
    return _counts(named, lambda cell: cell.target, list(dict.fromkeys(c.target for c in named)))


def _counts(cells: Sequence[Cell], place: Callable[[Cell], str], places: Sequence[str]) -> dict[str, Count]:
    number, skipped, seconds = (dict.fromkeys(places, 0), dict.fromkeys(places, 0), dict.fromkeys(places, 0.0))
    for cell in cells:
        where = place(cell)
        number[where] += 1
        if cell.skip_reason:
            skipped[where] += 1
        else:
            seconds[where] += estimate_seconds(cell)
    return {p: Count(number[p], skipped[p], round(seconds[p], 3)) for p in places}


#: Seconds that a cell costs besides its work: start, messages, journal, judging a small output.
_FIXED = {"cuda": 0.1, "rocm": 0.1, "ascend": 0.2, "cpu": 0.01, "sim": 0.01}
_ELEMENT = 15e-9  # making, referencing and comparing one element in float64 on one core
_PASSES = {"forward": 1, "no-grad-forward": 1, "backward": 3, "full": 3}  # a backward runs a forward first
#: On `cpu` an element is also computed there, and by an interpreted kernel twice (the second run has to give the same
#: bits).  Measured on two x86 cores (docs/facts.md): both runs of a norm's row, of each of its elements, and of each
#: program that adds up 32 columns of dw.
_CPU_ELEMENT = 33e-9
_ROW, _COLUMN, _SUM = 2e-3, 0.2e-6, 0.9e-3
_PACKED, _PACKED_ROWS = 1024, 8  # narrower rows share a program, about so many


def estimate_seconds(cell: Cell) -> float:
    """About how long one device holds `cell`, in seconds: for leases and for `farm plan`; no promise.

    Fixed cost, plus host work per element of the largest tensor, plus on `cpu`, for our kernels, interpreted
    rows, plus the timing budget where it is timed.
    """
    sizes = [*cell.dims.values(), 1, 1]
    rows, columns = sizes[:2]
    if cell.backend == "sim":
        return _FIXED["sim"]
    passes = _PASSES.get(cell.operation, 1)
    if cell.backend == "cpu":
        seconds = _FIXED["cpu"] + _CPU_ELEMENT * rows * columns * passes
        if cell.provider == "farm":
            programs = rows if columns > _PACKED else rows / _PACKED_ROWS
            seconds += programs * (_ROW + _COLUMN * columns) * passes
            seconds += _SUM * columns / 32 if passes > 1 else 0.0
        return seconds
    seconds = _FIXED.get(cell.backend, 0.1) + _ELEMENT * rows * columns * passes
    if cell.timing.method != "none":
        seconds += 0.2 * cell.timing.max_seconds  # the stopping rule seldom needs all of it
    return seconds
