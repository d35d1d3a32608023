"""The plan of two arms: every cell in both, as pairs.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm.cell import ARM, Cell, canonical_json
from farm.compare.arms import Arm
from farm.contracts.discovery import contract
from farm.errors import UsageError

from .plan import Count, Plan, plan_hash


def two(plans: Sequence[Plan], arms: Sequence[Arm]) -> Plan:
    """One plan of the plans of both arms: all cells of the first, then all of the second.  UsageError where an arm
    names a provider or mode and the other does not, or one that no cell has."""
    a, b = arms
    for what in ("provider", "mode"):
        if bool(getattr(a, what)) != bool(getattr(b, what)):
            named, other = (a, b) if getattr(a, what) else (b, a)
            raise UsageError(
                f"--{named.name} names a {what} ({getattr(named, what)}) and --{other.name} names none; name one for "
                "both, and they are compared",
                id="arm-one-names",
            )
    found: list[Cell] = []
    for plan, arm in zip(plans, arms):
        cells = [cell for cell in plan.cells if _is_of(cell, arm, alike=a.provider == b.provider)]
        if not cells:
            asked = " and ".join(f"{k} {v}" for k, v in (("provider", arm.provider), ("mode", arm.mode)) if v)
            raise UsageError(
                f"--{arm.name}: the matrices have no cell of {asked}; add it to their providers:", id="arm-no-cell"
            )
        found += [replace(c, arm=arm.name, cell_id=f"{c.cell_id}{ARM}{arm.name}") for c in cells]
    for index, cell in enumerate(found):
        object.__setattr__(cell, "index", index)  # they are new, and of this plan only
    both = [_sum([p.backends for p in plans]), _sum([p.targets for p in plans])]
    return Plan(tuple(found), plans[0].matrices, plan_hash(found), *both)


def mates(cells: Iterable[Cell], arms: Sequence[Arm]) -> dict[int, int]:
    """Index of a cell of the first arm -> that of the same cell in the second.  A provider or mode that the arms name
    is what differs between them."""
    a, b = arms
    apart = {what for what in ("provider", "mode") if getattr(a, what)}
    apart |= {"mode"} if a.provider != b.provider else set()
    first: dict[str, int] = {}
    out: dict[int, int] = {}
    for cell in cells:
        key = _pair_key(cell, apart)
        if cell.arm == a.name:
            first[key] = cell.index
        elif key in first:
            out[first[key]] = cell.index
    return out


def _is_of(cell: Cell, arm: Arm, *, alike: bool) -> bool:
    if arm.provider and cell.provider != arm.provider:
        return False
    return cell.mode == (arm.mode or (cell.mode if alike else "auto"))


def _pair_key(cell: Cell, apart: set[str]) -> str:
    """What both cells of a pair have in common."""
    data = cell.to_dict()
    names = ("backend", "op", "operation", "dtypes", "dims", "params", "family", "seed", "timing", "target")
    own: dict[str, Any] = {name: data[name] for name in (*names, "contract_version")}
    own |= {name: data[name] for name in ("provider", "mode") if name not in apart}
    own |= {name: data.get(name) for name in ("layout", "contract_content")}
    if "provider" in apart:  # what a provider declares is its own, like its name
        declared = {p.name for p in contract(cell.op).parameters if p.declared}
        own["params"] = {k: v for k, v in own["params"].items() if k not in declared}
    return canonical_json(own)


def _sum(places: Sequence[Mapping[str, Count]]) -> dict[str, Count]:
    out: dict[str, Count] = {}
    for counts in places:
        for name, count in counts.items():
            had = out.get(name, Count(0, 0, 0.0))
            seconds = round(had.seconds + count.seconds, 3)
            out[name] = Count(had.cells + count.cells, had.skipped + count.skipped, seconds)
    return out
