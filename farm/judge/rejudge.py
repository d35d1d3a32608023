"""Repeat verdicts from stored metrics, with today's tolerances and without a device.  Pure.

A cell's tolerances are those of the contract, then those of its matrix, then those of `--tolerances`.  Only a verdict
that depends on metrics is repeated.  A cell that crashed, was unsupported, or is `inaccurate` for another reason than
its metrics (a wrong layout, changed inputs) keeps its status and reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.accuracy import tolerances as gating
from farm.cell import Cell, Owner, Status
from farm.child.findings import disqualifying
from farm.contracts.base import Contract
from farm.errors import Message
from farm.judge.digest import judging_digest

Row = dict[str, Any]
Rules = Callable[[Cell], Sequence[Mapping[str, Any]]]
HEADLINE = ("max_ulp", "rel_l2", "max_abs")


@dataclass(frozen=True)
class VerdictChange:
    """A cell whose status has changed."""

    cell_id: str
    role: str
    before: str
    after: str
    reason: str


def judge_again(
    row: Mapping[str, Any], cell: Cell, contract: Contract | None, rules: Sequence[Mapping[str, Any]]
) -> Row:
    """The row with the verdict that its stored metrics have under today's tolerances.

    `contract` is that of the op, or None if this farm has none; `rules` are the cell's tolerances (output, metric,
    limit, ...), later ones over earlier ones.  A row that cannot be judged again is `infra_error` with the reason.
    """
    metrics, stored = _json(row, "metrics"), _json(row, "gates")
    if row["status"] not in (Status.PASSED.value, Status.INACCURATE.value) or not metrics:
        return dict(row)
    held = gating.verdict(metrics, stored)
    if row["status"] == Status.PASSED.value and not held.ok:
        why = gating.explain(held, metrics, stored)
        text = f"the stored status is passed, but the stored metrics exceed the stored tolerances ({why})"
        return _undecided(row, text, "rejudge-contradiction")
    if row["status"] == Status.INACCURATE.value and (held.ok or disqualifying(_list(row, "flags"))):
        return dict(row)  # its metrics did not decide it, or not alone
    if contract is None:
        text = f"this farm has no op {cell.op}; use a farm version that has this op"
        return _undecided(row, text, "rejudge-op-unknown")
    if contract.version != cell.contract_version:
        versions = f"version {cell.contract_version} of the contract, but this farm has version {contract.version}"
        return _undecided(
            row, f"the stored metrics are from {versions}; run the cell again", "rejudge-contract-version"
        )
    if contract.content != cell.contract_content:
        text = f"the stored metrics are from the contract {cell.contract_content or 'of the farm'}, but here it is "
        text += f"{contract.content or 'that of the farm'}; run the cell again"
        return _undecided(row, text, "rejudge-contract-content")
    gates = gating.resolve(cell, contract, rules, metrics)
    absent = [f"{o}.{m}" for o, of in gates.items() for m in of if metrics.get(o, {}).get(m) is None]
    if absent:
        text = f"the stored metrics lack {', '.join(absent)}, which now have a tolerance; run the cell again"
        return _undecided(row, text, "rejudge-metric-missing")
    found = gating.verdict(metrics, gates)
    of_worst = metrics.get(found.worst_output, {})
    # by the tolerances that the cell ran with: today's may call more or fewer elements wrong
    where: dict[str, Any] = json.loads(row.get("places") or "{}")
    return {
        **row,
        "status": (Status.PASSED if found.ok else Status.INACCURATE).value,
        "reason": "" if found.ok else gating.explain(found, metrics, gates, where.get(found.worst_output)),
        "places": json.dumps({} if found.ok else where),
        "fault_owner": "" if found.ok else Owner.KERNEL.value,
        "gates": json.dumps(gates),
        "judged_by": judging_digest(),
        "judged_as": "",
        "worst_output": found.worst_output,
        "worst_metric": found.worst_metric,
        "worst_ratio": found.worst_ratio,
        **{name: of_worst.get(name) for name in HEADLINE},
    }


def judge_run(
    rows: Iterable[Mapping[str, Any]], cells: Iterable[Cell], contract: Callable[[str], Contract | None], rules: Rules
) -> tuple[list[Row], list[VerdictChange]]:
    """Every row judged again, in order, and the cells whose status has changed."""
    by_index = {cell.index: cell for cell in cells}
    out, changes = [], []
    for row in rows:
        cell = by_index[row["index"]]
        new = judge_again(row, cell, contract(cell.op), rules(cell))
        out.append(new)
        if new["status"] != row["status"]:
            why = new["reason"] or "every metric is within its tolerance"
            changes.append(VerdictChange(row["cell_id"], row["role"], row["status"], new["status"], why))
    return out, changes


def tally(changes: Iterable[VerdictChange]) -> list[str]:
    """`3 passed -> inaccurate`, the most frequent first."""
    seen = Counter((c.before, c.after) for c in changes)
    return [f"{n} {before} -> {after}" for (before, after), n in seen.most_common()]


def report(row: Mapping[str, Any]) -> str:
    """A judgement as text: the reason, then every metric beside its tolerance."""
    lines, gates = [str(row["reason"]), ""], _json(row, "gates")
    for output, metrics in _json(row, "metrics").items():
        of = gates.get(output, {})
        lines += [
            f"{output:12} {name:20} {gating.number_text(value, 6):<14}"
            + (f" tolerance {of[name]:.6g}" if name in of else "")
            for name, value in metrics.items()
        ]
    return "\n".join(lines)


def _undecided(row: Mapping[str, Any], reason: str, id: str) -> Row:
    return {
        **row,
        "status": Status.INFRA_ERROR.value,
        "reason": Message(f"cannot be judged again: {reason}", id=id),
        "fault_owner": Owner.HARNESS.value,
        "judged_by": "",
        "judged_as": "",
    }


def _json(row: Mapping[str, Any], name: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(row.get(name) or "{}")
    return found


def _list(row: Mapping[str, Any], name: str) -> list[str]:
    found: list[str] = json.loads(row.get(name) or "[]")
    return found
