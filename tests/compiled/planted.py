"""Providers with planted faults, and honest ones beside them.  Each is `f(x, weight, eps)` for the op rms_norm."""

from __future__ import annotations

import os
import time

import torch
import triton
import triton.language as tl


@triton.jit
def whole_row(X, Y, hidden, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    tl.store(Y + row * hidden + cols, (x * rstd).to(Y.dtype.element_ty), mask=cols < hidden)


@triton.jit
def buffering(X, Y, hidden, eps, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """A product whose operands are fetched STAGES tiles ahead into shared memory."""
    rows, cols = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for start in tl.range(0, hidden, BLOCK, num_stages=STAGES):
        x = tl.load(X + rows[:, None] * hidden + start + cols[None, :])
        total += tl.dot(x, tl.trans(x) + tl.load(X + rows[:, None] + (start + cols[None, :]) * hidden))
    tl.store(Y + rows[:, None] * hidden + cols[None, :], (total + eps).to(Y.dtype.element_ty))


@triton.jit
def contradictory(X, Y, hidden, eps, BLOCK: tl.constexpr):
    """ptxas: '.evict_first' cannot be combined with modifier '.cg'."""
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols, mask=cols < hidden, cache_modifier=".cg", eviction_policy="evict_first")
    tl.store(Y + cols, x, mask=cols < hidden)


@triton.jit
def wrong_types(X, Y, hidden, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK < 0, "planted: this kernel does not compile")
    tl.store(Y + cols, tl.load(X + cols))


@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 8)], key=["hidden"])
@triton.jit
def tuned_row(X, Y, hidden, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols, mask=cols < hidden, other=0.0).to(tl.float32)
    tl.store(Y + cols, x * tl.rsqrt(tl.sum(x * x) / hidden + eps), mask=cols < hidden)


def honest(x, weight, eps):
    y = torch.empty_like(x)
    whole_row[(x.shape[0],)](x, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return y


def spilling(x, weight, eps):
    """A whole row in the registers of one warp: 256 values a thread."""
    y = torch.empty_like(x)
    whole_row[(x.shape[0],)](x, y, x.shape[1], eps, BLOCK=max(8192, triton.next_power_of_2(x.shape[1])), num_warps=1)
    return y


def overflowing(x, weight, eps):
    """More shared memory than a block may have: 227 KiB on NVIDIA, 64 on CDNA 3, 160 on CDNA 4."""
    y = torch.empty_like(x)
    buffering[(1,)](x, y, x.shape[1], eps, BLOCK=128, STAGES=9, num_warps=8)
    return y


def rejected(x, weight, eps):
    y = torch.empty_like(x)
    contradictory[(1,)](x, y, x.shape[1], eps, BLOCK=1024)
    return y


def asserting(x, weight, eps):
    y = torch.empty_like(x)
    wrong_types[(1,)](x, y, x.shape[1], eps, BLOCK=1024)
    return y


def aborting(x, weight, eps):
    print("planted: the compiler has seen enough")
    os.abort()


def hanging(x, weight, eps):
    time.sleep(600)


def tuned(x, weight, eps):
    y = torch.empty_like(x)
    tuned_row[(1,)](x, y, x.shape[1], eps, BLOCK=8192)
    return y


def declining(x, weight, eps):
    raise NotImplementedError("planted: not for this target")


def plain(x, weight, eps):
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps).to(x.dtype)


def raising(x, weight, eps):
    raise ZeroDivisionError("planted: a mistake before any kernel")
