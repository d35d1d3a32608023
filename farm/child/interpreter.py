"""Triton's interpreter made trustworthy: right bfloat16, bounds checks, byte counts.

`install()` must run before anything imports triton: the switch TRITON_INTERPRET is read while triton is imported, and
set later it leaves a mixture in which a kernel calls compiled helpers ("Cannot call @triton.jit'd outside of the scope
of a kernel").  It is process-wide, so one process interprets or compiles, never both.

Why not the stock interpreter (measured with triton 3.6.0, 3.7.1 and 3.9.0):

* a cast from float32 to bfloat16 truncates: half of all outputs are one ULP low.  Here it rounds to nearest even;
* arithmetic on bfloat16 works on the raw uint16 storage, and says nothing: garbage.  Here it is float32, rounded;
* an unmasked access out of bounds reads whatever is there, or kills the process (signal 11).  Here it is `OutOfBounds`;
* a float argument stays a Python float, and a kernel that says `eps.to(...)` fails.  Here it is float32, as compiled;
* a comparison of two integers says that it is one; as a scalar it becomes a mask of integers, which 3.9 refuses.  Here
  it is a bool;
* functions of `libdevice` are empty stubs, and one that a kernel's module imported by name from `triton.language.math`
  cannot be called.  Here both can (`interpreter_libdevice`);
* `@triton.autotune` asks for a driver, and there is none.  Here the first configuration is taken and nothing is timed;
* every call of a helper patches `triton.language` again (0.4 ms each).  Here once per module;
* every value has its type worked out anew.  Here once per shape and element type (`interpreter_types`).

With these, bfloat16 kernels equal the correctly rounded float64 reference on more than 99.999 % of elements.  Cost is
per program, not per element: about 0.5 to 0.9 ms for a norm's row.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from farm.child import interpreter_libdevice, interpreter_types
from farm.child.interpreter_progress import ProgramCount
from farm.errors import FarmSignal

tl: Any = None  # triton.language, once installed
interp: Any = None  # triton.runtime.interpreter, once installed

_stock: dict[str, Callable[..., Any]] = {}  # what was there before, by name
_regions: list[tuple[int, int, str]] = []  # of the launch that runs: first byte, past the last, what it is
_traffic = {"loaded": 0, "stored": 0}
_counter: Any = None  # a farm.child.traffic.Counter while a call's bytes are counted
_patched_modules: set[int] = set()
_bound_modules: set[int] = set()
programs = ProgramCount()  # of the phase that runs
_WORDS_OF_3_2 = ("num_buffers_warp_spec", "num_consumer_groups", "reg_dec_producer", "reg_inc_consumer")


class OutOfBounds(FarmSignal, RuntimeError):
    """A kernel touched memory outside every tensor that it was given."""


def install() -> None:
    """Switch this process to the repaired interpreter; a second call does nothing.

    RuntimeError if triton was imported before without the switch: then only a new process helps.
    """
    global tl, interp
    if interp is not None:
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "triton was imported before the interpreter was enabled; call install() first, in a new process"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language
    import triton.runtime.interpreter
    from triton.runtime import driver

    tl, interp = triton.language, triton.runtime.interpreter
    builder = interp.InterpreterBuilder
    for name, patch in _BUILDER.items():
        if hasattr(builder, name):
            _stock[name] = getattr(builder, name)
        setattr(builder, name, patch)
    for owner, name, patch in (
        (interp.ReduceOps, "apply_impl", _folded_in_float32(interp.ReduceOps.apply_impl)),
        (interp.ScanOps, "apply_impl", _folded_in_float32(interp.ScanOps.apply_impl)),
        (interp.GridExecutor, "_init_args_hst", _init_args),
        (interp.GridExecutor, "__call__", _launch),
        (interp.InterpretedFunction, "__call__", _call_helper),
        (interp, "_implicit_cvt", _argument),
    ):
        _stock[name if owner is interp else f"{owner.__name__}.{name}"] = getattr(owner, name)
        setattr(owner, name, patch)
    interpreter_libdevice.install(tl, interp)
    interpreter_types.install(tl.core, interp)
    # The overflow check builds its asserts and, outside debug mode, never evaluates them: a quarter of the time.
    interp.interpreter_builder.options = dataclasses.replace(
        interp.interpreter_builder.options, sanitize_overflow=False
    )
    driver.set_active(_NoDriver())


def traffic(*, reset: bool = False) -> dict[str, int]:
    """Bytes that kernels loaded and stored since the start or the last reset, masked lanes not counted."""
    seen = dict(_traffic)
    if reset:
        _traffic.update(loaded=0, stored=0)
    return seen


def watch(counter: Any) -> None:
    """Tell a `farm.child.traffic.Counter` of every launch and access from now on; None: nobody."""
    global _counter
    _counter = counter


class _NoDriver:
    """Answers the autotuner, the one that asks for a driver here: every configuration costs the same."""

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda fn, quantiles=None, **_: [1.0, 1.0, 1.0]


def _argument(arg: Any) -> Any:
    """A launch's argument as the kernel sees it; stock leaves floats alone."""
    if isinstance(arg, float):
        return tl.tensor(interp.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)
    return _stock["_implicit_cvt"](arg)


# -- bfloat16: kept by the interpreter as uint16 bits ------------------------------------------------------------------


def to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (uint16) as float32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 as bfloat16 bits (uint16), rounded to nearest even; NaN stays NaN, and is made quiet."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    half_minus_one_plus_odd = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half_minus_one_plus_odd) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


def _is_bf16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _wide(handle: Any) -> Any:
    """A bfloat16 handle as float32; any other as it is."""
    return interp.TensorHandle(to_float32(handle.data), tl.float32) if _is_bf16(handle) else handle


def _narrow(values: np.ndarray) -> Any:
    return interp.TensorHandle(to_bfloat16(values), tl.bfloat16)


def _cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
    target = dst_type.scalar
    if _is_bf16(src):
        if target == tl.bfloat16:
            return src
        src = _wide(src)
        return src if target == tl.float32 else _stock["cast_impl"](self, src, dst_type)
    if target == tl.bfloat16:
        values = src.data if src.dtype.scalar == tl.float32 else src.data.astype(np.float32)
        return _narrow(values)
    return _stock["cast_impl"](self, src, dst_type)


def _create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
    nearest_even = rounding_mode in (None, interp._ir.ROUNDING_MODE.RTNE)
    if nearest_even and dst_type.scalar.primitive_bitwidth >= 16 and (_is_bf16(src) or dst_type.scalar == tl.bfloat16):
        return _cast_impl(self, src, dst_type)
    return _stock["create_fp_to_fp"](self, src, dst_type, rounding_mode)


def _unary_op(self: Any, arg: Any, op: Any) -> Any:
    return _narrow(op(to_float32(arg.data))) if _is_bf16(arg) else _stock["unary_op"](self, arg, op)


def _binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    bits = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)
    if not _is_bf16(lhs) or op in bits:
        out = _stock["binary_op"](self, lhs, rhs, op)
        if out.data.dtype == np.bool_ and out.dtype != tl.int1:
            out.dtype = tl.int1  # stock calls a comparison what was compared
        return out
    out = op(to_float32(lhs.data), to_float32(rhs.data))
    return interp.TensorHandle(out, tl.int1) if out.dtype == np.bool_ else _narrow(out)


def _ternary_op(self: Any, a: Any, b: Any, c: Any, op: Any) -> Any:
    if not _is_bf16(c) or op is np.where:
        return _stock["ternary_op"](self, a, b, c, op)
    return _narrow(op(to_float32(a.data), to_float32(b.data), to_float32(c.data)))


def _create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    if not _is_bf16(z):
        return _stock["create_fma"](self, x, y, z)
    return _narrow(to_float32(x.data) * to_float32(y.data) + to_float32(z.data))


def _create_dot(self: Any, a: Any, b: Any, acc: Any, *rest: Any) -> Any:
    return _stock["create_dot"](self, _wide(a), _wide(b), acc, *rest)


def _get_bf16(self: Any, value: float) -> Any:
    return _narrow(np.array([value], dtype=np.float32))


def _folded_in_float32(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction or scan that folds bfloat16 in float32 and rounds once, as compiled kernels do for sums."""

    @functools.wraps(stock)
    def apply_impl(self: Any, tensors: tuple[Any, ...]) -> Any:
        if not any(_is_bf16(t.handle) for t in tensors):
            return stock(self, tensors)
        out = stock(self, tuple(self.to_tensor(_wide(t.handle).data, _wide(t.handle).dtype.scalar) for t in tensors))
        many = isinstance(out, (tuple, list))
        back = [self.to_tensor(*_rounded(o)) if o.dtype == tl.float32 else o for o in (out if many else [out])]
        return back if many else back[0]

    return apply_impl


def _rounded(tensor: Any) -> tuple[Any, Any]:
    bits = to_bfloat16(tensor.handle.data)
    return (bits if tensor.shape else bits.item()), tl.bfloat16


# -- memory: every access must lie inside one of the launch's tensors --------------------------------------------------


def _check(pointers: Any, mask: Any, verb: str) -> None:
    """Count one load or store, and refuse it where a lane that is not masked lies outside the launch's tensors."""
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    live = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), pointers.data.shape)
    addresses = pointers.data if live.all() else pointers.data[live]
    if not addresses.size:
        return
    _traffic["loaded" if verb == "load" else "stored"] += addresses.size * size
    if _counter is not None:
        _counter.access(verb, addresses, size)
    first, last = int(addresses.min()), int(addresses.max()) + size
    if not any(begin <= first and last <= end for begin, end, _ in _regions):
        raise OutOfBounds(_explain(first, last, verb))


def _explain(first: int, last: int, verb: str) -> str:
    where = f"{verb} in program {interp.interpreter_builder.grid_idx}"
    if not _regions:
        return f"{where}: the kernel was given no tensor"

    def outside(region: tuple[int, int, str]) -> int:
        return max(region[0] - first, 0) + max(last - region[1], 0)

    begin, end, what = min(_regions, key=outside)
    side = f"{last - end} bytes past the end" if last > end else f"{begin - first} bytes before the start"
    return f"{where} accesses {side} of {what}; mask the tail or fix the offset"


def _create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **kw: Any) -> Any:
    _check(pointers, mask, "load")
    return _stock["create_masked_load"](self, pointers, mask, *rest, **kw)


def _create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **kw: Any) -> Any:
    _check(pointers, mask, "store")
    return _stock["create_masked_store"](self, pointers, value, mask, *rest, **kw)


def _create_atomic_rmw(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    _check(pointers, mask, "load")
    _check(pointers, mask, "store")
    if _is_bf16(value) and op != interp._ir.ATOMIC_OP.XCHG:  # Triton has no other one of bfloat16 than add
        return _add_atomically(pointers, value, mask)
    return _stock["create_atomic_rmw"](self, op, pointers, value, mask, *rest)


def _add_atomically(pointers: Any, value: Any, mask: Any) -> Any:
    """bfloat16, one lane after the other, each sum in float32 and rounded; gives what was there before."""
    addresses, live = pointers.data.reshape(-1), np.broadcast_to(mask.data, pointers.data.shape).reshape(-1)
    terms = to_float32(np.broadcast_to(value.data, pointers.data.shape).reshape(-1))
    before = np.zeros(addresses.shape, np.uint16)
    for lane in np.flatnonzero(live):
        place = ctypes.c_uint16.from_address(int(addresses[lane]))
        before[lane] = place.value
        place.value = int(to_bfloat16(to_float32(before[lane : lane + 1]) + terms[lane])[0])
    return interp.TensorHandle(before.reshape(pointers.data.shape), tl.bfloat16)


def _create_atomic_cas(self: Any, pointers: Any, *rest: Any) -> Any:
    _check(pointers, np.True_, "load")
    _check(pointers, np.True_, "store")
    return _stock["create_atomic_cas"](self, pointers, *rest)


def extent(tensor: Any) -> tuple[int, int]:
    """First byte and past the last byte that the tensor's own sizes and strides reach; not its storage, which may
    hold guard pads around it."""
    begin = int(tensor.data_ptr())
    if not tensor.numel():
        return begin, begin
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    return begin, begin + span * tensor.element_size()


def _unwrapped(arg: Any) -> Any:
    """The tensor behind one that was reinterpreted as another dtype; Triton's own function for it is not in 3.2."""
    from triton.runtime import jit

    return arg.base if isinstance(arg, jit.TensorWrapper) else arg


def _register(name: str, arg: Any) -> None:
    descriptor: Any = getattr(interp, "TensorDescriptor", None)  # which Triton 3.2 has not
    if isinstance(arg, tuple):
        for i, item in enumerate(arg):
            _register(f"{name}[{i}]", item)
    elif descriptor is not None and type(arg) is descriptor:
        _register(name, arg.base)
    elif hasattr(arg, "data_ptr"):
        tensor = _unwrapped(arg)
        dtype = str(tensor.dtype).removeprefix("torch.")
        _regions.append((*extent(tensor), f"{name} ({dtype} {list(tensor.shape)})"))


def _init_args(self: Any, args: Any, kwargs: Any) -> Any:
    """Stock argument preparation; notes on the way where each tensor's copy on the host lies."""
    args, kwargs = _stock["GridExecutor._init_args_hst"](self, args, kwargs)
    _regions.clear()
    if _counter is not None:
        _counter.launch()
    for name, arg in [*zip(self.arg_names, args), *kwargs.items()]:
        _register(name, arg)
    return args, kwargs


def _launch(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A launch that lets `OutOfBounds` and `NotInterpreted` through as themselves; stock wraps every error as text.
    Words of an autotuner's configuration that are for a compiler go: Triton 3.2 leaves some."""
    kwargs = {k: v for k, v in kwargs.items() if k in self.arg_names or k not in _WORDS_OF_3_2}
    _bind(self.fn.__globals__)
    try:
        with np.errstate(all="ignore"):  # a device does not warn of an overflow either
            return _stock["GridExecutor.__call__"](self, *args, **kwargs)
    except interp.InterpreterError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OutOfBounds):
                raise OutOfBounds(f"{self.fn.__name__}: {cause}") from None
            if isinstance(cause, interpreter_libdevice.NotInterpreted):
                raise interpreter_libdevice.NotInterpreted(f"{self.fn.__name__}: {cause}") from None
            cause = cause.__cause__
        raise


def _bind(names: dict[str, Any]) -> None:
    """Once for each module with kernels."""
    if id(names) not in _bound_modules:
        interpreter_libdevice.bind(names, interp)
        _bound_modules.add(id(names))


def _set_grid_dim(self: Any, nx: int, ny: int, nz: int) -> None:
    _stock["set_grid_dim"](self, nx, ny, nz)
    programs.launch((nx, ny, nz))


def _set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
    _stock["set_grid_idx"](self, x, y, z)
    programs.program()


def _call_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a @triton.jit helper from a kernel, patching its module's view of `triton.language` the first time only."""
    module = id(self.fn.__globals__)
    _bind(self.fn.__globals__)
    if module not in _patched_modules:
        interp._patch_lang(self.fn)
        _patched_modules.add(module)
    try:
        return self.rewrite()(*args, **kwargs)
    except Exception as error:
        raise interp.InterpreterError(repr(error)) from error


_BUILDER: dict[str, Callable[..., Any]] = {
    "cast_impl": _cast_impl,
    "create_fp_to_fp": _create_fp_to_fp,
    "unary_op": _unary_op,
    "binary_op": _binary_op,
    "ternary_op": _ternary_op,
    "create_fma": _create_fma,
    "create_dot": _create_dot,
    "get_bf16": _get_bf16,  # missing before triton 3.9
    "create_masked_load": _create_masked_load,
    "create_masked_store": _create_masked_store,
    "create_atomic_rmw": _create_atomic_rmw,
    "create_atomic_cas": _create_atomic_cas,
    "set_grid_dim": _set_grid_dim,
    "set_grid_idx": _set_grid_idx,
}
