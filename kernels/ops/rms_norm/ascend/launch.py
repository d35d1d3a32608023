"""From a choice to launches on Ascend.  Shapes and dtypes are as `kernels.ops.rms_norm.function` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .... import launches
from ..choice import Choice, divide_up
from . import kernels
from .choose import WHOLE_ROW


def forward(
    choice: Choice,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
) -> None:
    """Fill y [rows, hidden], total (x + residual, where there is a residual) and rstd [rows] (where it is wanted)."""
    rows, hidden = x.shape
    if rows == 0:
        return
    if residual is not None and total is None:
        raise ValueError("the sum of x and residual needs a tensor to be stored in; got total=None")
    kernel = kernels.forward_rows if choice.mode in WHOLE_ROW else kernels.forward_columns
    r_stride = 0 if residual is None else residual.stride(0)
    tiles = divide_up(rows, choice.rows)
    args = (x, residual, weight, y, total, rstd, rows, tiles, hidden, x.stride(0), r_stride, eps, offset, rounds)
    _launch(kernel, choice, "forward", *args)


def backward(
    choice: Choice,
    dy: torch.Tensor,
    dsum: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    rounds: bool,
    dx: torch.Tensor,
    dw: torch.Tensor | None,
) -> None:
    """Fill dx [rows, hidden], which may be dy, and dw [hidden] (where it is wanted); dw is the same bits every time."""
    rows, hidden = x.shape
    if rows == 0:
        if dw is not None:
            dw.zero_()
        return
    options = dict(choice.options)
    partial = None  # of dw: a float32 row for each program that keeps its sum, else for each tile
    if dw is not None:
        partial = torch.empty((int(options["partials"]), hidden), dtype=torch.float32, device=x.device)
    kernel = kernels.backward_rows if choice.mode in WHOLE_ROW else kernels.backward_columns
    tensors = (dy, dsum, x, weight, rstd, dx, partial)
    strides = (dy.stride(0), 0 if dsum is None else dsum.stride(0), x.stride(0))
    _launch(kernel, choice, "backward", *tensors, rows, divide_up(rows, choice.rows), hidden, *strides, offset, rounds)
    if partial is not None:
        summed = replace(
            choice,
            rows=int(options["sum_rows"]),
            block=int(options["sum_block"]),
            programs=int(options["sum_programs"]),
            options=(),
        )
        _launch(
            kernels.sum_rows, summed, "backward", partial, dw, len(partial), divide_up(hidden, summed.block), hidden
        )


def _launch(kernel: Any, choice: Choice, direction: str, *args: Any) -> None:
    """No num_warps, no num_stages: a vector core has neither, and its compiler warns of them."""
    grid = (choice.programs,)
    kernel[grid](*args, choice.rows, choice.block)
    if launches.listening():
        launches.record(kernel.__name__, grid, {**choice.to_dict(), "direction": direction})
