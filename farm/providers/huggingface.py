"""The formulas of Hugging Face Transformers' norms, eager, operation by operation; the package is not needed.

    llama   LlamaRMSNorm: statistics in float32, x/rms rounded to x's dtype, then times the weight
    gemma   GemmaRMSNorm: all in float32, times (offset + weight), one cast; Gemma itself has offset 1

Both round where their name says, so `casting` is the rounding class.  y has x's dtype also where the weight's is wider.
fused_add_rms_norm is what a decoder layer writes: the addition, rounded to x's dtype, then the norm of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "huggingface"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = None  # formulas written down here, no package
SETTINGS = {"auto": "eager, the formulas of Transformers"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where torch is missing."""
    import torch  # noqa: F401

    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    return _rms_norm if op == "rms_norm" else _fused_add_rms_norm


def _rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama") -> Any:
    """x [..., hidden], weight [hidden] or None -> y like x."""
    import torch

    if casting not in ("llama", "gemma"):
        raise NotImplementedError(
            f"Transformers has no norm with casting {casting}; only llama and gemma are available"
        )
    if casting == "llama" and offset != 0.0:
        raise NotImplementedError("LlamaRMSNorm has no offset; use casting gemma")
    wide = x.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if casting == "llama":
        y = y.to(x.dtype)
        return y if weight is None else (weight * y).to(x.dtype)
    return (y if weight is None else y * (offset + weight.float())).to(x.dtype)


def _fused_add_rms_norm(
    x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
) -> tuple[Any, Any]:
    """x, residual [..., hidden], weight [hidden] or None -> (y, sum) like x."""
    total = residual + x
    return _rms_norm(total, weight, eps, offset=offset, casting=casting), total
