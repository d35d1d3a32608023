"""FlashInfer's norms (CUDA, forward only): `rmsnorm` and `fused_add_rmsnorm`, or for an offset of 1 their gemma_ forms.

Rounding class: single (gemma), everything in float32 and one cast.  With a residual y is of the sum before it is
rounded.  Its fused norm writes the sum into `residual` and y into `input`; the farm's contract gives up no input, so it
gets copies of both, which are part of what is timed.  A weight must be there, in x's dtype.  Autograd knows nothing of
either: a backward is unsupported.  It builds its kernels at the first call.

rms_norm_quantize is its `rmsnorm_quant` and `fused_add_rmsnorm_quant`: a given scale of one element, float8_e4m3fn,
saturated; the norm is not rounded before.  The second overwrites `residual`, which gets a copy.

Written from its source of 2026 and not yet run on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "flashinfer"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm", "rms_norm_quantize")
DISTRIBUTION = "flashinfer-python"
DECLARES = {"fused_add_rms_norm": {"sum": "unrounded"}, "rms_norm_quantize": {"sum": "unrounded"}}
SETTINGS = {"auto": "defaults; the fused norm overwrites its inputs, so copies of both are part of its time"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where flashinfer is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    from flashinfer import norm

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
        _refuse(x, weight, offset)
        y = (norm.gemma_rmsnorm if offset else norm.rmsnorm)(_rows(x), weight.detach(), eps)
        return y.view(x.shape)

    def fused_add_rms_norm(
        x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0
    ) -> tuple[Any, Any]:
        _refuse(x, weight, offset)
        y, total = _rows(x).clone(), _rows(residual).clone()
        (norm.gemma_fused_add_rmsnorm if offset else norm.fused_add_rmsnorm)(y, total, weight.detach(), eps)
        return y.view(x.shape), total.view(x.shape)

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
        import torch

        _refuse(x, weight, 0.0)
        if static_scale is None or quantized != "float8_e4m3fn":
            raise NotImplementedError("FlashInfer's quantising norms take a given scale, and write float8_e4m3fn alone")
        q = torch.empty(_rows(x).shape, dtype=torch.float8_e4m3fn, device=x.device)
        if residual is None:
            norm.rmsnorm_quant(q, _rows(x), weight.detach(), static_scale, eps)
            return q.view(x.shape)
        total = _rows(residual).clone()
        norm.fused_add_rmsnorm_quant(q, _rows(x), total, weight.detach(), static_scale, eps)
        return q.view(x.shape), total.view(x.shape)

    if op == "rms_norm_quantize":
        if not hasattr(norm, "fused_add_rmsnorm_quant"):
            raise NotImplementedError("this version of FlashInfer has no rmsnorm_quant")
        return rms_norm_quantize
    return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _rows(x: Any) -> Any:
    return x.detach().reshape(-1, x.shape[-1])


def _refuse(x: Any, weight: Any, offset: float) -> None:
    if weight is None:
        raise NotImplementedError("FlashInfer's norms always have a weight")
    if offset not in (0.0, 1.0):
        raise NotImplementedError(f"FlashInfer's norms have a weight offset of 0 or 1, not {offset:g}")
    if weight.dtype != x.dtype:
        raise NotImplementedError(
            f"FlashInfer's norms need a weight of the same dtype as x; x is {x.dtype}, but weight is {weight.dtype}"
        )
