"""From a choice of a kernel of few.py to its two launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import prepared
from ..choice import Choice
from . import few, launch


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
    """As `launch.forward`."""
    rows, hidden = x.shape
    options: dict[str, Any] = dict(choice.options)
    parts, width, overlap = options["parts"], options["width"], bool(options["pdl"])
    if choice.programs != rows * parts:
        raise ValueError(f"forward_parts: the choice is of {choice.programs // parts} rows, x has {rows}")
    align, (units, *strides) = launch._units(hidden, x.stride(0), 0 if residual is None else residual.stride(0))
    sums = prepared.scratch((rows, parts), torch.float32, x.device)
    divided = (parts, width, choice.block, width == choice.block and parts * width == hidden)
    grid = (choice.programs,)
    first = (x, residual, sums, units, *strides, align, *divided, options["load"], overlap)
    launch._launch(few.row_squares, grid, choice, "forward", *first, launch_pdl=overlap)
    tensors = (x, residual, weight, y, total, rstd, sums)
    constants = (rounds, align, *divided, options["lanes"], options["load"], options["store"], overlap)
    second = (*tensors, units, *strides, eps, offset, *constants)
    launch._launch(few.forward_parts, grid, choice, "forward", *second, launch_pdl=overlap)


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
    """As `launch.backward`; dw needs no partial sums."""
    rows, hidden = x.shape
    options: dict[str, Any] = dict(choice.options)
    parts, overlap = options["parts"], bool(options["pdl"])
    align, (units, *strides) = launch._units(hidden, dy.stride(0), 0 if dsum is None else dsum.stride(0), x.stride(0))
    sums = prepared.scratch((rows, parts), torch.float32, x.device)
    whole = hidden == parts * choice.block
    first = (dy, x, weight, sums, units, strides[0], strides[2], offset, align, parts, choice.block, whole)
    summed = replace(choice, rows=1, num_warps=max(1, choice.num_warps // choice.rows), programs=rows * parts)
    launch._launch(
        few.row_products, (rows * parts,), summed, "backward", *first, options["load"], overlap, launch_pdl=overlap
    )
    tensors = (dy, dsum, x, weight, rstd, sums, dx, dw)
    tile = (rounds, align, choice.rows, choice.block, whole, rows % choice.rows == 0, parts, options["lanes"])
    second = (*tensors, rows, units, *strides, offset, *tile, overlap, options["load"], options["store"])
    launch._launch(few.backward_strips, (parts,), choice, "backward", *second, launch_pdl=overlap)
