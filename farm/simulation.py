"""Which script a cell plays on a fake device: the matrix's `sim:` section, resolved.  Pure.

    sim:
      default: {time_us: 10, noise: 0.01}
      rules:
        - {when: {hidden: ">4096"}, time_us: 40}
        - {when: {provider: torch, operation: backward}, signal: 11}

All rules that match add up, the later over the earlier.  Fakes are the devices of backend `sim`, and those of any
backend on a node that simulates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.cell import DTYPE_ALIASES, Cell
from farm.matrix.rules import Condition, lookup, split_comparison


def script_for(section: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """The script of one cell."""
    script = dict(section.get("default", {}))
    value_of = lookup(cell)
    for rule in section.get("rules", []):
        if all(_holds(key, want, value_of(key)) for key, want in rule.get("when", {}).items()):
            script.update({k: v for k, v in rule.items() if k != "when"})
    return script


def _holds(key: str, want: Any, value: Any) -> bool:
    """Whether a condition as it stands in the file holds for a cell's value: as in `exclude`, whose own parser has read
    it before."""
    if isinstance(want, list):
        return any(_holds(key, w, value) for w in want)
    sign, text = split_comparison(want)
    literal = _like(text, value) if sign else want
    if key == "dtype" or key.endswith("_dtype"):
        literal = DTYPE_ALIASES.get(literal, literal)
    return Condition(key, sign or "in", (literal,)).holds(value)


def _like(text: str, value: Any) -> Any:
    """What is written behind an operator, as what it is compared with is."""
    if isinstance(value, bool):
        return text.lower() == "true"
    return float(text) if isinstance(value, (int, float)) else text
