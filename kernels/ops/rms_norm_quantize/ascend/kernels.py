"""RMS norm and quantisation to int8 in Triton for Ascend's vector cores.

The formulas are told in ../gpu/__init__.py, and what the kernels rely on in rms_norm/ascend/kernels.py.  Three things
differ: q is rounded by adding 1.5 * 2^23 and taking it away again; magnitudes are compared as float32, so a NaN of x is
found by the row's 1/rms, but one of the weight alone need not reach the scale; and a group of 128 columns is a row of
the tile seen as [ROWS * BLOCK / 128, 128].
"""

import triton
import triton.language as tl

from ...rms_norm.ascend.kernels import _left, _load, _load_sum, _load_weight, _offsets, _store


@triton.jit
def _rounded(v):
    return (v + 12582912.0) - 12582912.0


@triton.jit
def _narrowed(v, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """v rounded, as int8.  Cast as rows of 32 elements: the compiler pads the rows of what it casts to 32, and of a
    wide tile of few rows the Unified Buffer would not hold that."""
    v = _rounded(v)
    if ROWS >= 32:
        q = v.to(tl.int8)
    else:
        q = tl.reshape(tl.reshape(v, (ROWS * BLOCK // 32, 32)).to(tl.int8), (ROWS, BLOCK))
    return q


@triton.jit
def _scale(largest, rstd, LARGEST: tl.constexpr):
    """(scale, factor, shift); see ../gpu/kernels.py."""
    scale = largest * rstd / LARGEST
    usable = (scale > 0.0) & (scale < float("inf")) & (largest < float("inf"))
    shift = tl.where(largest < 8.673617379884035e-19, 18446744073709551616.0, 1.0)
    factor = tl.where(usable, LARGEST / tl.where(usable, largest * shift, 1.0), 0.0)
    return scale, factor, shift


@triton.jit
def _quantized(
    t,
    rstd,
    largest,
    SCALE,
    GIVEN,
    first,
    start,
    hidden,
    lane,
    here,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """q of a tile, int8; stores the scales of its groups of 128.  rstd, and `largest` of a row, are [ROWS]."""
    if GIVEN is not None:
        v = t * (rstd / tl.load(GIVEN))[:, None]
        v = tl.minimum(tl.maximum(v, LOWEST), LARGEST)
        q = _narrowed(tl.where(v == v, v, 0.0), ROWS, BLOCK)
    elif GROUP == 128:
        WIDE: tl.constexpr = BLOCK // 128
        groups = tl.reshape(t, (ROWS * WIDE, 128))
        most = tl.max(tl.abs(groups), axis=1)
        each = tl.reshape(tl.broadcast_to(rstd[:, None], (ROWS, WIDE)), (ROWS * WIDE,))
        scale, factor, shift = _scale(most, each, LARGEST)
        count = hidden // 128
        at = start // 128 + tl.arange(0, WIDE)
        places = SCALE + (lane.to(tl.int64) + first)[:, None] * count + at[None, :]
        tl.store(places, tl.reshape(scale, (ROWS, WIDE)), mask=here[:, None] & (at < count)[None, :])
        v = tl.where(factor[:, None] > 0.0, groups * shift[:, None] * factor[:, None], 0.0)
        q = tl.reshape(_rounded(v).to(tl.int8), (ROWS, BLOCK))
    else:
        _, factor, shift = _scale(largest, rstd, LARGEST)
        v = tl.where(factor[:, None] > 0.0, t * shift[:, None] * factor[:, None], 0.0)
        q = _narrowed(v, ROWS, BLOCK)
    return q


@triton.jit(do_not_specialize=["rows", "tiles"])
def quantize_rows(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    rows,
    tiles,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whole rows in tiles of BLOCK >= hidden columns: x is read once, the weight once a program."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    some = cols < hidden
    if W is not None:
        w = _load_weight(W, 0.0, 0, cols, some)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        inside = here[:, None] & some[None, :]
        x = _load_sum(X, R, first, 0, x_stride, r_stride, lane, cols, inside)
        if R is not None:
            _store(S, x, first, 0, hidden, lane, cols, inside)
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / hidden + eps)
        t = x
        if W is not None:
            t = x * w
        largest = rstd
        if GIVEN is None and GROUP == 0:
            largest = tl.max(tl.abs(t), axis=1)
            scale, _, _ = _scale(largest, rstd, LARGEST)
            tl.store(SCALE + first + lane, scale, mask=here)
        q = _quantized(
            t, rstd, largest, SCALE, GIVEN, first, 0, hidden, lane, here, GROUP, LOWEST, LARGEST, ROWS, BLOCK
        )
        tl.store(Q + (first * hidden + 0) + _offsets(lane, cols, hidden), q, mask=inside)


@triton.jit(do_not_specialize=["rows", "tiles"])
def quantize_columns(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    rows,
    tiles,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of any width in chunks of BLOCK columns, walked twice: for rstd and the largest |t|, then for q."""
    lane = tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * ROWS
        here = lane < _left(rows, first, ROWS)
        squares = tl.zeros([ROWS], dtype=tl.float32)
        largest = tl.zeros([ROWS], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            some = cols < hidden - start
            inside = here[:, None] & some[None, :]
            x = _load_sum(X, R, first, start, x_stride, r_stride, lane, cols, inside)
            if R is not None:
                _store(S, x, first, start, hidden, lane, cols, inside)
            squares += tl.sum(x * x, axis=1)
            if GIVEN is None and GROUP == 0:
                t = x
                if W is not None:
                    t = x * _load_weight(W, 0.0, start, cols, some)
                largest = tl.maximum(largest, tl.max(tl.abs(t), axis=1))
        rstd = 1.0 / tl.sqrt(squares / hidden + eps)
        if GIVEN is None and GROUP == 0:
            scale, _, _ = _scale(largest, rstd, LARGEST)
            tl.store(SCALE + first + lane, scale, mask=here)
        for start in range(0, hidden, BLOCK):
            some = cols < hidden - start
            inside = here[:, None] & some[None, :]
            if R is not None:
                x = _load(S, first, start, hidden, lane, cols, inside)
            else:
                x = _load(X, first, start, x_stride, lane, cols, inside)
            t = x
            if W is not None:
                t = x * _load_weight(W, 0.0, start, cols, some)
            q = _quantized(
                t, rstd, largest, SCALE, GIVEN, first, start, hidden, lane, here, GROUP, LOWEST, LARGEST, ROWS, BLOCK
            )
            tl.store(Q + (first * hidden + start) + _offsets(lane, cols, hidden), q, mask=inside)
