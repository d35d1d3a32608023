"""Turns a cell into the call of a provider: which arguments are positional, and which are keywords.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.cell import Cell
from farm.contracts.base import Contract


def call_for(cell: Cell, contract: Contract, provider: Mapping[str, Any]) -> dict[str, Any]:
    """{"provider", "positional", "keywords", "optional"} for the child.

    Positional parameters follow the inputs; keywords are only what differs from the op's defaults; a rounding class
    (`semantic=False`) is optional: passed to a function that takes it.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for p in contract.parameters:
        value = cell.params[p.name]
        if p.nullifies is not None or p.declared:
            continue  # told by the tensor's absence; said by the provider itself
        if p.positional:
            positional.append(value)
        elif value != p.default:
            (keywords if p.semantic else optional)[p.name] = value
    if cell.mode != "auto":
        keywords["mode"] = cell.mode
    return {"provider": dict(provider), "positional": positional, "keywords": keywords, "optional": optional}


def provider_of(cell: Cell, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a child is told of the cell's provider.  `own`: `NAME` or `OP:NAME` -> path and more, of those that are not
    the farm's."""
    found = dict(own.get(f"{cell.op}:{cell.provider}") or own.get(cell.provider) or {})
    differs = found.pop("backends", {}).get(cell.backend, {})
    return {"name": cell.provider, **found, **differs}
