"""The readable id of a cell, part by part, so that parts can be reused for a million ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from farm.cell import SHORT_DTYPES, Cell, Timing
from farm.contracts.base import Contract
from farm.device_pattern import pattern_of


def cell_id(cell: Cell, contract: Contract, default: Timing) -> str:
    """`cuda/rms_norm/farm/multi_wave_cached/forward/bf16/4096x8192/llama`, then every key field that differs from
    its default as `/name=value`: parameters (except those that the provider declares, which its name implies), timing,
    family, seed, dtypes that differ from the first tensor's, layouts; and last, for a cell with a named target,
    `@GB200`.

    `default` is the default timing policy of the cell's backend.
    """
    return (
        f"{cell.backend}/{cell.op}/{cell.provider}/{cell.mode}/{cell.operation}"
        f"/{SHORT_DTYPES[cell.dtype]}/{cell.shape}{params_part(cell.params, contract)}"
        f"{timing_part(cell.timing, default)}{family_part(cell.family, contract)}{seed_part(cell.seed)}"
        f"{dtypes_part(cell.dtypes)}{layout_part(cell.layout)}{target_part(cell.target)}"
    )


def text(value: Any) -> str:
    """A value in an id: the same on every Python, and without a `/` or `=` that could be mistaken for another part."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value, safe="+") if isinstance(value, str) else repr(value)


def params_part(params: Mapping[str, Any], contract: Contract) -> str:
    bare = "".join(f"/{text(params[p.name])}" for p in contract.parameters if p.in_id)
    named = "".join(
        f"/{p.name}={text(params[p.name])}"
        for p in contract.parameters
        if not p.in_id and not p.declared and params[p.name] != p.default
    )
    return bare + named


def timing_part(timing: Timing, default: Timing) -> str:
    """`/timing=events/cache=warm`: each field that differs from the backend's own policy, except the version, which
    follows from the method (and is in the key)."""
    if timing == default:
        return ""
    mine, theirs = timing.to_dict(), default.to_dict()
    return "".join(
        f"/{'timing' if name == 'method' else name}={text(value)}"
        for name, value in mine.items()
        if name != "version" and value != theirs[name]
    )


def family_part(family: str, contract: Contract) -> str:
    return "" if family == contract.families[0] else f"/family={text(family)}"


def seed_part(seed: int) -> str:
    return f"/seed={seed}" if seed else ""


def dtypes_part(dtypes: Mapping[str, str]) -> str:
    first = next(iter(dtypes.values()), "")
    return "".join(f"/{tensor}_dtype={dtype}" for tensor, dtype in dtypes.items() if dtype != first)


def layout_part(layout: Mapping[str, str]) -> str:
    return "".join(f"/{tensor}_layout={name}" for tensor, name in layout.items())


def target_part(target: str) -> str:
    return f"@{pattern_of(target)}" if target else ""
