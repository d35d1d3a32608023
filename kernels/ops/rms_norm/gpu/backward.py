"""The backward kernels: dy and x to dx, with float32 partial sums of dw, and `sum_partials`, which adds those up.

The formulas, and what is relied on, are told in `__init__.py`; tiles in `tiles.py`.
"""

import triton
import triton.language as tl

from .tiles import (
    REP_AXIS,
    _columns,
    _groups,
    _load_weight,
    _of_rows,
    _over_rows,
    _rows,
    _sum_of_rows,
    _sum_over_rows,
    _to_rows,
    _weight_term,
    _zeros,
)
from .versions import gdc_launch_dependents, gdc_wait


@triton.jit
def _prefetch_rows(P, first, rows, hidden, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Ask the L2 cache for rows [first, first + ROWS), a line of 128 bytes an element of the tile."""
    LINE: tl.constexpr = 128 * 8 // P.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = (BLOCK + LINE - 1) // LINE
    tile = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, LINES)[None, :] * LINE
    inside = (first + tile < rows) & (cols < hidden)
    # Addresses outside become the tensor's first: a prefetch has no mask.
    pointers = tl.where(inside, P + first * stride + tile * stride + cols, P)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1];\nmov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _product(
    DY,
    X,
    W,
    first,
    tile,
    start,
    row_exists,
    hidden,
    dy_stride,
    x_stride,
    offset,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """dy * (weight + offset) * x of one chunk, float32, summed to a tile of SPAN columns."""
    cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
    inside = row_exists & col_exists
    x_at = X + first * x_stride + tile * x_stride + cols
    dy_at = DY + first * dy_stride + tile * dy_stride + cols
    x = tl.load(x_at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    m = tl.load(dy_at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if W is not None:
        m *= _load_weight(W, cols, col_exists, tile, offset, False, "evict_last")
    return tl.expand_dims(tl.sum(m * x, REP_AXIS), REP_AXIS)


@triton.jit
def _store_dx(DX, DS, xhat, m, rstd, mean, first, tile, cols, inside, hidden, ds_stride, STORE: tl.constexpr):
    dx = rstd * (m - xhat * mean)
    if DS is not None:
        dx += tl.load(DS + first * ds_stride + tile * ds_stride + cols, mask=inside, other=0.0).to(tl.float32)
    dx_at = DX + first * hidden + tile * hidden + cols
    tl.store(dx_at, dx.to(DX.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_rows(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    rows,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
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
    HOLD: tl.constexpr,
    FOLD: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """Tiles of whole rows, many a program: dx, and one float32 row of DW [programs, hidden] per program.

    HOLD keeps the weight in registers.  FOLD adds a tile's rows up at once; else dw is kept per row of the tile.
    AHEAD > 0 asks the L2 cache for the tile that is AHEAD groups later.  PDL waits for the kernel before, and lets
    `sum_partials` be launched while this one drains.
    """
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE)
    if PDL:
        gdc_wait()
    if W is not None and HOLD:
        w = _load_weight(W, cols, col_exists, _over_rows(tl.arange(0, ROWS)), offset, SPREAD, "")
    if DW is not None:
        dw = _zeros(1 if FOLD else ROWS, BLOCK // SPAN, SPAN)
    for group in tl.range(program, _groups(rows, ROWS), programs, num_stages=STAGES):
        first = tl.cast(group, tl.int64) * ROWS
        tile, row_exists = _rows(first, rows, ROWS, EVEN)
        inside = row_exists & col_exists
        if AHEAD > 0:
            later = first + tl.cast(programs, tl.int64) * (ROWS * AHEAD)
            _prefetch_rows(X, later, rows, hidden, x_stride, ROWS, BLOCK)
            _prefetch_rows(DY, later, rows, hidden, dy_stride, ROWS, BLOCK)
            if DS is not None:
                _prefetch_rows(DS, later, rows, hidden, ds_stride, ROWS, BLOCK)
        x_at = X + first * x_stride + tile * x_stride + cols
        dy_at = DY + first * dy_stride + tile * dy_stride + cols
        x = tl.load(x_at, mask=inside, other=0.0, eviction_policy=LOAD)
        dy = tl.load(dy_at, mask=inside, other=0.0, eviction_policy=LOAD).to(tl.float32)
        rstd = _of_rows(RSTD, first, rows, ROWS, EVEN)
        xhat = x.to(tl.float32) * rstd
        m = dy
        if W is not None:
            if not HOLD:
                w = _load_weight(W, cols, col_exists, tile, offset, SPREAD, "evict_last")
            m = dy * w
        mean = _over_rows(_sum_of_rows(m * xhat)) / hidden
        _store_dx(DX, DS, xhat, m, rstd, mean, first, tile, cols, inside, hidden, ds_stride, STORE)
        if DW is not None:
            term = _weight_term(dy, xhat, X.dtype.element_ty, ROUND)
            if FOLD:
                dw += _sum_over_rows(term)
            else:
                dw += term
    if PDL:
        gdc_launch_dependents()
    if DW is not None:
        if not FOLD:
            dw = _sum_over_rows(dw)
        tl.store(DW + tl.cast(program, tl.int64) * hidden + cols, dw, mask=col_exists)


@triton.jit
def _backward_part(
    DY,
    DS,
    X,
    W,
    DX,
    rstd,
    mean,
    first,
    tile,
    start,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    PART: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    STORE: tl.constexpr,
):
    """dx of PART columns of one row, whose x and dy are read again; gives their share of dw."""
    cols, inside = _columns(start, hidden, PART, SPAN, WHOLE)
    x_at = X + first * x_stride + tile * x_stride + cols
    dy_at = DY + first * dy_stride + tile * dy_stride + cols
    xhat = tl.load(x_at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32) * rstd
    dy = tl.load(dy_at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    m = dy
    if W is not None:
        m = dy * _load_weight(W, cols, inside, tile, offset, False, "")
    _store_dx(DX, DS, xhat, m, rstd, mean, first, tile, cols, inside, hidden, ds_stride, STORE)
    return _weight_term(dy, xhat, X.dtype.element_ty, ROUND)


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_twice(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    rows,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNK: tl.constexpr,
    TRIPS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
    STORE: tl.constexpr,
):
    """For rows too wide to hold: sums a row in chunks of CHUNK columns (unrolled where TRIPS > 0 says how many), then
    reads x and dy again, which a cache still has, in four parts of BLOCK / 4.  Only dw stays in registers.  Otherwise
    as `backward_rows`, a row at a time."""
    PART: tl.constexpr = BLOCK // 4
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    if PDL:
        gdc_wait()
    dw0 = _zeros(1, PART // SPAN, SPAN)
    dw1 = _zeros(1, PART // SPAN, SPAN)
    dw2 = _zeros(1, PART // SPAN, SPAN)
    dw3 = _zeros(1, PART // SPAN, SPAN)
    for row in range(program, rows, programs):
        first = tl.cast(row, tl.int64)
        tile, row_exists = _rows(first, rows, 1, True)
        if AHEAD > 0:
            later = first + tl.cast(programs, tl.int64) * AHEAD
            _prefetch_rows(X, later, rows, hidden, x_stride, 1, BLOCK)
            _prefetch_rows(DY, later, rows, hidden, dy_stride, 1, BLOCK)
            if DS is not None:
                _prefetch_rows(DS, later, rows, hidden, ds_stride, 1, BLOCK)
        products = _zeros(1, 1, SPAN)
        if TRIPS > 0:
            for trip in tl.static_range(TRIPS):
                products += _product(
                    DY,
                    X,
                    W,
                    first,
                    tile,
                    trip * CHUNK,
                    row_exists,
                    hidden,
                    dy_stride,
                    x_stride,
                    offset,
                    CHUNK,
                    SPAN,
                    WHOLE,
                )
        else:
            for start in tl.range(0, hidden, CHUNK, num_stages=STAGES):
                products += _product(
                    DY, X, W, first, tile, start, row_exists, hidden, dy_stride, x_stride, offset, CHUNK, SPAN, WHOLE
                )
        rstd = _of_rows(RSTD, first, rows, 1, True)
        mean = _over_rows(_sum_of_rows(products)) * rstd / hidden
        dw0 += _backward_part(
            DY,
            DS,
            X,
            W,
            DX,
            rstd,
            mean,
            first,
            tile,
            0,
            hidden,
            dy_stride,
            ds_stride,
            x_stride,
            offset,
            ROUND,
            PART,
            SPAN,
            WHOLE,
            STORE,
        )
        dw1 += _backward_part(
            DY,
            DS,
            X,
            W,
            DX,
            rstd,
            mean,
            first,
            tile,
            PART,
            hidden,
            dy_stride,
            ds_stride,
            x_stride,
            offset,
            ROUND,
            PART,
            SPAN,
            WHOLE,
            STORE,
        )
        dw2 += _backward_part(
            DY,
            DS,
            X,
            W,
            DX,
            rstd,
            mean,
            first,
            tile,
            2 * PART,
            hidden,
            dy_stride,
            ds_stride,
            x_stride,
            offset,
            ROUND,
            PART,
            SPAN,
            WHOLE,
            STORE,
        )
        dw3 += _backward_part(
            DY,
            DS,
            X,
            W,
            DX,
            rstd,
            mean,
            first,
            tile,
            3 * PART,
            hidden,
            dy_stride,
            ds_stride,
            x_stride,
            offset,
            ROUND,
            PART,
            SPAN,
            WHOLE,
            STORE,
        )
    if PDL:
        gdc_launch_dependents()
    if DW is not None:
        mine = DW + tl.cast(program, tl.int64) * hidden
        cols, exist = _columns(0, hidden, PART, SPAN, WHOLE)
        tl.store(mine + cols, dw0, mask=exist)
        cols, exist = _columns(PART, hidden, PART, SPAN, WHOLE)
        tl.store(mine + cols, dw1, mask=exist)
        cols, exist = _columns(2 * PART, hidden, PART, SPAN, WHOLE)
        tl.store(mine + cols, dw2, mask=exist)
        cols, exist = _columns(3 * PART, hidden, PART, SPAN, WHOLE)
        tl.store(mine + cols, dw3, mask=exist)


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "x_stride"])
def row_means(
    DY,
    X,
    W,
    RSTD,
    C,
    rows,
    hidden,
    dy_stride,
    x_stride,
    offset,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """C [rows] = mean(m * xhat) of each row, in chunks of BLOCK columns: the first half of a wide backward."""
    hidden = hidden * ALIGN
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        first = tl.cast(row, tl.int64)
        tile, row_exists = _rows(first, rows, 1, True)
        products = _zeros(1, 1, SPAN)
        for start in tl.range(0, hidden, BLOCK, num_stages=STAGES):
            products += _product(
                DY,
                X,
                W,
                first,
                tile,
                start,
                row_exists,
                hidden,
                dy_stride * ALIGN,
                x_stride * ALIGN,
                offset,
                BLOCK,
                SPAN,
                WHOLE,
            )
        _to_rows(C, _of_rows(RSTD, first, rows, 1, True) * _sum_of_rows(products) / hidden, first, rows, 1, True)


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_columns(
    DY,
    DS,
    X,
    W,
    RSTD,
    C,
    DX,
    DW,
    rows,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    STORE: tl.constexpr,
):
    """The second half of a wide backward, given `row_means`: program (c, s) takes columns [c * BLOCK, ...) of the row
    groups s, s + splits, ...: their dx, and their share of dw in row s of DW [splits, hidden], float32."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    cols, col_exists = _columns(tl.program_id(0) * BLOCK, hidden, BLOCK, BLOCK, WHOLE)
    if W is not None:
        w = tl.load(W + cols, mask=col_exists, other=0.0).to(tl.float32) + offset
    if DW is not None:
        dw = _zeros(ROWS, 1, BLOCK)
    for group in tl.range(split, _groups(rows, ROWS), splits, num_stages=STAGES):
        first = tl.cast(group, tl.int64) * ROWS
        tile, row_exists = _rows(first, rows, ROWS, EVEN)
        inside = row_exists & col_exists
        x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=0.0)
        dy = tl.load(DY + first * dy_stride + tile * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        rstd = _of_rows(RSTD, first, rows, ROWS, EVEN)
        mean = _of_rows(C, first, rows, ROWS, EVEN)
        xhat = x.to(tl.float32) * rstd
        m = dy
        if W is not None:
            m = dy * w
        _store_dx(DX, DS, xhat, m, rstd, mean, first, tile, cols, inside, hidden, ds_stride, STORE)
        if DW is not None:
            dw += _weight_term(dy, xhat, X.dtype.element_ty, ROUND)
    if PDL:
        gdc_launch_dependents()
    if DW is not None:
        tl.store(DW + tl.cast(split, tl.int64) * hidden + cols, _sum_over_rows(dw), mask=col_exists)


@triton.jit(do_not_specialize=["count"])
def sum_partials(P, OUT, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """OUT [hidden] = the sum of the `count` float32 rows of P [count, hidden], in one fixed order."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if PDL:
        gdc_wait()
    for first in range(0, count, ROWS):
        at = P + tl.cast(first, tl.int64) * hidden + tile * hidden + cols
        total += tl.load(at, mask=(first + tile < count) & (cols < hidden), other=0.0)
    out = tl.sum(total, 0)[None, :]
    tl.store(OUT + cols, out.to(OUT.dtype.element_ty), mask=cols < hidden)
