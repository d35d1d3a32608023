"""What `auto` launches where a measured neighbour's configuration does not fit: few rows, and widths that lie between
measured ones.  Pure.

A rule takes what `rules.py`'s take, and gives a configuration as `choose.build` takes it, or None where it has none.
"""

from __future__ import annotations

from typing import Any

from ..choice import divide_up, next_power_of_2, previous_power_of_2

#: Rows of so many bytes and more are divided among programs (few.py) where there are few of them.
SHARED_ROW = 32768
#: Matrices of more bytes are not in the cache any more when they are read again.
SHARED_MATRIX = 2**24
#: A warp loads so many bytes at once, 16 a lane.
LOAD = 512


def few_rows(
    operation: str, rows: int, hidden: int, size: int, cores: int, streams: int, parts: bool = True
) -> dict[str, Any] | None:
    """A kernel of few.py for fewer rows than multiprocessors; None where rows are short, or a program a row keeps the
    device busy.  `streams`: matrices that a forward reads, or a backward."""
    row = hidden * size
    if not parts or 2 * rows > cores or row <= SHARED_ROW or rows * row > SHARED_MATRIX:
        return None
    if operation == "backward":
        return strips(rows, hidden, size, cores)
    return divided(rows, hidden, size, cores)


def divided(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """Some four parts a multiprocessor, of 2 to 16 KiB, two loads of 16 bytes a lane."""
    part = min(max(next_power_of_2(divide_up(rows * hidden * size, 4 * cores)), 2048), 16384)
    parts = divide_up(hidden, part // size)
    return {"mode": "multi_wave_cached", "kernel": "forward_parts", "parts": parts, "num_warps": part // (2 * LOAD)}


def strips(rows: int, hidden: int, size: int, cores: int) -> dict[str, Any]:
    """A strip of columns a multiprocessor, of 256 and more; up to eight rows at a time."""
    block = min(max(next_power_of_2(divide_up(hidden, cores)), 256), 2048)
    tile = min(next_power_of_2(rows), 8)
    warps = min(max(tile * block * size // (4 * LOAD), 1), 16)
    return {"mode": "static_persistent", "kernel": "backward_strips", "block": block, "rows": tile, "num_warps": warps}


def tiles(hidden: int) -> tuple[int, int]:
    """(tile, tail) of a row in one tile, or in two where the second is at most half of the first: what
    `forward_rows` makes of a width."""
    main = previous_power_of_2(hidden)
    rest = hidden - main
    if rest == 0:
        return main, 0
    tail = next_power_of_2(rest)
    return (main, tail) if tail <= main // 2 else (2 * main, 0)
