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
from farm.targets import pattern_of


def script_for(section: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """The script of one cell."""
    script = dict(section.get("default", {}))
    for rule in section.get("rules", []):
        if all(_holds(want, value_of(cell, key)) for key, want in rule.get("when", {}).items()):
            script.update({k: v for k, v in rule.items() if k != "when"})
    return script


def value_of(cell: Cell, key: str) -> Any:
    """A cell's value by the name that a matrix uses for it."""
    if key == "target":
        return pattern_of(cell.target)
    if key in cell.dims:
        return cell.dims[key]
    return cell.params[key] if key in cell.params else getattr(cell, key, None)


def _holds(want: Any, value: Any) -> bool:
    if isinstance(want, list):
        return any(_holds(w, value) for w in want)
    if isinstance(want, str) and want[:2] == "!=":
        other = want[2:].strip()
        return str(value).lower() != other.lower() and value != DTYPE_ALIASES.get(other, other)
    if isinstance(want, str) and want[:1] in "<>":
        sign = want[:2] if want[1:2] == "=" else want[:1]
        limit = float(want[len(sign) :])
        return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[sign]
    return DTYPE_ALIASES.get(want, want) == value if isinstance(want, str) else bool(want == value)
