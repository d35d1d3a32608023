"""From a shape to a launch on NVIDIA and AMD GPUs.  Pure.

Nothing here was measured for this op: the thresholds are those of the forward of rms_norm (rms_norm/gpu/rules.py says
on which chip each was measured), or reasoned.
"""

from __future__ import annotations

from functools import lru_cache

from ...rms_norm.choice import MODES, Choice, divide_up, next_power_of_2, previous_power_of_2
from ...rms_norm.gpu import choose as norms
from ...rms_norm.gpu.description import describe
from ...rms_norm.gpu.options import BYTES
from ...rms_norm.gpu.rules import clamp

#: The widest row of one tile, in bytes: x and the weight fill half of 32 warps' registers (reasoned).
MAX_ROW_BYTES = 65536
#: Rows this wide still leave room for a second one in the tile.
MAX_PACKED = 8192
#: Rows from so many columns on are shared by several programs where there are few (reasoned: a second launch costs as
#: much as one multiprocessor's reading of some 100 KiB).
MIN_SHARED = 16384
#: The narrowest part of such a row: 4 KiB of 16-bit elements.
MIN_PART = 2048


def widest(dtype: str) -> int:
    """The most columns of a tile of whole rows."""
    return MAX_ROW_BYTES // BYTES[dtype]


def refusal(op: str, mode: str, rows: int, hidden: int, dtype: str) -> str | None:
    """Why `mode` cannot serve, or None.  Not one of MODES: ValueError."""
    if mode not in MODES:
        raise ValueError(f"{op} has no mode {mode!r}; it has {', '.join(MODES)}")
    if mode in ("multi_wave_cached", "static_persistent") and hidden > widest(dtype):
        return f"mode {mode} of {op} keeps a row in one tile, of {dtype} at most {widest(dtype)}; hidden is {hidden}"
    if mode == "row_packed" and hidden > MAX_PACKED:
        return f"mode {mode} of {op} packs several rows in one tile, at most {MAX_PACKED} wide; hidden is {hidden}"
    return None


@lru_cache(maxsize=4096)
def choose(target: str, rows: int, hidden: int, dtype: str, *, cores: int, op: str, mode: str, group: int) -> Choice:
    """The launch for [rows, hidden], rows >= 1.  `auto` serves every shape.  Options: kernel, span, tail, pdl, and of
    shared rows parts."""
    reason = refusal(op, mode, rows, hidden, dtype)
    if reason:
        raise NotImplementedError(reason)
    if mode == "auto":
        shared = _shared(rows, hidden, cores, dtype, group, target)
        if shared is not None:
            return shared
        mode = _auto(rows, hidden, dtype, cores)
    block, tile, per_core, stages = next_power_of_2(hidden), 1, 0, 1
    kernel = "quantize_rows"
    if mode == "row_packed":
        tile = max(2, min(16, 2048 // block))
        warps = clamp(tile * block // 512, 1, 8)
    elif mode == "multi_wave_reload":
        kernel, block = "quantize_chunks", min(block, 8192)
        warps = clamp(block // 512, 1, 16)
    elif mode == "column_tiled":
        kernel, block, tile, per_core = "quantize_chunks", min(block, 2048), 4, 4
        warps = clamp(4 * block // 1024, 1, 8)
    else:
        warps = clamp(block // 512, 1, 8) if block <= 8192 else clamp(block // 1024, 16, 32)
    if mode == "static_persistent":
        kernel, stages = "quantize_persistent", 2 if block <= 2048 else 1
        per_core = max(1, (64 if block <= 8192 else 32) // warps)
    tile = min(tile, next_power_of_2(rows))
    tail = 0
    if kernel == "quantize_rows" and block > hidden:
        rest = hidden - block // 2
        if 0 < rest <= block // 4:
            block, tail = block // 2, next_power_of_2(rest)
    groups = divide_up(rows, tile)
    most = describe(target).programs(warps)
    if groups > most and kernel == "quantize_rows":  # a grid is no longer than this
        return choose(target, rows, hidden, dtype, cores=cores, op=op, mode="static_persistent", group=group)
    programs = min(groups, cores * per_core if per_core else most)
    block, tail = _whole_groups(block, tail, group)
    options = {
        "kernel": kernel,
        "span": _span(kernel, block, warps, dtype, group),
        "tail": tail,
        "pdl": describe(target).dependent,
    }
    return _made(mode, tile, block, warps, stages, programs, options, target)


def _whole_groups(block: int, tail: int, group: int) -> tuple[int, int]:
    """Tiles of whole groups; a tail is wide enough where hidden is."""
    return max(block, group), tail


def _auto(rows: int, hidden: int, dtype: str, cores: int) -> str:
    """As the forward of rms_norm, whose thresholds were measured on H200; narrower where elements are of 4 bytes."""
    if hidden > widest(dtype):
        return "multi_wave_reload"
    return "row_packed" if hidden <= 1024 and rows > 4 * cores else "multi_wave_cached"


def _shared(rows: int, hidden: int, cores: int, dtype: str, group: int, target: str) -> Choice | None:
    """Few wide rows: the programs that fill the device share them, in two launches; None where that gains nothing."""
    if hidden < MIN_SHARED or rows * 4 > cores:
        return None
    parts = min(previous_power_of_2(cores // rows), divide_up(hidden, MIN_PART))
    block = max(next_power_of_2(divide_up(hidden, parts)), MIN_PART)
    parts, warps = divide_up(hidden, block), clamp(block // 512, 1, 16)
    options = {"kernel": "quantize_measured", "span": _span("quantize_measured", block, warps, dtype, group)}
    options |= {"parts": parts, "tail": 0, "pdl": describe(target).dependent}
    return _made("multi_wave_cached", 1, block, warps, 1, rows * parts, options, target)


def _span(kernel: str, block: int, warps: int, dtype: str, group: int) -> int:
    """Columns of a tile's last dimension: a group; of chunks what all warps load at once, 16 bytes a lane."""
    if group:
        return group
    return min(block, warps * 512 // BYTES[dtype]) if kernel == "quantize_chunks" else block


def _made(
    mode: str, tile: int, block: int, warps: int, stages: int, programs: int, options: dict[str, object], target: str
) -> Choice:
    choice = Choice(mode, tile, block, warps, stages, programs, tuple(sorted(options.items())))  # type: ignore[arg-type]
    return norms._bound(choice, target)
