"""A plan: the cells of several matrices in order, each once, with counts, an estimate, and a hash.  Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from farm.accuracy import evaluate
from farm.accuracy.contract_check import tensors_problem
from farm.cell import Cell
from farm.contracts.base import Contract
from farm.errors import InfraError, MatrixError, UsageError

from .expand import cells as expand
from .expand import select_rule
from .model import MAX_CELLS, Matrix, MatrixInfo
from .rules import lookup
from .tolerance_check import astray

Contracts = Mapping[str, Contract]  # by op
SCHEMA = 1  # 1: first
#: A larger tensor is a mistake in a dimension: hosts have a few TiB of memory.
MAX_TENSOR_BYTES = 16 << 40
AGAIN = "run farm plan again"  # ends every refusal of a plan that cannot be read


@dataclass(frozen=True)
class Count:
    """For one backend: planned cells, how many of them are excluded, and estimated seconds on one device."""

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
    targets: Mapping[str, Count] = field(default_factory=dict)  # the same for named targets, `cuda:GB200`

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
        """A plan as `to_json` wrote it; UsageError if it is not a plan, or was edited."""
        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                message = f"the plan has schema {data['schema']}, but this farm reads {SCHEMA}; {AGAIN}"
                raise UsageError(message, id="plan-schema")
            found = tuple(Cell.from_dict(c) for c in data["cells"])
            matrices = tuple(MatrixInfo.from_dict(m) for m in data["matrices"])
            backends = {name: Count(**count) for name, count in data["backends"].items()}
            targets = {name: Count(**count) for name, count in data.get("targets", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            message = f"this file was not written by farm plan, or was truncated ({why}); {AGAIN}"
            raise UsageError(message, id="plan-malformed") from None
        if plan_hash(found) != data["plan_hash"]:
            message = f"the plan's cells do not match the plan's hash: the file was edited or truncated; {AGAIN}"
            raise UsageError(message, id="plan-hash")
        return cls(found, matrices, data["plan_hash"], backends, targets)


def default_backends(matrices: Sequence[Matrix]) -> list[str]:
    """What `farm plan` uses without `--backend`: the backends that the matrices require, or else cpu."""
    return list(dict.fromkeys(b for m in matrices for b in m.require)) or ["cpu"]


def plan(
    matrices: Sequence[Matrix],
    backends: Sequence[str] = (),
    *,
    select: str | None = None,
    named_targets: bool = True,
    statuses: Mapping[tuple[str, str], str] | None = None,
    ids: Collection[str] | None = None,
) -> Plan:
    """The plan of `matrices` on `backends` (default: `default_backends`), narrowed by `select`.  With `statuses`
    ((cell's key, target) -> its status in an earlier run), only these cells are planned, and `select` may name one.
    With `ids`, only the cells that have one of them: UsageError for an ID that no cell has.

    The planned unit is a cell on a target, if the matrices name targets and `named_targets` is true.  A cell that two
    matrices share is planned once, for the first; if one of them excludes it, for the other.
    """
    matrices = _distinct(matrices)
    backends = list(dict.fromkeys(backends)) or default_backends(matrices)
    rule = select_rule(select, matrices, of_run=statuses is not None) if select else None
    for matrix in matrices:
        _check_tolerances(matrix, backends)
    places: dict[tuple[str, str], int] = {}
    found: list[Cell] = []
    seen: set[str] = set()
    for backend in backends:
        for matrix in matrices:
            for cell in expand(matrix, [backend], named_targets=named_targets):
                if statuses is not None and (cell.cell_key, cell.target) not in statuses:
                    continue
                if ids is not None and cell.cell_id not in ids:
                    continue
                seen.add(cell.cell_id)
                if rule and not rule.holds(_with_status(cell, statuses)):
                    continue
                place = places.setdefault((cell.cell_key, cell.target), len(found))
                if place == len(found):
                    found.append(cell)
                elif found[place].skip_reason and not cell.skip_reason:
                    found[place] = cell
        if len(found) > MAX_CELLS:
            message = f"the matrices together expand to more than {MAX_CELLS:,} cells; use fewer matrices at a time"
            raise MatrixError(message, id="plan-too-many-cells")
    if ids is not None and (missing := [i for i in ids if i not in seen]):
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        text = f"the matrices have no cell {missing[0]}{more}; take IDs from farm plan"
        raise UsageError(text, id="plan-id-unknown")
    if not found:
        raise _nothing(select, statuses is not None)
    _number(found)
    contracts = {m.contract.op: m.contract for m in matrices}
    _check_tensors(found, contracts)
    _check_memory(found, contracts)
    by_backend, by_target = counts(found, backends, contracts), target_counts(found, contracts)
    return Plan(tuple(found), tuple(m.info for m in matrices), plan_hash(found), by_backend, by_target)


def _check_tensors(cells: Sequence[Cell], contracts: Mapping[str, Contract]) -> None:
    """MatrixError for an outside contract whose tensors are wrong, by the first cell of each op and operation."""
    seen: set[tuple[str, str]] = set()
    for cell in cells:
        of = cell.op, cell.operation
        if contracts[cell.op].content and of not in seen and not cell.skip_reason:
            seen.add(of)
            wrong = tensors_problem(contracts[cell.op], cell)
            if wrong:
                text = f"the contract of {cell.op} is wrong: {wrong}; farm contract check {cell.op} checks all of it"
                raise MatrixError(text, id="plan-contract-wrong")


def _nothing(select: str | None, of_run: bool) -> UsageError:
    """The refusal of a plan without cells."""
    if not select:
        text = "the matrices no longer have any of the cells that failed in that run; run the matrices without --failed"
        return UsageError(text, id="plan-failed-nothing")
    whose = "cells that failed in that run" if of_run else "matrices' cells"
    return UsageError(f"--select {select} matches none of the {whose}; relax this condition", id="plan-select-nothing")


def _with_status(cell: Cell, statuses: Mapping[tuple[str, str], str] | None) -> Callable[[str], Any]:
    """`lookup`, with the cell's status in an earlier run."""
    get = lookup(cell)
    status = (statuses or {}).get((cell.cell_key, cell.target))
    return get if statuses is None else lambda key: status if key == "status" else get(key)


def _check_tolerances(matrix: Matrix, backends: Sequence[str]) -> None:
    for i, tolerance in enumerate(matrix.tolerances):
        wrong = astray(tolerance, expand(matrix, backends), lambda op: matrix.contract)
        if wrong:
            where = f"{matrix.path}: {matrix.name}: tolerances[{i}]"
            raise MatrixError(f"{where} does not fit the cells matched by this tolerance: {wrong}", id=wrong.id)


def _distinct(matrices: Sequence[Matrix]) -> list[Matrix]:
    """The matrices without repetitions on the command line; different matrices with the same name are an error."""
    out: dict[str, Matrix] = {}
    for matrix in matrices:
        other = out.setdefault(matrix.name, matrix)
        if other is not matrix and (other.sha256, other.exclude) != (matrix.sha256, matrix.exclude):
            message = f'name is "{matrix.name}", which {other.path} also uses; rename one of the two'
            raise MatrixError(f"{matrix.path}: {message}", id="plan-name-twice")
    return list(out.values())


def _check_memory(found: Sequence[Cell], contracts: Contracts) -> None:
    """MatrixError for a tensor that no host could hold."""
    seen = set()
    for cell in found:
        shape = (cell.op, *cell.dims.values(), *cell.dtypes.values())
        if shape in seen or prod(cell.dims.values()) * 8 <= MAX_TENSOR_BYTES:
            continue
        seen.add(shape)
        for tensor in contracts[cell.op].tensors(cell):
            size = tensor.nbytes
            if size > MAX_TENSOR_BYTES:
                message = (
                    f"{cell.cell_id}: {tensor.name} alone has {size:.2g} bytes; the limit is "
                    f"{MAX_TENSOR_BYTES >> 40} TiB; use smaller dimensions"
                )
                raise MatrixError(f"{cell.matrix}: {message}", id="plan-tensor-too-big")


def _number(found: list[Cell]) -> None:
    """Give each cell its index.  The cells are new and belong to this plan only, so the index is set in place."""
    for index, cell in enumerate(found):
        object.__setattr__(cell, "index", index)
    if len({cell.cell_id for cell in found}) != len(found):
        message = "two cells with different keys have the same id; this is a bug in farm.matrix.ids, please report it"
        raise InfraError(message, id="plan-same-id")


def plan_hash(cells: Sequence[Cell]) -> str:
    """SHA-256 over id, key and skip reason of every cell in order."""
    digest = hashlib.sha256()
    for cell in cells:
        digest.update(f"{cell.cell_id}\t{cell.cell_key}\t{cell.skip_reason}\n".encode())
    return digest.hexdigest()


def counts(cells: Sequence[Cell], backends: Sequence[str], contracts: Contracts) -> dict[str, Count]:
    """The count of each of `backends`."""
    return _counts(cells, lambda cell: cell.backend, backends, contracts)


def target_counts(cells: Sequence[Cell], contracts: Contracts) -> dict[str, Count]:
    """The count of each named target."""
    named = [c for c in cells if c.target]
    return _counts(named, lambda cell: cell.target, list(dict.fromkeys(c.target for c in named)), contracts)


def _counts(
    cells: Sequence[Cell], place: Callable[[Cell], str], places: Sequence[str], contracts: Contracts
) -> dict[str, Count]:
    number, skipped, seconds = (dict.fromkeys(places, 0), dict.fromkeys(places, 0), dict.fromkeys(places, 0.0))
    for cell in cells:
        where = place(cell)
        number[where] += 1
        if cell.skip_reason:
            skipped[where] += 1
        else:
            seconds[where] += estimate_seconds(cell, contracts[cell.op]) + _unknown_seconds(cell, contracts[cell.op])
    return {p: Count(number[p], skipped[p], round(seconds[p], 3)) for p in places}


#: Seconds that a cell costs in addition to its work: start, messages, journal, judging a small output.
_FIXED = {"cuda": 0.1, "rocm": 0.1, "ascend": 0.2, "cpu": 0.01, "sim": 0.01}
_ELEMENT = 15e-9  # generating, computing in float64 and comparing one element, on one core
_PASSES = {"forward": 1, "no-grad-forward": 1, "backward": 3, "full": 3}  # a backward runs a forward first
_CPU_ELEMENT = 33e-9  # on `cpu` it is also computed there
#: Of a kernel in the interpreter that nothing is known of: small ones took a tenth of a second to two (two x86 cores).
_UNKNOWN = 0.5
#: Cells whose dimensions have a larger product are estimated by their tensors and operations: per element of any
#: tensor, and per operation of the reference in float64, on one core (measured, docs/contracts.md).
_LARGE, _LARGE_ELEMENT, _OPERATION = 1 << 26, 10e-9, 5e-11


def estimate_seconds(cell: Cell, contract: Contract | None) -> float:
    """Roughly how long `cell` occupies one device, in seconds: for leases and for `farm plan`.

    Fixed cost, plus host work (of a large cell what the judge computes, else per element of the first two dimensions),
    plus on `cpu` computing it, and for our kernels what the contract says of their interpretation, plus the timing
    budget where it is timed.  `contract`: None if this farm has no such op.
    """
    if cell.backend == "sim":
        return _FIXED["sim"]
    sizes = [*cell.dims.values(), 1, 1]
    elements = sizes[0] * sizes[1] * _PASSES.get(cell.operation, 1)
    judging = judging_seconds(cell, contract) if contract and prod(sizes) > _LARGE else _ELEMENT * elements
    seconds = _FIXED.get(cell.backend, 0.1) + judging
    if cell.backend == "cpu":
        seconds += (_CPU_ELEMENT - _ELEMENT) * elements
        return seconds + (contract.interpreted_seconds(cell) if contract and cell.provider == "farm" else 0.0)
    if cell.timing.method != "none":
        seconds += 0.2 * cell.timing.max_seconds  # the stopping rule seldom needs all of it
    return seconds


def _unknown_seconds(cell: Cell, contract: Contract) -> float:
    """What a plan adds for a subject on `cpu` of which no contract says how long it is interpreted: what it will be is
    not known, but it is not nothing.  Leases are measured by what is known."""
    known = cell.provider == "farm" and contract.interpreted_seconds(cell) > 0
    return 0.0 if cell.backend != "cpu" or cell.role != "subject" or known else _UNKNOWN


def judging_seconds(cell: Cell, contract: Contract) -> float:
    """Roughly how long one core makes the inputs of a large cell, evaluates its reference and compares: in the rows
    that are compared, but for sums over all rows, and twice where the tolerances are from the function's own error."""
    tensors = evaluate.tensors_of(cell, contract)
    sample = evaluate.compared_rows(cell, contract)
    operations = sum(evaluate.work_of(cell, contract).operations.values()) * sample / max(1, evaluate.row_count(cell))
    once = _LARGE_ELEMENT * sum(t.size for t in tensors) + _OPERATION * operations
    return once * (2 if contract.own_tolerances else 1)
