"""AMD's AITER: its RMS norm, plain and with a residual, forward only, on ROCm.  Rounding class: single (gemma).

Documented (docs/api/normalization.rst of ROCm/aiter, read 2026-11-21): `rms_norm(input, weight, epsilon)` of a matrix
(tokens, hidden) and a weight of its dtype gives a new tensor; float16 and bfloat16 everywhere, float32 in newer
releases.  `rmsnorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, epsilon)` writes its two outputs.
Both keep everything in float32 and round once; with a residual y is of the sum before it is rounded (of rows that
exceed its registers, from about 8192 elements on, the rest is read back rounded).  A bfloat16 result is cut off and not
rounded to the nearest on gfx942, where the latter is software: up to one unit in the last place, always towards zero.

`rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon)`, and the same with a residual, quantise by row to
int8 or the float8 of the GPU, with scale max|y| / largest value (its source of 2026, not yet run on a device).

It has no backward: autograd knows nothing of its kernels.  It builds each kernel with hipcc at its first call, which
can take minutes; AITER_JIT_DIR names where the built ones are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "aiter"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm", "rms_norm_quantize")
DISTRIBUTION = "amd-aiter"
SETTINGS = {"auto": "defaults"}
DECLARES = {"fused_add_rms_norm": {"sum": "unrounded"}, "rms_norm_quantize": {"sum": "unrounded"}}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where AITER is not installed, NotImplementedError without ROCm."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    import torch

    if torch.version.hip is None:  # before its own import, which looks for ROCm's compiler and dies without
        raise NotImplementedError("AITER needs torch for ROCm, and an AMD GPU")
    from aiter.ops.rmsnorm import rms_norm as norm
    from aiter.ops.rmsnorm import rmsnorm2d_fwd_with_add as norm_with_add

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
        _refuse(x, weight)
        return norm(x.detach(), weight.detach(), eps)

    def fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float = 1e-6) -> tuple[Any, Any]:
        _refuse(x, weight)
        x, residual = x.detach(), residual.detach()
        y, total = torch.empty_like(x), torch.empty_like(x)
        norm_with_add(y, x, residual, total, weight.detach(), eps)
        return y, total

    if op == "rms_norm_quantize":
        return _quantizing()
    return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _quantizing() -> Callable[..., Any]:
    import torch
    from aiter.ops import rmsnorm

    def rms_norm_quantize(
        x: Any,
        weight: Any,
        residual: Any = None,
        static_scale: Any = None,
        eps: float = 1e-6,
        *,
        quantized: str = "int8",
        group: int = 0,
    ) -> Any:
        _refuse(x, weight)
        if static_scale is not None or group:
            raise NotImplementedError("AITER's quantising norms are called with a dynamic scale per row alone")
        x = x.detach()
        q = torch.empty(x.shape, dtype=getattr(torch, quantized), device=x.device)
        scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        if residual is None:
            rmsnorm.rmsnorm2d_fwd_with_dynamicquant(q, x, scale, weight.detach(), eps)
            return q, scale
        total = torch.empty_like(x)
        rmsnorm.rmsnorm2d_fwd_with_add_dynamicquant(q, x, residual.detach(), total, scale, weight.detach(), eps)
        return q, scale, total

    return rms_norm_quantize


def _refuse(x: Any, weight: Any) -> None:
    if weight is None:
        raise NotImplementedError("AITER's RMS norm always has a weight")
    if weight.dtype != x.dtype:
        raise NotImplementedError(
            f"AITER requires a weight of the same dtype as x; x is {x.dtype}, but weight is {weight.dtype}"
        )
