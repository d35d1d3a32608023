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
    """As the backward of rms_norm, which has tiles of half as many elements: int8 takes temporaries of its own (planned
    by bishengir for 910B3: tiles of the forward overflow the Unified Buffer).  Pure."""
    try:
        found = norms.choose(target, rows, hidden, dtype, "backward", cores=cores, op="rms_norm_quantize", mode=mode)
    except NotImplementedError as refused:
        raise NotImplementedError(str(refused).replace("in a backward", "of what is quantised")) from None
    block, tile = max(found.block, group), found.rows
    if found.mode not in norms.WHOLE_ROW:
        block, tile = min(found.block * found.rows, norms._block(hidden)), 1
    elif group and block > group:  # several rows of several groups each do not fit either, seen as rows of groups
        tile = 1
    elif 8 < tile < 32:  # these are seen as rows of 32 (kernels._narrowed), and 16 of 256 columns do not fit so
        tile = 8
    programs = max(1, min(divide_up(rows, tile), cores if found.programs <= cores else found.programs))
    return replace(found, rows=tile, block=block, programs=programs, options=())


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
