"""The kernels: x, or x + residual, to q, its scales, and the sum.  Formulas and what is relied on: `__init__.py`."""

import triton
import triton.language as tl

from ...rms_norm.gpu.forward import _summed
from ...rms_norm.gpu.tiles import (
    REP_AXIS,
    ROW_AXIS,
    _columns,
    _groups,
    _load_weight,
    _over_rows,
    _rows,
    _sum_of_rows,
    _to_rows,
    _zeros,
)
from ...rms_norm.gpu.versions import gdc_wait


@triton.jit
def _magnitudes(t):
    """The bits of |t|, int32: ordered as the magnitudes are, NaN last."""
    return t.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _float8(v, FNUZ: tl.constexpr):
    """The codes of float8_e4m3fn or float8_e4m3fnuz, int32: rounded half to even, for |v| that rounds to no more than
    the largest value.  Below the smallest normal number the codes count units of 2^-9 (fnuz: 2^-10), the unit in the
    last place of the number that is added."""
    REBIAS: tl.constexpr = 952 if FNUZ else 960
    SMALLEST: tl.constexpr = 0.0078125 if FNUZ else 0.015625
    ADDED: tl.constexpr = 8192.0 if FNUZ else 16384.0
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - REBIAS
    tiny = (tl.abs(v) + ADDED).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size.to(tl.float32, bitcast=True) < SMALLEST, tiny, normal)
    sign = (bits >> 24) & 0x80
    if FNUZ:  # no negative zero: its code is NaN
        code = tl.where(code == 0, 0, code | sign)
        code = tl.where(v != v, 0x80, code)
    else:
        code = tl.where(v != v, 0x7F, code) | sign
    return code


@triton.jit
def _stored(v, CODE: tl.constexpr):
    """v as the bits of q's dtype; see formats.py.  Of int8 the low byte of v + 1.5 * 2^23 is v, rounded."""
    if CODE == "int8":
        q = (v + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    elif CODE == "fp8e4nv":
        q = v.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    elif CODE == "fp8e4b8":
        q = v.to(tl.float8e4b8).to(tl.uint8, bitcast=True)
    else:
        q = _float8(v, CODE == "e4m3fnuz").to(tl.uint8)
    return q


@triton.jit
def _scale(peak, rstd, LARGEST: tl.constexpr):
    """(scale, factor, shift) of groups whose largest |t| has the bits `peak`: q = t * shift * factor; factor 0 says
    that q is 0 whatever t is."""
    largest = peak.to(tl.float32, bitcast=True)
    scale = largest * rstd / LARGEST
    usable = (scale > 0.0) & (scale < float("inf")) & (largest < float("inf"))
    shift = tl.where(largest < 8.673617379884035e-19, 18446744073709551616.0, 1.0)
    factor = tl.where(usable, LARGEST / tl.where(usable, largest * shift, 1.0), 0.0)
    return scale, factor, shift


@triton.jit
def _dynamic(t, factor, shift, CODE: tl.constexpr):
    return _stored(tl.where(factor > 0.0, t * shift * factor, 0.0), CODE)


@triton.jit
def _given(t, factor, LOWEST: tl.constexpr, LARGEST: tl.constexpr, CODE: tl.constexpr):
    """q with a scale that was given: factor is rstd / scale, of each row."""
    v = t * factor
    held = tl.minimum(tl.maximum(v, LOWEST), LARGEST)
    if CODE == "int8":
        held = tl.where(v == v, held, 0.0)
    else:
        held = tl.where(v == v, held, v)
    return _stored(held, CODE)


@triton.jit
def _group_columns(start, REP: tl.constexpr):
    """The numbers of a tile's groups of 128 columns, as a tile of one row and one column."""
    return start // 128 + tl.expand_dims(tl.expand_dims(tl.arange(0, REP), ROW_AXIS), 2)


@triton.jit
def _store_groups(SCALE, scale, first, tile, row_exists, start, hidden, REP: tl.constexpr):
    """The scales of a tile's groups into [rows, hidden / 128]."""
    count = hidden // 128
    at = _group_columns(start, REP)
    tl.store(SCALE + first * count + tile * count + at, scale, mask=row_exists & (at < count))


@triton.jit
def _quantize(
    t,
    rstd,
    peak,
    Q,
    SCALE,
    GIVEN,
    first,
    tile,
    row_exists,
    start,
    cols,
    inside,
    hidden,
    GROUP: tl.constexpr,
    REP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Stores q of one tile, and the scales of its groups of 128.  `rstd`, and `peak` of whole rows, are [ROWS]."""
    if GIVEN is not None:
        q = _given(t, _over_rows(rstd / tl.load(GIVEN)), LOWEST, LARGEST, CODE)
    elif GROUP == 128:
        most = tl.expand_dims(tl.max(_magnitudes(t), 2), 2)
        scale, factor, shift = _scale(most, _over_rows(rstd), LARGEST)
        _store_groups(SCALE, scale, first, tile, row_exists, start, hidden, REP)
        q = _dynamic(t, factor, shift, CODE)
    else:
        scale, factor, shift = _scale(peak, rstd, LARGEST)
        q = _dynamic(t, _over_rows(factor), _over_rows(shift), CODE)
    tl.store(Q + first * hidden + tile * hidden + cols, q, mask=inside, eviction_policy=STORE)


@triton.jit
def _times_weight(x, W, held, cols, exist, tile, HELD: tl.constexpr):
    t = x
    if HELD:
        if held is not None:
            t = x * held
    elif W is not None:
        t = x * _load_weight(W, cols, exist, tile, 0.0, False, "")
    return t


@triton.jit
def _peak_of_rows(t):
    """A tile -> [ROWS]."""
    return tl.max(tl.max(_magnitudes(t), REP_AXIS), 1)


@triton.jit
def _quantize_rows(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    held,
    group,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TAIL: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    HELD: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
):
    """One tile of whole rows; TAIL > 0 columns follow the first BLOCK in a second, smaller one."""
    first = tl.cast(group, tl.int64) * ROWS
    tile, row_exists = _rows(first, rows, ROWS, EVEN)
    cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE or TAIL > 0)
    inside = row_exists & col_exists
    x = _summed(X, R, S, first, tile, cols, inside, hidden, x_stride, r_stride, LOAD)
    squares = _sum_of_rows(x * x)
    t = _times_weight(x, W, held, cols, col_exists, tile, HELD)
    TAIL_SPAN: tl.constexpr = 128 if GROUP == 128 else TAIL
    if TAIL > 0:
        tail_cols, tail_exists = _columns(BLOCK, hidden, TAIL, TAIL_SPAN, WHOLE)
        tail_inside = row_exists & tail_exists
        x = _summed(X, R, S, first, tile, tail_cols, tail_inside, hidden, x_stride, r_stride, LOAD)
        squares += _sum_of_rows(x * x)
        tail = _times_weight(x, W, None, tail_cols, tail_exists, tile, False)
    rstd = tl.rsqrt(squares / hidden + eps)
    peak = None
    if GIVEN is None and GROUP == 0:
        peak = _peak_of_rows(t)
        if TAIL > 0:
            peak = tl.maximum(peak, _peak_of_rows(tail))
        scale, _, _ = _scale(peak, rstd, LARGEST)
        _to_rows(SCALE, scale, first, rows, ROWS, EVEN)
    _quantize(
        t,
        rstd,
        peak,
        Q,
        SCALE,
        GIVEN,
        first,
        tile,
        row_exists,
        0,
        cols,
        inside,
        hidden,
        GROUP,
        BLOCK // SPAN,
        LOWEST,
        LARGEST,
        CODE,
        STORE,
    )
    if TAIL > 0:
        _quantize(
            tail,
            rstd,
            peak,
            Q,
            SCALE,
            GIVEN,
            first,
            tile,
            row_exists,
            BLOCK,
            tail_cols,
            tail_inside,
            hidden,
            GROUP,
            TAIL // TAIL_SPAN,
            LOWEST,
            LARGEST,
            CODE,
            STORE,
        )


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def quantize_rows(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TAIL: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of whole rows a program: x is read once and stays in registers."""
    if PDL:
        gdc_wait()
    _quantize_rows(
        X,
        R,
        W,
        GIVEN,
        Q,
        SCALE,
        S,
        None,
        tl.program_id(0),
        rows,
        hidden * ALIGN,
        x_stride * ALIGN,
        r_stride * ALIGN,
        eps,
        GROUP,
        LOWEST,
        LARGEST,
        CODE,
        ROWS,
        BLOCK,
        SPAN,
        TAIL,
        WHOLE,
        EVEN,
        False,
        LOAD,
        STORE,
    )


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def quantize_persistent(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Tiles of whole rows, many a program: the weight is read once, and STAGES > 1 fetches ahead."""
    hidden = hidden * ALIGN
    if PDL:
        gdc_wait()
    w = None
    if W is not None:
        cols, col_exists = _columns(0, hidden, BLOCK, SPAN, WHOLE)
        w = _load_weight(W, cols, col_exists, _over_rows(tl.arange(0, ROWS)), 0.0, False, "")
    for group in tl.range(tl.program_id(0), _groups(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        _quantize_rows(
            X,
            R,
            W,
            GIVEN,
            Q,
            SCALE,
            S,
            w,
            group,
            rows,
            hidden,
            x_stride * ALIGN,
            r_stride * ALIGN,
            eps,
            GROUP,
            LOWEST,
            LARGEST,
            CODE,
            ROWS,
            BLOCK,
            SPAN,
            0,
            WHOLE,
            EVEN,
            True,
            LOAD,
            STORE,
        )


@triton.jit
def _reload(X, R, S, first, tile, cols, inside, hidden, x_stride):
    """One chunk of x again, or of the sum that was stored."""
    if R is not None:
        at = S + first * hidden + tile * hidden + cols
    else:
        at = X + first * x_stride + tile * x_stride + cols
    return tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def quantize_chunks(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    rows,
    hidden,
    x_stride,
    r_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows of any width in chunks of BLOCK columns: one sweep for rstd and the largest |t| of the row, one that reads x
    again and writes q."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    r_stride = r_stride * ALIGN
    if PDL:
        gdc_wait()
    for group in range(tl.program_id(0), _groups(rows, ROWS), tl.num_programs(0)):
        first = tl.cast(group, tl.int64) * ROWS
        tile, row_exists = _rows(first, rows, ROWS, EVEN)
        squares = _zeros(ROWS, 1, SPAN)
        most = _magnitudes(squares)
        for start in tl.range(0, hidden, BLOCK):
            cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
            x = _summed(X, R, S, first, tile, cols, row_exists & col_exists, hidden, x_stride, r_stride, LOAD)
            squares += tl.expand_dims(tl.sum(x * x, REP_AXIS), REP_AXIS)
            if GIVEN is None and GROUP == 0:
                t = _times_weight(x, W, None, cols, col_exists, tile, False)
                most = tl.maximum(most, tl.expand_dims(tl.max(_magnitudes(t), REP_AXIS), REP_AXIS))
        rstd = tl.rsqrt(_sum_of_rows(squares) / hidden + eps)
        peak = None
        if GIVEN is None and GROUP == 0:
            peak = tl.max(tl.max(most, REP_AXIS), 1)
            scale, _, _ = _scale(peak, rstd, LARGEST)
            _to_rows(SCALE, scale, first, rows, ROWS, EVEN)
        if R is not None:
            tl.debug_barrier()  # what other threads stored of the sum
        for start in tl.range(0, hidden, BLOCK):
            cols, col_exists = _columns(start, hidden, BLOCK, SPAN, WHOLE)
            inside = row_exists & col_exists
            x = _reload(X, R, S, first, tile, cols, inside, hidden, x_stride)
            t = _times_weight(x, W, None, cols, col_exists, tile, False)
            _quantize(
                t,
                rstd,
                peak,
                Q,
                SCALE,
                GIVEN,
                first,
                tile,
                row_exists,
                start,
                cols,
                inside,
                hidden,
                GROUP,
                BLOCK // SPAN,
                LOWEST,
                LARGEST,
                CODE,
                STORE,
            )


@triton.jit(do_not_specialize=["hidden", "x_stride", "r_stride"])
def quantize_measure(
    X,
    R,
    W,
    S,
    SQUARES,
    PEAK,
    hidden,
    x_stride,
    r_stride,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Few wide rows, the first of two launches: a program takes BLOCK columns of a row, and stores the sum of their
    squares and, where PEAK is given, the bits of their largest |t|, both [rows, PARTS]."""
    hidden = hidden * ALIGN
    if PDL:
        gdc_wait()
    part = tl.program_id(0) % PARTS
    first = tl.cast(tl.program_id(0) // PARTS, tl.int64)
    tile, row_exists = _rows(first, 0, 1, True)
    cols, col_exists = _columns(part * BLOCK, hidden, BLOCK, SPAN, WHOLE)
    inside = row_exists & col_exists
    x = _summed(X, R, S, first, tile, cols, inside, hidden, x_stride * ALIGN, r_stride * ALIGN, "evict_last")
    tl.store(SQUARES + first * PARTS + part + tl.arange(0, 1), _sum_of_rows(x * x))
    if PEAK is not None:
        t = _times_weight(x, W, None, cols, col_exists, tile, False)
        tl.store(PEAK + first * PARTS + part + tl.arange(0, 1), _peak_of_rows(t))


@triton.jit(do_not_specialize=["hidden", "x_stride"])
def quantize_measured(
    X,
    R,
    W,
    GIVEN,
    Q,
    SCALE,
    S,
    SQUARES,
    PEAK,
    hidden,
    x_stride,
    eps,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    ALIGN: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    WHOLE: tl.constexpr,
    STORE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The second launch: each program adds up what its row's PARTS programs stored, in the same order, and quantises
    its own BLOCK columns.  LANES: a power of two, at least PARTS."""
    hidden = hidden * ALIGN
    if PDL:
        gdc_wait()
    part = tl.program_id(0) % PARTS
    first = tl.cast(tl.program_id(0) // PARTS, tl.int64)
    tile, row_exists = _rows(first, 0, 1, True)
    cols, col_exists = _columns(part * BLOCK, hidden, BLOCK, SPAN, WHOLE)
    inside = row_exists & col_exists
    x = _reload(X, R, S, first, tile, cols, inside, hidden, x_stride * ALIGN)
    t = _times_weight(x, W, None, cols, col_exists, tile, False)
    lane = tl.expand_dims(tl.arange(0, LANES), 0)
    squares = tl.sum(tl.load(SQUARES + first * PARTS + lane, mask=lane < PARTS, other=0.0), 1)
    rstd = tl.rsqrt(squares / hidden + eps)
    peak = None
    if PEAK is not None:
        peak = tl.max(tl.load(PEAK + first * PARTS + lane, mask=lane < PARTS, other=0), 1)
        scale, _, _ = _scale(peak, rstd, LARGEST)
        tl.store(SCALE + first + tl.arange(0, 1), scale, mask=part + tl.arange(0, 1) == 0)
    _quantize(
        t,
        rstd,
        peak,
        Q,
        SCALE,
        GIVEN,
        first,
        tile,
        row_exists,
        part * BLOCK,
        cols,
        inside,
        hidden,
        GROUP,
        BLOCK // SPAN,
        LOWEST,
        LARGEST,
        CODE,
        STORE,
    )
