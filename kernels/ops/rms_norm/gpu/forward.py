"""The forward kernels: x, or x + residual, to y, and where they are asked for the sum and rstd.

The formulas, and what is relied on, are told in `__init__.py`; tiles in `tiles.py`.
"""

import triton
import triton.language as tl

from .tiles import (
    REP_AXIS,
    _columns,
    _groups,
    _load_weight,
    _over_rows,
    _rows,
    _sum_of_rows,
    _to_rows,
    _weighted,
    _zeros,
)
from .versions import gdc_wait


@triton.jit
def _summed(X, R, S, first, tile, cols, inside, hidden, x_stride, r_stride, HINT: tl.constexpr):
    """x in float32; with a residual their sum, rounded to x's dtype, which is stored in S."""
    x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=0.0, eviction_policy=HINT)
    if R is not None:
        r = tl.load(R + first * r_stride + tile * r_stride + cols, mask=inside, other=0.0, eviction_policy=HINT)
        x = (x.to(tl.float32) + r.to(tl.float32)).to(S.dtype.element_ty)
        tl.store(S + first * hidden + tile * hidden + cols, x, mask=inside)
    return x.to(tl.float32)


@triton.jit
def _forward_tile(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    held,
    group,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    SPREAD: tl.constexpr,
    WEIGHT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    TAIL: tl.constexpr,
):
    """One tile of whole rows.  `held` is the weight, float32 and with its offset, where WEIGHT is "held".

    TAIL > 0 columns follow the first BLOCK in a second, smaller tile: 5,120 columns are 4,096 and 1,024, not 8,192.
    """
    T: tl.constexpr = Y.dtype.element_ty
    first = tl.cast(group, tl.int64) * ROWS
    tile, row_exists = _rows(first, rows, ROWS, EVEN)
    cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE or TAIL > 0)
    inside = row_exists & col_exists
    if W is not None and WEIGHT == "first":  # asked for first, it arrives while the row is summed
        w = _load_weight(W, cols, col_exists, tile, offset, SPREAD, "")
    x = _summed(X, R, S, first, tile, cols, inside, hidden, x_stride, r_stride, LOAD)
    if TAIL > 0:
        tail_cols, tail_exists = _columns(BLOCK, hidden, TAIL, TAIL, WHOLE)
        tail_inside = row_exists & tail_exists
        tail = _summed(X, R, S, first, tile, tail_cols, tail_inside, hidden, x_stride, r_stride, LOAD)
    squares = _sum_of_rows(x * x)
    if TAIL > 0:
        squares += _sum_of_rows(tail * tail)
    rstd = tl.rsqrt(squares / hidden + eps)
    if RSTD is not None:
        _to_rows(RSTD, rstd, first, rows, ROWS, EVEN)
    rstd = _over_rows(rstd)
    y = x * rstd
    if W is not None:
        if WEIGHT == "last":  # held by nobody while the row is summed: fewer registers
            w = _load_weight(W, cols, col_exists, tile, offset, SPREAD, "")
        if WEIGHT == "held":
            w = held
        y = _weighted(y, w, T, ROUND)
    tl.store(Y + first * hidden + tile * hidden + cols, y.to(T), mask=inside, eviction_policy=STORE)
    if TAIL > 0:
        y = tail * rstd
        if W is not None:
            y = _weighted(y, _load_weight(W, tail_cols, tail_exists, tile, offset, False, ""), T, ROUND)
        tl.store(Y + first * hidden + tile * hidden + tail_cols, y.to(T), mask=tail_inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_rows(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    SPREAD: tl.constexpr,
    WEIGHT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    TAIL: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of whole rows a program: x is read once and stays in registers."""
    if PDL:
        gdc_wait()
    _forward_tile(
        X,
        R,
        W,
        Y,
        S,
        RSTD,
        None,
        tl.program_id(0),
        rows,
        hidden * ALIGN,
        x_stride * ALIGN,
        r_stride * ALIGN,
        eps,
        offset,
        ROUND,
        ROWS,
        BLOCK,
        SPAN,
        WHOLE,
        EVEN,
        SPREAD,
        WEIGHT,
        LOAD,
        STORE,
        TAIL,
    )


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_persistent(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Tiles of whole rows, many a program: the weight is read once, and STAGES > 1 fetches ahead."""
    hidden = hidden * ALIGN
    w = None
    if PDL:
        gdc_wait()
    if W is not None:
        cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE)
        w = _load_weight(W, cols, col_exists, _over_rows(tl.arange(0, ROWS)), offset, SPREAD, "")
    for group in tl.range(tl.program_id(0), _groups(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        _forward_tile(
            X,
            R,
            W,
            Y,
            S,
            RSTD,
            w,
            group,
            rows,
            hidden,
            x_stride * ALIGN,
            r_stride * ALIGN,
            eps,
            offset,
            ROUND,
            ROWS,
            BLOCK,
            SPAN,
            WHOLE,
            EVEN,
            SPREAD,
            "held",
            LOAD,
            STORE,
            0,
        )


@triton.jit
def _store_chunk(
    x, rstd, W, Y, first, tile, row_exists, cols, col_exists, hidden, offset, ROUND: tl.constexpr, STORE: tl.constexpr
):
    T: tl.constexpr = Y.dtype.element_ty
    y = x * rstd
    if W is not None:
        y = _weighted(y, _load_weight(W, cols, col_exists, tile, offset, False, "evict_last"), T, ROUND)
    inside = row_exists & col_exists
    tl.store(Y + first * hidden + tile * hidden + cols, y.to(T), mask=inside, eviction_policy=STORE)


@triton.jit
def _squares(
    X,
    R,
    S,
    first,
    tile,
    row_exists,
    start,
    hidden,
    x_stride,
    r_stride,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    LOAD: tl.constexpr,
):
    """The squares of one chunk, summed to a tile of SPAN columns."""
    cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
    x = _summed(X, R, S, first, tile, cols, row_exists & col_exists, hidden, x_stride, r_stride, LOAD)
    return tl.expand_dims(tl.sum(x * x, REP_AXIS), REP_AXIS)


@triton.jit
def _again(
    X,
    R,
    W,
    Y,
    S,
    rstd,
    first,
    tile,
    row_exists,
    start,
    hidden,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Reads one chunk again, normalises and stores it."""
    cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
    if R is not None:
        pointers = S + first * hidden + tile * hidden + cols
    else:
        pointers = X + first * x_stride + tile * x_stride + cols
    x = tl.load(pointers, mask=row_exists & col_exists, other=0.0, eviction_policy="evict_first").to(tl.float32)
    _store_chunk(x, rstd, W, Y, first, tile, row_exists, cols, col_exists, hidden, offset, ROUND, STORE)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_chunks(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    KEEP: tl.constexpr,
    TRIPS: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows of any width in chunks of BLOCK columns: one sweep for rstd, one that reads x again and writes y.

    The first KEEP columns (0, or a power of two that is at most hidden) stay in registers between the sweeps, so that
    what is read again is small enough to lie in a cache still.  TRIPS > 0 is the number of chunks: both sweeps are
    unrolled then, and loads of several chunks are under way at once.
    """
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    r_stride = r_stride * ALIGN
    if PDL:
        gdc_wait()
    for group in range(tl.program_id(0), _groups(rows, ROWS), tl.num_programs(0)):
        first = tl.cast(group, tl.int64) * ROWS
        tile, row_exists = _rows(first, rows, ROWS, EVEN)
        squares = _zeros(ROWS, 1, SPAN)
        if KEEP > 0:
            kept_cols, kept_exist = _columns(0, hidden, KEEP, SPAN, True)
            kept = _summed(X, R, S, first, tile, kept_cols, row_exists & kept_exist, hidden, x_stride, r_stride, LOAD)
            squares += tl.expand_dims(tl.sum(kept * kept, REP_AXIS), REP_AXIS)
        if TRIPS > 0:
            for trip in tl.static_range(TRIPS):
                squares += _squares(
                    X,
                    R,
                    S,
                    first,
                    tile,
                    row_exists,
                    KEEP + trip * BLOCK,
                    hidden,
                    x_stride,
                    r_stride,
                    BLOCK,
                    SPAN,
                    WHOLE,
                    LOAD,
                )
        else:
            for start in tl.range(KEEP, hidden, BLOCK, num_stages=STAGES):
                squares += _squares(
                    X, R, S, first, tile, row_exists, start, hidden, x_stride, r_stride, BLOCK, SPAN, WHOLE, LOAD
                )
        rstd = tl.rsqrt(_sum_of_rows(squares) / hidden + eps)
        if RSTD is not None:
            _to_rows(RSTD, rstd, first, rows, ROWS, EVEN)
        rstd = _over_rows(rstd)
        if KEEP > 0:
            _store_chunk(kept, rstd, W, Y, first, tile, row_exists, kept_cols, kept_exist, hidden, offset, ROUND, STORE)
        if R is not None:
            tl.debug_barrier()  # what other threads stored of the sum
        if TRIPS > 0:
            for trip in tl.static_range(TRIPS):
                _again(
                    X,
                    R,
                    W,
                    Y,
                    S,
                    rstd,
                    first,
                    tile,
                    row_exists,
                    KEEP + trip * BLOCK,
                    hidden,
                    x_stride,
                    offset,
                    ROUND,
                    BLOCK,
                    SPAN,
                    WHOLE,
                    STORE,
                )
        else:
            for start in tl.range(KEEP, hidden, BLOCK, num_stages=STAGES):
                _again(
                    X,
                    R,
                    W,
                    Y,
                    S,
                    rstd,
                    first,
                    tile,
                    row_exists,
                    start,
                    hidden,
                    x_stride,
                    offset,
                    ROUND,
                    BLOCK,
                    SPAN,
                    WHOLE,
                    STORE,
                )
