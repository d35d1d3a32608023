"""Providers of `rms_norm` whose kernels are built ahead: plain, tuned (with its choice kept on disk), and bad ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(X, W, Y, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(X + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + columns, mask=inside, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x) / hidden + eps) * w
    tl.store(Y + row * hidden + columns, y.to(Y.dtype.element_ty), mask=inside)


@triton.autotune([triton.Config({}, num_warps=n) for n in (1, 2, 4, 8)], ["hidden"], cache_results=True)
@triton.jit
def _tuned(X, Y, hidden, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * hidden + columns, mask=columns < hidden, other=0.0)
    tl.store(Y + tl.program_id(0) * hidden + columns, x * 2.0, mask=columns < hidden)


def plain(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def tuned(x, weight, eps):
    y = torch.empty_like(x)
    _tuned[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def dies(x, weight, eps):
    os.abort()


def leaves(x, weight, eps):
    raise SystemExit(7)


def hangs(x, weight, eps):
    """Writes its process id beside Triton's cache first: whoever ends it may look whether it is gone."""
    Path(os.environ["TRITON_CACHE_DIR"]).with_name("hangs").write_text(str(os.getpid()))
    time.sleep(3600)


def speaks(x, weight, eps):
    """Tries to speak for the farm, on every descriptor that it finds."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'{"cell": -1}\n')
        except OSError:
            continue
    return plain(x, weight, eps)
