"""torch_npu's fused norms on Ascend: `npu_rms_norm` and `npu_add_rms_norm`, as its API reference documents them.

x has 1 to 8 dimensions and is float16, bfloat16 or float32; gamma has its last one and its dtype, and is always there.
The reference says neither where they round nor whether the fused norm is of the rounded sum: no rounding class is
declared, so each cell's own gates judge them.  Neither has an offset.  `npu_add_rms_norm` documents no gradient: its
backward is unsupported where torch_npu gives its outputs no graph.

`npu_add_rms_norm_dynamic_quant(x1, x2, gamma)` quantises by row to int8, scale max|y| / 127; it always has a residual.
Its static sibling takes a scale per column, and is not called.

Not imported here: the backend `ascend` has it loaded before any provider is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

NAME = "torch_npu"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm", "rms_norm_quantize")
DISTRIBUTION = "torch-npu"
SETTINGS = {"auto": "defaults"}
_NAMES = {
    "rms_norm": "npu_rms_norm",
    "fused_add_rms_norm": "npu_add_rms_norm",
    "rms_norm_quantize": "npu_add_rms_norm_dynamic_quant",
}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where torch_npu is not loaded, NotImplementedError where it lacks the op."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    module = sys.modules.get("torch_npu")
    if module is None:
        raise ImportError("torch_npu is not loaded in this process; only backend ascend loads it")
    name = _NAMES[op]
    fused = getattr(module, name, None)
    if fused is None:
        raise NotImplementedError(f"torch_npu {getattr(module, '__version__', '')} has no {name}")

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
        """x [..., hidden], weight [hidden] -> y like x."""
        _refuse(x, weight, offset)
        return fused(x, weight, eps)[0]

    def fused_add_rms_norm(
        x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0
    ) -> tuple[Any, Any]:
        """x, residual [..., hidden], weight [hidden] -> (y, sum) like x."""
        _refuse(x, weight, offset)
        y, _, total = fused(x, residual, weight, eps)
        return y, total

    def rms_norm_quantize(
        x: Any,
        weight: Any,
        residual: Any = None,
        static_scale: Any = None,
        eps: float = 1e-6,
        *,
        quantized: str = "int8",
        group: int = 0,
    ) -> tuple[Any, Any, Any]:
        """x, residual [..., hidden] -> (q int8 like x, scale float32 [..., 1], sum like x)."""
        _refuse(x, weight, 0.0)
        if residual is None or static_scale is not None or group or quantized != "int8":
            raise NotImplementedError("torch_npu's quantising norm is of a sum, to int8, with a dynamic scale per row")
        q, _, total, scale, _ = fused(x, residual, weight, epsilon=eps)
        return q, scale.view(*x.shape[:-1], 1), total

    if op == "rms_norm_quantize":
        return rms_norm_quantize
    return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _refuse(x: Any, weight: Any, offset: float) -> None:
    if offset != 0.0:
        raise NotImplementedError("torch_npu's fused norms support no weight offset")
    if weight is None:
        raise NotImplementedError("torch_npu's fused norms always have a weight")
    if weight.dtype != x.dtype:
        raise NotImplementedError(
            f"torch_npu's fused norms need a weight of the same dtype as x, but the weight is {weight.dtype}"
        )
