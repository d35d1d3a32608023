"""RMS norm over dense rows whose width is no multiple of 16 bytes, in whole 16-byte vectors: forward and backward.

What is computed, and how it is rounded, is told in `__init__.py`; its rules and those of `tiles.py` hold here but for
these:

* every rows x hidden tensor is dense and begins at a multiple of 16 bytes: no row strides come with them.  So what is
  true of one is true of all, and whole tensors are seen as vectors of V = 16 / (bytes an element) elements.
* row r begins at element r * hidden.  Its *body* are the whole vectors in it, elements
  [ceil(r * hidden / V) * V, floor((r + 1) * hidden / V) * V).  Both ends are multiples of V and lie at most hidden
  apart, so a body has at most hidden // V * V columns: 4,095, 4,096 and 4,097 columns of 16 bits all fit a tile of
  4,096.  At most V - 1 elements before it and V - 1 after it are the row's *edges*: one small tile of 2 * V columns,
  V for those before, V for those after, each loaded by itself.
* the compiler has to see this: body addresses are written as V times something, and a body mask compares columns with
  V times something, so V neighbours are masked alike.
* where a row's body begins depends on r modulo PERIOD = V / gcd(hidden, V) alone.  A tile's rows lie PERIOD rows apart,
  and all tiles of a program have one residue (a grid is a multiple of PERIOD, or has a program for every tile): so the
  weight's columns, and those of dw, are the same for all that a program does.
* with STAGES > 1 bodies are fetched ahead into shared memory.  That takes loads of at least 4 bytes, so what the next
  tile needs of edges and of rstd is asked for a turn ahead and waits in registers.
"""

import triton
import triton.language as tl

from .tiles import (
    _columns,
    _groups,
    _load_weight,
    _over_rows,
    _sum_of_rows,
    _sum_over_rows,
    _weight_term,
    _weighted,
    _zeros,
)
from .versions import gdc_launch_dependents, gdc_wait


@triton.jit
def _body(residue, hidden, V: tl.constexpr):
    """(columns before the body, columns in it) of a row whose number leaves `residue`.  A row inside one vector has a
    body of -V columns, which no mask lets through."""
    start = residue * hidden
    first = (start + V - 1) // V
    return first * V - start, ((start + hidden) // V - first) * V


@triton.jit
def _edges(head, body, hidden, V: tl.constexpr):
    """(column numbers, which of them exist) of a row's edges, as a tile of one row."""
    at = tl.arange(0, 2 * V)[None, None, :]
    before = at < V
    cols = tl.where(before, at, head + body + at - V)
    exist = (before & (at < head)) | ((at >= V) & (body >= 0))
    return cols, exist & (cols < hidden)


@triton.jit
def _tiles(rows, PERIOD: tl.constexpr, ROWS: tl.constexpr):
    """How many tiles cover the rows; of several rows, some residues' last may be empty."""
    if ROWS == 1:
        tiles = rows
    else:
        tiles = _groups(rows, ROWS * PERIOD) * PERIOD
    return tiles


@triton.jit
def _place(group, hidden, V: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr):
    """(first row, where its body begins) of a tile, both int64; the latter a multiple of V."""
    turn = tl.cast(group // PERIOD, tl.int64) * ROWS
    residue = group % PERIOD
    vectors = hidden // (V // PERIOD)  # in PERIOD rows
    return turn * PERIOD + residue, (turn * vectors + (residue * hidden + V - 1) // V) * V


@triton.jit
def _exist(first, rows, PERIOD: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """Which rows of a tile exist, as a tile of one column.  EVEN: all do."""
    tile = _over_rows(tl.arange(0, ROWS)) * PERIOD
    if EVEN:
        exist = tl.full(tile.shape, 1, tl.int1)
    else:
        exist = first + tile < rows
    return exist


@triton.jit
def _steps(hidden, V: tl.constexpr, PERIOD: tl.constexpr, ROWS: tl.constexpr):
    """Elements from a tile's first row to each of its rows, as a tile of one column; multiples of V."""
    return _over_rows(tl.arange(0, ROWS)) * (hidden // (V // PERIOD) * V)


@triton.jit
def _row_sums(values, ROWS: tl.constexpr):
    """A tile -> [ROWS]; of one row a scalar.  That has no layout: to meet sums of another layout, the compiler would
    load the edges in that one too, eight elements a thread."""
    if ROWS == 1:
        sums = tl.sum(tl.sum(tl.sum(values, 0), 0), 0)
    else:
        sums = _sum_of_rows(values)
    return sums


@triton.jit
def _spread(sums, ROWS: tl.constexpr):
    """[ROWS], or a scalar, as what meets a tile."""
    if ROWS == 1:
        tile = sums
    else:
        tile = _over_rows(sums)
    return tile


@triton.jit
def _per_row(P, first, rows, PERIOD: tl.constexpr, ROWS: tl.constexpr):
    """A tile's rows of a float32 vector [rows], as `_row_sums` has them."""
    if ROWS == 1:
        values = tl.load(P + first, mask=first < rows, other=0.0)
    else:
        at = first + tl.arange(0, ROWS) * PERIOD
        values = tl.load(P + at, mask=at < rows, other=0.0)
    return values


@triton.jit
def _store_per_row(P, values, first, rows, PERIOD: tl.constexpr, ROWS: tl.constexpr):
    if ROWS == 1:
        tl.store(P + first, values)
    else:
        at = first + tl.arange(0, ROWS) * PERIOD
        tl.store(P + at, values, mask=at < rows)


@triton.jit
def _total(x, R, r, S, start, inner, inside):
    """x in float32; with a residual their sum, rounded to x's dtype, which is stored in S."""
    if R is not None:
        x = (x.to(tl.float32) + r.to(tl.float32)).to(S.dtype.element_ty)
        tl.store(S + start + inner, x, mask=inside)
    return x.to(tl.float32)


@triton.jit
def _store_y(Y, x, rstd, W, w, start, inner, inside, ROUND: tl.constexpr, STORE: tl.constexpr):
    T: tl.constexpr = Y.dtype.element_ty
    y = x * rstd
    if W is not None:
        y = _weighted(y, w, T, ROUND)
    tl.store(Y + start + inner, y.to(T), mask=inside, eviction_policy=STORE)


@triton.jit
def _load(P, start, inner, inside, HINT: tl.constexpr):
    return tl.load(P + start + inner, mask=inside, other=0.0, eviction_policy=HINT)


@triton.jit(do_not_specialize=["rows", "hidden"])
def forward_unaligned(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    rows,
    hidden,
    eps,
    offset,
    ROUND: tl.constexpr,
    PERIOD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    EVEN: tl.constexpr,
    SPREAD: tl.constexpr,
    WEIGHT: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Tiles of whole rows, one a program or many.  BLOCK >= hidden // V * V.

    WEIGHT: "first" asks for it before all rows, and keeps it; "last" for each tile when that is summed.
    """
    V: tl.constexpr = 128 // X.dtype.element_ty.primitive_bitwidth
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    head, body = _body(program % PERIOD, hidden, V)
    cols, col_exists = _columns(0, body, BLOCK, SPAN, False)
    edge_cols, edge_exists = _edges(head, body, hidden, V)
    steps = _steps(hidden, V, PERIOD, ROWS)
    inner = steps + cols
    edge_inner = steps + edge_cols
    if PDL:
        gdc_wait()
    if W is not None and WEIGHT == "first":
        w = _load_weight(W + head, cols, col_exists, steps, offset, SPREAD, "")
        edge_w = _load_weight(W, edge_cols, edge_exists, steps, offset, False, "")
    if STAGES > 1:
        first, start = _place(program, hidden, V, PERIOD, ROWS)
        edge_inside = _exist(first, rows, PERIOD, ROWS, False) & edge_exists
        next_x = _load(X, start - head, edge_inner, edge_inside, LOAD)
        if R is not None:
            next_r = _load(R, start - head, edge_inner, edge_inside, LOAD)
    for group in tl.range(program, _tiles(rows, PERIOD, ROWS), programs, num_stages=STAGES):
        first, start = _place(group, hidden, V, PERIOD, ROWS)
        exist = _exist(first, rows, PERIOD, ROWS, EVEN)
        inside = exist & col_exists
        edge_inside = exist & edge_exists
        x = _load(X, start, inner, inside, LOAD)
        r = x
        if R is not None:
            r = _load(R, start, inner, inside, LOAD)
        if STAGES > 1:
            edge_x = next_x
            edge_r = next_x
            ahead, ahead_start = _place(tl.cast(group, tl.int64) + programs, hidden, V, PERIOD, ROWS)
            ahead_inside = _exist(ahead, rows, PERIOD, ROWS, False) & edge_exists
            next_x = _load(X, ahead_start - head, edge_inner, ahead_inside, LOAD)
            if R is not None:
                edge_r = next_r
                next_r = _load(R, ahead_start - head, edge_inner, ahead_inside, LOAD)
        else:
            edge_x = _load(X, start - head, edge_inner, edge_inside, LOAD)
            edge_r = edge_x
            if R is not None:
                edge_r = _load(R, start - head, edge_inner, edge_inside, LOAD)
        x = _total(x, R, r, S, start, inner, inside)
        edge_x = _total(edge_x, R, edge_r, S, start - head, edge_inner, edge_inside)
        squares = _row_sums(x * x, ROWS) + _row_sums(edge_x * edge_x, ROWS)
        rstd = tl.rsqrt(squares / hidden + eps)
        if RSTD is not None:
            _store_per_row(RSTD, rstd, first, rows, PERIOD, ROWS)
        rstd = _spread(rstd, ROWS)
        if W is None:
            w = x
            edge_w = edge_x
        elif WEIGHT == "last":
            w = _load_weight(W + head, cols, col_exists, steps, offset, SPREAD, "evict_last")
            edge_w = _load_weight(W, edge_cols, edge_exists, steps, offset, False, "evict_last")
        _store_y(Y, x, rstd, W, w, start, inner, inside, ROUND, STORE)
        _store_y(Y, edge_x, rstd, W, edge_w, start - head, edge_inner, edge_inside, ROUND, STORE)


@triton.jit
def _store_dx(DX, DS, ds, xhat, m, rstd, mean, start, inner, inside, STORE: tl.constexpr):
    dx = rstd * (m - xhat * mean)
    if DS is not None:
        dx += ds.to(tl.float32)
    tl.store(DX + start + inner, dx.to(DX.dtype.element_ty), mask=inside, eviction_policy=STORE)


@triton.jit(do_not_specialize=["rows", "hidden"])
def backward_unaligned(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    rows,
    hidden,
    offset,
    ROUND: tl.constexpr,
    PERIOD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    EVEN: tl.constexpr,
    SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
    HOLD: tl.constexpr,
    FOLD: tl.constexpr,
    PDL: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """Tiles of whole rows, many a program: dx, and one float32 row of DW [programs, hidden] per program.
    BLOCK >= hidden // V * V; HOLD, FOLD and PDL as in `backward_rows`."""
    V: tl.constexpr = 128 // X.dtype.element_ty.primitive_bitwidth
    T: tl.constexpr = X.dtype.element_ty
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    head, body = _body(program % PERIOD, hidden, V)
    cols, col_exists = _columns(0, body, BLOCK, SPAN, False)
    edge_cols, edge_exists = _edges(head, body, hidden, V)
    steps = _steps(hidden, V, PERIOD, ROWS)
    inner = steps + cols
    edge_inner = steps + edge_cols
    if PDL:
        gdc_wait()
    if W is not None and HOLD:
        w = _load_weight(W + head, cols, col_exists, steps, offset, SPREAD, "")
        edge_w = _load_weight(W, edge_cols, edge_exists, steps, offset, False, "")
    if DW is not None:
        dw = _zeros(1 if FOLD else ROWS, BLOCK // SPAN, SPAN)
        edge_dw = _zeros(1 if FOLD else ROWS, 1, 2 * V)
    if STAGES > 1:
        first, start = _place(program, hidden, V, PERIOD, ROWS)
        edge_inside = _exist(first, rows, PERIOD, ROWS, False) & edge_exists
        next_rstd = _per_row(RSTD, first, rows, PERIOD, ROWS)
        next_x = _load(X, start - head, edge_inner, edge_inside, LOAD)
        next_dy = _load(DY, start - head, edge_inner, edge_inside, LOAD)
        if DS is not None:
            next_ds = _load(DS, start - head, edge_inner, edge_inside, LOAD)
    for group in tl.range(program, _tiles(rows, PERIOD, ROWS), programs, num_stages=STAGES):
        first, start = _place(group, hidden, V, PERIOD, ROWS)
        exist = _exist(first, rows, PERIOD, ROWS, EVEN)
        inside = exist & col_exists
        edge_inside = exist & edge_exists
        x = _load(X, start, inner, inside, LOAD)
        dy = _load(DY, start, inner, inside, LOAD).to(tl.float32)
        ds = x
        if DS is not None:
            ds = _load(DS, start, inner, inside, LOAD)
        if STAGES > 1:
            rstd = next_rstd
            edge_x = next_x
            edge_dy = next_dy.to(tl.float32)
            edge_ds = next_x
            ahead, ahead_start = _place(tl.cast(group, tl.int64) + programs, hidden, V, PERIOD, ROWS)
            ahead_inside = _exist(ahead, rows, PERIOD, ROWS, False) & edge_exists
            next_rstd = _per_row(RSTD, ahead, rows, PERIOD, ROWS)
            next_x = _load(X, ahead_start - head, edge_inner, ahead_inside, LOAD)
            next_dy = _load(DY, ahead_start - head, edge_inner, ahead_inside, LOAD)
            if DS is not None:
                edge_ds = next_ds
                next_ds = _load(DS, ahead_start - head, edge_inner, ahead_inside, LOAD)
        else:
            rstd = _per_row(RSTD, first, rows, PERIOD, ROWS)
            edge_x = _load(X, start - head, edge_inner, edge_inside, LOAD)
            edge_dy = _load(DY, start - head, edge_inner, edge_inside, LOAD).to(tl.float32)
            edge_ds = edge_x
            if DS is not None:
                edge_ds = _load(DS, start - head, edge_inner, edge_inside, LOAD)
        rstd = _spread(rstd, ROWS)
        xhat = x.to(tl.float32) * rstd
        edge_xhat = edge_x.to(tl.float32) * rstd
        m = dy
        edge_m = edge_dy
        if W is not None:
            if not HOLD:
                w = _load_weight(W + head, cols, col_exists, steps, offset, SPREAD, "evict_last")
                edge_w = _load_weight(W, edge_cols, edge_exists, steps, offset, False, "evict_last")
            m = dy * w
            edge_m = edge_dy * edge_w
        mean = _spread((_row_sums(m * xhat, ROWS) + _row_sums(edge_m * edge_xhat, ROWS)) / hidden, ROWS)
        _store_dx(DX, DS, ds, xhat, m, rstd, mean, start, inner, inside, STORE)
        _store_dx(DX, DS, edge_ds, edge_xhat, edge_m, rstd, mean, start - head, edge_inner, edge_inside, STORE)
        if DW is not None:
            term = _weight_term(dy, xhat, T, ROUND)
            edge_term = _weight_term(edge_dy, edge_xhat, T, ROUND)
            if FOLD:
                dw += _sum_over_rows(term)
                edge_dw += _sum_over_rows(edge_term)
            else:
                dw += term
                edge_dw += edge_term
    if PDL:
        gdc_launch_dependents()
    if DW is not None:
        if not FOLD:
            dw = _sum_over_rows(dw)
            edge_dw = _sum_over_rows(edge_dw)
        mine = DW + tl.cast(program, tl.int64) * hidden
        tl.store(mine + head + cols, dw, mask=col_exists)
        tl.store(mine + edge_cols, edge_dw, mask=edge_exists)
