"""QuACK's RMS norm (CuTe DSL, NVIDIA from sm_80), plain and with a residual, through its autograd function.

Rounding class: single (gemma), everything in float32 and one cast.  With a residual y and 1/rms are of the sum before
it is rounded; backward reads the stored sum with that 1/rms, and its gradient of x and of residual is one tensor.

Mode `auto` is QuACK as it comes: launch settings by its own rules.  Mode `tuned` calls its autotuned entry points,
`rmsnorm_fwd_tuned` and `rmsnorm_bwd_tuned`, which search all launch settings at the first call of a shape (in the
cell's phase `compile`, minutes for one shape) and keep the best in QuACK's own cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

NAME = "quack"
ROLE = "peer"
MODES = ("auto", "tuned")
OPS = ("rms_norm", "fused_add_rms_norm")
DISTRIBUTION = "quack-kernels"
SETTINGS = {
    "auto": "defaults",
    "tuned": "rmsnorm_fwd_tuned and rmsnorm_bwd_tuned: all launch settings searched at the first call",
}
DECLARES = {"fused_add_rms_norm": {"sum": "unrounded"}}

#: From here on its backward refuses float32 rows: they do not fit in shared memory.
_WIDEST_FLOAT32 = 128 * 1024


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where quack-kernels, or the DSL under it, is not installed."""
    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    from quack.rmsnorm import rmsnorm

    def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, mode: str = "auto") -> Any:
        _refuse_odd_rows(x)
        if mode == "tuned":
            return _tuned()(x, weight, None, eps, _offset(weight, offset))
        y = rmsnorm(x, weight, eps=eps, weight_offset=_offset(weight, offset))
        _refuse_backward(x, y)
        return y

    def fused_add_rms_norm(
        x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, mode: str = "auto"
    ) -> tuple[Any, Any]:
        _refuse_odd_rows(x)
        if mode == "tuned":
            y, total = _tuned()(x, weight, residual, eps, _offset(weight, offset))
            return y, total
        y, total = rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True, weight_offset=_offset(weight, offset))
        _refuse_backward(x, y)
        return y, total

    return rms_norm if op == "rms_norm" else fused_add_rms_norm


@lru_cache(maxsize=1)
def _tuned() -> Callable[..., Any]:
    """f(x, weight, residual or None, eps, offset) -> y or (y, sum), forward and backward by the autotuned kernels."""
    import torch
    from quack.rmsnorm import get_sm_count, rmsnorm_bwd_tuned, rmsnorm_fwd_tuned

    class Tuned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, residual: Any, eps: float, offset: float) -> Any:
            flat = x.reshape(-1, x.shape[-1]).contiguous()
            added = None if residual is None else residual.reshape(flat.shape).contiguous()
            y = torch.empty_like(flat)
            total = None if added is None else torch.empty_like(added)
            graph = any(ctx.needs_input_grad[:3])
            rstd = torch.empty(len(flat), device=x.device, dtype=torch.float32) if graph else None
            rmsnorm_fwd_tuned(
                flat, weight, y, rstd=rstd, residual=added, residual_out=total, eps=eps, weight_offset=offset,
                is_layernorm=False, per_head=False,
            )  # fmt: skip
            ctx.save_for_backward(flat if total is None else total, weight, rstd)
            ctx.offset, ctx.fused = offset, residual is not None
            return y.view(x.shape) if total is None else (y.view(x.shape), total.view(x.shape))

        @staticmethod
        def backward(ctx: Any, dy: Any, dtotal: Any = None) -> Any:
            x, weight, rstd = ctx.saved_tensors
            shape, dx = dy.shape, torch.empty_like(x)
            sums = get_sm_count(x.shape[-1], x.device)
            parts = None
            if weight is not None:
                parts = torch.empty(sums, x.shape[-1], device=x.device, dtype=torch.float32)
            rmsnorm_bwd_tuned(
                x, weight, dy.reshape(x.shape).contiguous(), rstd, dx, dw_partial=parts,
                dresidual_out=None if dtotal is None else dtotal.reshape(x.shape).contiguous(), sm_count=sums,
                per_head=False, has_dw_partial=parts is not None, has_db_partial=False, is_layernorm=False,
                weight_offset=ctx.offset,
            )  # fmt: skip
            dw = None if parts is None else parts.sum(0).to(weight.dtype)
            dx = dx.view(shape)
            return dx, dw, dx if ctx.fused else None, None, None

    def run(x: Any, weight: Any, residual: Any, eps: float, offset: float) -> Any:
        made = Tuned.apply(x, weight, residual, eps, offset)
        _refuse_backward(x, made[0] if isinstance(made, tuple) else made)
        return made

    return run


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
