"""RMS norm as a PyTorch function: the same call on every backend, with autograd."""

from __future__ import annotations

import contextlib
import math
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from . import dispatch, prepared
from .choice import Choice

CASTINGS = ("llama", "gemma", "none")
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
#: Inside a tile rows are addressed in int32: a row stride up to here leaves room for 64 rows.
_MAX_STRIDE = 2**25


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
    not contiguous, the others do not fold into one, or a row is more than 2^25 elements from the next without need.
    weight: [hidden] of any of these dtypes, or None (no factor, and offset plays no part).  y: x's shape and dtype,
    dense.  Sums and 1/sqrt are float32 always; `casting` says where else values are rounded to x's dtype:

        llama   x/rms is rounded before the weight (as Hugging Face's LlamaRMSNorm); in dw each row's product too
        gemma   nowhere, one rounding at the end
        none    every product is rounded, which for this op is what llama does

    `mode` picks the kernel (`choice.MODES`); a mode that cannot serve the shape raises NotImplementedError.  With
    `in_place`, backward writes dx into dy's storage where dy is dense and has x's dtype: nobody else may read dy then.
    dw is the same bits on every run; of rows so wide that several programs share them, unless another stream holds up
    some of these for 0.2 s.  Where torch.compile, torch.export, torch.func or a fake tensor is at work, the call is one
    custom operator (`operators.py`), whose backward never writes in place.  Forward-mode derivatives and DTensors are
    refused.
    """
    rounds = casting != "gemma"
    if is_traced("rms_norm", x, weight):
        validate("rms_norm", x, weight, casting)
        from .operators import norm

        return norm("rms_norm", x, None, weight, eps, offset, rounds, mode)[0]
    admit("rms_norm", x, None, weight, casting, mode)
    # Views are made here, not inside of apply: autograd lets nobody write into a view that a Function returned.
    rows = as_rows(x)
    if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        y: torch.Tensor = _RMSNorm.apply(rows, weight, eps, offset, rounds, mode, in_place)
    else:
        y, _ = forward("rms_norm", rows, None, weight, eps, offset, rounds, mode, None)
    return y if rows is x else y.view(x.shape)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, eps: float, offset: float, rounds: bool, mode: str, in_place: bool
    ) -> Any:
        rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        y, _ = forward("rms_norm", x, None, weight, eps, offset, rounds, mode, rstd)
        ctx.save_for_backward(x, weight, rstd)
        ctx.options = (offset, rounds, mode, in_place)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        offset, rounds, mode, in_place = ctx.options
        wants_dx, wants_dw = ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[1]
        reuse = in_place and wants_dx  # nobody wants dx: nothing of dy's is written
        dx, dw = backward("rms_norm", as_rows(dy), None, x, weight, rstd, offset, rounds, mode, reuse, wants_dw)
        return dx if wants_dx else None, dw, None, None, None, None, None


def forward(
    op: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    mode: str,
    rstd: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(y, x + residual or None), each [rows, hidden] and dense, of x and residual [rows, hidden]; fills `rstd` [rows]
    where it is given."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.shape[0] > 0:
        weight = None if weight is None else weight.contiguous()
        scalars = float(eps), float(offset)

        def derive(x: Any, residual: Any, weight: Any, y: Any, total: Any, rstd: Any) -> None:
            choice, launch = _choose(op, x, "forward", mode, x, residual, y, total)
            launch.forward(choice, x, residual, weight, *scalars, rounds, y, total, rstd)

        key = (
            *(op, mode, rounds, prepared.driver(), x.device, x.dtype, x.shape, x.stride(), rstd is None),
            None if residual is None else (residual.stride(), residual.data_ptr() == x.data_ptr()),
            None if weight is None else weight.dtype,
        )
        tensors = (x, residual, weight, y, total, rstd)
        with _on_device_of(x):
            prepared.launch(key, tensors, scalars, derive)
    return y, total


def backward(
    op: str,
    dy: torch.Tensor,
    dsum: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float,
    rounds: bool,
    mode: str,
    in_place: bool,
    wants_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx [rows, hidden] in x's dtype (with dsum added, where there is one), and dw [hidden] in weight's, or None."""
    rows, hidden = x.shape
    reuse = in_place and dy.dtype == x.dtype and dy.is_contiguous()
    dx = dy if reuse else torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if rows == 0:
        return dx, torch.zeros_like(weight) if wants_dw else None  # type: ignore[arg-type]
    dw = None if weight is None or not wants_dw else torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    dense = None if weight is None else weight.contiguous()
    scalars = 0.0, float(offset)

    def derive(dy: Any, dsum: Any, x: Any, dense: Any, rstd: Any, dx: Any, dw: Any) -> None:
        choice, launch = _choose(op, x, "backward", mode, dy, dsum, x, dx)
        launch.backward(choice, dy, dsum, x, dense, rstd, scalars[1], rounds, dx, dw)

    begins = [t.data_ptr() for t in (dy, dsum, x) if t is not None]
    key = (
        *(op, mode, rounds, prepared.driver(), x.device, x.dtype, x.shape, x.stride(), dy.dtype, dy.stride(), reuse),
        None if dsum is None else (dsum.dtype, dsum.stride()),
        None if dense is None else dense.dtype,
        dw is None,
        len(set(begins)) == len(begins),
    )
    with _on_device_of(x):
        prepared.launch(key, (dy, dsum, x, dense, rstd, dx, dw), scalars, derive)
    return dx, dw


def _choose(
    op: str, x: torch.Tensor, operation: str, mode: str, *matrices: torch.Tensor | None
) -> tuple[Choice, ModuleType]:
    """The choice, and the module that launches it; `matrices` are all rows x hidden tensors of the launch.

    Asked first as if every kernel could have them: to look at them takes 3 to 5 us, and few kernels ask for it."""
    target, cores = dispatch.machine()
    rows, hidden = x.shape
    shape = (target, rows, hidden, DTYPES[x.dtype], operation)
    choice = dispatch.choose(*shape, cores=cores, op=op, mode=mode, ring=True, split=True)
    if choice.kernel.endswith("_split") and not dispatch.can_serve(choice, target, *matrices):
        choice = dispatch.choose(*shape, cores=cores, op=op, mode=mode, ring=True)
    if not dispatch.can_serve(choice, target, *matrices):
        choice = dispatch.choose(*shape, cores=cores, op=op, mode=mode, dense=False)
    return choice, dispatch.family(target, "launch")


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """x as [rows, hidden] whose last dimension is contiguous; x itself or a view where its strides allow."""
    hidden = x.shape[-1]
    if x.stride(-1) != 1 and hidden > 1:
        x = x.contiguous()
    if x.dim() != 2:
        x = x.reshape(math.prod(x.shape[:-1]), hidden)
    far = x.stride(0) > max(_MAX_STRIDE, hidden) and x.shape[0] > 1
    return x.contiguous() if far else x


def admit(
    op: str, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, casting: str, mode: str
) -> None:
    """`validate` and `check_mode` of an eager call; asked once of a device, shapes, dtypes, casting and mode."""
    key = (
        *(op, casting, mode, prepared.driver(), x.shape, x.dtype, x.device),
        None if residual is None else (residual.shape, residual.dtype, residual.device),
        None if weight is None else (weight.shape, weight.dtype, weight.device),
    )
    if key in _admitted:
        return
    validate(op, x, weight, casting, residual)
    check_mode(op, x, mode)
    if prepared.keeps:
        if len(_admitted) >= prepared.MOST:
            _admitted.clear()
        _admitted.add(key)


_admitted: set[Any] = set()


def check_mode(op: str, x: torch.Tensor, mode: str) -> None:
    """NotImplementedError where `mode` has no forward for x; it may still have no backward, which then says so."""
    rows, hidden = max(1, math.prod(x.shape[:-1])), x.shape[-1]
    target, _ = dispatch.machine(x.device.index)
    if x.device.type == "cpu" and target != "interpreter":
        raise ValueError(f"{op} needs tensors on a device of {target}; x is on the CPU (TRITON_INTERPRET=1 interprets)")
    reason = dispatch.refusal(target, mode, rows, hidden, DTYPES[x.dtype], "forward", op)
    if reason:
        raise NotImplementedError(reason)


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def is_traced(op: str, *tensors: torch.Tensor | None) -> bool:
    """Whether the call has to be a custom operator: something other than eager autograd looks on.

    NotImplementedError where a forward-mode derivative would be lost, TypeError of a DTensor, which holds one part.
    """
    if torch.compiler.is_compiling():
        return True
    plain = True
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            plain = False
            if any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__):
                raise TypeError(f"{op} takes no DTensor: call it on x.to_local() where the last dimension is whole")
    if forward_ad._current_level >= 0 and any(  # type: ignore[attr-defined]
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise NotImplementedError(
            f"{op} has no forward-mode derivative; use reverse mode, or torch.nn.functional.rms_norm"
        )
    return not plain or torch._C._are_functorch_transforms_active()


def _on_device_of(x: torch.Tensor) -> Any:
    """Triton launches on the current device, whatever device its arguments are on."""
    if x.device.index is None:
        return contextlib.nullcontext()
    api = torch.get_device_module(x.device)
    return contextlib.nullcontext() if api.current_device() == x.device.index else api.device(x.device.index)


def validate(
    op: str, x: torch.Tensor, weight: torch.Tensor | None, casting: str, residual: torch.Tensor | None = None
) -> None:
    """ValueError or TypeError, saying what is wrong, where the arguments do not belong together."""
    if x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"{op} needs x of shape [..., hidden] with hidden >= 1; got {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"{op} takes x of float32, float16 or bfloat16; got {x.dtype}")
    if casting not in CASTINGS:
        raise ValueError(f"{op} has no casting {casting!r}; it has {', '.join(CASTINGS)}")
    if residual is not None and (residual.shape, residual.dtype, residual.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"{op} needs x and residual of one shape, dtype and device; got {list(x.shape)} {x.dtype} {x.device} and "
            f"{list(residual.shape)} {residual.dtype} {residual.device}"
        )
    if weight is None:
        return
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"{op} needs weight of shape [{x.shape[-1]}], or None; got {list(weight.shape)}")
    if weight.dtype not in DTYPES:
        raise TypeError(f"{op} takes a weight of float32, float16 or bfloat16; got {weight.dtype}")
    if weight.device != x.device:
        raise ValueError(f"{op} needs x and weight on one device; got {x.device} and {weight.device}")
