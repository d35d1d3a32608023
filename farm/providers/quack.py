"""QuACK's RMS norm (CuTe DSL, NVIDIA from sm_80), plain and with a residual, through its autograd function.

Rounding class: single (gemma), everything in float32 and one cast.  With a residual y and 1/rms are of the sum before
it is rounded; backward reads the stored sum with that 1/rms, and its gradient of x and of residual is one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "quack"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "quack-kernels"
DECLARES = {"fused_add_rms_norm": {"sum": "unrounded"}}

#: From here on its backward refuses float32 rows: they do not fit in shared memory.
_WIDEST_FLOAT32 = 128 * 1024


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where quack-kernels, or the DSL under it, is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    from quack.rmsnorm import rmsnorm

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
        _refuse_odd_rows(x)
        y = rmsnorm(x, weight, eps=eps, weight_offset=_offset(weight, offset))
        _refuse_backward(x, y)
        return y

    def fused_add_rms_norm(
        x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0
    ) -> tuple[Any, Any]:
        _refuse_odd_rows(x)
        y, total = rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True, weight_offset=_offset(weight, offset))
        _refuse_backward(x, y)
        return y, total

    return rms_norm if op == "rms_norm" else fused_add_rms_norm


def _offset(weight: Any, offset: float) -> float:
    """It asserts that there is no offset without a weight, where an offset plays no part."""
    return 0.0 if weight is None else offset


def _refuse_odd_rows(x: Any) -> None:
    if x.element_size() == 2 and x.shape[-1] % 2:
        raise NotImplementedError(
            f"QuACK copies at least 4 bytes at a time, but a row has {x.shape[-1]} elements of 2 bytes"
        )


def _refuse_backward(x: Any, y: Any) -> None:
    """Let the forward of such rows stand and say at the backward why there is none."""
    if x.element_size() < 4 or x.shape[-1] <= _WIDEST_FLOAT32 or y.grad_fn is None:
        return

    def refuse(_: Any) -> None:
        raise NotImplementedError(
            f"QuACK's backward takes float32 rows of at most {_WIDEST_FLOAT32} elements, but hidden is {x.shape[-1]}"
        )

    y.grad_fn.register_prehook(refuse)
