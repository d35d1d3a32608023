"""Verdicts given again from stored metrics, with today's gates and no device.  Pure.

A cell's gates are the contract's, then its matrix's tolerances, then those of `--tolerances`.  Only what numbers
decided is decided again: a cell that crashed, was unsupported, or is `inaccurate` for another reason than its metrics
(a wrong layout, changed inputs) keeps what the run said of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.accuracy import gates as gating
from farm.cell import Cell, Owner, Status
from farm.child.findings import disqualifying
from kernels.contract import Contract

Row = dict[str, Any]
Rules = Callable[[Cell], Sequence[Mapping[str, Any]]]
HEADLINE = ("max_ulp", "rel_l2", "max_abs")


@dataclass(frozen=True)
class Change:
    """A cell whose status is another one now."""

    cell_id: str
    role: str
    before: str
    after: str
    reason: str


def judge_again(
    row: Mapping[str, Any], cell: Cell, contract: Contract | None, rules: Sequence[Mapping[str, Any]]
) -> Row:
    """The row with the verdict that its stored metrics have under the gates of today.

    `contract` is the op's, None where this farm has none; `rules` are the cell's tolerances (output, metric, limit,
    ...), later ones over earlier ones.  What cannot be decided any more is `infra_error` with the reason.
    """
    metrics, stored = _json(row, "metrics"), _json(row, "gates")
    if row["status"] not in (Status.PASSED.value, Status.INACCURATE.value) or not metrics:
        return dict(row)
    held = gating.verdict(metrics, stored)
    if row["status"] == Status.PASSED.value and not held.ok:
        told = gating.explain(held, metrics, stored)
        return _undecided(row, f"it is stored as passed, but its stored metrics break its stored gates ({told})")
    if row["status"] == Status.INACCURATE.value and (held.ok or disqualifying(_list(row, "flags"))):
        return dict(row)  # numbers did not decide it, or not alone
    if contract is None:
        return _undecided(row, f"this farm has no op {cell.op}; judge the run with one that has it")
    if contract.version != cell.contract_version:
        versions = f"version {cell.contract_version} of the contract, this farm has {contract.version}"
        return _undecided(row, f"its metrics are of {versions}; run it again")
    limits = [{k: v for k, v in rule.items() if k in ("output", "metric", "limit", "reason")} for rule in rules]
    gates = gating.resolve(cell, contract, limits)
    absent = [f"{o}.{m}" for o, of in gates.items() for m in of if metrics.get(o, {}).get(m) is None]
    if absent:
        return _undecided(row, f"its stored metrics lack {', '.join(absent)}, which is gated now; run it again")
    found = gating.verdict(metrics, gates)
    of_worst = metrics.get(found.worst_output, {})
    return {
        **row,
        "status": (Status.PASSED if found.ok else Status.INACCURATE).value,
        "reason": "" if found.ok else gating.explain(found, metrics, gates),
        "fault_owner": "" if found.ok else Owner.KERNEL.value,
        "gates": json.dumps(gates),
        "worst_output": found.worst_output,
        "worst_metric": found.worst_metric,
        "worst_ratio": found.worst_ratio,
        **{name: of_worst.get(name) for name in HEADLINE},
    }


def judge_run(
    rows: Iterable[Mapping[str, Any]], cells: Iterable[Cell], contract: Callable[[str], Contract | None], rules: Rules
) -> tuple[list[Row], list[Change]]:
    """Every row judged again, in order, and the cells whose status is another one now."""
    by_index = {cell.index: cell for cell in cells}
    out, changes = [], []
    for row in rows:
        cell = by_index[row["index"]]
        new = judge_again(row, cell, contract(cell.op), rules(cell))
        out.append(new)
        if new["status"] != row["status"]:
            why = new["reason"] or "every metric is within its gate"
            changes.append(Change(row["cell_id"], row["role"], row["status"], new["status"], why))
    return out, changes


def tally(changes: Iterable[Change]) -> list[str]:
    """`3 passed -> inaccurate`, most first."""
    seen = Counter((c.before, c.after) for c in changes)
    return [f"{n} {before} -> {after}" for (before, after), n in seen.most_common()]


def report(row: Mapping[str, Any]) -> str:
    """A judgement for people: the reason, then every metric beside its gate."""
    lines, gates = [str(row["reason"]), ""], _json(row, "gates")
    for output, metrics in _json(row, "metrics").items():
        of = gates.get(output, {})
        lines += [
            f"{output:12} {name:20} {value:<14.6g}" + (f" gate {of[name]:.6g}" if name in of else "")
            for name, value in metrics.items()
        ]
    return "\n".join(lines)


def _undecided(row: Mapping[str, Any], reason: str) -> Row:
    return {
        **row,
        "status": Status.INFRA_ERROR.value,
        "reason": f"cannot be judged again: {reason}",
        "fault_owner": Owner.HARNESS.value,
    }


def _json(row: Mapping[str, Any], name: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(row.get(name) or "{}")
    return found


def _list(row: Mapping[str, Any], name: str) -> list[str]:
    found: list[str] = json.loads(row.get(name) or "[]")
    return found
