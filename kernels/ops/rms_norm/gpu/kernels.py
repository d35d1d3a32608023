"""RMS norm in Triton for GPUs, with or without a residual that is added first: forward and backward.

For a row of `hidden` elements, with w' = weight + offset (no weight: w' = 1), and for the fused op x = x + residual,
rounded to x's dtype:

    rstd = 1 / sqrt(mean(x^2) + eps)        xhat = x * rstd        y = xhat * w'
    m    = dy * w'                          dx   = rstd * (m - xhat * mean(m * xhat)) [+ dsum]
    dw   = sum over rows of dy * xhat

Everything is float32 from the load to the one cast at the store.  `ROUND` adds the rounding that the castings `llama`
and `none` declare: xhat becomes x's dtype before it meets the weight, and so does each row's product in dw.

What every kernel here relies on:

* tensors are `rows` x `hidden` and their last dimension is contiguous; X, R, DY and DS come with their row stride in
  elements, all others are dense.  Rows are addressed in int64, what lies inside a tile in int32: the caller sees to it
  that ROWS strides fit.
* a tile is ROWS x BLOCK; programs take the row groups `id, id + programs, ...`, so a grid may be of any size.
  `WHOLE` says that hidden is a multiple of BLOCK and `EVEN` that rows is one of ROWS: masks fold away then.
* a tile is laid out in three dimensions: ROWS, BLOCK / SPAN, and SPAN columns.  Warps are spread over the columns
  first, then over the rows (see ROW_AXIS), so a SPAN as wide as one warp's loads gives each warp rows of its own, and
  no warp waits for another to sum a row; SPAN = BLOCK spreads a row over all warps.
* hidden and row strides arrive divided by ALIGN, a power of two: the compiler then knows how wide loads may be also
  where they are not multiples of 16, the only thing that it would find out by itself.
* pointers that are None compile their code away.
* DX may be DY: what a program overwrites, it alone reads, and has read before.
* no atomics: sums over rows are one float32 row of partial sums a program, added up in a fixed order by `sum_partials`.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda


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
def _summed(X, R, S, first, tile, cols, inside, hidden, x_stride, r_stride, HINT: tl.constexpr):
    """x in float32; with a residual their sum, rounded to x's dtype, which is stored in S."""
    x = tl.load(X + first * x_stride + tile * x_stride + cols, mask=inside, other=0.0, eviction_policy=HINT)
    if R is not None:
        r = tl.load(R + first * r_stride + tile * r_stride + cols, mask=inside, other=0.0, eviction_policy=HINT)
        x = (x.to(tl.float32) + r.to(tl.float32)).to(S.dtype.element_ty)
        tl.store(S + first * hidden + tile * hidden + cols, x, mask=inside)
    return x.to(tl.float32)


@triton.jit
def _load_weight(W, cols, exist, tile, offset, SPREAD: tl.constexpr, HINT: tl.constexpr):
    """weight + offset in float32.  SPREAD loads it once per row of the tile, where each row is another warp's: else it
    would go from warp to warp through shared memory."""
    at = W + cols
    if SPREAD:
        at = at + tile * 0
        exist = exist & (tile >= 0)
    return tl.load(at, mask=exist, other=0.0, eviction_policy=HINT).to(tl.float32) + offset


@triton.jit
def _forward_tile(
    X, R, W, Y, S, RSTD, held, group, rows, hidden, x_stride, r_stride, eps, offset,
    ROUND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr,
    EVEN: tl.constexpr, SPREAD: tl.constexpr, WEIGHT: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
    TAIL: tl.constexpr,
):  # fmt: skip
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
    X, R, W, Y, S, RSTD, rows, hidden, x_stride, r_stride, eps, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, SPREAD: tl.constexpr, WEIGHT: tl.constexpr, LOAD: tl.constexpr,
    STORE: tl.constexpr, TAIL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of whole rows a program: x is read once and stays in registers."""
    if PDL:
        cuda.gdc_wait()
    _forward_tile(
        X, R, W, Y, S, RSTD, None, tl.program_id(0), rows, hidden * ALIGN, x_stride * ALIGN, r_stride * ALIGN, eps,
        offset, ROUND, ROWS, BLOCK, SPAN, WHOLE, EVEN, SPREAD, WEIGHT, LOAD, STORE, TAIL,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_persistent(
    X, R, W, Y, S, RSTD, rows, hidden, x_stride, r_stride, eps, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, SPREAD: tl.constexpr, STAGES: tl.constexpr, LOAD: tl.constexpr,
    STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Tiles of whole rows, many a program: the weight is read once, and STAGES > 1 fetches ahead."""
    hidden = hidden * ALIGN
    w = None
    if PDL:
        cuda.gdc_wait()
    if W is not None:
        cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE)
        w = _load_weight(W, cols, col_exists, _over_rows(tl.arange(0, ROWS)), offset, SPREAD, "")
    for group in tl.range(tl.program_id(0), _groups(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        _forward_tile(
            X, R, W, Y, S, RSTD, w, group, rows, hidden, x_stride * ALIGN, r_stride * ALIGN, eps, offset,
            ROUND, ROWS, BLOCK, SPAN, WHOLE, EVEN, SPREAD, "held", LOAD, STORE, 0,
        )  # fmt: skip


@triton.jit
def _store_chunk(x, rstd, W, Y, first, tile, row_exists, cols, col_exists, hidden, offset,
                 ROUND: tl.constexpr, STORE: tl.constexpr):  # fmt: skip
    T: tl.constexpr = Y.dtype.element_ty
    y = x * rstd
    if W is not None:
        y = _weighted(y, _load_weight(W, cols, col_exists, tile, offset, False, "evict_last"), T, ROUND)
    inside = row_exists & col_exists
    tl.store(Y + first * hidden + tile * hidden + cols, y.to(T), mask=inside, eviction_policy=STORE)


@triton.jit
def _squares(X, R, S, first, tile, row_exists, start, hidden, x_stride, r_stride,
             BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr, LOAD: tl.constexpr):  # fmt: skip
    """The squares of one chunk, summed to a tile of SPAN columns."""
    cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
    x = _summed(X, R, S, first, tile, cols, row_exists & col_exists, hidden, x_stride, r_stride, LOAD)
    return tl.expand_dims(tl.sum(x * x, REP_AXIS), REP_AXIS)


@triton.jit
def _again(X, R, W, Y, S, rstd, first, tile, row_exists, start, hidden, x_stride, offset, ROUND: tl.constexpr,
           BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr, STORE: tl.constexpr):  # fmt: skip
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
    X, R, W, Y, S, RSTD, rows, hidden, x_stride, r_stride, eps, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, KEEP: tl.constexpr, TRIPS: tl.constexpr, STAGES: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows of any width in chunks of BLOCK columns: one sweep for rstd, one that reads x again and writes y.

    The first KEEP columns (0, or a power of two that is at most hidden) stay in registers between the sweeps, so that
    what is read again is small enough to lie in a cache still.  TRIPS > 0 is the number of chunks: both sweeps are
    unrolled then, and loads of several chunks are under way at once.
    """
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    r_stride = r_stride * ALIGN
    if PDL:
        cuda.gdc_wait()
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
                squares += _squares(X, R, S, first, tile, row_exists, KEEP + trip * BLOCK, hidden, x_stride, r_stride,
                                    BLOCK, SPAN, WHOLE, LOAD)  # fmt: skip
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
                _again(X, R, W, Y, S, rstd, first, tile, row_exists, KEEP + trip * BLOCK, hidden, x_stride, offset,
                       ROUND, BLOCK, SPAN, WHOLE, STORE)  # fmt: skip
        else:
            for start in tl.range(KEEP, hidden, BLOCK, num_stages=STAGES):
                _again(X, R, W, Y, S, rstd, first, tile, row_exists, start, hidden, x_stride, offset, ROUND, BLOCK,
                       SPAN, WHOLE, STORE)  # fmt: skip


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
        "prefetch.global.L2 [$1];\nmov.b32 $0, 0;", "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit
def _product(DY, X, W, first, tile, start, row_exists, hidden, dy_stride, x_stride, offset,
             BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
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
    DY, DS, X, W, RSTD, DX, DW, rows, hidden, dy_stride, ds_stride, x_stride, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, SPREAD: tl.constexpr, STAGES: tl.constexpr, HOLD: tl.constexpr,
    FOLD: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
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
        cuda.gdc_wait()
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
        cuda.gdc_launch_dependents()
    if DW is not None:
        if not FOLD:
            dw = _sum_over_rows(dw)
        tl.store(DW + tl.cast(program, tl.int64) * hidden + cols, dw, mask=col_exists)


@triton.jit
def _backward_part(DY, DS, X, W, DX, rstd, mean, first, tile, start, hidden, dy_stride, ds_stride, x_stride, offset,
                   ROUND: tl.constexpr, PART: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr,
                   STORE: tl.constexpr):  # fmt: skip
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
    DY, DS, X, W, RSTD, DX, DW, rows, hidden, dy_stride, ds_stride, x_stride, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr,
    CHUNK: tl.constexpr, TRIPS: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
    STORE: tl.constexpr,
):  # fmt: skip
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
        cuda.gdc_wait()
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
                products += _product(DY, X, W, first, tile, trip * CHUNK, row_exists, hidden, dy_stride, x_stride,
                                     offset, CHUNK, SPAN, WHOLE)  # fmt: skip
        else:
            for start in tl.range(0, hidden, CHUNK, num_stages=STAGES):
                products += _product(
                    DY, X, W, first, tile, start, row_exists, hidden, dy_stride, x_stride, offset, CHUNK, SPAN, WHOLE
                )
        rstd = _of_rows(RSTD, first, rows, 1, True)
        mean = _over_rows(_sum_of_rows(products)) * rstd / hidden
        dw0 += _backward_part(DY, DS, X, W, DX, rstd, mean, first, tile, 0, hidden, dy_stride, ds_stride, x_stride,
                              offset, ROUND, PART, SPAN, WHOLE, STORE)  # fmt: skip
        dw1 += _backward_part(DY, DS, X, W, DX, rstd, mean, first, tile, PART, hidden, dy_stride, ds_stride, x_stride,
                              offset, ROUND, PART, SPAN, WHOLE, STORE)  # fmt: skip
        dw2 += _backward_part(DY, DS, X, W, DX, rstd, mean, first, tile, 2 * PART, hidden, dy_stride, ds_stride,
                              x_stride, offset, ROUND, PART, SPAN, WHOLE, STORE)  # fmt: skip
        dw3 += _backward_part(DY, DS, X, W, DX, rstd, mean, first, tile, 3 * PART, hidden, dy_stride, ds_stride,
                              x_stride, offset, ROUND, PART, SPAN, WHOLE, STORE)  # fmt: skip
    if PDL:
        cuda.gdc_launch_dependents()
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
    DY, X, W, RSTD, C, rows, hidden, dy_stride, x_stride, offset,
    ALIGN: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """C [rows] = mean(m * xhat) of each row, in chunks of BLOCK columns: the first half of a wide backward."""
    hidden = hidden * ALIGN
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        first = tl.cast(row, tl.int64)
        tile, row_exists = _rows(first, rows, 1, True)
        products = _zeros(1, 1, SPAN)
        for start in tl.range(0, hidden, BLOCK, num_stages=STAGES):
            products += _product(
                DY, X, W, first, tile, start, row_exists, hidden, dy_stride * ALIGN, x_stride * ALIGN, offset, BLOCK,
                SPAN, WHOLE,
            )  # fmt: skip
        _to_rows(C, _of_rows(RSTD, first, rows, 1, True) * _sum_of_rows(products) / hidden, first, rows, 1, True)


@triton.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_columns(
    DY, DS, X, W, RSTD, C, DX, DW, rows, hidden, dy_stride, ds_stride, x_stride, offset,
    ROUND: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
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
        cuda.gdc_launch_dependents()
    if DW is not None:
        tl.store(DW + tl.cast(split, tl.int64) * hidden + cols, _sum_over_rows(dw), mask=col_exists)


@triton.jit(do_not_specialize=["count"])
def sum_partials(P, OUT, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """OUT [hidden] = the sum of the `count` float32 rows of P [count, hidden], in one fixed order."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if PDL:
        cuda.gdc_wait()
    for first in range(0, count, ROWS):
        at = P + tl.cast(first, tl.int64) * hidden + tile * hidden + cols
        total += tl.load(at, mask=(first + tile < count) & (cols < hidden), other=0.0)
    out = tl.sum(total, 0)[None, :]
    tl.store(OUT + cols, out.to(OUT.dtype.element_ty), mask=cols < hidden)
