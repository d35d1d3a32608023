"""Transformer Engine's RMS norm, forward and backward, by the compiled functions that its own module calls.

Rounding class: single (gemma), everything in float32 and one cast.  An offset of 1 is its zero-centred gamma.  x and
weight have one dtype.  Of its own it has no norm that adds a residual.

Written from its source of 2026 and not yet run on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "transformer_engine"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "transformer-engine"
SETTINGS = {"auto": "sm_margin=0, the default, no quantizer"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where Transformer Engine for PyTorch is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    if op == "fused_add_rms_norm":
        raise NotImplementedError("Transformer Engine has no norm that adds a residual")
    import torch
    from transformer_engine.pytorch.constants import TE_DType  # first: it loads the library of the next
    from transformer_engine_torch import rmsnorm_bwd, rmsnorm_fwd

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, eps: float, centred: bool) -> Any:
            rows = x.contiguous().view(-1, x.shape[-1])
            y, _, rstd = rmsnorm_fwd(rows, weight, eps, None, None, TE_DType[x.dtype], 0, centred)
            ctx.save_for_backward(rows, weight, rstd)
            ctx.centred = centred
            return y.view(x.shape)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            rows, weight, rstd = ctx.saved_tensors
            dx, dw = rmsnorm_bwd(dy.contiguous().view(rows.shape), rows, rstd, weight, 0, ctx.centred)
            return dx.view(dy.shape), dw.view(weight.shape), None, None

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
        if weight is None:
            raise NotImplementedError("Transformer Engine's norm always has a weight")
        if offset not in (0.0, 1.0):
            raise NotImplementedError(f"Transformer Engine's norm has a weight offset of 0 or 1, not {offset:g}")
        if weight.dtype != x.dtype:
            raise NotImplementedError(
                f"Transformer Engine casts x to the weight's dtype; x is {x.dtype}, but weight is {weight.dtype}"
            )
        return Norm.apply(x, weight, eps, offset == 1.0)

    return rms_norm
