"""The kernel that a process compiles to have its compiler loaded; it imports Triton, and runs nowhere."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def small(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(Y + at, x / tl.sqrt(tl.sum(x * x) + 1.0), mask=at < n)
