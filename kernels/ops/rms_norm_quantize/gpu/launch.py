"""From a choice to launches on NVIDIA and AMD GPUs."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...rms_norm.choice import Choice, next_power_of_2
from ...rms_norm.gpu.launch import _launch, _units
from ...rms_norm.gpu.versions import served
from ..formats import Format
from . import kernels


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
    """Fill q, and where they are given `scale` and `total` (x + residual); shapes as in function.py.  q has the bits of
    the dtype `to`, as int8 or uint8, made by `code` (formats.py)."""
    choice = served(choice)
    options = dict(choice.options)
    rows, hidden = x.shape
    align, (units, *strides) = _units(hidden, x.stride(0), 0 if residual is None else residual.stride(0))
    overlap = bool(options["pdl"])
    form = (group, to.lowest, to.largest, code, align)
    if options["kernel"] == "quantize_measured":
        parts = int(options["parts"])
        squares = torch.empty((rows, parts), dtype=torch.float32, device=x.device)
        peak = (
            torch.empty((rows, parts), dtype=torch.int32, device=x.device) if scale is not None and not group else None
        )
        whole = hidden % choice.block == 0
        tiles = (choice.block, options["span"], whole)
        measure = replace(choice, options=tuple(sorted({**options, "kernel": "quantize_measure"}.items())))
        args = (x, residual, weight, total, squares, peak, units, *strides, align, parts, *tiles, overlap)
        _launch(kernels.quantize_measure, (choice.programs,), measure, "forward", *args, launch_pdl=overlap)
        tensors = (x, residual, weight, given, q, scale, total, squares, peak)
        lanes = next_power_of_2(parts)
        args = (*tensors, units, strides[0], eps, *form, parts, lanes, *tiles, "", overlap)
        _launch(kernels.quantize_measured, (choice.programs,), choice, "forward", *args, launch_pdl=overlap)
        return
    even = rows % choice.rows == 0
    common = (x, residual, weight, given, q, scale, total, rows, units, *strides, eps, *form, choice.rows, choice.block)
    if options["kernel"] == "quantize_rows":
        kernel, whole = kernels.quantize_rows, hidden == choice.block + options["tail"]
        args = (*common, options["span"], options["tail"], whole, even, "", "", overlap)
    elif options["kernel"] == "quantize_persistent":
        kernel, whole = kernels.quantize_persistent, hidden == choice.block
        args = (*common, options["span"], whole, even, choice.num_stages, "", "", overlap)
    else:
        kernel, whole = kernels.quantize_chunks, hidden % choice.block == 0
        args = (*common, options["span"], whole, even, "evict_last", "evict_first", overlap)
    _launch(kernel, (choice.programs,), choice, "forward", *args, launch_pdl=overlap)
