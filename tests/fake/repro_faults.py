"""Wrong kernels for tests of `farm repro`, in plain torch and in Triton: each a right function with one fault planted.

`FAULTS`: name -> (op, operation, dtype, sizes, more of the matrix, parts of the sentence that it must have).  The
functions have the names, so `repro_faults:NAME` is the provider.  Needs torch, not the farm.
"""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ROWS = {"rows": 10, "hidden": 96}
MATMUL = {"m": 40, "n": 48, "k": 32}
FOUR = {"batch": 2, "heads": 3, "queries": 8, "width": 16}
STEPS = {"batch": 2, "heads": 3, "steps": 8, "width": 16}
HEADS = {"batch": 2, "shared": 2, "kv_heads": 2, "queries": 9, "keys": 12, "width": 16}
FAULTS = {}


def fault(op, operation, dtype, sizes, *words, **more):
    def register(function):
        FAULTS[function.__name__] = (op, operation, dtype, sizes, more, words)
        return function

    return register


def skipped(y, *where):
    """y, but for what no store reaches."""
    out = torch.empty_like(y)
    keep = torch.ones(y.shape, dtype=torch.bool)
    keep[where] = False
    out[keep] = y[keep]
    return out


def put(y, value, *where):
    y = y.clone()
    y[where] = value
    return y


class Gradient(torch.autograd.Function):
    """Hands x on, and its gradient by way of `change`."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


def norm(x, weight, eps, offset=0.0):
    wide = x.double()
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype).double()
    return (y * (weight.double() + offset)).to(x.dtype)


def soft(x):
    return x.double().softmax(-1).to(x.dtype)


# ---- forward


@fault("rms_norm", "forward", "float32", ROWS, "10 of 960", "the last column (95) of every row, never written")
def last_column(x, weight, eps):
    return skipped(norm(x, weight, eps), slice(None), 95)


@fault("rms_norm", "forward", "bfloat16", ROWS, "the last row (9), computed NaN")
def last_row_nan(x, weight, eps):
    return put(norm(x, weight, eps), float("nan"), 9)


@fault("rms_norm", "no-grad-forward", "float16", ROWS, "rows of kind large only (2, 7), scaled by 1.0")
def large_rows(x, weight, eps):
    y = norm(x, weight, eps)
    y[[2, 7]] *= 1.0625
    return y


@fault("rms_norm", "forward", "float32", ROWS, "row 4, never written", layout={"x": "row_strided"})
def strided_row(x, weight, eps):
    return skipped(norm(x, weight, eps), 4)


@fault("rms_norm", "forward", "float32", {"rows": 12, "hidden": 64}, "columns 32 to 63", layout={"x": "3d"})
def leading_dimensions(x, weight, eps):
    return skipped(norm(x, weight, eps), ..., slice(32, 64))


@fault("rms_norm", "forward", "float32", ROWS, "column 7 of every row, computed NaN", family="outlier")
def another_family(x, weight, eps):
    return put(norm(x, weight, eps), float("nan"), slice(None), 7)


@fault("rms_norm", "no-grad-forward", "float32", ROWS, "changed its inputs")
def writes_its_input(x, weight, eps):
    y = norm(x, weight, eps)
    x[2] = 0
    return y


@fault("rms_norm", "forward", "float32", ROWS, "returned 2 tensors")
def two_answers(x, weight, eps):
    return norm(x, weight, eps), x.clone()


_seen = {}


@fault("rms_norm", "forward", "float32", ROWS, "called again at the same addresses with other values")
def remembers(x, weight, eps):
    return _seen.setdefault(x.data_ptr(), norm(x, weight, eps)).clone()


@fault("fused_add_rms_norm", "forward", "float32", ROWS, "sum: 480 of 960", "rows 5 to 9 (the last 5), never written")
def half_of_the_sum(x, residual, weight, eps):
    total = x + residual
    return norm(total, weight, eps), skipped(total, slice(5, None))


@fault("fused_add_rms_norm", "forward", "bfloat16", ROWS, "every 8th column (0, 8, ..., 88) of every row, infinite")
def every_eighth(x, residual, weight, eps):
    total = x + residual
    return put(norm(total, weight, eps), float("inf"), slice(None), slice(None, None, 8)), total


@fault("rms_norm_quantize", "forward", "float16", ROWS, "columns 64 to 95 (the last 32) of every row, never written")
def integers_unwritten(x, weight, residual, static_scale, eps):
    wide = x.double()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()
    scale = y.abs().amax(-1, keepdim=True) / 127
    q = torch.where(scale > 0, y / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
    return skipped(q, slice(None), slice(64, None)), scale.float()


@fault("matmul", "forward", "float16", MATMUL, "columns 16 to 31 of rows 32 to 39 (the last 8), never written")
def tile(a, b):
    c = (a.double() @ b.double()).to(a.dtype)
    return skipped(c, slice(32, None), slice(16, 32))


@fault("matmul", "forward", "float32", MATMUL, "1 of 1,920 elements is wrong: column 7 of row 3", "got 1000")
def one_element(a, b):
    return put((a.double() @ b.double()).to(a.dtype), 1000.0, 3, 7)


@fault("softmax", "forward", "float32", {"rows": 10, "columns": 96}, "rows 0 to 3, never written")
def first_rows(x):
    return skipped(soft(x), slice(0, 4))


@fault("layer_norm", "forward", "float32", ROWS, "column 5 of every row, computed NaN")
def nan_column(x, weight, bias, eps=1e-5):
    wide = x.double()
    y = (wide - wide.mean(-1, keepdim=True)) * torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + eps)
    return put((y * weight.double() + bias.double()).to(x.dtype), float("nan"), slice(None), 5)


@fault("swiglu", "forward", "float32", ROWS, "columns 90 to 95 (the last 6) of every row, never written")
def tail(gate, up):
    return skipped((torch.nn.functional.silu(gate.double()) * up.double()).to(gate.dtype), ..., slice(90, None))


@fault("cross_entropy", "forward", "float32", {"rows": 10, "classes": 50}, "the last row (9), never written")
def last_loss(x, target, ignore=-100, smoothing=0.0):
    found = torch.nn.functional.cross_entropy(
        x.double(), target, ignore_index=ignore, label_smoothing=smoothing, reduction="none"
    )
    return skipped(found.to(x.dtype), 9)


@fault(
    "rope", "forward", "float32", {"batch": 2, "heads": 3, "positions": 8, "half": 8}, "all of head 1, sign reversed"
)
def one_head(x, cos, sin):
    a, b = x.double().chunk(2, dim=-1)
    y = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
    y[:, 1] *= -1
    return y


@fault("attention", "forward", "float32", HEADS, "all of the last query (8), never written")
def last_query(q, k, v, causal=True):
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q.double() @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        scores = scores.masked_fill(~seen, float("-inf"))
    return skipped((scores.softmax(-1) @ v).to(q.dtype), slice(None), slice(None), 8)


# ---- backward


@fault("rms_norm", "backward", "float32", ROWS, "dw: 1 of 96", "column 63, never written")
def weights_gradient(x, weight, eps):
    return norm(x, Gradient.apply(weight, lambda g: skipped(g, 63)), eps)


@fault("rms_norm", "backward", "float32", ROWS, "dx: ", "row 6, computed NaN")
def gradient_nan(x, weight, eps):
    return norm(Gradient.apply(x, lambda g: put(g, float("nan"), 6)), weight, eps)


@fault("softmax", "full", "float32", {"rows": 10, "columns": 96}, "dx: ", "sign reversed")
def gradient_reversed(x):
    return soft(Gradient.apply(x, torch.neg))


@fault("swiglu", "backward", "bfloat16", ROWS, "dup: ", "column 3 of every row, never written")
def one_of_two_gradients(gate, up):
    up = Gradient.apply(up, lambda g: skipped(g, slice(None), 3))
    return (torch.nn.functional.silu(gate.double()) * up.double()).to(gate.dtype)


# ---- four dimensions, from outside the farm


@fault("fourfold", "forward", "float32", FOUR, "z: ", "all of the last head (2), never written")
def fourfold_head(x):
    x *= 2
    return skipped(x + 1, slice(None), 2)


@fault("fourfold", "forward", "float16", FOUR, "x: ", "queries 4 to 7 (the last 4) of head 1 of the last batch (1)")
def fourfold_in_place(x):
    z = 2 * x + 1
    x *= 2
    x[1, 1, 4:] = float("nan")
    return z


@fault("running", "forward", "float32", STEPS, "all of step 5, computed NaN")
def running_step(x):
    return put(x.cumsum(-2), float("nan"), slice(None), slice(None), 5)


@fault("running", "backward", "float32", STEPS, "dx: ", "the last width (15) of every step, never written")
def running_gradient(x):
    return Gradient.apply(x, lambda g: skipped(g, ..., 15)).cumsum(-2)


# ---- Triton

if triton:

    @triton.jit
    def _norm(X, W, Y, hidden, stored, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < hidden
        x = tl.load(X + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(W + columns, mask=inside, other=0.0).to(tl.float32)
        y = (x / tl.sqrt(tl.sum(x * x) / hidden + eps)).to(Y.dtype.element_ty).to(tl.float32) * w
        tl.store(Y + row * hidden + columns, y.to(Y.dtype.element_ty), mask=columns < stored)


@fault("rms_norm", "no-grad-forward", "bfloat16", ROWS, "columns 93 to 95 (the last 3) of every row, never written")
def triton_tail(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, y, x.shape[1], x.shape[1] - 3, eps, BLOCK=128)
    return y


@fault("rms_norm", "no-grad-forward", "float32", ROWS, "rows 8 to 9 (the last 2), never written")
def triton_grid(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0] - 2,)](x, weight, y, x.shape[1], x.shape[1], eps, BLOCK=128)
    return y


@fault("rms_norm", "no-grad-forward", "float32", ROWS, "OutOfBounds")
def triton_outside(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0] + 1,)](x, weight, y, x.shape[1], x.shape[1], eps, BLOCK=128)
    return y


@fault("rms_norm", "no-grad-forward", "float32", ROWS)
def triton_right(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, y, x.shape[1], x.shape[1], eps, BLOCK=128)
    return y
