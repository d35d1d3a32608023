"""From a shape to a launch on Ascend's vector cores: mode, tile, programs.  Pure.

Nothing here was timed: there was no such device.  Every threshold is either "planned by bishengir for 910B3", found by
compiling (docs/ascend.md has the table and the command), or "reasoned".
"""

from __future__ import annotations

from functools import lru_cache

from ..choice import MODES, OPERATIONS, Choice, divide_up, next_power_of_2, previous_power_of_2

#: What one vector core of 910B has: 1,572,864 bits (the compiler's own table, and its "ub overflow" message).
UNIFIED_BUFFER = 192 * 1024
#: Bytes of it for each element of a tile, double buffers of what is streamed and float32 temporaries together.  Planned
#: by bishengir for 910B3 over every dtype, with and without residual: tiles that this admits all keep their double
#: buffers (they take 0.3 to 0.99 of the buffer); of twice as large ones most lose them, or overflow.
BYTES_PER_ELEMENT = {"forward": 24, "backward": 48, "sum": 24}
#: The narrowest tile, so that a row of it fills whole blocks of 32 bytes and a vector's 256 (reasoned).
MIN_BLOCK = 64
#: A grid ends here: the driver refuses more.
MAX_PROGRAMS = 65535
#: What a tile costs beyond its elements (waits, starts of copies), in elements (reasoned: some 30 instructions).
TILE_OVERHEAD = 2048
#: Rows of a tile of chunks: the weight is read, and a row of partial dw written, once for so many rows; a chunk of one
#: row is still a copy of at least 1 KiB (reasoned).
MAX_CHUNK_ROWS = 8

WHOLE_ROW = ("static_persistent", "multi_wave_cached", "row_packed")


def tile_elements(operation: str) -> int:
    """The most elements of a tile that the Unified Buffer holds twice: 8,192 forward, 4,096 backward."""
    return previous_power_of_2(UNIFIED_BUFFER // BYTES_PER_ELEMENT[operation])


def refusal(
    target: str, mode: str, rows: int, hidden: int, dtype: str, operation: str, op: str = "rms_norm"
) -> str | None:
    """Why `mode` cannot serve [rows, hidden], or None.  Not one of MODES, or of OPERATIONS: ValueError."""
    if mode not in MODES:
        raise ValueError(f"{op} has no mode {mode!r}; it has {', '.join(MODES)}")
    if operation not in OPERATIONS:
        raise ValueError(f"{op} has no operation {operation!r}; it has {', '.join(OPERATIONS)}")
    most, block = tile_elements(operation), _block(hidden)
    if mode in WHOLE_ROW and block > most:
        return (
            f"mode {mode} keeps a whole row in the Unified Buffer, at most {most} elements in a {operation} "
            f"on Ascend; hidden is {hidden}"
        )
    if mode == "row_packed" and 2 * block > most:
        return (
            f"mode row_packed keeps at least two rows in the Unified Buffer, at most {most // 2} elements each in a "
            f"{operation} on Ascend; hidden is {hidden}"
        )
    if mode == "multi_wave_cached" and operation == "forward" and rows > MAX_PROGRAMS:
        return f"mode multi_wave_cached takes a program a row, at most {MAX_PROGRAMS} on Ascend; rows is {rows}"
    return None


@lru_cache(maxsize=4096)
def choose(
    target: str,
    rows: int,
    hidden: int,
    dtype: str,
    operation: str,
    *,
    cores: int,
    op: str = "rms_norm",
    mode: str = "auto",
) -> Choice:
    """The launch for [rows, hidden] on `cores` vector cores; `operation` is "forward" or "backward".

        static_persistent   a row a tile, whole; as many programs as cores
        row_packed          several whole rows a tile; as many programs as cores
        column_tiled        chunks of several rows, walked twice; as many programs as cores
        multi_wave_cached   a row a tile, whole; a program each (backward: as static_persistent, since each program
                            writes one float32 row of partial dw)
        multi_wave_reload   chunks, walked twice, of one row (backward: of several, each tile writes partial dw); a
                            program each, as far as a grid goes

    `auto` serves every shape.  Another mode raises NotImplementedError with the reason where it cannot.  Tiles depend
    neither on `dtype` nor on `op`: float32 temporaries take most of the buffer, and the plan of both ops fits.
    """
    reason = refusal(target, mode, rows, hidden, dtype, operation, op)
    if reason:
        raise NotImplementedError(reason)
    block = _block(hidden)
    if mode == "auto":
        if block > tile_elements(operation):
            mode = "column_tiled"
        else:
            packed = _packed_rows(rows, block, operation, cores)
            mode = "row_packed" if packed > 1 else "static_persistent"
    if mode == "row_packed":
        height = max(2, _packed_rows(rows, block, operation, cores))
    elif mode in WHOLE_ROW:
        height = 1
    elif mode == "multi_wave_reload" and operation == "forward":
        height, block = 1, min(block, tile_elements(operation))
    else:
        height, block = _chunk(rows, hidden, operation, cores)
    wave = mode == "multi_wave_reload" or (mode == "multi_wave_cached" and operation == "forward")
    programs = max(1, min(divide_up(rows, height), MAX_PROGRAMS if wave else cores))
    if operation == "forward":
        return Choice(mode, height, block, 0, 1, programs)
    partials = programs if mode in WHOLE_ROW else divide_up(rows, height)
    return Choice(mode, height, block, 0, 1, programs, _sum(partials, hidden, cores))


def _sum(partials: int, hidden: int, cores: int) -> tuple[tuple[str, int], ...]:
    """Tile and programs that sum float32 rows [partials, hidden]: strips narrow enough that every core has one, but
    copies of at least 256 bytes (reasoned)."""
    block = min(max(previous_power_of_2(hidden // cores), MIN_BLOCK), 1024)
    height = min(tile_elements("sum") // block, next_power_of_2(partials), 64)
    programs = min(divide_up(hidden, block), cores)
    return ("partials", partials), ("sum_block", block), ("sum_programs", programs), ("sum_rows", height)


def _block(hidden: int) -> int:
    return max(next_power_of_2(hidden), MIN_BLOCK)


def _packed_rows(rows: int, block: int, operation: str, cores: int) -> int:
    """Rows of a tile of whole rows: the cheapest for the busiest core, counted in elements and tiles."""
    return min(_powers(tile_elements(operation) // block), key=lambda r: _rounds(rows, r, cores) * _cost(r * block))


def _chunk(rows: int, hidden: int, operation: str, cores: int) -> tuple[int, int]:
    """Rows and columns of a tile of chunks: the cheapest for the busiest core, the weight once a chunk included."""
    most, widest = tile_elements(operation), _block(hidden)

    def columns(height: int) -> int:
        return min(most // height, widest)

    def cost(height: int) -> int:
        block = columns(height)
        return _rounds(rows, height, cores) * divide_up(hidden, block) * (_cost(height * block) + block)

    height = min(_powers(MAX_CHUNK_ROWS), key=cost)
    return height, columns(height)


def _rounds(rows: int, height: int, cores: int) -> int:
    """Tiles of the busiest core."""
    return divide_up(divide_up(max(rows, 1), height), cores)


def _cost(elements: int) -> int:
    return elements + TILE_OVERHEAD


def _powers(most: int) -> list[int]:
    """Powers of two up to `most`, the smallest first: of equal costs, `min` takes the first."""
    return [1 << i for i in range(most.bit_length())]
