"""RMS norm and quantisation in one pass, as a PyTorch function: forward only, the same call on every backend."""

from __future__ import annotations

from importlib import import_module

import torch

from ..rms_norm import dispatch
from ..rms_norm import function as norm
from ..rms_norm.choice import Choice
from . import formats

OP = "rms_norm_quantize"


def rms_norm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    static_scale: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    quantized: str | torch.dtype = "int8",
    group: int = 0,
    mode: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """q = y / scale, rounded half to even, of y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.

        per token          group 0: scale = max|y| / L of each row             -> (q, scale [..., 1])
        per 128 columns    group 128: scale = max|y| / L of each group         -> (q, scale [..., hidden / 128])
        static             static_scale, float32 with one element, positive    -> q

    L is the largest value of q's dtype: 127 of int8, 448 of float8_e4m3fn, 240 of float8_e4m3fnuz.  y is never rounded.
    With `residual`, x is x + residual rounded to x's dtype, and that sum is one more, last output.

    x, residual: [..., hidden] of one dtype (float32, float16 or bfloat16), shape and device, with any strides, copied
    where those of `rms_norm` are.  weight: [hidden] of any of these dtypes, or None.  q: x's shape, of `quantized`
    ("int8", "float8_e4m3fn", "float8_e4m3fnuz", or torch's dtype), dense; scale: float32, to multiply q with.

    A scale has no lower bound: a group of zeros has scale 0 and q 0.  A dynamic q needs no saturation; a static one
    saturates, int8 at -128 and 127, floats at -L and L.  A row with a NaN or an infinity has the scale that the
    formulas give (of a NaN: NaN), and where a scale is 0, infinite or NaN, q is 0; static, a NaN is NaN, in int8 0.

    `mode` picks the kernel (rms_norm/choice.py); one that cannot serve raises NotImplementedError.  There is no
    backward: arguments that require grad are refused while grad is enabled.  Equal calls give equal bits.  On Ascend
    quantized is int8.  Where torch.compile, torch.export or a fake tensor is at work, the call is the custom operator
    `farm_kernels::rms_norm_quantize`.
    """
    to = str(quantized).removeprefix("torch.")
    _validate(x, weight, residual, static_scale, to, group)
    if norm.is_traced(OP, x, weight, residual, static_scale):
        from .operators import quantized_norm

        return quantized_norm(x, weight, residual, static_scale, eps, to, group, mode)
    check(x, to, mode)
    found = forward(x, weight, residual, static_scale, eps, to, group, mode)
    return found[0] if len(found) == 1 else found


def forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    residual: torch.Tensor | None,
    static_scale: torch.Tensor | None,
    eps: float,
    to: str,
    group: int,
    mode: str,
) -> tuple[torch.Tensor, ...]:
    """The outputs that there are of q, scale and sum, in the shapes of the public function."""
    rows, hidden = norm.as_rows(x), x.shape[-1]
    other = None if residual is None else norm.as_rows(residual)
    q = torch.empty(rows.shape, dtype=getattr(torch, to), device=x.device)
    shape = (rows.shape[0], hidden // (group or hidden))
    scale = None if static_scale is not None else torch.empty(shape, dtype=torch.float32, device=x.device)
    total = None if residual is None else torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if rows.shape[0] > 0:
        dense = None if weight is None else weight.contiguous()
        with norm._on_device_of(x):
            target, cores = dispatch.machine()
            choice = choose(target, *rows.shape, norm.DTYPES[x.dtype], cores=cores, mode=mode, group=group)
            bits = q if to == "int8" else q.view(torch.uint8)
            launch = import_module(f".{'ascend' if target.startswith('npu') else 'gpu'}.launch", __package__)
            code = formats.code(to, target)
            launch.quantize(
                choice, rows, other, dense, static_scale, eps, group, formats.FORMATS[to], code, bits, scale, total
            )
    found = [q.view(x.shape)]
    if scale is not None:
        found.append(scale.view(*x.shape[:-1], shape[1]))
    if total is not None:
        found.append(total.view(x.shape))
    return tuple(found)


def choose(
    target: str, rows: int, hidden: int, dtype: str, *, cores: int, mode: str = "auto", group: int = 0
) -> Choice:
    """The launch for [rows, hidden] of `dtype` on a target; pure, for any target.  NotImplementedError where `mode`
    cannot serve."""
    if target.startswith("npu"):
        from .ascend import launch as family

        return family.choose(target, rows, hidden, dtype, cores=cores, mode=mode, group=group)
    from .gpu.choose import choose as on_gpu

    return on_gpu(target, rows, hidden, dtype, cores=cores, op=OP, mode=mode, group=group)


def check(x: torch.Tensor, to: str, mode: str) -> None:
    """NotImplementedError where the device has not this dtype or `mode` no kernel for x, ValueError of a CPU tensor."""
    norm.check_mode(OP, x, mode)
    reason = formats.refusal(OP, to, dispatch.machine(x.device.index)[0])
    if reason:
        raise NotImplementedError(reason)


def _validate(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    residual: torch.Tensor | None,
    static_scale: torch.Tensor | None,
    to: str,
    group: int,
) -> None:
    """ValueError, TypeError or NotImplementedError, saying what is wrong, where the arguments do not fit."""
    norm.validate(OP, x, weight, "gemma", residual)
    if to not in formats.FORMATS:
        raise TypeError(f"{OP} quantises to {', '.join(formats.FORMATS)}; got {to}")
    if group not in formats.GROUPS:
        raise ValueError(f"{OP} has a scale per row (group=0) or per 128 columns (group=128); got group={group}")
    if group and x.shape[-1] % group:
        raise ValueError(f"{OP} needs whole groups of {group} columns; hidden is {x.shape[-1]}")
    if static_scale is not None:
        if group:
            raise ValueError(f"{OP} has one scale where static_scale gives it; got group={group}")
        if static_scale.dtype != torch.float32 or static_scale.numel() != 1 or static_scale.device != x.device:
            raise ValueError(
                f"{OP} needs static_scale of one float32 element on {x.device}; got {static_scale.dtype} "
                f"{list(static_scale.shape)} on {static_scale.device}"
            )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, residual, static_scale)):
        raise NotImplementedError(f"{OP} has no backward; call it under torch.no_grad(), or with detached tensors")
