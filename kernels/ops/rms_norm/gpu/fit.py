"""What `auto` launches where a measured neighbour's configuration does not fit: few rows, and widths that lie between
measured ones.  Pure.

A rule takes what `rules.py`'s take, and gives a configuration as `choose.build` takes it, or None where it has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..choice import divide_up, next_power_of_2, previous_power_of_2

#: Rows of so many bytes are divided among programs (few.py) where there are few.  H200 2026-11, us, bfloat16: forward
#: 1x32768 3.5 with a program a row, 2.0 divided; 1x57344 7.4, 2.1; backward 1x16384 3.3, 2.1; 16x65536 12.5, 7.3.
SHARED_FORWARD, SHARED_BACKWARD = 65536, 32768
#: Matrices of more bytes may not be in the cache any more when they are read again (reasoned).
SHARED_MATRIX = 2**24
#: A strip's program takes the rows one tile after the other: 64x8192 backward 16 us, 5.6 otherwise.  Rows of WIDE bytes
#: leave no better: 48x131072 30 us, 34 otherwise.
STRIP_ROWS, WIDE = 16, 2**17
#: A strip's tile of more bytes spills: fused float32 7x262144 60 bytes (sm_90, sm_100; offline, triton 3.7.1).
STRIP_BYTES = 2**15
#: Up to so many bytes a row is summed by four warps at most, where a program has one row and there are few:
#: 256x1024 1.59 us by the table, 1.37; 128x2048 1.70 and 1.51, in float32 2.77 and 2.31.
NARROW_ROW = 8192
#: A measured width this much wider or narrower (log2) says nothing of a row in two tiles.
NEAR = 0.32
#: A warp loads so many bytes at once, 16 a lane.
LOAD = 512


def few_rows(operation: str, rows: int, hidden: int, size: int, cores: int) -> dict[str, Any] | None:
    """A kernel of few.py for at most half as many rows as multiprocessors; None where rows are short, or too large
    together."""
    row = hidden * size
    if 2 * rows > cores or rows * row > SHARED_MATRIX:
        return None
    if operation == "forward":
        return divided(rows, hidden, size, cores) if row >= SHARED_FORWARD else None
    most = cores // 2 if row >= WIDE else STRIP_ROWS
    return strips(rows, hidden, size, cores) if row >= SHARED_BACKWARD and rows <= most else None


def divided(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Some four parts a multiprocessor, of 2 to 16 KiB, two loads of 16 bytes a lane."""
    part = min(max(next_power_of_2(divide_up(rows * hidden * size, 4 * cores)), 2048), 16384)
    parts = divide_up(hidden, part // size)
    return {"mode": "multi_wave_reload", "kernel": "forward_parts", "parts": parts, "num_warps": part // (2 * LOAD)}


def strips(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """A strip of columns a multiprocessor, of 256 and more; up to eight rows at a time, of at most STRIP_BYTES."""
    block = min(max(next_power_of_2(divide_up(hidden, cores)), 256), 2048)
    tile = min(next_power_of_2(rows), 8, STRIP_BYTES // (block * size))
    warps = min(max(tile * block * size // (4 * LOAD), 1), 16)
    return {
        "mode": "column_tiled" if tile > 1 else "multi_wave_reload",
        "kernel": "backward_strips",
        "block": block,
        "rows": tile,
        "num_warps": warps,
    }


def tiles(hidden: int) -> tuple[int, int]:
    """(tile, tail) of a row in one tile, or in two where the second is at most half of the first: what
    `forward_rows` makes of a width."""
    main = previous_power_of_2(hidden)
    rest = hidden - main
    if rest == 0:
        return main, 0
    tail = next_power_of_2(rest)
    return (main, tail) if tail <= main // 2 else (2 * main, 0)


def narrow_rows(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any] | None:
    """A program a row of up to NARROW_ROW bytes, for some half to twice as many rows as multiprocessors: tiles of
    several rows, or programs of several, leave part of the device idle."""
    row = hidden * size
    if not cores < 2 * rows <= 4 * cores or not 2048 <= row <= NARROW_ROW or hidden & (hidden - 1):
        return None
    return {"mode": "multi_wave_cached", "kernel": "forward_rows", "num_warps": 4, "load": "evict_last"}


def two_tiles(
    rows: int, hidden: int, size: int, cores: int, fused: bool, widths: Iterable[int], measured: bool
) -> dict[str, Any] | None:
    """Many rows of a width between powers of two that is far from all measured `widths`: two tiles, with four loads a
    lane in the first and at most eight warps, so that the tail is no waste of lanes.  H200 2026-11, us, the neighbour's
    configuration and this one: 12288x2560 41.8 and 32.4, 8192x11008 99.8 and 88.1, its sum 280 and 172, 16384x18432's
    sum 762 and 561.  A forward alone of more than 32 KiB is read in chunks (16384x18432 299 and 336).
    On a device that was not `measured`, a sum asks for the weight last: first, 2,560 bfloat16 columns had 14 programs a
    multiprocessor and spilled 4 bytes, last 16 (sm_80, offline, triton 3.7.1)."""
    main, tail = tiles(hidden)
    row = hidden * size
    if rows < 4 * cores or not tail or not 2048 <= row <= 49152 or (row > 32768 and not fused):
        return None
    if any(
        next_power_of_2(width) == next_power_of_2(hidden) and abs(math.log2(width / hidden)) < NEAR for width in widths
    ):
        return None
    warps = min(max(main * size // (4 * LOAD), 1), 8)
    weight = "first" if main * size <= 4096 and (measured or not fused) else "last"
    kernel = {"mode": "multi_wave_cached", "kernel": "forward_rows", "load": "evict_last"}
    return {**kernel, "num_warps": warps, "weight": weight}
