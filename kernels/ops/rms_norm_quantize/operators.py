"""The quantising norm as a custom operator of torch, for torch.compile, export and fake tensors.

    farm_kernels::rms_norm_quantize(x, weight?, residual?, static_scale?, ...) -> q, scale, sum

scale and sum have no elements where there are none.  x is of any shape and strides here; all outputs are dense.  It has
no derivative: the public function refuses what requires grad before it comes here.
"""

from __future__ import annotations

import torch
from torch import Tensor, library

from ..rms_norm.operators import _each
from . import function


def quantized_norm(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    static_scale: Tensor | None,
    eps: float,
    to: str,
    group: int,
    mode: str,
) -> Tensor | tuple[Tensor, ...]:
    """What the public function returns, by the operator."""
    q, scale, total = _quantize(x, weight, residual, static_scale, float(eps), to, group, mode)
    if static_scale is not None:
        return q if residual is None else (q, total)
    return (q, scale) if residual is None else (q, scale, total)


@library.custom_op("farm_kernels::rms_norm_quantize", mutates_args=())
def _quantize(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    static_scale: Tensor | None,
    eps: float,
    to: str,
    group: int,
    mode: str,
) -> tuple[Tensor, Tensor, Tensor]:
    function.check(x, to, mode)
    found = list(function.forward(x, weight, residual, static_scale, eps, to, group, mode))
    if static_scale is not None:
        found.insert(1, x.new_empty(0, dtype=torch.float32))
    if residual is None:
        found.append(x.new_empty(0))
    q, scale, total = found
    return q, scale, total


@_quantize.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    static_scale: Tensor | None,
    eps: float,
    to: str,
    group: int,
    mode: str,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = x.shape[-1]
    shape = (0,) if static_scale is not None else (*x.shape[:-1], hidden // (group or hidden))
    q = x.new_empty(x.shape, dtype=getattr(torch, to))
    return q, x.new_empty(shape, dtype=torch.float32), x.new_empty(0 if residual is None else x.shape)


_quantize.register_vmap(_each(_quantize))
