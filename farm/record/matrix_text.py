"""Writes what was recorded as matrices: one for each op, dtype, layout, set of operations and of parameters.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from farm.contracts.base import Contract
from farm.record.calls import Counts, Recorded, Run

HEAD = "# Recorded by farm record"
#: Shapes in one file; those that were called most stay.
MOST_SHAPES = 1000


def operations(contract: Contract, counts: Counts) -> tuple[str, ...]:
    """What was done: forward where a gradient could be wanted, no-grad-forward elsewhere if the op has it, and backward
    where a gradient arrived."""
    have = contract.operations
    found = []
    if counts.graded or "no-grad-forward" not in have:
        found.append("forward")
    if counts.plain and "no-grad-forward" in have:
        found.append("no-grad-forward")
    if counts.backward and "backward" in have:
        found.append("backward")
    return tuple(o for o in found if o in have) or have[:1]


def texts(
    run: Run, contract: Callable[[str], Contract], providers: Callable[[str], Sequence[str]], command: str
) -> tuple[list[str], int]:
    """(a document for each matrix, those with most calls first; the shapes left out because there are too many)."""
    most = sorted(run.calls.items(), key=lambda item: -item[1].calls)
    groups: dict[tuple[Any, ...], list[tuple[Recorded, Counts]]] = {}
    for call, counts in most[:MOST_SHAPES]:
        done = operations(contract(call.op), counts)
        groups.setdefault((call.op, call.dtypes, call.params, call.layout, done), []).append((call, counts))
    numbers: dict[str, int] = {}
    found = []
    for (op, _, _, _, done), calls in groups.items():
        numbers[op] = numbers.get(op, 0) + 1
        found.append(_document(f"{op}-recorded-{numbers[op]}", calls, done, providers(op), command))
    return found, max(len(most) - MOST_SHAPES, 0)


def _document(
    name: str, calls: Sequence[tuple[Recorded, Counts]], done: Sequence[str], providers: Sequence[str], command: str
) -> str:
    first = calls[0][0]
    total = sum(c.calls for _, c in calls)
    notes = dict.fromkeys(note for call, _ in calls for note in call.notes)
    lines = [
        f"{HEAD} -- {command}: {total} {'call' if total == 1 else 'calls'} of {first.op}, "
        f"{sum(c.backward for _, c in calls)} with a backward. The tag of a shape is its number of calls.",
        *(f"# {note}" for note in [*notes][:20]),
        f"name: {name}",
        f"op: {first.op}",
        "axes:",
        "  shape:",
    ]
    shapes: dict[tuple[tuple[str, int], ...], int] = {}
    for call, counts in calls:
        shapes[call.dims] = shapes.get(call.dims, 0) + counts.calls
    for dims, count in shapes.items():
        lines.append(f"    - {{{', '.join(f'{n}: {v}' for n, v in dims)}, tag: calls-{count}}}")
    kinds = {d for _, d in first.dtypes}
    dtype = kinds.pop() if len(kinds) == 1 else f"[{{{', '.join(f'{n}: {d}' for n, d in first.dtypes)}}}]"
    lines += [f"  dtype: {dtype}", f"  operation: [{', '.join(done)}]"]
    lines += [f"  {n}: [{_scalar(v)}]" for n, v in first.params]
    if first.layout:
        lines.append(f"  layout: [{{{', '.join(f'{n}: {v}' for n, v in first.layout)}}}]")
    if providers:
        lines.append(f"providers: [{', '.join(providers)}]")
    else:
        lines.append(
            "# no provider of the farm does this op: name yours in farm.yaml, or by --provider mine=module:function"
        )
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """A value as YAML.  1e-05 would be text there, 1.0e-05 is a number."""
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)
