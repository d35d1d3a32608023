"""PyTorch as a user would call it: eager, its fused operators where they exist.  Rounding class: single (gemma).

rms_norm is `torch.nn.functional.rms_norm`: float32 inside, one cast at the end, in its fused kernel as in the composite
that it falls back to where x and weight differ in dtype (and so where an offset makes the weight float32).

fused_add_rms_norm is two operators: the addition, which rounds, and that norm of what it stored.  Autograd rounds the
norm's gradient before it adds the sum's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "torch"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm", "matmul", "rms_norm_quantize")
DISTRIBUTION = "torch"


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where torch is missing."""
    import torch

    if op == "matmul":
        return torch.matmul
    if op in _FUNCTIONS:
        return _FUNCTIONS[op]
    raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")


def _rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
    """x [..., hidden], weight [hidden] or None -> y like x."""
    from torch.nn.functional import rms_norm

    if weight is not None and offset != 0.0:
        weight = weight.float() + offset
    return rms_norm(x, (x.shape[-1],), weight, eps)


def _fused_add_rms_norm(
    x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0
) -> tuple[Any, Any]:
    """x, residual [..., hidden], weight [hidden] or None -> (y, sum) like x; sum = x + residual, y its norm."""
    total = x + residual
    return _rms_norm(total, weight, eps, offset=offset), total


def rms_norm_quantize(x: Any, weight: Any, eps: float = 1e-6) -> tuple[Any, Any]:
    """x [..., hidden] -> (q int8 like x, scale float32 [..., 1]), symmetric to int8 with a scale per row.

    y = x / sqrt(mean(x^2) + eps) * weight in float32; scale = max|y| / 127; q = y / scale rounded half to even.  A row
    of zeros has scale 0 and q 0.
    """
    import torch

    wide = x.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    scale = y.abs().amax(-1, keepdim=True) / 127.0
    q = torch.where(scale > 0, y / scale, 0.0).round().clamp(-127, 127).to(torch.int8)
    return q, scale


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "rms_norm_quantize": rms_norm_quantize,
}
