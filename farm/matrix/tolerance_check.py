"""Checks that a tolerance names an output and a metric that its cells have.  Pure.

A misspelt output would silently leave the contract's tolerance in force; a misspelt metric, which no cell has, would
make every kernel inaccurate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from farm.accuracy.metrics import Partial
from farm.cell import Cell, canonical_json
from farm.contracts.base import Contract
from farm.errors import Message

from .document import show, suggest
from .model import Tolerance
from .rules import lookup

#: What the farm measures of every output, and may have a tolerance.
METRICS = tuple(name for name in Partial().finish() if name != "count" and not name.startswith("worst_"))
_MEASURED = ("output", "gradient", "mutated")


def astray(tolerance: Tolerance, cells: Iterable[Cell], contracts: Callable[[str], Contract | None]) -> Message | None:
    """`output is "z"; available outputs: y, dx, dw`, of the cells that the tolerance matches; None if they have both
    its output and its metric, if no cell matches, or if the op of one has no contract."""
    outputs: dict[str, None] = {}
    metrics = dict.fromkeys(METRICS)
    seen = set()
    for cell in cells:
        kind = (cell.op, cell.operation, canonical_json(dict(cell.params)))
        if kind in seen or not tolerance.rule.holds(lookup(cell)):
            continue
        seen.add(kind)
        contract = contracts(cell.op)
        if contract is None:
            return None
        outputs.update(dict.fromkeys(t.name for t in contract.tensors(cell) if t.role in _MEASURED))
        metrics.update(dict.fromkeys(m for of in contract.gates(cell).values() for m in of))
        if tolerance.metric in metrics and tolerance.output in ("*", *outputs):
            return None
    if not seen:
        return None
    if tolerance.output not in ("*", *outputs):
        wrong = f"output is {show(tolerance.output)}; {suggest(tolerance.output, outputs, 'outputs')}"
        return Message(wrong, id="matrix-tolerance-output")
    wrong = f"metric is {show(tolerance.metric)}; {suggest(tolerance.metric, metrics, 'metrics')}"
    return Message(wrong, id="matrix-tolerance-metric")
