"""From a shape to launches on Ascend.  Shapes and dtypes are as function.py says."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...rms_norm.ascend import choose as norms
from ...rms_norm.ascend.launch import _launch
from ...rms_norm.choice import Choice, divide_up
from ..formats import Format
from . import kernels


def choose(target: str, rows: int, hidden: int, dtype: str, *, cores: int, mode: str, group: int) -> Choice:
    """As the forward of rms_norm, whose tiles the Unified Buffer holds; pure."""
    found = norms.choose(target, rows, hidden, dtype, "forward", cores=cores, op="rms_norm_quantize", mode=mode)
    return replace(found, block=max(found.block, group)) if group else found


def quantize(
    choice: Choice,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    given: torch.Tensor | None,
    eps: float,
    group: int,
    to: Format,
    code: str,
    q: torch.Tensor,
    scale: torch.Tensor | None,
    total: torch.Tensor | None,
) -> None:
    """Fill q, and where they are given `scale` and `total` (x + residual)."""
    rows, hidden = x.shape
    kernel = kernels.quantize_rows if choice.mode in norms.WHOLE_ROW else kernels.quantize_columns
    r_stride = 0 if residual is None else residual.stride(0)
    tensors = (x, residual, weight, given, q, scale, total)
    sizes = (rows, divide_up(rows, choice.rows), hidden, x.stride(0), r_stride)
    _launch(kernel, choice, "forward", *tensors, *sizes, eps, group, to.lowest, to.largest)
