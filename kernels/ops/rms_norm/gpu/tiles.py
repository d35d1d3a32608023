"""Tiles of rows, and the small jitted functions on them that forward and backward kernels share.

What is computed, and what is relied on, is told in `__init__.py`.  Of a tile:

* a tile is ROWS x BLOCK; programs take the row groups `id, id + programs, ...`, so a grid may be of any size.
  `WHOLE` says that hidden is a multiple of BLOCK and `EVEN` that rows is one of ROWS: masks fold away then.
* a tile is laid out in three dimensions: ROWS, BLOCK / SPAN, and SPAN columns.  Warps are spread over the columns
  first, then over the rows (see ROW_AXIS), so a SPAN as wide as one warp's loads gives each warp rows of its own, and
  no warp waits for another to sum a row; SPAN = BLOCK spreads a row over all warps.
"""

import triton
import triton.language as tl


@triton.jit
def _weighted(xhat, w, T: tl.constexpr, ROUND: tl.constexpr):
    if ROUND:
        xhat = xhat.to(T).to(tl.float32)
    return xhat * w


@triton.jit
def _weight_term(dy, xhat, T: tl.constexpr, ROUND: tl.constexpr):
    """One row's share of dw."""
    term = _weighted(xhat, dy, T, ROUND)
    if ROUND:
        term = term.to(T).to(tl.float32)
    return term


#: Which dimension of a tile its rows are.  Warps are spread over the last dimension first; of the two others, Triton
#: 3.6 takes the first before the second, 3.7 the second before the first (seen in their compiled kernels, 2026-11).
ROW_AXIS = tl.constexpr(0 if tuple(int(n) for n in triton.__version__.split(".")[:2]) < (3, 7) else 1)
REP_AXIS = tl.constexpr(1 - ROW_AXIS.value)


@triton.jit
def _groups(rows, ROWS: tl.constexpr):
    """How many tiles cover the rows, for rows >= 1; rows + ROWS may not fit int32 where rows does."""
    return (rows - 1) // ROWS + 1


@triton.jit
def _over_rows(value):
    """[ROWS] as a tile of one column."""
    return tl.expand_dims(tl.expand_dims(value, REP_AXIS), 2)


@triton.jit
def _columns(start, hidden, BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr):
    """(column numbers, which of them exist), as a tile of one row."""
    REP: tl.constexpr = BLOCK // SPAN
    reps = tl.expand_dims(tl.expand_dims(tl.arange(0, REP) * SPAN, ROW_AXIS), 2)
    cols = start + reps + tl.arange(0, SPAN)[None, None, :]
    if WHOLE:
        exist = tl.full(cols.shape, 1, tl.int1)
    else:
        exist = cols < hidden
    return cols, exist


@triton.jit
def _rows(first, rows, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """(row numbers inside the tile, which of them exist), as a tile of one column."""
    tile = _over_rows(tl.arange(0, ROWS))
    if EVEN:
        exist = tl.full(tile.shape, 1, tl.int1)
    else:
        exist = first + tile < rows
    return tile, exist


@triton.jit
def _of_rows(P, first, rows, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """The tile's rows of a float32 vector [rows]: a scalar, or a tile of one column.

    Loaded in one dimension: as part of the tile each thread would load each value once per column that it holds.
    """
    if ROWS == 1:
        value = tl.load(P + first)
    else:
        tile = tl.arange(0, ROWS)
        if EVEN:
            value = _over_rows(tl.load(P + first + tile))
        else:
            value = _over_rows(tl.load(P + first + tile, mask=first + tile < rows, other=0.0))
    return value


@triton.jit
def _to_rows(P, value, first, rows, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """The other way: `value` [ROWS] into a float32 vector [rows]."""
    tile = tl.arange(0, ROWS)
    if EVEN:
        tl.store(P + first + tile, value)
    else:
        tl.store(P + first + tile, value, mask=first + tile < rows)


@triton.jit
def _zeros(ROWS: tl.constexpr, REP: tl.constexpr, SPAN: tl.constexpr):
    if ROW_AXIS == 0:
        zeros = tl.zeros([ROWS, REP, SPAN], dtype=tl.float32)
    else:
        zeros = tl.zeros([REP, ROWS, SPAN], dtype=tl.float32)
    return zeros


@triton.jit
def _sum_of_rows(values):
    """A tile -> [ROWS]; the first sum stays inside a thread."""
    return tl.sum(tl.sum(values, REP_AXIS), 1)


@triton.jit
def _sum_over_rows(values):
    """A tile -> a tile of one row."""
    return tl.expand_dims(tl.sum(values, ROW_AXIS), ROW_AXIS)


@triton.jit
def _load_weight(W, cols, exist, tile, offset, SPREAD: tl.constexpr, HINT: tl.constexpr):
    """weight + offset in float32.  SPREAD loads it once per row of the tile, where each row is another warp's: else it
    would go from warp to warp through shared memory."""
    at = W + cols
    if SPREAD:
        at = at + tile * 0
        exist = exist & (tile >= 0)
    return tl.load(at, mask=exist, other=0.0, eviction_policy=HINT).to(tl.float32) + offset
