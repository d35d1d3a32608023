"""RMS norm of rows that several programs share: forward and backward for rows that no multiprocessor can hold.

The formulas, and what is relied on, are told in `__init__.py`.  Beyond that:

* a row is PARTS parts of WIDTH columns, the last maybe fewer; a program has one part of a row in registers, a tile of
  BLOCK >= WIDTH columns.  Programs of one row are neighbours in the grid.
* what a part has of the row's sum it publishes in its word of SLOTS [rows, PARTS], int64 and 0 before the launch: 1 in
  the upper half, the float32 in the lower.  A word is written once, by one store of 8 bytes, so that who sees it sees
  the value too, and no fence is needed.  The words of a row are added up in an order that the launch alone decides.
* **nothing here can wait for ever**, in whatever order programs are started.  A program asks for the words of its row
  at most POLLS times; then it gives up on the others, reads the row itself, sums each part as its own program does, and
  goes on with what it finds.  Where programs start in the order of their numbers, as on every GPU that we know, those
  that are asked run, and none gives up that is not held up for long.  One that did has the right result, of the same
  operations in the same order; what the compiler makes of them may differ, and so may bits in the last place.
* hence DX must not be DY, unlike in the other kernels: who gives up reads parts that others may have overwritten.

One thread asks for one word, and what it found goes through a sum over all threads of the block: whether to give up is
one decision of the block, not one of each thread, so no barrier is met by some of them only.  LANES is the number of
threads of a block, at least PARTS.  SPIN asks in PTX; without it a loop around an atomic does, also in the interpreter.
"""

import triton
import triton.language as tl

from .tiles import _weight_term, _weighted
from .versions import gdc_launch_dependents, gdc_wait

#: $0: the word at $1, asked for up to $2 times until it is not 0; 0 where $2 is 0.
_ASK = tl.constexpr("""{
.reg .pred there, more;
.reg .b32 left;
mov.b64 $0, 0;
mov.b32 left, $2;
setp.eq.u32 there, left, 0;
@there bra done;
again:
ld.relaxed.gpu.global.b64 $0, [$1];
setp.ne.b64 there, $0, 0;
@there bra done;
sub.u32 left, left, 1;
setp.ne.u32 more, left, 0;
@more bra again;
done:
}""")


@triton.jit
def _part(part, hidden, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """(column numbers of a part, which of them exist)."""
    inside = tl.arange(0, BLOCK)
    cols = part * WIDTH + inside
    if WHOLE:
        exist = tl.full([BLOCK], 1, tl.int1)
    else:
        exist = (inside < WIDTH) & (cols < hidden)
    return cols, exist


@triton.jit
def _publish(SLOT, value, exists):
    """`value`, float32, becomes the word at SLOT, if it `exists`."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(SLOT, bits | (1 << 32), mask=exists, sem="relaxed")


@triton.jit
def _both(value, missing, other_value, other_missing):
    return value + other_value, missing + other_missing


@triton.jit
def _gathered(values, missing):
    """(the sum of the values [LANES], how many are missing), the same in every thread."""
    return tl.reduce((values, missing), 0, _both)


@triton.jit
def _meet(SLOTS, wanted, PARTS: tl.constexpr, LANES: tl.constexpr, POLLS: tl.constexpr, SPIN: tl.constexpr):
    """(the sum of the PARTS words at SLOTS, how many of them did not come); (0, 0) if it is not `wanted`."""
    lane = tl.arange(0, LANES)
    mine = (lane < PARTS) & wanted
    at = SLOTS + tl.where(mine, lane, 0)
    if SPIN:
        polls = tl.where(mine, POLLS, 0)
        words = tl.inline_asm_elementwise(
            _ASK, "=&l,l,r", [at.to(tl.int64), polls], dtype=tl.int64, is_pure=False, pack=1
        )
        value, missing = _of_words(words, mine)
    else:
        value, missing = _of_words(_words(at, mine), mine)
        polls = 1
        while (missing > 0) & (polls < POLLS):
            value, missing = _of_words(_words(at, mine), mine)
            polls += 1
    return value, missing


@triton.jit
def _words(at, mine):
    return tl.atomic_add(at, tl.zeros(at.shape, tl.int64), mask=mine, sem="relaxed")


@triton.jit
def _of_words(words, mine):
    there = mine & (words != 0)
    values = (words & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return _gathered(tl.where(there, values, 0.0), (mine & (words == 0)).to(tl.int32))


@triton.jit
def _taken(X, R, row, cols, exist, x_stride, r_stride, HINT: tl.constexpr):
    """x of a part of a row; with a residual their sum, rounded to x's dtype."""
    x = tl.load(X + row * x_stride + cols, mask=exist, other=0.0, eviction_policy=HINT)
    if R is not None:
        r = tl.load(R + row * r_stride + cols, mask=exist, other=0.0, eviction_policy=HINT)
        x = (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)
    return x


@triton.jit
def _packed(x, hidden, SPIN: tl.constexpr):
    """x as it is, on NVIDIA by way of `hidden` >> 31, which is 0: the compiler would keep the float32 that x was cast
    to, or 16 bits a register, twice the registers, if it could see that these are the same values."""
    if SPIN and x.dtype.primitive_bitwidth == 16:
        zero = tl.full(x.shape, 0, tl.int16) + (hidden >> 31).to(tl.int16)
        x = tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=x.dtype, is_pure=True, pack=2)
    return x


@triton.jit
def _squares(x):
    return tl.sum(x.to(tl.float32) * x.to(tl.float32), 0)


@triton.jit
def _squares_alone(
    X,
    R,
    row,
    hidden,
    x_stride,
    r_stride,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
):
    """The row's sum of squares, without the other programs."""
    lane = tl.arange(0, LANES)
    values = tl.zeros([LANES], tl.float32)
    for part in range(PARTS):
        cols, exist = _part(part, hidden, WIDTH, BLOCK, WHOLE)
        squares = _squares(_taken(X, R, row, cols, exist, x_stride, r_stride, ""))
        values = tl.where(lane == part, squares, values)
    value, _ = _gathered(values, tl.zeros([LANES], tl.int32))
    return value


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_split(
    X,
    R,
    W,
    Y,
    S,
    RSTD,
    SLOTS,
    rows,
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
    POLLS: tl.constexpr,
    SPIN: tl.constexpr,
    WEIGHT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A part of a row a program, in a grid of rows * PARTS.  WEIGHT says whether the weight is asked for "first", while
    the other parts are waited for, or "last"."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    r_stride = r_stride * ALIGN
    T: tl.constexpr = Y.dtype.element_ty
    row = tl.cast(tl.program_id(0) // PARTS, tl.int64)
    part = tl.program_id(0) % PARTS
    cols, exist = _part(part, hidden, WIDTH, BLOCK, WHOLE)
    if PDL:  # also for what cleared SLOTS
        gdc_wait()
    x = _taken(X, R, row, cols, exist, x_stride, r_stride, LOAD)
    _publish(SLOTS + row * PARTS + part, _squares(x), part >= 0)
    if S is not None:
        tl.store(S + row * hidden + cols, x, mask=exist, eviction_policy=STORE)
    if W is not None and WEIGHT == "first":
        w = tl.load(W + cols, mask=exist, other=0.0)
    squares, missing = _meet(SLOTS + row * PARTS, True, PARTS, LANES, POLLS, SPIN)
    if missing > 0:
        squares = _squares_alone(X, R, row, hidden, x_stride, r_stride, PARTS, WIDTH, BLOCK, WHOLE, LANES)
        x = _taken(X, R, row, cols, exist, x_stride, r_stride, "")  # held meanwhile, it would double the registers
    rstd = tl.rsqrt(squares / hidden + eps)
    if RSTD is not None:
        tl.store(RSTD + row, rstd, mask=part == 0)
    y = x.to(tl.float32) * rstd
    if W is not None:
        if WEIGHT == "last":
            w = tl.load(W + cols, mask=exist, other=0.0)
        y = _weighted(y, w.to(tl.float32) + offset, T, ROUND)
    tl.store(Y + row * hidden + cols, y.to(T), mask=exist, eviction_policy=STORE)


@triton.jit
def _weight(W, cols, exist):
    """The weight of a part as it is, None where there is none."""
    w = None
    if W is not None:
        w = tl.load(W + cols, mask=exist, other=0.0, eviction_policy="evict_last")
    return w


@triton.jit
def _finish(
    DX, DS, x, dy, w, rstd, mean, row, cols, exist, hidden, ds_stride, offset, ROUND: tl.constexpr, STORE: tl.constexpr
):
    """dx of a part of a row, stored; gives the row's share of its dw.  w is None where there is no weight."""
    xhat = x.to(tl.float32) * rstd
    dy = dy.to(tl.float32)
    m = dy
    if w is not None:
        m = dy * (w.to(tl.float32) + offset)
    dx = rstd * (m - xhat * mean)
    if DS is not None:
        dx += tl.load(DS + row * ds_stride + cols, mask=exist, other=0.0).to(tl.float32)
    tl.store(DX + row * hidden + cols, dx.to(DX.dtype.element_ty), mask=exist, eviction_policy=STORE)
    return _weight_term(dy, xhat, x.dtype, ROUND)


@triton.jit
def _product(x, dy, w, rstd, offset):
    """A part's share of sum(m * xhat)."""
    m = dy.to(tl.float32)
    if w is not None:
        m = m * (w.to(tl.float32) + offset)
    return tl.sum(m * (x.to(tl.float32) * rstd), 0)


@triton.jit
def _products_alone(
    DY,
    X,
    W,
    rstd,
    row,
    hidden,
    dy_stride,
    x_stride,
    offset,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
):
    """The row's sum of m * xhat, without the other programs."""
    lane = tl.arange(0, LANES)
    values = tl.zeros([LANES], tl.float32)
    for part in range(PARTS):
        cols, exist = _part(part, hidden, WIDTH, BLOCK, WHOLE)
        x = tl.load(X + row * x_stride + cols, mask=exist, other=0.0)
        dy = tl.load(DY + row * dy_stride + cols, mask=exist, other=0.0)
        w = _weight(W, cols, exist)
        values = tl.where(lane == part, _product(x, dy, w, rstd, offset), values)
    value, _ = _gathered(values, tl.zeros([LANES], tl.int32))
    return value


@triton.jit(do_not_specialize=["rows", "groups", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_split(
    DY,
    DS,
    X,
    W,
    RSTD,
    DX,
    DW,
    SLOTS,
    rows,
    groups,
    hidden,
    dy_stride,
    ds_stride,
    x_stride,
    offset,
    ROUND: tl.constexpr,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    LANES: tl.constexpr,
    POLLS: tl.constexpr,
    SPIN: tl.constexpr,
    STAGES: tl.constexpr,
    LATER: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """PARTS programs are a group, in a grid of groups * PARTS; a group takes the rows `id`, `id` + groups, ..., and a
    program keeps the dw of its part, and the weight, in registers.  One float32 row of DW [groups, hidden] a group.

    LATER: a row is summed and published in one turn and finished in the next, x and dy still in registers, so that the
    words of the others have a turn's time to come.  Else all in one turn, and registers for wider parts.  Later rows
    are on their way meanwhile (STAGES).  A program that gives up computes all its rows once more, alone: so the loop
    needs no branch, and is pipelined.
    """
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    part = tl.program_id(0) % PARTS
    group = tl.program_id(0) // PARTS
    cols, exist = _part(part, hidden, WIDTH, BLOCK, WHOLE)
    if PDL:  # also for what cleared SLOTS
        gdc_wait()
    w = _weight(W, cols, exist)
    if W is not None:
        w = _packed(w, hidden, SPIN)
    dw = tl.zeros([BLOCK], tl.float32)
    if LATER:
        x_before = tl.zeros([BLOCK], X.dtype.element_ty)
        dy_before = tl.zeros([BLOCK], DY.dtype.element_ty)
        rstd_before = 0.0
    gave_up = 0
    last = rows
    if LATER:  # one more turn than there are rows
        last = rows + groups
    for turn in tl.range(group, last, groups, num_stages=STAGES):
        row = tl.cast(turn, tl.int64)
        live = row < rows
        x = tl.load(X + row * x_stride + cols, mask=exist & live, other=0.0, eviction_policy=LOAD)
        dy = tl.load(DY + row * dy_stride + cols, mask=exist & live, other=0.0, eviction_policy=LOAD)
        rstd = tl.load(RSTD + row, mask=live, other=0.0)
        _publish(SLOTS + row * PARTS + part, _product(x, dy, w, rstd, offset), live)
        x = _packed(x, hidden, SPIN)
        dy = _packed(dy, hidden, SPIN)
        if LATER:
            row = row - groups
            live = row >= 0
        products, missing = _meet(SLOTS + row * PARTS, live & (gave_up == 0), PARTS, LANES, POLLS, SPIN)
        gave_up += missing
        if LATER:
            dw_row = _finish(
                DX,
                DS,
                x_before,
                dy_before,
                w,
                rstd_before,
                products / hidden,
                row,
                cols,
                exist & live,
                hidden,
                ds_stride,
                offset,
                ROUND,
                STORE,
            )
            x_before = x
            dy_before = dy
            rstd_before = rstd
        else:
            dw_row = _finish(
                DX, DS, x, dy, w, rstd, products / hidden, row, cols, exist, hidden, ds_stride, offset, ROUND, STORE
            )
        if DW is not None:
            dw += dw_row
    if gave_up > 0:
        dw = tl.zeros([BLOCK], tl.float32)
        for turn in range(group, rows, groups):
            row = tl.cast(turn, tl.int64)
            rstd = tl.load(RSTD + row)
            products = _products_alone(
                DY, X, W, rstd, row, hidden, dy_stride, x_stride, offset, PARTS, WIDTH, BLOCK, WHOLE, LANES
            )
            x = tl.load(X + row * x_stride + cols, mask=exist, other=0.0)
            dy = tl.load(DY + row * dy_stride + cols, mask=exist, other=0.0)
            dw_row = _finish(
                DX, DS, x, dy, w, rstd, products / hidden, row, cols, exist, hidden, ds_stride, offset, ROUND, STORE
            )
            if DW is not None:
                dw += dw_row
    if PDL:
        gdc_launch_dependents()
    if DW is not None:
        tl.store(DW + tl.cast(group, tl.int64) * hidden + cols, dw, mask=exist)
