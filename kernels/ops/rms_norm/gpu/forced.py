"""Launches that a caller states in full: `mode="backward_rows+num_warps=8+per_core=2+rows=16"`.  Pure.

A launch names a kernel and its settings, those of `options.DEFAULTS` where it says nothing.  It is for whoever searches
for the fastest (`farm tune`) and for tables that a search wrote; the kernel of the other direction is chosen as by
`auto`.  What is stated is checked here: the kernel, each setting and its value, and whether the launch can serve the
shape at all.  Whether it is right is for a judge to say.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from ..choice import divide_up
from . import measured, split_plan
from .options import BYTES, DEFAULTS, FEW, RINGS, SPLITS, UNALIGNED, VECTOR

_WORD = re.compile(r"([a-z_]+)=([A-Za-z0-9_]*)", re.ASCII)
_HINTS = ("", "evict_first", "evict_last")
#: Settings that are words, and what each may be.
_WORDS: dict[str, tuple[str, ...]] = {
    "span": ("row", "warp"),
    "weight": ("first", "last"),
    "load": _HINTS,
    "store": _HINTS,
}
#: Settings that are powers of two, and their limits.
_POWERS = {"rows": (1, 64), "num_warps": (1, 32), "block": (16, 65536), "chunk": (256, 65536)}
#: Settings that are other integers, and their limits.
_NUMBERS = {
    "num_stages": (1, 8),
    "per_core": (0, 256),
    "keep": (0, 65536),
    "ahead": (0, 16),
    "slots": (0, 32),
    "regs": (0, 32),
    "spare": (1, 32),
    "parts": (2, 1024),
    "polls": (0, 2**20),
    "registers": (0, 255),
}
#: Settings of every kernel, beside its own; `block` only of those that walk over a row in chunks.
_COMMON = ("rows", "num_warps", "num_stages", "per_core")
CHUNKED = ("forward_chunks", "backward_columns", "backward_strips", *RINGS)
#: Kernels with a program for each tile: a smaller grid would leave rows unwritten.
_GRID_OF_TILES = ("forward_rows", "forward_split", *FEW)
#: Kernels that walk over tiles, on a grid of so many programs a core.
_FIXED_GRID = ("forward_persistent", "backward_rows", "backward_twice", "backward_columns", "backward_unaligned")
LONGEST = 300  # characters of a launch
#: Ops whose kernels these are.
OPS = ("rms_norm", "fused_add_rms_norm")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[tuple[str, Any], ...]:
    kernel, *words = text.split("+")
    if len(text) > LONGEST or kernel not in DEFAULTS:
        raise ValueError(f"launch {text[:100]!r} names no kernel; kernels are {', '.join(DEFAULTS)}")
    found: dict[str, Any] = {"kernel": kernel}
    allowed = (*_COMMON, *DEFAULTS[kernel], *(("block",) if kernel in CHUNKED else ()))
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in allowed:
            raise ValueError(f"launch {text[:100]!r}: {word[:40]!r} is no setting; it has {', '.join(allowed)}")
        if match[1] in found:
            raise ValueError(f"launch {text[:100]!r} states {match[1]} twice")
        found[match[1]] = _value(text, *match.groups())
    needed = ("num_warps", "block") if kernel in CHUNKED else ("num_warps",)
    for name in needed:
        if name not in found:
            raise ValueError(f"launch {text[:100]!r} has no {name}; every launch of {kernel} states it")
    return tuple(found.items())


def _value(text: str, name: str, value: str) -> int | bool | str:
    """A setting's value; ValueError where it may not be that."""
    if name in _WORDS:
        if value in _WORDS[name]:
            return value
        raise ValueError(
            f"launch {text[:100]!r}: {name} is {value[:40]!r}, not one of {', '.join(map(repr, _WORDS[name]))}"
        )
    if name not in _POWERS and name not in _NUMBERS:
        if value in ("True", "False"):
            return value == "True"
        raise ValueError(f"launch {text[:100]!r}: {name} is {value[:40]!r}, not True or False")
    least, most = (_POWERS | _NUMBERS)[name]
    number = int(value) if value.isdigit() and len(value) < 10 else -1
    if not least <= number <= most or (name in _POWERS and number & (number - 1)):
        what = "a power of two" if name in _POWERS else "an integer"
        raise ValueError(f"launch {text[:100]!r}: {name} is {value[:40]!r}, not {what} from {least} to {most}")
    return number


def parse(text: str) -> dict[str, Any]:
    """A launch as `choose.build` takes it, but for its mode; ValueError in one sentence."""
    return dict(_parsed(text))


def text(config: dict[str, Any]) -> str:
    """A configuration as a launch: what it says beyond the kernel's defaults, sorted; its mode follows from it."""
    usual = {"rows": 1, "num_stages": 1, "per_core": 0, **DEFAULTS[config["kernel"]]}
    words = [f"{k}={v}" for k, v in sorted(config.items()) if k not in ("mode", "kernel") and usual.get(k) != v]
    return "+".join([config["kernel"], *words])


def operation_of(config: dict[str, Any]) -> str:
    """ "forward" or "backward": the direction of a configuration's kernel."""
    return str(config["kernel"]).partition("_")[0]


def refusal(config: dict[str, Any], rows: int, hidden: int, dtype: str, op: str, cores: int = 0) -> str | None:
    """Why a configuration cannot serve [rows, hidden] of `dtype`, or None.  `cores`: 0 where they are not known."""
    kernel, size = config["kernel"], BYTES[dtype]
    per_core, aligned = config.get("per_core", 0), hidden * size % VECTOR == 0
    if kernel in _GRID_OF_TILES and per_core:
        return f"{kernel} has a program for each tile; per_core={per_core} would leave rows unwritten"
    if kernel in _FIXED_GRID and not per_core:
        return f"{kernel} needs per_core, the programs of a core"
    if kernel in UNALIGNED and aligned:
        return f"{kernel} is for rows that are no multiple of {VECTOR} bytes; these are"
    if kernel in (*RINGS, *SPLITS) and not aligned:
        return f"{kernel} needs rows that are a multiple of {VECTOR} bytes; {hidden} columns of {dtype} are not"
    if kernel in RINGS and measured.ring_of(op, operation_of(config), config, hidden, dtype) is None:
        return f"{kernel} has no ring for {hidden} columns in chunks of {config['block']}"
    if kernel in SPLITS:
        found = split_plan.plan(hidden, config.get("parts", DEFAULTS[kernel]["parts"]))
        if cores and not measured.at_once({**DEFAULTS[kernel], **config, "parts": found.parts}, cores):
            return f"{kernel}: the {found.parts} programs of a row cannot run at once on {cores} cores"
    return None


def covers(config: dict[str, Any], choice: Any, rows: int) -> bool:
    """Whether the grid of `choice` reaches every row: only kernels that walk over tiles may have fewer programs."""
    walks = config["kernel"] not in _GRID_OF_TILES
    return walks or config["kernel"] in (*SPLITS, *FEW) or choice.programs >= divide_up(rows, choice.rows)


def mode_of(config: dict[str, Any], hidden: int) -> str:
    """The public mode that a configuration belongs to."""
    kernel, rows = config["kernel"], config.get("rows", 1)
    if kernel == "forward_chunks":
        if config.get("keep", 0) >= hidden:  # nothing is left to be read again
            return "row_packed" if rows > 1 else "multi_wave_cached"
        return "column_tiled" if rows > 1 else "multi_wave_reload"
    if kernel == "forward_parts":
        return "multi_wave_reload"
    if kernel in ("backward_columns", "backward_strips"):
        return "column_tiled" if rows > 1 else "multi_wave_reload"
    if kernel == "forward_split":
        return "multi_wave_cached"
    if kernel == "forward_rows":
        return "row_packed" if rows > 1 else "multi_wave_cached"
    if kernel == "forward_unaligned" and rows == 1 and not config.get("per_core"):
        return "multi_wave_cached"
    packs = kernel in ("backward_rows", *UNALIGNED)
    return "row_packed" if packs and rows > 1 else "static_persistent"
