"""Gates resolved once per cell, and the verdict: pure functions of stored numbers, so it can be given again later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from farm.accuracy import places
from farm.accuracy.dtypes import is_float
from farm.accuracy.metrics import CAP
from farm.cell import Cell
from farm.contracts.base import Contract
from farm.contracts.own_errors import FACTORS

Metrics = Mapping[str, Mapping[str, float]]
Gates = dict[str, dict[str, float]]

#: A ratio never exceeds this; it is also the ratio of a NaN, of a missing metric, and of any error where none may be.
WORST = 1e9
_HUGE_ULP = 1e6
#: What a metric counts, where the sentence beside it counts something else.
_MEANINGS = {"mismatch_ratio": "the share of elements that are more than 1 ULP off"}


class Verdict(NamedTuple):
    """Whether every gate holds, and the metric nearest to or furthest beyond its gate (`ratio` above 1: beyond)."""

    ok: bool
    worst_output: str
    worst_metric: str
    worst_ratio: float


def resolve(
    cell: Cell, contract: Contract, tolerances: Iterable[Mapping[str, Any]] = (), metrics: Metrics | None = None
) -> Gates:
    """All tolerances of the cell: the contract's, `nonfinite` 0 for floats, then overrides in their order, each a
    `limit` for `metric` of `output` (a name, or `*` for all).  `metrics`: those of the cell, for a contract whose
    tolerances depend on what they say of a correct implementation."""
    stated = contract.gates(cell)
    gates: Gates = {}
    for tensor in contract.tensors(cell):
        if tensor.role in ("output", "gradient", "mutated"):
            always = {"nonfinite": 0.0} if is_float(tensor.dtype) else {}
            gates[tensor.name] = {**always, **stated.get(tensor.name, {})}
    if metrics is not None and contract.own_tolerances:
        gates = widened(gates, metrics, FACTORS)
    for item in tolerances:
        for name in gates if item["output"] == "*" else [item["output"]]:
            if name in gates:
                gates[name][item["metric"]] = float(item["limit"])
    return gates


def widened(gates: Gates, metrics: Metrics, factors: Mapping[str, float]) -> Gates:
    """The tolerances of a contract whose reference also gave a correct implementation's result: of each metric the
    larger of the limit, and of that result's own (`own_NAME`, among the metrics) times its factor."""
    out = {}
    for output, limits in gates.items():
        of = metrics.get(output, {})
        out[output] = {
            metric: max(limit, _times(metric, of[f"own_{metric}"], factors[metric]))
            if metric in factors and f"own_{metric}" in of
            else limit
            for metric, limit in limits.items()
        }
    return out


def _times(metric: str, own: float, factor: float) -> float:
    """An error times a factor; of a largest error in ULP only what is beyond the half that the last rounding makes."""
    return 0.5 + factor * max(0.0, own - 0.5) if metric == "max_ulp" else factor * own


def ratio(value: float | None, limit: float) -> float:
    """`value` / `limit`, clipped to [0, WORST]; above 1 fails, and so does NaN."""
    if value is None or not math.isfinite(value) or math.isnan(limit):
        return WORST
    if value <= 0:
        return 0.0
    return min(value / limit, WORST) if limit > 0 else WORST


def verdict(metrics: Metrics, gates: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge stored metrics by stored tolerances; a missing metric that has a tolerance fails."""
    worst = Verdict(True, "", "", 0.0)
    for output, limits in gates.items():
        for metric, limit in limits.items():
            r = ratio(metrics.get(output, {}).get(metric), limit)
            if not worst.worst_output or r > worst.worst_ratio:
                worst = Verdict(worst.ok, output, metric, r)
            if r > 1:
                worst = worst._replace(ok=False)
    return worst


def explain(
    found: Verdict, metrics: Metrics, gates: Mapping[str, Mapping[str, float]], where: Mapping[str, Any] | None = None
) -> str:
    """One sentence: which metric of which output exceeds its tolerance, and where its worst element is.  `where`: the
    report of `farm.accuracy.places` on that output, whose sentence comes first and names the place."""
    output, of = found.worst_output, metrics.get(found.worst_output, {})
    metric = _headline(found, of, gates[output])
    value, limit = of.get(metric), gates[output][metric]
    meaning = f" ({_MEANINGS[metric]})" if metric in _MEANINGS else ""
    exceeds = f"{metric} is {_metric_text(metric, value)}{meaning}, tolerance {limit:.3g}"
    if where:
        return f"{places.sentence(output, where)}; {exceeds}{_others(output, metrics, gates)}"
    if metric == "nonfinite" and value is not None:
        some = "element is" if value == 1 else "elements are"
        return f"{output}: {value:.0f} {some} NaN or infinite where the reference is finite (or vice versa)"
    text = f"{output}: {exceeds}"
    if of.get("worst_row", -1) >= 0:
        place = f"[{of['worst_row']:.0f}, {of['worst_column']:.0f}]"
        text += f"; worst element {place}: got {of['worst_got']:.6g}, want {of['worst_want']:.6g}"
    return text


def _headline(found: Verdict, of: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """The metric that the sentence names: the worst; but a huge max_ulp, which an error next to an expected zero makes
    of any size, only where no other metric exceeds its tolerance."""
    if found.worst_metric != "max_ulp" or not (of.get("max_ulp") or 0.0) > _HUGE_ULP:
        return found.worst_metric
    ratios = {m: ratio(of.get(m), limit) for m, limit in limits.items() if m != "max_ulp"}
    worst = max(ratios, key=lambda m: ratios[m], default="")
    return worst if worst and ratios[worst] > 1 else found.worst_metric


def _metric_text(metric: str, value: float | None) -> str:
    """A metric for people; a count as a count."""
    whole = metric == "nonfinite" and value is not None and value < CAP
    return f"{value:,.0f}" if whole else number_text(value)


def _others(output: str, metrics: Metrics, gates: Mapping[str, Mapping[str, float]]) -> str:
    """What becomes of the cell's other outputs: a fault shows in those that depend on its line."""
    within: dict[bool, list[str]] = {True: [], False: []}
    for name, limits in gates.items():
        if name != output and limits:
            within[all(ratio(metrics.get(name, {}).get(m), limit) <= 1 for m, limit in limits.items())].append(name)
    parts = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {words}"
        for names, words in ((within[False], "wrong, too"), (within[True], "right"))
        if names
    ]
    return f"; {'; '.join(parts)}" if parts else ""


def number_text(value: float | None, digits: int = 3) -> str:
    """A metric for people; what only stands for "beyond all measure" is no number of theirs."""
    if value is None:
        return "missing"
    return "beyond measure" if abs(value) >= CAP else f"{value:.{digits}g}"


def worse(one: Metrics, other: Metrics) -> dict[str, dict[str, float]]:
    """The worse metrics of two calls of one cell: the larger of each, and the worst element of the call with the larger
    max_ulp.  So the stored numbers, and a verdict from them, cover both calls."""
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
