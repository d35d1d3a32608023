"""RMS norm in Triton for GPUs: forward and backward, rows whole in a block or walked in chunks.

For a row x of `hidden` elements, with w' = weight + offset (no weight: w' = 1):

    rstd = 1 / sqrt(mean(x^2) + eps)        xhat = x * rstd        y = xhat * w'
    m    = dy * w'                          dx   = rstd * (m - xhat * mean(m * xhat))
    dw   = sum over rows of dy * xhat

Everything is float32 from the load to the one cast at the store.  `ROUND` adds the rounding that the castings `llama`
and `none` declare: xhat becomes x's dtype before it meets the weight, and so does each row's product in dw.

What every kernel here relies on:

* `rows` x `hidden` tensors whose last dimension is contiguous; X and DY come with their row stride in elements, Y and
  DX are dense.  Row offsets are int64: a tensor may have more than 2^31 elements.
* a grid of any size: programs take the rows `id, id + programs, ...`, so a grid never has to be as large as `rows`
  (`forward_cached` alone takes one row a program).  `row64` is the row as int64 also in the interpreter, where a loop
  variable is a Python int.
* W, RSTD, DW may be None, which compiles their code away.
* DX may be DY: what a program overwrites, it alone reads, and has read before.
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


@triton.jit(do_not_specialize=["rows"])
def forward_cached(X, W, Y, RSTD, rows, hidden, x_stride, eps, offset, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program, whole in one block of BLOCK >= hidden elements: x is read once and stays in registers."""
    T: tl.constexpr = Y.dtype.element_ty
    # Asked for first, the weight arrives while the row is summed; but it takes as many registers as the row.  H200,
    # bf16, GB/s first / last: 4096x4096 3366 / 3326, 8192x4096 3660 / 3619, 2048x65536 1128 / 2256.
    WEIGHT_FIRST: tl.constexpr = BLOCK <= 16384
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < hidden
    if W is not None and WEIGHT_FIRST:
        w = tl.load(W + cols, mask=inside, other=0.0)
    x = tl.load(X + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    if RSTD is not None:
        tl.store(RSTD + row, rstd)
    y = x * rstd
    if W is not None:
        if not WEIGHT_FIRST:
            w = tl.load(W + cols, mask=inside, other=0.0)
        y = _weighted(y, w.to(tl.float32) + offset, T, ROUND)
    tl.store(Y + row * hidden + cols, y.to(T), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def forward_persistent(
    X, W, Y, RSTD, rows, hidden, x_stride, eps, offset, ROUND: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Rows whole in one block, many a program: the weight is read once, and STAGES > 1 fetches ahead."""
    T: tl.constexpr = Y.dtype.element_ty
    cols = tl.arange(0, BLOCK)
    inside = cols < hidden
    if W is not None:
        w = tl.load(W + cols, mask=inside, other=0.0).to(tl.float32) + offset
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        row64 = tl.cast(row, tl.int64)
        x = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / hidden + eps)
        if RSTD is not None:
            tl.store(RSTD + row64, rstd)
        y = x * rstd
        if W is not None:
            y = _weighted(y, w, T, ROUND)
        tl.store(Y + row64 * hidden + cols, y.to(T), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def forward_reload(X, W, Y, RSTD, rows, hidden, x_stride, eps, offset, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of any width in chunks of BLOCK: one pass for rstd, one that reads x again and writes y."""
    T: tl.constexpr = Y.dtype.element_ty
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        row64 = tl.cast(row, tl.int64)
        squares = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(X + row64 * x_stride + cols, mask=cols < hidden, other=0.0).to(tl.float32)
            squares += x * x
        rstd = tl.rsqrt(tl.sum(squares) / hidden + eps)
        if RSTD is not None:
            tl.store(RSTD + row64, rstd)
        for start in range(0, hidden, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < hidden
            y = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32) * rstd
            if W is not None:
                w = tl.load(W + cols, mask=inside, other=0.0).to(tl.float32) + offset
                y = _weighted(y, w, T, ROUND)
            tl.store(Y + row64 * hidden + cols, y.to(T), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def backward_block(
    DY, X, W, RSTD, DX, DW, rows, hidden, dy_stride, x_stride, offset, ROUND: tl.constexpr, BLOCK: tl.constexpr
):
    """dx, and one float32 row of DW [programs, hidden] per program: its rows' share of dw, summed in a fixed order."""
    program = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < hidden
    if W is not None:
        w = tl.load(W + cols, mask=inside, other=0.0).to(tl.float32) + offset
    dw = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        row64 = tl.cast(row, tl.int64)
        rstd = tl.load(RSTD + row64)
        xhat = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32) * rstd
        dy = tl.load(DY + row64 * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        m = dy
        if W is not None:
            m = dy * w
        dx = rstd * (m - xhat * (tl.sum(m * xhat) / hidden))
        tl.store(DX + row64 * hidden + cols, dx.to(DX.dtype.element_ty), mask=inside)
        if DW is not None:
            dw += _weight_term(dy, xhat, X.dtype.element_ty, ROUND)
    if DW is not None:
        tl.store(DW + program * hidden + cols, dw, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def backward_reload(DY, X, W, RSTD, DX, rows, hidden, dy_stride, x_stride, offset, BLOCK: tl.constexpr):
    """dx for rows of any width, in chunks of BLOCK: one pass for mean(m * xhat), one that reads again and writes."""
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        row64 = tl.cast(row, tl.int64)
        rstd = tl.load(RSTD + row64)
        products = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < hidden
            xhat = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32) * rstd
            m = tl.load(DY + row64 * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
            if W is not None:
                m *= tl.load(W + cols, mask=inside, other=0.0).to(tl.float32) + offset
            products += m * xhat
        mean = tl.sum(products) / hidden
        for start in range(0, hidden, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < hidden
            xhat = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32) * rstd
            m = tl.load(DY + row64 * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
            if W is not None:
                m *= tl.load(W + cols, mask=inside, other=0.0).to(tl.float32) + offset
            dx = rstd * (m - xhat * mean)
            tl.store(DX + row64 * hidden + cols, dx.to(DX.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def backward_weight(DY, X, RSTD, DW, rows, hidden, dy_stride, x_stride, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    """dw alone, for wide rows: program (c, s) sums columns [c * BLOCK, ...) over the rows s, s + splits, ... into row s
    of DW [splits, hidden], float32."""
    split = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < hidden
    dw = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(split, rows, tl.num_programs(1)):
        row64 = tl.cast(row, tl.int64)
        xhat = tl.load(X + row64 * x_stride + cols, mask=inside, other=0.0).to(tl.float32) * tl.load(RSTD + row64)
        dy = tl.load(DY + row64 * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        dw += _weight_term(dy, xhat, X.dtype.element_ty, ROUND)
    tl.store(DW + split * hidden + cols, dw, mask=inside)
