"""Residual add and RMS norm in one pass, as a PyTorch function: the kernels of rms_norm, with a residual."""

from __future__ import annotations

from typing import Any

import torch

from ..rms_norm import function as norm

OP = "fused_add_rms_norm"


def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    casting: str = "llama",
    mode: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, sum) with sum = x + residual, rounded to x's dtype, and y = rms_norm(sum, weight, eps).

    x, residual: [..., hidden] of one dtype (float32, float16 or bfloat16), shape and device, with any strides.  weight,
    eps, offset, casting, mode: as in `rms_norm`.  y, sum: x's shape and dtype, dense.  The gradients of x and of
    residual are equal, and are one tensor: the norm's gradient plus the upstream gradient of sum.
    """
    rounds = casting != "gemma"
    if norm.is_traced(OP, x, residual, weight):
        norm.validate(OP, x, weight, casting, residual)
        from ..rms_norm import operators

        y, total = operators.norm(OP, x, residual, weight, eps, offset, rounds, mode)
        assert total is not None  # there was a residual
        return y, total
    norm.admit(OP, x, residual, weight, casting, mode)
    learns = x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
    rows = norm.as_rows(x), norm.as_rows(residual)
    if torch.is_grad_enabled() and learns:
        y, total = _FusedAddRMSNorm.apply(*rows, weight, eps, offset, rounds, mode)
    else:
        y, total = norm.forward(OP, *rows, weight, eps, offset, rounds, mode, None)
    assert total is not None  # there was a residual
    return (y, total) if x.dim() == 2 else (y.view(x.shape), total.view(x.shape))


class _FusedAddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, residual: Any, weight: Any, eps: float, offset: float, rounds: bool, mode: str
    ) -> Any:
        rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        y, total = norm.forward(OP, x, residual, weight, eps, offset, rounds, mode, rstd)
        assert total is not None  # there was a residual
        ctx.save_for_backward(total, weight, rstd)
        ctx.options = (offset, rounds, mode)
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any, dsum: Any) -> Any:
        total, weight, rstd = ctx.saved_tensors
        offset, rounds, mode = ctx.options
        wants_dw = weight is not None and ctx.needs_input_grad[2]
        if dy is None:  # y was not used
            return dsum, dsum, torch.zeros_like(weight) if wants_dw else None, None, None, None, None
        rows = None if dsum is None else norm.as_rows(dsum)
        dx, dw = norm.backward(OP, norm.as_rows(dy), rows, total, weight, rstd, offset, rounds, mode, False, wants_dw)
        return dx, dx, dw, None, None, None, None
