"""RMS norm of wide rows through a ring of shared memory, in Gluon, for sm_90 and later: forward and backward.

The formulas, and what is relied on, are told in `__init__.py`.  Beyond that:

* hidden, the row strides and the base addresses are multiples of 16 bytes: asynchronous copies move 16 bytes a thread.
* a program takes rows `id, id + programs, ...`, one at a time.  Each row passes through the ring of `ring_plan.py`: the
  copies of later rows are under way while a row is summed and while it is written, so memory is never idle between.
* a thread reads from the ring only what it copied there; sums are added up in an order that the launch alone decides.
* there are no mbarriers and no flags between programs: nothing here can wait for what does not come.

CHUNKS chunks of CHUNK columns are a row; SLOTS, REGS and AGAIN are those of `ring_plan.py`, and 0 <= REGS, 0 <= AGAIN,
CHUNKS - REGS - AGAIN <= SLOTS.  WHOLE says that hidden is CHUNKS * CHUNK.  HOLD keeps the weight in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from . import ring_plan

_chunk = gluon.constexpr_function(ring_plan.chunk)
_second = gluon.constexpr_function(ring_plan.second)
_pending = gluon.constexpr_function(ring_plan.pending)
_rows_on = gluon.constexpr_function(ring_plan.rows_on)
_following = gluon.constexpr_function(ring_plan.following)


@gluon.constexpr_function
def _layout(dtype, warps):
    """16 bytes a thread, and neighbours side by side."""
    return gl.BlockedLayout([128 // dtype.primitive_bitwidth], [32], [warps], [0])


@gluon.jit
def _wait_for_kernel_before(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def _launch_dependents(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def _next(slot, SLOTS: gl.constexpr):
    return gl.where(slot == SLOTS - 1, 0, slot + 1)


@gluon.jit
def _back(slot, COUNT: gl.constexpr, SLOTS: gl.constexpr):
    """The slot COUNT before, COUNT <= SLOTS.  Computed, since a slot that the compiler finds to be one that it knows
    takes a register from the first pass to the second."""
    return gl.where(slot < COUNT, slot + (SLOTS - COUNT), slot - COUNT)


@gluon.jit
def _inside(cols, hidden, START: gl.constexpr, WHOLE: gl.constexpr):
    """Which of the columns START + cols exist."""
    if WHOLE:
        exist = gl.full(cols.shape, 1, gl.int1, cols.type.layout)
    else:
        exist = START + cols < hidden
    return exist


@gluon.jit
def _fetch(
    A, B, ring_a, ring_b, slot, row, rows, hidden, a_stride, b_stride, cols, START: gl.constexpr, WHOLE: gl.constexpr
):
    """Start copying columns START + cols of a row of A, and of B where there is one, into a slot; zeros come where they
    do not exist, and behind the last row.  One group."""
    inside = _inside(cols, hidden, START, WHOLE) & (row < rows)
    at = row.to(gl.int64)
    async_copy.async_copy_global_to_shared(ring_a.index(slot), A + at * a_stride + START + cols, mask=inside)
    if B is not None:
        async_copy.async_copy_global_to_shared(ring_b.index(slot), B + at * b_stride + START + cols, mask=inside)
    async_copy.commit_group()


@gluon.jit
def _fetch_first(
    A,
    B,
    ring_a,
    ring_b,
    program,
    programs,
    rows,
    hidden,
    a_stride,
    b_stride,
    cols,
    CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr,
    REGS: gl.constexpr,
    AGAIN: gl.constexpr,
    SLOTS: gl.constexpr,
    WHOLE: gl.constexpr,
):
    """Start the loads 0 .. SLOTS of this program."""
    for i in gl.static_range(SLOTS):
        row = program + programs * _rows_on(i, CHUNKS, AGAIN, 0)
        _fetch(
            A,
            B,
            ring_a,
            ring_b,
            i,
            row,
            rows,
            hidden,
            a_stride,
            b_stride,
            cols,
            _chunk(CHUNKS, REGS, _following(i, CHUNKS, AGAIN, 0)) * CHUNK,
            WHOLE,
        )


@gluon.jit
def _fetch_next(
    A,
    B,
    ring_a,
    ring_b,
    slot,
    row,
    programs,
    rows,
    hidden,
    a_stride,
    b_stride,
    cols,
    PLACE: gl.constexpr,
    CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr,
    REGS: gl.constexpr,
    AGAIN: gl.constexpr,
    SLOTS: gl.constexpr,
    WHOLE: gl.constexpr,
):
    """Start the load that follows that of PLACE in its slot."""
    START: gl.constexpr = _chunk(CHUNKS, REGS, _following(SLOTS, CHUNKS, AGAIN, PLACE)) * CHUNK
    later = row + programs * _rows_on(SLOTS, CHUNKS, AGAIN, PLACE)
    _fetch(A, B, ring_a, ring_b, slot, later, rows, hidden, a_stride, b_stride, cols, START, WHOLE)


@gluon.jit
def _packed(x, hidden):
    """x as it is, by way of `hidden` >> 31, which is 0: the compiler would keep the float32 that x was cast to for the
    sums, twice the registers, if it could see that these are the same values."""
    if x.dtype.primitive_bitwidth == 16:
        zero = gl.full(x.shape, (hidden >> 31).to(gl.int16), gl.int16, x.type.layout)
        x = gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], x.dtype, is_pure=True, pack=2)
    return x


@gluon.jit
def _hold(W, hidden, cols, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, FLAT: gl.constexpr):
    """Start copying the weight into shared memory: a group of its own, before those of the ring."""
    held = gl.allocate_shared_memory(W.dtype.element_ty, [CHUNKS, CHUNK], FLAT)
    for i in gl.static_range(CHUNKS):
        inside = _inside(cols, hidden, i * CHUNK, False)
        async_copy.async_copy_global_to_shared(held.index(i), W + i * CHUNK + cols, mask=inside)
    async_copy.commit_group()
    return held


@gluon.jit
def _weight(W, held, cols, hidden, offset, INDEX: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr):
    """weight + offset of one chunk, float32."""
    if held is not None:
        w = held.index(INDEX).load(cols.type.layout)
    else:
        inside = _inside(cols, hidden, INDEX * CHUNK, WHOLE)
        w = gl.load(W + INDEX * CHUNK + cols, mask=inside, other=0.0, eviction_policy="evict_last")
    return w.to(gl.float32) + offset


@gluon.jit
def _put(P, value, hidden, cols, START: gl.constexpr, WHOLE: gl.constexpr, STORE: gl.constexpr):
    gl.store(P + START + cols, value, mask=_inside(cols, hidden, START, WHOLE), eviction_policy=STORE)


@gluon.jit
def _taken(ring_x, ring_r, slot, LAYOUT: gl.constexpr):
    """x of a slot; with a residual their sum, rounded to x's dtype."""
    x = ring_x.index(slot).load(LAYOUT)
    if ring_r is not None:
        x = (x.to(gl.float32) + ring_r.index(slot).load(LAYOUT).to(gl.float32)).to(x.dtype)
    return x


@gluon.jit
def _store_y(
    Y,
    S,
    W,
    held,
    x,
    rstd,
    hidden,
    offset,
    cols,
    INDEX: gl.constexpr,
    CHUNK: gl.constexpr,
    ROUND: gl.constexpr,
    WHOLE: gl.constexpr,
    STORE: gl.constexpr,
):
    """y of one chunk, and where S is given x."""
    T: gl.constexpr = Y.dtype.element_ty
    if S is not None:
        _put(S, x, hidden, cols, INDEX * CHUNK, WHOLE, STORE)
    y = x.to(gl.float32) * rstd
    if W is not None:
        if ROUND:
            y = y.to(T).to(gl.float32)
        y *= _weight(W, held, cols, hidden, offset, INDEX, CHUNK, WHOLE)
    _put(Y, y.to(T), hidden, cols, INDEX * CHUNK, WHOLE, STORE)


@gluon.jit(do_not_specialize=["rows", "hidden", "x_stride", "r_stride"])
def forward_ring(
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
    ROUND: gl.constexpr,
    ALIGN: gl.constexpr,
    CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr,
    REGS: gl.constexpr,
    AGAIN: gl.constexpr,
    SLOTS: gl.constexpr,
    WHOLE: gl.constexpr,
    HOLD: gl.constexpr,
    EARLY: gl.constexpr,
    STORE: gl.constexpr,
    PDL: gl.constexpr,
):
    """x, and the residual, through the ring.  EARLY stores x + residual in the first pass, else in the second."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    r_stride = r_stride * ALIGN
    T: gl.constexpr = X.dtype.element_ty
    LAYOUT: gl.constexpr = _layout(T, gl.num_warps())
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    cols = gl.arange(0, CHUNK, LAYOUT)
    ring_x = gl.allocate_shared_memory(T, [SLOTS, CHUNK], FLAT)
    ring_r = None
    if R is not None:
        ring_r = gl.allocate_shared_memory(R.dtype.element_ty, [SLOTS, CHUNK], FLAT)
    _wait_for_kernel_before(PDL)
    held = None
    if W is not None and HOLD:
        held = _hold(W, hidden, cols, CHUNK, CHUNKS, FLAT)
    _fetch_first(
        X,
        R,
        ring_x,
        ring_r,
        program,
        programs,
        rows,
        hidden,
        x_stride,
        r_stride,
        cols,
        CHUNK,
        CHUNKS,
        REGS,
        AGAIN,
        SLOTS,
        WHOLE,
    )
    slot = 0
    for row in range(program, rows, programs):
        mine = row.to(gl.int64) * hidden
        total = None
        if R is not None and not EARLY:
            total = S + mine
        squares = gl.zeros([CHUNK], gl.float32, LAYOUT)
        regs = ()
        for i in gl.static_range(REGS + AGAIN):
            async_copy.wait_group(_pending(SLOTS, CHUNKS, REGS, AGAIN, i))
            x = _taken(ring_x, ring_r, slot, LAYOUT)
            _fetch_next(
                X,
                R,
                ring_x,
                ring_r,
                slot,
                row,
                programs,
                rows,
                hidden,
                x_stride,
                r_stride,
                cols,
                i,
                CHUNK,
                CHUNKS,
                REGS,
                AGAIN,
                SLOTS,
                WHOLE,
            )
            slot = _next(slot, SLOTS)
            if R is not None and EARLY:
                _put(S + mine, x, hidden, cols, i * CHUNK, WHOLE, STORE)
            if i < REGS:
                regs = regs + (_packed(x, hidden),)
            squares += x.to(gl.float32) * x.to(gl.float32)
        for i in gl.static_range(REGS + AGAIN, CHUNKS):
            async_copy.wait_group(_pending(SLOTS, CHUNKS, REGS, AGAIN, i))
            x = _taken(ring_x, ring_r, slot, LAYOUT)
            slot = _next(slot, SLOTS)
            if R is not None and EARLY:
                _put(S + mine, x, hidden, cols, i * CHUNK, WHOLE, STORE)
            squares += x.to(gl.float32) * x.to(gl.float32)
        rstd = gl.rsqrt(gl.sum(squares, 0) / hidden + eps)
        if RSTD is not None:
            gl.store(RSTD + row, rstd)
        slot = _back(slot, CHUNKS - REGS - AGAIN, SLOTS)
        for i in gl.static_range(CHUNKS - REGS):
            if i >= CHUNKS - REGS - AGAIN:
                async_copy.wait_group(_pending(SLOTS, CHUNKS, REGS, AGAIN, REGS + AGAIN + i))
            x = _taken(ring_x, ring_r, slot, LAYOUT)
            _fetch_next(
                X,
                R,
                ring_x,
                ring_r,
                slot,
                row,
                programs,
                rows,
                hidden,
                x_stride,
                r_stride,
                cols,
                REGS + AGAIN + i,
                CHUNK,
                CHUNKS,
                REGS,
                AGAIN,
                SLOTS,
                WHOLE,
            )
            slot = _next(slot, SLOTS)
            _store_y(
                Y + mine,
                total,
                W,
                held,
                x,
                rstd,
                hidden,
                offset,
                cols,
                _second(CHUNKS, REGS, AGAIN, i),
                CHUNK,
                ROUND,
                WHOLE,
                STORE,
            )
        for i in gl.static_range(REGS):
            _store_y(Y + mine, total, W, held, regs[i], rstd, hidden, offset, cols, i, CHUNK, ROUND, WHOLE, STORE)
    async_copy.wait_group(0)


@gluon.jit
def _dsum(DS, hidden, cols, INDEX: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr):
    value = None
    if DS is not None:
        value = gl.load(DS + INDEX * CHUNK + cols, mask=_inside(cols, hidden, INDEX * CHUNK, WHOLE), other=0.0)
    return value


@gluon.jit
def _store_dx(
    DX,
    W,
    held,
    x,
    dy,
    dsum,
    rstd,
    mean,
    hidden,
    offset,
    cols,
    INDEX: gl.constexpr,
    CHUNK: gl.constexpr,
    ROUND: gl.constexpr,
    WHOLE: gl.constexpr,
    STORE: gl.constexpr,
):
    """dx of one chunk; gives the row's share of its dw."""
    T: gl.constexpr = x.dtype
    xhat = x.to(gl.float32) * rstd
    m = dy.to(gl.float32)
    if W is not None:
        m *= _weight(W, held, cols, hidden, offset, INDEX, CHUNK, WHOLE)
    dx = rstd * (m - xhat * mean)
    if dsum is not None:
        dx += dsum.to(gl.float32)
    _put(DX, dx.to(DX.dtype.element_ty), hidden, cols, INDEX * CHUNK, WHOLE, STORE)
    if ROUND:
        xhat = xhat.to(T).to(gl.float32)
    term = xhat * dy.to(gl.float32)
    if ROUND:
        term = term.to(T).to(gl.float32)
    return term


@gluon.jit(do_not_specialize=["rows", "hidden", "dy_stride", "ds_stride", "x_stride"])
def backward_ring(
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
    ROUND: gl.constexpr,
    ALIGN: gl.constexpr,
    CHUNK: gl.constexpr,
    CHUNKS: gl.constexpr,
    REGS: gl.constexpr,
    AGAIN: gl.constexpr,
    SLOTS: gl.constexpr,
    WHOLE: gl.constexpr,
    HOLD: gl.constexpr,
    STORE: gl.constexpr,
    PDL: gl.constexpr,
):
    """x and dy through the ring: dx, and one float32 row of DW [programs, hidden] a program, which stays in registers
    until its end.  dsum is loaded a chunk before it is needed."""
    hidden = hidden * ALIGN
    x_stride = x_stride * ALIGN
    dy_stride = dy_stride * ALIGN
    ds_stride = ds_stride * ALIGN
    LAYOUT: gl.constexpr = _layout(X.dtype.element_ty, gl.num_warps())
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    cols = gl.arange(0, CHUNK, LAYOUT)
    ring_x = gl.allocate_shared_memory(X.dtype.element_ty, [SLOTS, CHUNK], FLAT)
    ring_dy = gl.allocate_shared_memory(DY.dtype.element_ty, [SLOTS, CHUNK], FLAT)
    _wait_for_kernel_before(PDL)
    held = None
    if W is not None and HOLD:
        held = _hold(W, hidden, cols, CHUNK, CHUNKS, FLAT)
    _fetch_first(
        X,
        DY,
        ring_x,
        ring_dy,
        program,
        programs,
        rows,
        hidden,
        x_stride,
        dy_stride,
        cols,
        CHUNK,
        CHUNKS,
        REGS,
        AGAIN,
        SLOTS,
        WHOLE,
    )
    dw = ()
    if DW is not None:
        for _i in gl.static_range(CHUNKS):
            dw = dw + (gl.zeros([CHUNK], gl.float32, LAYOUT),)
    slot = 0
    for row in range(program, rows, programs):
        at = row.to(gl.int64)
        rstd = gl.load(RSTD + row)
        of_dsum = None
        if DS is not None:
            of_dsum = DS + at * ds_stride
        products = gl.zeros([CHUNK], gl.float32, LAYOUT)
        x_regs = ()
        dy_regs = ()
        for i in gl.static_range(CHUNKS):
            async_copy.wait_group(_pending(SLOTS, CHUNKS, REGS, AGAIN, i))
            x = ring_x.index(slot).load(LAYOUT)
            dy = ring_dy.index(slot).load(LAYOUT)
            if i < REGS + AGAIN:
                _fetch_next(
                    X,
                    DY,
                    ring_x,
                    ring_dy,
                    slot,
                    row,
                    programs,
                    rows,
                    hidden,
                    x_stride,
                    dy_stride,
                    cols,
                    i,
                    CHUNK,
                    CHUNKS,
                    REGS,
                    AGAIN,
                    SLOTS,
                    WHOLE,
                )
            slot = _next(slot, SLOTS)
            if i < REGS:
                x_regs = x_regs + (_packed(x, hidden),)
                dy_regs = dy_regs + (_packed(dy, hidden),)
            m = dy.to(gl.float32)
            if W is not None:
                m *= _weight(W, held, cols, hidden, offset, i, CHUNK, WHOLE)
            products += m * x.to(gl.float32)
        dsum = _dsum(of_dsum, hidden, cols, _second(CHUNKS, REGS, AGAIN, 0), CHUNK, WHOLE)
        mean = gl.sum(products, 0) * rstd / hidden
        slot = _back(slot, CHUNKS - REGS - AGAIN, SLOTS)
        dw_regs = ()
        dw_again = ()
        dw_kept = ()
        for i in gl.static_range(CHUNKS):
            later = None
            if i + 1 < CHUNKS:
                later = _dsum(of_dsum, hidden, cols, _second(CHUNKS, REGS, AGAIN, i + 1), CHUNK, WHOLE)
            if i < CHUNKS - REGS:
                if i >= CHUNKS - REGS - AGAIN:
                    async_copy.wait_group(_pending(SLOTS, CHUNKS, REGS, AGAIN, REGS + AGAIN + i))
                x = ring_x.index(slot).load(LAYOUT)
                dy = ring_dy.index(slot).load(LAYOUT)
                _fetch_next(
                    X,
                    DY,
                    ring_x,
                    ring_dy,
                    slot,
                    row,
                    programs,
                    rows,
                    hidden,
                    x_stride,
                    dy_stride,
                    cols,
                    REGS + AGAIN + i,
                    CHUNK,
                    CHUNKS,
                    REGS,
                    AGAIN,
                    SLOTS,
                    WHOLE,
                )
                slot = _next(slot, SLOTS)
            else:
                x = x_regs[_second(CHUNKS, REGS, AGAIN, i)]
                dy = dy_regs[_second(CHUNKS, REGS, AGAIN, i)]
            term = _store_dx(
                DX + at * hidden,
                W,
                held,
                x,
                dy,
                dsum,
                rstd,
                mean,
                hidden,
                offset,
                cols,
                _second(CHUNKS, REGS, AGAIN, i),
                CHUNK,
                ROUND,
                WHOLE,
                STORE,
            )
            dsum = later
            if DW is not None:
                if _second(CHUNKS, REGS, AGAIN, i) < REGS:
                    dw_regs = dw_regs + (dw[_second(CHUNKS, REGS, AGAIN, i)] + term,)
                elif _second(CHUNKS, REGS, AGAIN, i) < REGS + AGAIN:
                    dw_again = dw_again + (dw[_second(CHUNKS, REGS, AGAIN, i)] + term,)
                else:
                    dw_kept = dw_kept + (dw[_second(CHUNKS, REGS, AGAIN, i)] + term,)
        if DW is not None:
            dw = dw_regs + dw_again + dw_kept
    async_copy.wait_group(0)
    _launch_dependents(PDL)
    if DW is not None:
        partial = DW + program.to(gl.int64) * hidden
        for i in gl.static_range(CHUNKS):
            _put(partial, dw[i], hidden, cols, i * CHUNK, WHOLE, "")
