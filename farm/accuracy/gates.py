"""Gates resolved once per cell, and the verdict: pure functions of stored numbers, so it can be given again later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from farm.accuracy.dtypes import is_float
from farm.cell import Cell
from kernels.contract import Contract

Metrics = Mapping[str, Mapping[str, float]]
Gates = dict[str, dict[str, float]]

#: A ratio never exceeds this; it is also the ratio of a NaN, of a missing metric, and of any error where none may be.
WORST = 1e9


@dataclass(frozen=True)
class Override:
    """A limit that somebody changed, and why.  `when` maps cell fields or parameters to the values that it is for."""

    output: str  # an output's name, or "*"
    metric: str
    limit: float
    reason: str
    when: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, cell: Cell) -> bool:
        """Whether every condition holds in `cell`."""
        known = {**cell.params, **cell.dims, **{k: getattr(cell, k) for k in _FIELDS}}
        return all(known.get(name) == value for name, value in self.when.items())


_FIELDS = ("op", "backend", "provider", "role", "mode", "operation", "dtype", "family", "tag")


class Verdict(NamedTuple):
    """Whether every gate holds, and the metric nearest to or furthest beyond its gate (`ratio` above 1: beyond)."""

    ok: bool
    worst_output: str
    worst_metric: str
    worst_ratio: float


def resolve(cell: Cell, contract: Contract, tolerances: Iterable[Override | Mapping[str, Any]] = ()) -> Gates:
    """The cell's gates, complete: the contract's, `nonfinite` 0 for floats, then overrides in their order."""
    stated = contract.gates(cell)
    gates: Gates = {}
    for tensor in contract.tensors(cell):
        if tensor.role in ("output", "gradient", "mutated"):
            always = {"nonfinite": 0.0} if is_float(tensor.dtype) else {}
            gates[tensor.name] = {**always, **stated.get(tensor.name, {})}
    for item in tolerances:
        override = item if isinstance(item, Override) else Override(**item)
        if override.applies(cell):
            for name in gates if override.output == "*" else [override.output]:
                if name in gates:
                    gates[name][override.metric] = float(override.limit)
    return gates


def ratio(value: float | None, limit: float) -> float:
    """`value` over `limit`, within [0, WORST]; above 1 fails.  What is not a number fails."""
    if value is None or not math.isfinite(value) or math.isnan(limit):
        return WORST
    if value <= 0:
        return 0.0
    return min(value / limit, WORST) if limit > 0 else WORST


def verdict(metrics: Metrics, gates: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge stored metrics by stored gates; a metric that is gated and absent fails."""
    worst = Verdict(True, "", "", 0.0)
    for output, limits in gates.items():
        for metric, limit in limits.items():
            r = ratio(metrics.get(output, {}).get(metric), limit)
            if not worst.worst_output or r > worst.worst_ratio:
                worst = Verdict(worst.ok, output, metric, r)
            if r > 1:
                worst = worst._replace(ok=False)
    return worst


def explain(found: Verdict, metrics: Metrics, gates: Mapping[str, Mapping[str, float]]) -> str:
    """One sentence: which metric of which output is beyond its gate, and where its worst element is."""
    output, metric = found.worst_output, found.worst_metric
    of = metrics.get(output, {})
    value, limit = of.get(metric), gates[output][metric]
    if metric == "nonfinite" and value is not None:
        return f"{output}: {value:.0f} elements are not finite where the reference is, or the reverse"
    text = f"{output}: {metric} is {'missing' if value is None else f'{value:.3g}'}, its gate {limit:.3g}"
    if of.get("worst_row", -1) >= 0:
        place = f"[{of['worst_row']:.0f}, {of['worst_column']:.0f}]"
        text += f"; worst element {place}: got {of['worst_got']:.6g}, want {of['worst_want']:.6g}"
    return text


def worse(one: Metrics, other: Metrics) -> dict[str, dict[str, float]]:
    """The metrics of two calls of one cell as those of the worse: each the larger one, the worst element's place that
    of the larger max_ulp.  So the stored numbers hold whatever outputs were looked at, and a verdict from them too."""
    merged: dict[str, dict[str, float]] = {}
    for output in {**one, **other}:
        a, b = one.get(output, {}), other.get(output, {})
        place = b if b.get("max_ulp", -1.0) > a.get("max_ulp", -1.0) else a
        merged[output] = {}
        for name in {**a, **b}:
            if name.startswith("worst_") and name in place:
                merged[output][name] = place[name]
            else:  # a NaN wins: what cannot be measured must not pass
                values = [m[name] for m in (a, b) if name in m]
                merged[output][name] = next((v for v in values if math.isnan(v)), max(values))
    return merged
