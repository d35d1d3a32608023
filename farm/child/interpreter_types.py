"""What Triton's interpreter works out anew for each value, worked out once: a third of its time (docs/facts.md).

A value of a kernel's is a `tensor`, its type a `block_type`; every operation makes some, and each checks its shape,
wraps each length in a `constexpr` and those in Triton's `tuple`, whose own type is made from its members.  All of that
follows from the shape and the element type alone, and nothing changes it afterwards.  Here the first value of a kind is
made by Triton, and the next ones are given what it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

stock: list[tuple[Any, str, Any]] = []  # what was there before: owner, name, function


def install(core: Any, interp: Any) -> None:
    """Patch `triton.language.core` and `triton.runtime.interpreter`.  Before Triton 3.4 operations are functions, not
    methods of one object, and shapes may be lists, which must not be shared: there only the table of dtypes is kept."""
    _replace(interp, "_get_np_dtype", storage_of(interp._get_np_dtype))
    if not hasattr(core, "tuple") or not hasattr(interp, "interpreter_semantic"):
        return
    semantic = type(interp.interpreter_semantic)
    _replace(core, "_unwrap_if_constexpr", unwrapping(core))
    _replace(core.block_type, "__init__", making_types(core))
    _replace(core.tensor, "__init__", making_tensors(core))
    _replace(semantic, "broadcast_impl_value", broadcasting(semantic.broadcast_impl_value))


def _replace(owner: Any, name: str, quick: Any) -> None:
    stock.append((owner, name, getattr(owner, name)))
    setattr(owner, name, quick)


def storage_of(before: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The NumPy dtype of a Triton dtype, of a block's elements or of pointers; stock makes its table at each call."""
    known: dict[str, Any] = {}

    def get_np_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = before(dtype)
        return known[name]

    return get_np_dtype


def unwrapping(core: Any) -> Callable[[Any], Any]:
    """The value in a constexpr, or what is not one as it is; stock asks four classes of everything."""
    before, wrapped = core._unwrap_if_constexpr, core.constexpr
    plain = {int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type, core.pointer_type}

    def unwrap_if_constexpr(value: Any) -> Any:
        kind = type(value)
        if kind is wrapped:
            return value.value
        return value if kind in plain else before(value)

    return unwrap_if_constexpr


def making_types(core: Any) -> Callable[..., None]:
    """`block_type(element type, shape)`: shape, number of elements and name follow from the two."""
    before, wrapped, listed = core.block_type.__init__, core.constexpr, core.tuple
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        lengths = shape.values if type(shape) is listed else shape
        key = (element_ty.name, *[n.value if type(n) is wrapped else n for n in lengths])
        if key in known:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known[key]
            return
        before(self, element_ty, shape)
        if type(self.shape) is listed:
            known[key] = self.shape, self.numel, self.name

    return init


def making_tensors(core: Any) -> Callable[..., None]:
    """`tensor(handle, type)`: all but these two and the element type follows from the shape."""
    before, block_type, listed = core.tensor.__init__, core.block_type, core.tuple
    known: dict[tuple[int, ...], dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        block = isinstance(type, block_type)
        if block and not isinstance(type.shape, listed):
            before(self, handle, type)
            return
        key = tuple(type.shape.values) if block else ()
        if key in known:
            self.__dict__.update(known[key], handle=handle, type=type, dtype=type.scalar)
            return
        before(self, handle, type)
        known[key] = {n: v for n, v in vars(self).items() if n not in ("handle", "type", "dtype")}

    return init


def broadcasting(before: Callable[..., Any]) -> Callable[..., Any]:
    """Both operands in one shape: they are, where `making_types` gave both the same."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
            return lhs, rhs
        return before(self, lhs, rhs)

    return broadcast_impl_value
