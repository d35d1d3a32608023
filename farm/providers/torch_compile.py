"""PyTorch's compiler on the plain formulas, one compilation per shape.  Rounding class: single (gemma).

The formulas are float32 from the first operation to one cast, which Inductor fuses into one kernel.  Where the tool
chain that Inductor needs is missing (a C++ compiler on the CPU, Triton and a C compiler on a GPU), NotImplementedError
says so.

fused_add_rms_norm is `x + residual` and that norm of it, compiled together, with Inductor told to keep the rounding of
the addition (`emulate_precision_casts`).  Left alone it may drop it where both end in one kernel, so that y is the norm
of the rounded or of the unrounded sum, by the shape and by the version.

Mode `auto` is torch.compile's own default.  Mode `max-autotune` has the switches of "max-autotune-no-cudagraphs":
Inductor measures its choices at the first call; the farm captures the graphs that it times itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "torch_compile"
ROLE = "peer"
MODES = ("auto", "max-autotune")
OPS = ("rms_norm", "fused_add_rms_norm", "matmul", "rms_norm_quantize")
DISTRIBUTION = "torch"
SETTINGS = {"auto": "dynamic=False, default mode", "max-autotune": "dynamic=False, max-autotune-no-cudagraphs"}

#: What torch._inductor.list_mode_options gives for max-autotune-no-cudagraphs; it takes a mode or options, not both.
_MAX_AUTOTUNE = ("max_autotune", "coordinate_descent_tuning")
_MISSING_TOOLS = ("InvalidCxxCompiler", "TritonMissing", "BackendCompilerFailed: Cannot find a working triton")
_MISSING_TEXTS = ("No working C++ compiler", "Failed to find C compiler", "Cannot find a working triton", "Python.h")


def load(op: str) -> Callable[..., Any]:
    """The compiled function of `op`; ImportError where torch is missing."""
    import torch

    if op not in OPS:
        raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")
    if op == "rms_norm":
        compiled = _modes(_rms_norm)

        # Its own signature: a caller asks a provider which keywords it takes.
        def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, mode: str = "auto") -> Any:
            return compiled[mode](x, weight, eps, offset)

        return rms_norm
    if op == "fused_add_rms_norm":
        both = _modes(_fused_add_rms_norm, "emulate_precision_casts")

        def fused_add_rms_norm(
            x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0, mode: str = "auto"
        ) -> tuple[Any, Any]:
            y, total = both[mode](x, residual, weight, eps, offset)
            return y, total

        return fused_add_rms_norm
    if op == "rms_norm_quantize":
        quantizing = _modes(_rms_norm_quantize, "emulate_precision_casts")  # of the sum

        def rms_norm_quantize(
            x: Any,
            weight: Any,
            residual: Any = None,
            static_scale: Any = None,
            eps: float = 1e-6,
            *,
            quantized: str = "int8",
            group: int = 0,
            mode: str = "auto",
        ) -> Any:
            return quantizing[mode](x, weight, residual, static_scale, eps, quantized, group)

        return rms_norm_quantize
    products = _modes(torch.matmul)

    def matmul(a: Any, b: Any, *, mode: str = "auto") -> Any:
        return products[mode](a, b)

    return matmul


def _modes(function: Callable[..., Any], *switches: str) -> dict[str, _Compiled]:
    """Mode -> `function`, compiled in it."""
    return {"auto": _Compiled(function, *switches), "max-autotune": _Compiled(function, *switches, *_MAX_AUTOTUNE)}


def _rms_norm(x: Any, weight: Any, eps: float, offset: float) -> Any:
    """x [..., hidden], weight [hidden] or None -> y like x."""
    import torch

    wide = x.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * (weight.float() + offset)
    return y.to(x.dtype)


def _fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float, offset: float) -> tuple[Any, Any]:
    """x, residual [..., hidden], weight [hidden] or None -> (y, sum) like x."""
    total = x + residual
    return _rms_norm(total, weight, eps, offset), total


def _rms_norm_quantize(
    x: Any, weight: Any, residual: Any, static_scale: Any, eps: float, quantized: str, group: int
) -> Any:
    """What provider torch's function of that name returns."""
    from farm.providers.torch import rms_norm_quantize

    return rms_norm_quantize(x, weight, residual, static_scale, eps, quantized=quantized, group=group)


class _Compiled:
    """Compiles anew for each kind of call and forgets the last one.  `switches` are Inductor's, on where it has them.

    Dynamo gives up after 8 variants of one function and from then on runs it eagerly, without a word; a matrix has more
    shapes than that, and its `torch_compile` would be eager.
    """

    def __init__(self, function: Callable[..., Any], *switches: str):
        self._function = function
        self._switches = switches
        self._kind: Any = None
        self._compiled: Any = None

    def __call__(self, *args: Any) -> Any:
        import torch

        kind = (torch.is_grad_enabled(), *(_kind(a) for a in args))
        if kind != self._kind:
            known = _configure()
            torch._dynamo.reset()
            options: dict[str, Any] = {name: True for name in self._switches if hasattr(known, name)}
            self._compiled = torch.compile(self._function, dynamic=False, options=options or None)
            self._kind = kind
        try:
            return self._compiled(*args)
        except Exception as error:
            self._kind = None
            reason = _missing_tool(error)
            if reason:
                raise NotImplementedError(reason) from error
            raise


def _kind(arg: Any) -> Any:
    """What Dynamo specialises a call on, as far as a matrix varies it."""
    if hasattr(arg, "data_ptr"):
        return (tuple(arg.shape), arg.stride(), arg.dtype, arg.device, arg.requires_grad)
    return arg


def _configure() -> Any:
    """Inductor's settings, as the farm needs them."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    functorch.donated_buffer = False  # else backward under retain_graph=True is refused
    inductor.compile_threads = 1  # else a pool of processes outlives a child that is killed
    return inductor


def _missing_tool(error: BaseException) -> str | None:
    """The tool that Inductor did not find, from anywhere in the chain of causes; None for a true error."""
    link: BaseException | None = error
    while link is not None:
        text = f"{type(link).__name__}: {link}"
        if any(t in text for t in (*_MISSING_TOOLS, *_MISSING_TEXTS)):
            return f"torch.compile needs a tool that is not installed here ({text.splitlines()[0][:200]})"
        link = link.__cause__ or getattr(link, "inner_exception", None)
    return None
