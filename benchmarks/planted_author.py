"""rms_norm with one fault each, for `benchmarks/gpu_author.sh`: what a profiler and a sanitizer have to name."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _by_columns(X, W, Y, rows, hidden, eps, B: tl.constexpr):
    """Neighbouring lanes read neighbouring rows: of each 32-byte sector one number is used."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < rows
    total = tl.zeros((B,), tl.float32)
    for c in range(hidden):
        x = tl.load(X + at * hidden + c, mask=inside, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(total / hidden + eps)
    for c in range(hidden):
        x = tl.load(X + at * hidden + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(Y + at * hidden + c, x * scale * tl.load(W + c).to(tl.float32), mask=inside)


@triton.jit
def _few(X, W, Y, rows, hidden, eps, past, B: tl.constexpr):
    """A row after the other in as many programs as there are; stores `past` numbers beyond each row's end."""
    at = tl.arange(0, B)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(X + row * hidden + at, mask=at < hidden, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x) / hidden + eps)
        w = tl.load(W + at, mask=at < hidden, other=0.0).to(tl.float32)
        tl.store(Y + row * hidden + at, x * scale * w, mask=at < hidden + past)


def uncoalesced(x: Any, weight: Any, eps: float) -> Any:
    y = torch.empty_like(x)
    rows, hidden = x.shape
    _by_columns[(triton.cdiv(rows, 128),)](x, weight, y, rows, hidden, eps, B=128)
    return y


def low_occupancy(x: Any, weight: Any, eps: float) -> Any:
    y = torch.empty_like(x)
    rows, hidden = x.shape
    _few[(16,)](x, weight, y, rows, hidden, eps, 0, B=triton.next_power_of_2(hidden), num_warps=1)
    return y


def out_of_bounds(x: Any, weight: Any, eps: float) -> Any:
    y = torch.empty_like(x)
    rows, hidden = x.shape
    _few[(rows,)](x, weight, y, rows, hidden, eps, 1024, B=2 * triton.next_power_of_2(hidden))
    return y
