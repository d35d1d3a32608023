"""RMS norm of few rows: every row is divided among programs, in two launches that overlap.

The formulas, and what is relied on, are told in `__init__.py`.  Where there are fewer rows than multiprocessors, a
program a row leaves most of the device idle.  Here

* a first launch sums each part of each row (`row_squares`, `row_products`), one float32 a part into SUMS [rows, PARTS],
* a second one adds up the sums of a row in one fixed order, and finishes (`forward_parts`, `backward_strips`).

No program waits for another of its launch, nothing has to be cleared before, and no sum uses atomics, so equal calls
give equal bits.  What the second launch reads again is in the L2 cache by then.

With PDL both launches overlap.  The first waits for whatever ran before it, and only then lets the second begin, in
every program: so what ran before is complete when a program of the second begins, which may load x, dy and the weight
at once.  It waits for the first launch's end before it reads SUMS, and before it stores: DX may be DY's storage.
"""

import triton
import triton.language as tl

from .split import _part, _squares, _taken
from .tiles import _columns, _groups, _of_rows, _over_rows, _rows, _sum_over_rows, _weight_term, _weighted, _zeros
from .versions import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["hidden", "x_stride", "r_stride"])
def row_squares(
    X,
    R,
    SUMS,
    hidden,
    x_stride,
    r_stride,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LOAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """SUMS [rows, PARTS] = the sum of squares of each part of x, or of x + residual, in a grid of rows * PARTS."""
    program = tl.cast(tl.program_id(0), tl.int64)
    row = program // PARTS
    cols, exist = _part(tl.program_id(0) % PARTS, hidden * ALIGN, WIDTH, BLOCK, WHOLE)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = _taken(X, R, row, cols, exist, x_stride * ALIGN, r_stride * ALIGN, LOAD)
    tl.store(SUMS + program, _squares(x))


@triton.jit(do_not_specialize=["hidden", "x_stride", "r_stride"])
def forward_parts(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    SUMS,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The second launch of a forward, given `row_squares`: y, and where they are asked for the sum and rstd, in a grid
    of rows * PARTS.  LANES is a power of two, at least PARTS."""
    hidden = hidden * ALIGN
    T: tl.constexpr = Y.dtype.element_ty
    program = tl.program_id(0)
    row = tl.cast(program // PARTS, tl.int64)
    part = program % PARTS
    cols, exist = _part(part, hidden, WIDTH, BLOCK, WHOLE)
    x = _taken(X, R, row, cols, exist, x_stride * ALIGN, r_stride * ALIGN, LOAD)
    if W is not None:
        w = tl.load(W + cols, mask=exist, other=0.0)
    if PDL:
        gdc_wait()
    lane = tl.arange(0, LANES)
    squares = tl.sum(tl.load(SUMS + row * PARTS + lane, mask=lane < PARTS, other=0.0), 0)
    rstd = tl.rsqrt(squares / hidden + eps)
    if S is not None:
        tl.store(S + row * hidden + cols, x, mask=exist, eviction_policy=STORE)
    if RSTD is not None:
        tl.store(RSTD + row, rstd, mask=part == 0)
    y = x.to(tl.float32) * rstd
    if W is not None:
        y = _weighted(y, w.to(tl.float32) + offset, T, ROUND)
    tl.store(Y + row * hidden + cols, y.to(T), mask=exist, eviction_policy=STORE)


@triton.jit(do_not_specialize=["hidden", "dy_stride", "x_stride"])
def row_products(
    DY,
    X,
    W,
    SUMS,
    hidden,
    dy_stride,
    x_stride,
    offset,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LOAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """SUMS [rows, PARTS] = the sum of m * x of each strip of BLOCK columns of each row, in a grid of rows * PARTS."""
    program = tl.cast(tl.program_id(0), tl.int64)
    row = program // PARTS
    cols, exist = _part(tl.program_id(0) % PARTS, hidden * ALIGN, BLOCK, BLOCK, WHOLE)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(X + row * (x_stride * ALIGN) + cols, mask=exist, other=0.0, eviction_policy=LOAD).to(tl.float32)
    m = tl.load(DY + row * (dy_stride * ALIGN) + cols, mask=exist, other=0.0, eviction_policy=LOAD).to(tl.float32)
    if W is not None:
        m = m * (tl.load(W + cols, mask=exist, other=0.0).to(tl.float32) + offset)
    tl.store(SUMS + program, tl.sum(m * x, 0))


@triton.jit
def _mean(SUMS, rstd, first, rows, hidden, ROWS: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr):
    """mean(m * xhat) of a tile's rows: a scalar, or a tile of one column."""
    lane = tl.arange(0, LANES)
    if ROWS == 1:
        products = tl.sum(tl.load(SUMS + first * PARTS + lane, mask=lane < PARTS, other=0.0), 0)
    else:
        tile = tl.arange(0, ROWS)[:, None]
        inside = (first + tile < rows) & (lane[None, :] < PARTS)
        sums = tl.load(SUMS + first * PARTS + tile * PARTS + lane[None, :], mask=inside, other=0.0)
        products = _over_rows(tl.sum(sums, 1))
    return products * rstd / hidden


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_strips(
    DY,
    DS,
    X,
    W,
    RSTD,
    SUMS,
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
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    PDL: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """The second launch of a backward, given `row_products`: a program has BLOCK columns of all rows, their dx and the
    whole of their dw, in DW's dtype; ROWS rows at a time, in a grid of PARTS."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    cols, col_exists = _columns(tl.program_id(0) * BLOCK, hidden, BLOCK, BLOCK, WHOLE)
    if W is not None:
        w = tl.load(W + cols, mask=col_exists, other=0.0).to(tl.float32) + offset
    if DW is not None:
        dw = _zeros(1, 1, BLOCK)
    for group in range(_groups(rows, ROWS)):
        first = tl.cast(group, tl.int64) * ROWS
        tile, row_exists = _rows(first, rows, ROWS, EVEN)
        inside = row_exists & col_exists
        x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=0.0, eviction_policy=LOAD)
        dy = tl.load(DY + first * dy_stride + tile * dy_stride + cols, mask=inside, other=0.0, eviction_policy=LOAD)
        if DS is not None:
            ds = tl.load(DS + first * ds_stride + tile * ds_stride + cols, mask=inside, other=0.0, eviction_policy=LOAD)
        rstd = _of_rows(RSTD, first, rows, ROWS, EVEN)
        if PDL:
            gdc_wait()  # of a kernel that has ended this returns at once
        mean = _mean(SUMS, rstd, first, rows, hidden, ROWS, PARTS, LANES)
        dy = dy.to(tl.float32)
        xhat = x.to(tl.float32) * rstd
        m = dy
        if W is not None:
            m = dy * w
        dx = rstd * (m - xhat * mean)
        if DS is not None:
            dx += ds.to(tl.float32)
        dx_at = DX + first * hidden + tile * hidden + cols
        tl.store(dx_at, dx.to(DX.dtype.element_ty), mask=inside, eviction_policy=STORE)
        if DW is not None:
            dw += _sum_over_rows(_weight_term(dy, xhat, X.dtype.element_ty, ROUND))
    if DW is not None:
        tl.store(DW + cols, dw.to(DW.dtype.element_ty), mask=col_exists)
