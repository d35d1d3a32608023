"""What the interpreter answers for libdevice, and for functions of triton.language that a kernel's module imported by
name: every one has a value or says that it has none; none is silently None."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import erfinv, tanh
from triton.language.math import rsqrt

from farm.child import interpreter, interpreter_libdevice
from farm.child.interpreter_libdevice import FUNCTIONS, NotInterpreted

interpreter.install()

#: Of one argument each, checked below by Python's own functions.
_BY_PYTHON: dict[str, Callable[[float], float]] = {
    **{n: getattr(math, n) for n in ("tan", "sinh", "cosh", "tanh", "log10", "log1p", "expm1", "atan", "asinh", "sin")},
    **{n: getattr(math, n) for n in ("asin", "acos", "atanh", "erf", "erfc", "lgamma", "cos", "exp", "log", "log2")},
    **{n: getattr(math, n) for n in ("sqrt", "exp2", "cbrt") if hasattr(math, n)},
    **{n: (lambda f: lambda x: float(f(x)))(getattr(math, n)) for n in ("floor", "ceil", "trunc")},
    "tgamma": math.gamma,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "rcbrt": lambda x: x ** (-1 / 3),
    "exp10": lambda x: 10.0**x,
    "sinpi": lambda x: math.sin(math.pi * x),
    "cospi": lambda x: math.cos(math.pi * x),
    "normcdf": lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "rint": lambda x: float(round(x)),
    "nearbyint": lambda x: float(round(x)),
    "round": lambda x: float(math.floor(x + 0.5)),
    "rcp_rn": lambda x: 1 / x,
}


@triton.jit
def _bound_helper(x):
    return rsqrt(x)


@triton.jit
def bound(X, Y, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols)
    tl.store(Y + cols, tanh(x) + rsqrt(x) + _bound_helper(x) + tanh(tl.sum(x, axis=0) / 100))


@triton.jit
def absent(X, Y, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, erfinv(tl.load(X + cols)))


def _tensor(values: list[float], dtype: Any = tl.float32, kind: Any = np.float32) -> Any:
    data = np.array(values, dtype=kind)
    return tl.tensor(interpreter.interp.TensorHandle(data, dtype), tl.block_type(dtype, [len(values)]))


def test_a_kernel_calls_what_its_module_imported_by_name():
    x = torch.linspace(0.1, 3, 8)
    y = torch.zeros(8)
    bound[(1,)](x, y, 8)
    torch.testing.assert_close(y, x.tanh() + 2 * x.rsqrt() + (x.sum() / 100).tanh())


def test_what_the_interpreter_lacks_is_no_fault_of_the_kernel():
    with pytest.raises(NotInterpreted, match=r"absent: the interpreter has no libdevice.erfinv; run this kernel"):
        absent[(1,)](torch.rand(8), torch.zeros(8), 8)


@pytest.mark.parametrize("name", sorted(_BY_PYTHON))
def test_a_function_is_that_of_python(name):
    values = [0.125, 0.4, 0.75, 0.9]
    got = getattr(libdevice, name)(_tensor(values)).handle.data
    want = [_BY_PYTHON[name](float(np.float32(v))) for v in values]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=3e-6)


def test_every_function_of_libdevice_has_a_value_or_says_that_it_has_none():
    named = [n for n, m in vars(libdevice).items() if callable(m) and not n.startswith("_") and n in dir(libdevice)]
    answered = 0
    for name in named:
        for count in (1, 2, 3):
            try:
                found = getattr(libdevice, name)(*[_tensor([0.25, 0.5])] * count)
            except NotInterpreted:
                break
            except TypeError:  # another number of arguments
                continue
            assert isinstance(found, tl.tensor), name
            answered += 1
            break
        else:
            raise AssertionError(f"{name} has neither")
    assert answered == len([n for n in FUNCTIONS if n in named]) > 60


def test_several_arguments_are_broadcast_and_numbers_are_taken_as_they_are():
    two = _tensor([2.0, 3.0])
    assert list(libdevice.pow(two, 2.0).handle.data) == [4, 9]
    assert list(libdevice.fma(two, two, tl.constexpr(1.0)).handle.data) == [5, 10]
    assert list(libdevice.fmod(_tensor([5.5, -5.5]), 2.0).handle.data) == [1.5, -1.5]
    assert list(libdevice.copysign(two, _tensor([-1.0, 1.0])).handle.data) == [-2, 3]
    assert list(libdevice.isnan(_tensor([math.nan, 1.0])).handle.data) == [1, 0]
    assert libdevice.isnan(two).dtype.scalar == tl.int32


@pytest.mark.parametrize("dtype, kind", [(tl.float16, np.float16), (tl.int32, np.int32), (tl.bfloat16, np.uint16)])
def test_a_dtype_that_no_device_takes_is_an_error_here_too(dtype, kind):
    with pytest.raises(TypeError, match="takes float32 or float64"):
        libdevice.tanh(_tensor([1, 2], dtype, kind))


def test_the_absolute_value_of_whole_numbers():
    assert list(libdevice.abs(_tensor([-1, 2], tl.int32, np.int32)).handle.data) == [1, 2]


def test_only_what_is_triton_s_own_is_replaced():
    def rsqrt(x: float) -> float:
        return x

    names = {"__name__": "somebody", "rsqrt": rsqrt, "math": tl.math, "block": tl.arange, "number": 3}
    interpreter_libdevice.bind(names, interpreter.interp)
    assert names["rsqrt"] is rsqrt and names["math"] is tl.math and names["number"] == 3
    assert names["block"] is not tl.arange
    own = types.ModuleType("triton.language.standard")
    own.__dict__["arange"] = tl.arange
    interpreter_libdevice.bind(vars(own), interpreter.interp)
    assert own.__dict__["arange"] is tl.arange
