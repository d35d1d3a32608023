"""What the interpreter answers where a kernel calls a function of `libdevice`, or one of `triton.language` that its
module imported by name.

Triton's interpreter has nothing for `libdevice`: its functions are empty, or emit machine code.  Here each is computed
by NumPy in the dtype of its arguments, which are float32 or float64 as on a device, and one that has no counterpart in
NumPy says so (`NotInterpreted`) instead of giving None.  The error is NumPy's, at most an ULP or two; a device's
`libdevice` promises no more.

`from triton.language.math import rsqrt` binds a function that Triton replaces in the module `math` only, so a kernel
that calls it is told that it forgot @triton.jit.  `bind` replaces what a kernel's module bound.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from farm.errors import FarmSignal


class NotInterpreted(FarmSignal, NotImplementedError):
    """A kernel needs what the interpreter cannot do: its cell is unsupported here, and the kernel is not to blame."""


MODULES = tuple(f"triton.language.extra.{name}" for name in ("libdevice", "cuda.libdevice", "hip.libdevice"))


def _each(function: Callable[..., float]) -> Callable[..., Any]:
    """A function of Python floats as one of arrays, in the dtype of its first argument."""
    many = np.vectorize(function, otypes=[np.float64])

    def called(*arrays: Any) -> Any:
        return many(*arrays).astype(np.asarray(arrays[0]).dtype)

    return called


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except ValueError:
        return math.nan if x else math.inf
    except OverflowError:
        return math.inf


def _log_gamma(x: float) -> float:
    return math.lgamma(x) if x > 0 or x != math.floor(x) else math.inf


def _half_away(x: Any) -> Any:
    return np.trunc(x + np.copysign(np.asarray(0.5, x.dtype) * (np.abs(x) < 2**52), x))


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x).astype(np.int32)


#: Name -> the same function of arrays of one dtype.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("tan", "sinh", "cosh", "tanh", "log10", "log1p", "expm1", "cbrt")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, name) for name in ("floor", "ceil", "trunc", "rint", "sqrt", "exp", "exp2", "log", "log2")},
    **{name: getattr(np, name) for name in ("sin", "cos", "abs", "hypot", "nextafter", "copysign", "fmod")},
    **{f"fast_{name}f": getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "exp", "log2", "log", "log10")},
    **{f"{name}_rn": getattr(np, function) for name, function in (("add", "add"), ("sub", "subtract"))},
    **{f"{name}_rn": getattr(np, function) for name, function in (("mul", "multiply"), ("div", "divide"))},
    "fast_dividef": np.divide,
    "pow": np.power,
    "fast_powf": np.power,
    "atan2": np.arctan2,
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), x + y, np.maximum(x - y, 0)),
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "sqrt_rn": np.sqrt,
    "rcp_rn": np.reciprocal,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "exp10": lambda x: np.power(np.asarray(10, x.dtype), x),
    "fast_exp10f": lambda x: np.power(np.asarray(10, x.dtype), x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "fma": lambda x, y, z: (x.astype(np.float64) * y + z).astype(x.dtype),
    "saturatef": lambda x: np.nan_to_num(np.clip(x, 0, 1), nan=0.0),
    "nearbyint": np.rint,
    "round": _half_away,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    "lgamma": _each(_log_gamma),
    "tgamma": _each(_gamma),
    "isnan": _truth(np.isnan),
    "isinf": _truth(np.isinf),
    "finitef": _truth(np.isfinite),
    "isfinited": _truth(np.isfinite),
    "signbit": _truth(np.signbit),
}


def install(tl: Any, interp: Any) -> None:
    """Replace the functions of all `libdevice` modules of this process."""
    from triton.language.extra import libdevice

    for name in [n for n, member in vars(libdevice).items() if inspect.isfunction(member)]:
        _ANSWERS[name] = functools.partial(_called, name, tl, interp)
    for path in MODULES:
        try:
            module = importlib.import_module(path)
        except ImportError:  # a Triton that lacks a vendor
            continue
        for name, member in list(vars(module).items()):
            if name in _ANSWERS and callable(member):
                setattr(module, name, _ANSWERS[name])


_ANSWERS: dict[str, Callable[..., Any]] = {}


def bind(names: dict[str, Any], interp: Any) -> None:
    """Replace what a kernel's module (its globals) imported by name from `triton.language` or from `libdevice`."""
    from triton.language import core

    if str(names.get("__name__", "")).startswith("triton."):  # its own helpers, which it patches itself
        return
    for name, member in list(names.items()):
        where = getattr(member, "__module__", None) or ""
        if where in MODULES and getattr(member, "__name__", "") in _ANSWERS:
            names[name] = _ANSWERS[member.__name__]
        elif core.is_builtin(member) and where.startswith("triton.language"):
            names[name] = functools.partial(_builtin, member, interp)


def _builtin(member: Callable[..., Any], interp: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs["_semantic"] = interp.interpreter_semantic
    return member(*args, **kwargs)


def _called(name: str, tl: Any, interp: Any, *args: Any, **_: Any) -> Any:
    """A function of libdevice over tensors of the interpreter (or numbers), all broadcast to one shape."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise NotInterpreted(f"the interpreter has no libdevice.{name}; run this kernel on a device")
    tensors = [a for a in args if isinstance(a, tl.tensor)]
    dtype = tensors[0].dtype.scalar if tensors else tl.float32
    if name == "abs" and dtype == tl.int32:
        return tl.tensor(interp.TensorHandle(np.abs(tensors[0].handle.data), dtype), tensors[0].type)
    if dtype not in (tl.float32, tl.float64) or any(t.dtype.scalar != dtype for t in tensors):
        got = ", ".join(str(t.dtype.scalar) for t in tensors)
        raise TypeError(f"libdevice.{name} takes float32 or float64, all of one dtype, but it was given {got}")
    kind = np.float32 if dtype == tl.float32 else np.float64
    arrays = [np.asarray(a.handle.data if isinstance(a, tl.tensor) else getattr(a, "value", a), kind) for a in args]
    with np.errstate(all="ignore"):  # a device does not warn either
        found = np.asarray(function(*arrays))
    of = tl.int32 if found.dtype == np.int32 else dtype
    found = found if of == tl.int32 else found.astype(kind, copy=False)
    scalar = all(not t.type.is_block() for t in tensors)
    shaped = of if scalar else tl.block_type(of, list(found.shape))
    return tl.tensor(interp.TensorHandle(found, of), shaped)
