"""RMS norm as a PyTorch function: the same call on every backend, with autograd."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from kernels import launches
from kernels.ops.rms_norm import dispatch, gpu
from kernels.ops.rms_norm.dispatch import Choice

CASTINGS = ("llama", "gemma", "none")
_FORWARD = {
    "multi_wave_cached": gpu.forward_cached,
    "static_persistent": gpu.forward_persistent,
    "multi_wave_reload": gpu.forward_reload,
}
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    casting: str = "llama",
    mode: str = "auto",
    in_place: bool = False,
) -> torch.Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension.  Zhang and Sennrich, arXiv:1910.07467.

    x: [..., hidden], float32, float16 or bfloat16, with any strides; a copy is made only where the last dimension is
    not contiguous or the others do not fold into one.  weight: [hidden] of any of these dtypes, or None (no factor, and
    offset plays no part).  y: x's shape and dtype, dense.  Sums and 1/sqrt are float32 always; `casting` says where
    else values are rounded to x's dtype:

        llama   x/rms is rounded before the weight (as Hugging Face's LlamaRMSNorm); in dw each row's product too
        gemma   nowhere, one rounding at the end
        none    every product is rounded, which for this op is what llama does

    `mode` picks the kernel (`dispatch.MODES`); a mode that cannot serve the shape raises NotImplementedError.  With
    `in_place`, backward writes dx into dy's storage where dy is dense and has x's dtype: nobody else may read dy then.
    dw is the same bits on every run.
    """
    _validate(x, weight, casting)
    reason = dispatch.refusal(mode, math.prod(x.shape[:-1]), x.shape[-1])
    if reason:
        raise NotImplementedError(reason)
    rounds = casting != "gemma"
    if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        y: torch.Tensor = _RMSNorm.apply(x, weight, eps, offset, rounds, mode, in_place)
        return y
    return _forward(_as_rows(x), weight, eps, offset, rounds, mode, None).view(x.shape)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, eps: float, offset: float, rounds: bool, mode: str, in_place: bool
    ) -> Any:
        rows = _as_rows(x)
        rstd = torch.empty(rows.shape[0], dtype=torch.float32, device=x.device)
        y = _forward(rows, weight, eps, offset, rounds, mode, rstd)
        ctx.save_for_backward(rows, weight, rstd)
        ctx.options = (offset, rounds, mode, in_place)
        return y.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        offset, rounds, mode, in_place = ctx.options
        wants_dw = weight is not None and ctx.needs_input_grad[1]
        dx, dw = _backward(_as_rows(dy), x, weight, rstd, offset, rounds, mode, in_place, wants_dw)
        return dx.view(dy.shape), dw, None, None, None, None, None


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    mode: str,
    rstd: torch.Tensor | None,
) -> torch.Tensor:
    """y [rows, hidden] of x [rows, hidden]; fills `rstd` [rows] where it is given."""
    rows, hidden = x.shape
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    weight = None if weight is None else weight.contiguous()
    with _on_device_of(x):
        choice = _choose(x, "forward", mode)
        args: tuple[Any, ...] = (x, weight, y, rstd, rows, hidden, x.stride(0), eps, offset, rounds, choice.block)
        if choice.mode == "static_persistent":
            args = (*args, choice.num_stages)
        _launch(_FORWARD[choice.mode], (choice.programs,), choice, "forward", *args)
    return y


def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    rounds: bool,
    mode: str,
    in_place: bool,
    wants_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx [rows, hidden] in x's dtype, and dw [hidden] in weight's, or None."""
    rows, hidden = x.shape
    reuse = in_place and dy.dtype == x.dtype and dy.is_contiguous()
    dx = dy if reuse else torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if rows == 0:
        return dx, torch.zeros_like(weight) if wants_dw else None  # type: ignore[arg-type]
    dense = None if weight is None else weight.contiguous()
    strides = (dy.stride(0), x.stride(0))
    partial = None  # float32 rows of dw, one a program
    with _on_device_of(x):
        choice = _choose(x, "backward", mode)
        if choice.mode == "multi_wave_reload":
            if wants_dw:  # before dx, which may overwrite dy
                partial = _weight_by_columns(dy, x, rstd, rounds)
            args: tuple[Any, ...] = (dy, x, dense, rstd, dx, rows, hidden, *strides, offset, choice.block)
            _launch(gpu.backward_reload, (choice.programs,), choice, "backward", *args)
        else:
            if wants_dw:
                partial = torch.empty((choice.programs, hidden), dtype=torch.float32, device=x.device)
            args = (dy, x, dense, rstd, dx, partial, rows, hidden, *strides, offset, rounds, choice.block)
            _launch(gpu.backward_block, (choice.programs,), choice, "backward", *args)
    if partial is None or weight is None:
        return dx, None
    return dx, partial.sum(0).to(weight.dtype)


def _weight_by_columns(dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, rounds: bool) -> torch.Tensor:
    """dw in float32 rows [splits, hidden] that are still to be summed."""
    rows, hidden = x.shape
    choice, blocks = dispatch.choose_columns(rows, hidden, dispatch.machine()[1])
    partial = torch.empty((choice.programs, hidden), dtype=torch.float32, device=x.device)
    args = (dy, x, rstd, partial, rows, hidden, dy.stride(0), x.stride(0), rounds, choice.block)
    _launch(gpu.backward_weight, (blocks, choice.programs), choice, "backward", *args)
    return partial


def _launch(kernel: Any, grid: tuple[int, ...], choice: Choice, direction: str, *args: Any) -> None:
    kernel[grid](*args, num_warps=choice.num_warps, num_stages=choice.num_stages)
    launches.record(
        kernel.__name__,
        grid,
        {
            "num_warps": choice.num_warps,
            "num_stages": choice.num_stages,
            "block": choice.block,
            "mode": choice.mode,
            "direction": direction,
        },
    )


def _choose(x: torch.Tensor, operation: str, mode: str) -> Choice:
    target, sms = dispatch.machine()
    return dispatch.choose(target, x.shape[0], x.shape[1], _DTYPES[x.dtype], operation, sms, mode)


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """x as [rows, hidden] whose last dimension is contiguous; a view where its strides allow."""
    hidden = x.shape[-1]
    if x.stride(-1) != 1 and hidden > 1:
        x = x.contiguous()
    return x.reshape(math.prod(x.shape[:-1]), hidden)


def _on_device_of(x: torch.Tensor) -> Any:
    """Triton launches on the current device, whatever device its arguments are on."""
    if x.device.index is None:
        return contextlib.nullcontext()
    api = torch.get_device_module(x.device)
    return contextlib.nullcontext() if api.current_device() == x.device.index else api.device(x.device.index)


def _validate(x: torch.Tensor, weight: torch.Tensor | None, casting: str) -> None:
    if x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"rms_norm needs x of shape [..., hidden] with hidden >= 1; got {list(x.shape)}")
    if x.dtype not in _DTYPES:
        raise TypeError(f"rms_norm takes x of float32, float16 or bfloat16; got {x.dtype}")
    if casting not in CASTINGS:
        raise ValueError(f"rms_norm has no casting {casting!r}; it has {', '.join(CASTINGS)}")
    if weight is None:
        return
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm needs weight of shape [{x.shape[-1]}], or None; got {list(weight.shape)}")
    if weight.dtype not in _DTYPES:
        raise TypeError(f"rms_norm takes a weight of float32, float16 or bfloat16; got {weight.dtype}")
    if weight.device != x.device:
        raise ValueError(f"rms_norm needs x and weight on one device; got {x.device} and {weight.device}")
