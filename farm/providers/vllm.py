"""vLLM's compiled norms (forward only): `rms_norm` and `fused_add_rms_norm` of `vllm._custom_ops`.

They round where Llama does: x/rms to x's dtype, then times the weight.  With a residual the sum is rounded first, and y
is the norm of what was stored.  Its fused norm writes the sum into `residual` and y into `input`; the farm's contract
gives up no input, so it gets copies of both, which are part of what is timed.  There is neither offset nor backward.

Its quantising norms are not this farm's rms_norm_quantize: they round the norm to x's dtype first, twice, and give
the scale of a float8 a lower bound.  So they are `unsupported`, rather than judged by a definition that is not theirs.

Written from its source of 2026 and not yet run on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "vllm"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm", "rms_norm_quantize")
DISTRIBUTION = "vllm"
SETTINGS = {"auto": "defaults; the fused norm overwrites its inputs, so copies of both are part of its time"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where vLLM is not installed, NotImplementedError if its build lacks the op."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    if op == "rms_norm_quantize":
        raise NotImplementedError(
            "vLLM's quantising norms compute something else: they round the norm to the dtype of x before they "
            "quantise it, and bound the scale of a float8 from below"
        )
    import torch
    from vllm import _custom_ops as compiled

    if not hasattr(torch.ops._C, op):
        raise NotImplementedError(f"this build of vLLM has no compiled {op}")

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
        _refuse(x, weight)
        y = torch.empty_like(x)
        compiled.rms_norm(y, x.detach(), weight.detach(), eps)
        return y

    def fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float = 1e-6) -> tuple[Any, Any]:
        _refuse(x, weight)
        y, total = x.detach().clone(), residual.detach().clone()
        compiled.fused_add_rms_norm(y, total, weight.detach(), eps)
        return y, total

    return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _refuse(x: Any, weight: Any) -> None:
    if weight is None:
        raise NotImplementedError("vLLM's norms are called with a weight")
    if weight.dtype != x.dtype:
        raise NotImplementedError(
            f"vLLM's norms need a weight of the same dtype as x; x is {x.dtype}, but weight is {weight.dtype}"
        )
