"""What each mode that is asked for by name launches on NVIDIA and AMD GPUs, and `auto` where nothing was measured near.
Pure.

A rule takes rows, hidden, bytes an element and cores, and gives a configuration as `choose.build` takes it.  Each
threshold says on which chip it was measured, or that it is reasoned.
"""

from __future__ import annotations

from typing import Any

from ..choice import next_power_of_2

#: A row of so many bytes a backward still holds in registers; wider ones are read twice.
MAX_BACKWARD_BYTES = 32768


def _forward_cached(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16 and fp32: 16 elements a thread up to 8 warps, then 32; more warps lose 2 to 7 %.  The weight asked for
    first takes as many registers as the row: 4096x4096 3366 / 3326 GB/s first / last, 2048x65536 1128 / 2256."""
    block = next_power_of_2(hidden)
    warps = clamp(block // 512, 1, 8) if block <= 8192 else clamp(block // 1024, 16, 32)
    weight = "first" if block <= 16384 else "last"
    return {**_rows_kernel("multi_wave_cached", weight), "num_warps": warps}


def _forward_packed(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Tiles of 2,048 elements and more, 16 a thread (reasoned)."""
    block = next_power_of_2(hidden)
    tile = max(2, min(16, 2048 // block))
    warps = clamp(tile * block // 512, 1, 16)
    return {**_rows_kernel("row_packed", "first"), "rows": tile, "num_warps": warps}


def _rows_kernel(mode: str, weight: str) -> dict[str, Any]:
    return {"mode": mode, "kernel": "forward_rows", "weight": weight}


def _forward_persistent(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 32 elements a thread; 64 warps a multiprocessor, half of that where a row alone takes many registers.
    Fetching the next row ahead: 32768x1024 3511 to 3600 GB/s, 4096x4096 3270 to 3197, 8192x8192 3662 to 3132."""
    block = next_power_of_2(hidden)
    warps = clamp(block // 1024, 1, 16) if block <= 32768 else 32
    return {
        "mode": "static_persistent",
        "kernel": "forward_persistent",
        "num_warps": warps,
        "num_stages": 2 if block <= 2048 else 1,
        "per_core": max(1, (64 if block <= 8192 else 32) // warps),
    }


def _forward_reload(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200: chunks of 8192 with 16 warps, the best or within 1 % of it from 16384 to 131072 wide."""
    block = min(next_power_of_2(hidden), 8192)
    return _chunks_kernel("multi_wave_reload", 1, block, clamp(block // 512, 1, 16), 0)


def _forward_tiled(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Four rows a tile on a persistent grid (reasoned: one weight load for four rows)."""
    block = min(next_power_of_2(hidden), 2048)
    return _chunks_kernel("column_tiled", 4, block, clamp(4 * block // 1024, 1, 8), 4)


def _chunks_kernel(mode: str, tile: int, block: int, warps: int, per_core: int) -> dict[str, Any]:
    kernel = {"mode": mode, "kernel": "forward_chunks"}
    return {**kernel, "rows": tile, "block": block, "num_warps": warps, "per_core": per_core}


def _backward_persistent(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 16 warps a multiprocessor (4096x4096 2501 GB/s, with 32 2309), 32 for narrow rows."""
    block = next_power_of_2(hidden)
    if block * size > MAX_BACKWARD_BYTES:
        return {"mode": "static_persistent", "kernel": "backward_twice", "num_warps": 32, "per_core": 1}
    warps = clamp(block // 512, 1, 16)
    per_core = max(1, (32 if block <= 512 else 16) // warps)
    return _backward_kernel("static_persistent", 1, warps, per_core, block * size)


def _backward_cached(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """More programs than run at once (reasoned: two waves)."""
    config = _backward_persistent(rows, hidden, size, cores)
    return {**config, "mode": "multi_wave_cached", "per_core": 4 * config["per_core"]}


def _backward_packed(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    block = next_power_of_2(hidden)
    tile = max(2, min(16, 4096 // block))
    warps = clamp(tile * block // 512, 1, 8)
    return _backward_kernel("row_packed", tile, warps, max(1, 16 // warps), block * size)


def _backward_kernel(mode: str, tile: int, warps: int, per_core: int, row_bytes: int) -> dict[str, Any]:
    return {
        "mode": mode,
        "kernel": "backward_rows",
        "rows": tile,
        "num_warps": warps,
        "per_core": per_core,
        "hold": row_bytes < MAX_BACKWARD_BYTES,
    }


def _backward_reload(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """H200, bf16: 2,048 columns with 8 warps, 8192 to 131072 wide the best of 512, 1024 and 2048 (dw alone).  About
    eight programs a multiprocessor (reasoned), which bounds the float32 partial rows too."""
    block = min(next_power_of_2(hidden), 2048)
    return _columns_kernel("multi_wave_reload", 1, block, clamp(block // 256, 1, 8))


def _backward_tiled(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    block = min(next_power_of_2(hidden), 1024)
    return _columns_kernel("column_tiled", 4, block, clamp(block // 256, 1, 8))


def _columns_kernel(mode: str, tile: int, block: int, warps: int) -> dict[str, Any]:
    kernel = {"mode": mode, "kernel": "backward_columns"}
    return {**kernel, "rows": tile, "block": block, "num_warps": warps, "per_core": 8}


#: mode -> rule.
FORWARD = {
    "multi_wave_cached": _forward_cached,
    "row_packed": _forward_packed,
    "static_persistent": _forward_persistent,
    "multi_wave_reload": _forward_reload,
    "column_tiled": _forward_tiled,
}
BACKWARD = {
    "multi_wave_cached": _backward_cached,
    "row_packed": _backward_packed,
    "static_persistent": _backward_persistent,
    "multi_wave_reload": _backward_reload,
    "column_tiled": _backward_tiled,
}


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
