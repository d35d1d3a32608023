"""Providers that call our norms with ring kernels in the table of measured configurations, whatever the table has."""

from __future__ import annotations

from typing import Any

import torch

import kernels
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.gpu import choose, launch, tuned

RING = {"mode": "static_persistent", "num_warps": 16, "per_core": 1, "block": 4096}
FORWARD = {**RING, "kernel": "forward_ring"}
BACKWARD = {**RING, "kernel": "backward_ring"}
TWICE = {"mode": "static_persistent", "kernel": "backward_twice", "num_warps": 16, "per_core": 1}
_has_gluon = dispatch._has_gluon


def _call(backward: dict[str, Any], gluon: Any, x: Any, weight: Any, eps: float) -> Any:
    """What is planted stays: the backward comes later."""
    hidden = x.shape[1]
    tuned.TABLE = {
        ("rms_norm", "forward", "bfloat16"): ((4096, hidden, FORWARD),),
        ("rms_norm", "backward", "bfloat16"): ((4096, hidden, backward), (4096, hidden, TWICE)),
    }
    dispatch._has_gluon = gluon
    dispatch.choose.cache_clear()
    return kernels.rms_norm(x, weight, eps)


def ringed(x: Any, weight: Any, eps: float) -> Any:
    return _call(BACKWARD, _has_gluon, x, weight, eps)


def without_gluon(x: Any, weight: Any, eps: float) -> Any:
    """As on a Triton whose Gluon lacks what ring.py needs, or that has none."""
    return _call(BACKWARD, lambda: False, x, weight, eps)


def spilling(x: Any, weight: Any, eps: float) -> Any:
    """All of a row's dw in the registers of two warps."""
    if x.shape[1] > 8192:
        raise NotImplementedError("planted: for narrow rows alone, wide ones take long to compile")
    return _call({**BACKWARD, "block": 8192, "num_warps": 2}, _has_gluon, x, weight, eps)


def misaligned(x: Any, weight: Any, eps: float) -> Any:
    """Past `dispatch.can_ring`: rows that begin 2 bytes after a multiple of 16."""
    if not dispatch.machine()[0].startswith("cuda"):
        raise NotImplementedError("planted: for NVIDIA alone")
    rows, hidden = x.shape
    choice = choose.build("forward", FORWARD, rows, hidden, x.element_size(), 132, "cuda:90")
    apart = torch.empty(rows * hidden + 8, dtype=x.dtype, device=x.device)[1 : 1 + rows * hidden].view(rows, hidden)
    y = torch.empty_like(x)
    launch.forward(choice, apart, None, weight, eps, 0.0, True, y, None, None)
    return y
