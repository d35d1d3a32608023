"""RMS norm and residual RMS norm in Triton for Ascend's vector cores: forward and backward.

For a row x of `hidden` elements, with w' = weight + offset (no weight: w' = 1):

    rstd = 1 / sqrt(mean(x^2) + eps)        xhat = x * rstd        y = xhat * w'
    m    = dy * w'                          dx   = rstd * (m - xhat * mean(m * xhat))  [+ dsum]
    dw   = sum over rows of dy * xhat

With a residual R, x is X + R rounded to X's dtype, and is stored in S.  Everything is float32 from the load to the one
cast at the store.  `ROUND` adds the rounding that the castings `llama` and `none` declare: xhat becomes x's dtype
before it meets the weight, and so does each row's product in dw.

What every kernel here relies on:

* tensors [rows, hidden] whose last dimension is contiguous; X, R, DY and DS come with their row stride in elements, the
  rest is dense.  Row offsets are int64 scalars: a tensor may have more than 2^31 elements.
* tiles of ROWS x BLOCK elements: where ROWS > 1, one vector operation makes 1 / sqrt of all rows; of a single row the
  scalar unit makes it, at the price of a wait or two.
* a grid of at most 65,535 programs, each of which takes the tiles `id, id + programs, ...` in a `range` loop: of a
  loop, and only of one, the compiler makes double buffers: the next tile is on its way while this one is computed.
* what a program stored it may load later (`forward_columns` does): the compiler makes the load wait for the store.
* every mask is one of a contiguous load or store, `cols < hidden` and `lane < rows left`: the compiler makes the extent
  of a copy of it, and nothing else.  (In `tl.where` it becomes a vector of integers that are compared one by one.)
* W, R, S, RSTD, DS, DW may be None, which compiles their code away.
* DX may be DY: what a program overwrites, it alone reads, and has read before.

Sums run in a fixed order, so equal calls give equal bits.
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
    """Each row's share of dw."""
    term = _weighted(xhat, dy, T, ROUND)
    if ROUND:
        term = term.to(T).to(tl.float32)
    return term


@triton.jit
def _left(rows, first, ROWS: tl.constexpr):
    """How many rows of a tile exist, int32."""
    return tl.minimum(rows - first, ROWS).to(tl.int32)


@triton.jit
def _offsets(lane, cols, stride):
    """Elements from the tile's first, [ROWS, BLOCK]."""
    return (lane.to(tl.int64) * stride)[:, None] + cols[None, :]


@triton.jit
def _load(P, first, start, stride, lane, cols, inside):
    """A tile whose first element is [first, start], float32; zero outside."""
    at = P + (first * stride + start) + _offsets(lane, cols, stride)
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _load_sum(X, R, first, start, x_stride, r_stride, lane, cols, inside):
    """A tile of x, or of x + r rounded to x's dtype."""
    x = _load(X, first, start, x_stride, lane, cols, inside)
    if R is not None:
        x += _load(R, first, start, r_stride, lane, cols, inside)
        x = x.to(X.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def _load_weight(W, offset, start, cols, some):
    """w' [1, BLOCK], float32; `offset` outside."""
    return (tl.load(W + start + cols, mask=some, other=0.0).to(tl.float32) + offset)[None, :]


@triton.jit
def _store(P, values, first, start, hidden, lane, cols, inside):
    at = P + (first * hidden + start) + _offsets(lane, cols, hidden)
    tl.store(at, values.to(P.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "tiles"])
def forward_rows(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    tiles,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in tiles of BLOCK >= hidden columns: x is read once, the weight once a program."""
    T: tl.constexpr = Y.dtype.element_ty
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    some = cols < hidden
    if W is not None:
        w = _load_weight(W, offset, 0, cols, some)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        inside = here[:, None] & some[None, :]
        x = _load_sum(X, R, first, 0, x_stride, r_stride, lane, cols, inside)
        if R is not None:
            _store(S, x, first, 0, hidden, lane, cols, inside)
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / hidden + eps)
        if RSTD is not None:
            tl.store(RSTD + first + lane, rstd, mask=here)
        y = x * rstd[:, None]
        if W is not None:
            y = _weighted(y, w, T, ROUND)
        _store(Y, y, first, 0, hidden, lane, cols, inside)


@triton.jit(do_not_specialize=["rows", "tiles"])
def forward_columns(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    tiles,
    hidden,
    x_stride,
    r_stride,
    eps,
    offset,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of any width in chunks of BLOCK columns, walked twice: for rstd, then for y (and the sum)."""
    T: tl.constexpr = Y.dtype.element_ty
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        squares = tl.zeros([ROWS], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            inside = here[:, None] & (cols < hidden - start)[None, :]
            x = _load_sum(X, R, first, start, x_stride, r_stride, lane, cols, inside)
            if R is not None:
                _store(S, x, first, start, hidden, lane, cols, inside)
            squares += tl.sum(x * x, axis=1)
        rstd = 1.0 / tl.sqrt(squares / hidden + eps)
        if RSTD is not None:
            tl.store(RSTD + first + lane, rstd, mask=here)
        for start in range(0, hidden, BLOCK):
            some = cols < hidden - start
            inside = here[:, None] & some[None, :]
            if R is not None:
                x = _load(S, first, start, hidden, lane, cols, inside)
            else:
                x = _load(X, first, start, x_stride, lane, cols, inside)
            y = x * rstd[:, None]
            if W is not None:
                y = _weighted(y, _load_weight(W, offset, start, cols, some), T, ROUND)
            _store(Y, y, first, start, hidden, lane, cols, inside)


@triton.jit(do_not_specialize=["rows", "tiles"])
def backward_rows(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    rows,
    tiles,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx, and one float32 row of DW [programs, hidden] per program: its rows' share of dw, kept in the Unified Buffer
    until the last tile."""
    T: tl.constexpr = X.dtype.element_ty
    program = tl.program_id(0)
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    some = cols < hidden
    if W is not None:
        w = _load_weight(W, offset, 0, cols, some)
    dw = tl.zeros([BLOCK], dtype=tl.float32)
    for tile in range(program, tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        inside = here[:, None] & some[None, :]
        rstd = tl.load(RSTD + first + lane, mask=here, other=0.0)[:, None]
        xhat = _load(X, first, 0, x_stride, lane, cols, inside) * rstd
        dy = _load(DY, first, 0, dy_stride, lane, cols, inside)
        m = dy
        if W is not None:
            m = dy * w
        mean = tl.sum(m * xhat, axis=1) / hidden
        dx = (m - xhat * mean[:, None]) * rstd
        if DS is not None:
            dx += _load(DS, first, 0, ds_stride, lane, cols, inside)
        _store(DX, dx, first, 0, hidden, lane, cols, inside)
        if DW is not None:
            dw += tl.sum(_weight_term(dy, xhat, T, ROUND), axis=0)
    if DW is not None:
        tl.store(DW + tl.cast(program, tl.int64) * hidden + cols, dw, mask=some)


@triton.jit(do_not_specialize=["rows", "tiles"])
def backward_columns(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    rows,
    tiles,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of any width in chunks of BLOCK columns, walked twice: for mean(m * xhat), then for dx and for one float32
    row of DW [tiles, hidden] per tile, its rows' share of dw."""
    T: tl.constexpr = X.dtype.element_ty
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        rstd = tl.load(RSTD + first + lane, mask=here, other=0.0)[:, None]
        products = tl.zeros([ROWS], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            some = cols < hidden - start
            inside = here[:, None] & some[None, :]
            xhat = _load(X, first, start, x_stride, lane, cols, inside) * rstd
            m = _load(DY, first, start, dy_stride, lane, cols, inside)
            if W is not None:
                m = m * _load_weight(W, offset, start, cols, some)
            products += tl.sum(m * xhat, axis=1)
        mean = (products / hidden)[:, None]
        for start in range(0, hidden, BLOCK):
            some = cols < hidden - start
            inside = here[:, None] & some[None, :]
            xhat = _load(X, first, start, x_stride, lane, cols, inside) * rstd
            dy = _load(DY, first, start, dy_stride, lane, cols, inside)
            m = dy
            if W is not None:
                m = dy * _load_weight(W, offset, start, cols, some)
            dx = (m - xhat * mean) * rstd
            if DS is not None:
                dx += _load(DS, first, start, ds_stride, lane, cols, inside)
            _store(DX, dx, first, start, hidden, lane, cols, inside)
            if DW is not None:
                dw = tl.sum(_weight_term(dy, xhat, T, ROUND), axis=0)
                tl.store(DW + tl.cast(tile, tl.int64) * hidden + start + cols, dw, mask=some)


@triton.jit(do_not_specialize=["rows", "tasks"])
def sum_rows(P, DW, rows, tasks, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """DW [hidden] = the sum over the float32 rows of P [rows, hidden], one strip of BLOCK columns a task."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        start = task * BLOCK
        some = cols < hidden - start
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for row in range(0, rows, ROWS):
            first = tl.cast(row, tl.int64)
            here = lane < _left(rows, first, ROWS)
            total += tl.sum(_load(P, first, start, hidden, lane, cols, here[:, None] & some[None, :]), axis=0)
        tl.store(DW + start + cols, total.to(DW.dtype.element_ty), mask=some)
