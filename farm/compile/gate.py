"""What a compiled cell is: `built`, or `compile_error` with the reason.  Pure.

Binding (the cell is `compile_error`):

* the compiler rejects a kernel, no core can hold one program of it, or its grid is beyond the runtime's limits;
* a kernel plans more of the Unified Buffer than there is;
* what `auto` chooses spills, for sizes up to which the contract forbids it (`Contract.spill_free`), or runs element by
  element on Ascend's scalar unit.

Everything else of the kind is told as a flag of a `built` cell: wider rows and modes that were asked for by name may
spill, their user chose them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.cell import Status

#: Scalar accesses of the Unified Buffer that a kernel may have: a row's own statistics take a few.
SCALAR_BOUND = 100


@dataclass(frozen=True)
class Launch:
    """One launch of a cell: in which phase, what it is, and what its kernel takes.

    `rivals`: what the other variants take among which tuning would choose on a device; such a launch is judged by the
    best of them.
    """

    kernel: str
    phase: str  # forward or backward
    resources: Mapping[str, Any]
    rivals: tuple[Mapping[str, Any], ...] = ()
    too_large: str = ""  # the limit that its grid is beyond


@dataclass(frozen=True)
class BuildJudgement:
    status: Status
    reason: str = ""
    flags: tuple[str, ...] = field(default=())


def judge(
    mode: str, dims: Mapping[str, int], spill_free: Mapping[str, tuple[str, int]], launches: Sequence[Launch]
) -> BuildJudgement:
    """The verdict on a cell of `mode` and these dimensions; `spill_free` is its contract's."""
    bound: list[str] = []
    told: list[str] = []
    for launch in launches:
        for what, binds in _complaints(mode, dims, spill_free.get(launch.phase), launch):
            (bound if binds else told).append(f"{launch.kernel} {what}")
    bound, told = list(dict.fromkeys(bound)), list(dict.fromkeys(told))
    if bound:
        return BuildJudgement(Status.COMPILE_ERROR, "; ".join(bound), tuple(told))
    return BuildJudgement(Status.BUILT, "", tuple(told))


def _complaints(
    mode: str, dims: Mapping[str, int], spill_free: tuple[str, int] | None, launch: Launch
) -> list[tuple[str, bool]]:
    """(what is wrong, whether it is a failure) of one launch."""
    best = min((launch.resources, *launch.rivals), key=_badness)
    found = []
    overflow = best.get("ub_overflow_bytes")
    if overflow:
        has = best["ub_limit_bytes"]
        found.append((f"needs {overflow:,} bytes of Unified Buffer, but only {has:,} are available", True))
    if launch.too_large:
        found.append((f"cannot be launched: the grid exceeds {launch.too_large}", True))
    if best.get("blocks_per_core") == 0:
        found.append((f"cannot run: no block fits on a core ({best['limiter']})", True))
    if spilled(best):
        text, binds = f"spills {spill_text(best)}", False
        if mode == "auto" and spill_free is not None:
            dimension, limit = spill_free
            binds = dims[dimension] <= limit
            text += f"; a kernel that mode auto chooses may not spill for {dimension} up to {limit}" if binds else ""
        found.append((text, binds))
    elif best.get("stack_bytes"):
        found.append((f"keeps {best['stack_bytes']:,} bytes per thread on a stack in device memory", False))
    scalar = int(best.get("scalar_accesses") or 0)
    if scalar > SCALAR_BOUND:
        text = f"falls back to the scalar unit ({scalar:,} single-element accesses)"
        found.append(
            (
                f"{text}; this is not allowed for a kernel that mode auto chooses" if mode == "auto" else text,
                mode == "auto",
            )
        )
    return found


def spilled(resources: Mapping[str, Any]) -> bool:
    """Whether registers of this kernel live in memory for a while."""
    return any(resources.get(n) for n in ("spill_store_bytes", "spill_load_bytes", "spilled_registers"))


def spill_text(resources: Mapping[str, Any]) -> str:
    """`9,904 bytes (stores) and 7,216 (loads) per thread`."""
    text = f"{resources['spill_store_bytes']:,} bytes (stores) and {resources['spill_load_bytes']:,} (loads) per thread"
    count = resources.get("spilled_registers")
    return f"{count} registers, {text}" if count else text


def _badness(resources: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
    return (
        bool(resources.get("ub_overflow_bytes")),
        resources.get("blocks_per_core") == 0,
        int(resources.get("spill_store_bytes") or 0) + int(resources.get("spill_load_bytes") or 0),
        int(resources.get("scalar_accesses") or 0),
    )
