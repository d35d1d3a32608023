"""Both norms as custom operators of torch, for torch.compile, export, fake tensors and torch.func.

    farm_kernels::norm(op, x, residual?, weight?, ...)                -> y, sum, rstd
    farm_kernels::norm_backward(op, dy, dsum?, x, weight?, rstd, ...) -> dx, dw

`op` is "rms_norm", whose sum has no elements, or "fused_add_rms_norm".  rstd [rows] is kept where a backward may come,
else it has no elements.  x is of any shape and strides here; y, sum and dx are dense.  Under autocast arguments stay as
they are, as in an eager call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from . import function


def norm(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    mode: str,
) -> tuple[Tensor, Tensor | None]:
    """(y, x + residual or None) by the operator, in x's shape."""
    args = op, x, residual, weight, float(eps), float(offset), rounds, mode
    if _transformed():
        y, total, _ = _Transformed.apply(*args, True)
    else:
        learns = any(t is not None and t.requires_grad for t in (x, residual, weight))
        y, total, _ = _norm(*args, torch.is_grad_enabled() and learns)
    return y, None if residual is None else total


def _transformed() -> bool:
    """Whether a transform of torch.func is at work, in eager mode."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


@library.custom_op("farm_kernels::norm", mutates_args=())
def _norm(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    mode: str,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    function.check_mode(op, x, mode)
    rows = function.as_rows(x)
    rstd = torch.empty(rows.shape[0] if keeps else 0, dtype=torch.float32, device=x.device)
    r = None if residual is None else function.as_rows(residual)
    y, total = function.forward(op, rows, r, weight, eps, offset, rounds, mode, rstd if keeps else None)
    return y.view(x.shape), x.new_empty(0) if total is None else total.view(x.shape), rstd


@_norm.register_fake
def _(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    mode: str,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0 if residual is None else x.shape)
    return x.new_empty(x.shape), total, x.new_empty(_rows(x) if keeps else 0, dtype=torch.float32)


@library.custom_op("farm_kernels::norm_backward", mutates_args=())
def _backward(
    op: str,
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    offset: float,
    rounds: bool,
    mode: str,
    wants_dw: bool,
) -> tuple[Tensor, Tensor]:
    more = None if dsum is None else function.as_rows(dsum)
    args = (function.as_rows(dy), more, function.as_rows(x), weight, rstd, offset, rounds, mode, False, wants_dw)
    dx, dw = function.backward(op, *args)
    return dx.view(x.shape), x.new_empty(0) if dw is None else dw


@_backward.register_fake
def _(
    op: str,
    dy: Tensor,
    dsum: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    offset: float,
    rounds: bool,
    mode: str,
    wants_dw: bool,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape) if wants_dw and weight is not None else x.new_empty(0)


def _rows(x: Tensor) -> Any:
    rows: Any = 1
    for size in x.shape[:-1]:
        rows = rows * size
    return rows


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    op, x, residual, weight, _, offset, rounds, mode, _ = inputs
    _, total, rstd = output
    ctx.save_for_backward(x if residual is None else total, weight, rstd)
    ctx.options = op, offset, rounds, mode, residual is not None
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None, drstd: Tensor | None) -> tuple[Any, ...]:
    x, weight, rstd = ctx.saved_tensors
    op, offset, rounds, mode, fused = ctx.options
    wants_dw = weight is not None and ctx.needs_input_grad[3]
    dx, dw = dsum if fused else None, torch.zeros_like(weight) if wants_dw else None
    if dy is not None:
        call = _TransformedBackward.apply if _transformed() else _backward
        dx, dw = call(op, dy, dsum if fused else None, x, weight, rstd, offset, rounds, mode, wants_dw)
    return None, dx, dx if fused else None, dw if wants_dw else None, None, None, None, None, None


_norm.register_autograd(_gradients, setup_context=_keep)


class _Transformed(torch.autograd.Function):
    """The operator for torch.func, which does not take a custom operator's own rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _norm(*args)

    setup_context = staticmethod(_keep)
    backward = staticmethod(_gradients)


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("the norms have no second derivative")


def _each(operator: Any) -> Any:
    """vmap's rule: one call per element of the batch.  A norm's rows are a batch already; this is for what is not."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        calls = [
            operator(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims)))
            for i in range(info.batch_size)
        ]
        out = tuple(torch.stack(parts) for parts in zip(*calls))
        return out, tuple(0 for _ in out)

    return rule


_norm.register_vmap(_each(_norm))
_backward.register_vmap(_each(_backward))
