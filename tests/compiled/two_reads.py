"""One norm, twice: it walks a row in chunks, sums, and reads the row again.  In `fixed` the row's width is a
compile-time constant; nothing else differs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def norm(X, Y, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares) / hidden + eps)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        tl.store(Y + row * hidden + cols, (x * rstd).to(Y.dtype.element_ty), mask=cols < hidden)


@triton.jit
def norm_fixed(X, Y, hidden: tl.constexpr, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares) / hidden + eps)
    for start in range(0, hidden, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        tl.store(Y + row * hidden + cols, (x * rstd).to(Y.dtype.element_ty), mask=cols < hidden)


def runtime(x, weight, eps):
    y = torch.empty_like(x)
    norm[(x.shape[0],)](x, y, x.shape[1], eps, BLOCK=BLOCK, num_warps=4)
    return y


def fixed(x, weight, eps):
    y = torch.empty_like(x)
    norm_fixed[(x.shape[0],)](x, y, x.shape[1], eps, BLOCK=BLOCK, num_warps=4)
    return y
