"""Providers with faults that only Ascend's compiler sees.  Each is `f(x, weight, eps)` for the op rms_norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def whole_row(X, Y, rows, hidden, eps, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / hidden + eps)
        tl.store(Y + row * hidden + cols, (x * rstd).to(Y.dtype.element_ty), mask=cols < hidden)


@triton.jit
def gathering(X, Y, rows, hidden, eps, BLOCK: tl.constexpr):
    """Addresses that hang on values: no vector access can follow them."""
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(X + row * hidden + cols).to(tl.float32)
        places = (x * 0.0).to(tl.int32) + cols
        tl.store(Y + row * hidden + cols, tl.load(X + row * hidden + places).to(Y.dtype.element_ty))


def _call(kernel, x, eps, block):
    y = torch.empty_like(x)
    kernel[(40,)](x, y, x.shape[0], x.shape[1], eps, BLOCK=block)
    return y


def fitting(x, weight, eps):
    return _call(whole_row, x, eps, triton.next_power_of_2(x.shape[1]))


def overflowing(x, weight, eps):
    """A row of 131,072 float32 is 512 KiB; a vector core has 192."""
    return _call(whole_row, x, eps, 131072)


def scalar(x, weight, eps):
    return _call(gathering, x, eps, triton.next_power_of_2(x.shape[1]))
