"""Liger-Kernel's norms, through their autograd functions.  Rounding class: what `casting` names, as Liger means it.

Its `none` keeps everything in x's dtype, the row's sum included; ours keeps sums in float32.  rms_norm is called with
`in_place=False` unless asked otherwise: its own default lets backward write into the upstream gradient, which a second
call would then read.  fused_add_rms_norm adds in x's dtype and norms what it stored; it has a weight always, and its
gradient of x and of residual is one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "liger"
ROLE = "peer"
MODES = ("auto",)
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "liger-kernel"


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where liger-kernel is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    return _rms_norm() if op == "rms_norm" else _fused_add_rms_norm()


def _rms_norm() -> Callable[..., Any]:
    from liger_kernel.ops import LigerRMSNormFunction

    def rms_norm(
        x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama", in_place: bool = False
    ) -> Any:
        _refuse_wide_rows(x)
        return LigerRMSNormFunction.apply(x, weight, eps, offset, casting, in_place)

    return rms_norm


def _fused_add_rms_norm() -> Callable[..., Any]:
    from liger_kernel.ops import LigerFusedAddRMSNormFunction

    def fused_add_rms_norm(
        x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, casting: str = "llama"
    ) -> Any:
        _refuse_wide_rows(x)
        if weight is None:
            raise NotImplementedError("Liger's fused add-and-norm always has a weight")
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, offset, casting, False)

    return fused_add_rms_norm


def _refuse_wide_rows(x: Any) -> None:
    if x.shape[-1] > 65536:
        raise NotImplementedError(
            f"Liger keeps a row in one block of at most 65536 elements, but hidden is {x.shape[-1]}"
        )
