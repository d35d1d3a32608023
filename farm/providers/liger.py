"""Liger-Kernel's ops, through their autograd functions.  Rounding class of the norms: what `casting` names, as Liger
means it; the other ops compute in float32 and round once, but for swiglu, whose silu rounds before the product.

Its casting `none` keeps everything in x's dtype, the row's sum included; ours keeps sums in float32.  rms_norm is
called with `in_place=False` unless asked otherwise: its own default lets backward write into the upstream gradient,
which a second call would then read.  fused_add_rms_norm adds in x's dtype and norms what it stored; it has a weight
always, and its gradient of x and of residual is one tensor.

Liger writes the gradient into the input where it can: cross_entropy in the forward, swiglu in the backward, rope its
result into queries and keys.  The farm's contracts of these ops give up no input, so those get a copy, which is part of
what is timed.

Mode `cutedsl` calls the CuTe DSL kernel of the same name, which Liger itself chooses only where a user asks for it
(LIGER_KERNEL_IMPL); only rms_norm has one, and it needs nvidia-cutlass-dsl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "liger"
ROLE = "peer"
TRITON = True
MODES = ("auto", "cutedsl")
OPS = ("rms_norm", "fused_add_rms_norm", "softmax", "layer_norm", "swiglu", "rope", "cross_entropy")
DISTRIBUTION = "liger-kernel"
SETTINGS = {
    "auto": "in_place=False, not Liger's default (inputs that it writes into are copied)",
    "cutedsl": "CuTe DSL kernels, in_place=False",
}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where liger-kernel is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    return _LOADERS[op]()


def _rms_norm() -> Callable[..., Any]:
    from liger_kernel.ops import LigerRMSNormFunction

    def rms_norm(
        x: Any,
        weight: Any,
        eps: float = 1e-6,
        *,
        offset: float = 0.0,
        casting: str = "llama",
        in_place: bool = False,
        mode: str = "auto",
    ) -> Any:
        if mode == "cutedsl":
            from liger_kernel.ops.cutedsl.ops import LigerRMSNormFunction as CuTeFunction

            return CuTeFunction.apply(x, weight, eps, offset, casting, in_place)
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


def _softmax() -> Callable[..., Any]:
    from liger_kernel.ops import LigerSoftmaxFunction

    return lambda x: LigerSoftmaxFunction.apply(x)


def _layer_norm() -> Callable[..., Any]:
    from liger_kernel.ops import LigerLayerNormFunction

    def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
        _refuse_wide_rows(x)
        return LigerLayerNormFunction.apply(x, weight, bias, eps)

    return layer_norm


def _swiglu() -> Callable[..., Any]:
    from liger_kernel.ops import LigerSiLUMulFunction

    def swiglu(gate: Any, up: Any) -> Any:
        _refuse_wide_rows(gate)
        return LigerSiLUMulFunction.apply(gate.clone(), up.clone())

    return swiglu


def _rope() -> Callable[..., Any]:
    from liger_kernel.ops import LigerRopeFunction

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        """x: [batch, heads, positions, width]; cos, sin: [positions, width / 2], which Liger takes twice as wide."""
        cos, sin = (angles.repeat(1, 2).unsqueeze(0) for angles in (cos, sin))
        turned = x.transpose(1, 2).clone().transpose(1, 2)  # as a projection lies in memory, so nothing is copied again
        keys = x.new_zeros((len(x), 1, *x.shape[2:]))
        return LigerRopeFunction.apply(turned, keys, cos, sin)[0]

    return rope


def _cross_entropy() -> Callable[..., Any]:
    from liger_kernel.ops import LigerCrossEntropyFunction

    def cross_entropy(x: Any, target: Any, *, ignore: int = -100, smoothing: float = 0.0) -> Any:
        return LigerCrossEntropyFunction.apply(x.clone(), target, None, ignore, 0.0, smoothing, "none")[0]

    return cross_entropy


_LOADERS: dict[str, Callable[[], Callable[..., Any]]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "swiglu": _swiglu,
    "rope": _rope,
    "cross_entropy": _cross_entropy,
}


def _refuse_wide_rows(x: Any) -> None:
    if x.shape[-1] > 65536:
        raise NotImplementedError(
            f"Liger keeps a row in one block of at most 65536 elements, but hidden is {x.shape[-1]}"
        )
