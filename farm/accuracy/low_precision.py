"""Evaluates a NumPy reference as a kernel would that keeps every intermediate in the storage dtype.  Pure.

Arrays are wrapped so that the result of every ufunc is rounded, and sums (`sum`, `mean`, `einsum`, `@`) are taken term
by term with the running sum rounded, whatever the reference converts its inputs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from farm.accuracy.dtypes import decode, encode

Array = Any  # numpy.ndarray


class Rounding(np.ndarray):
    """A float64 array whose values, and those of all that is computed from it, are rounded to `kind`."""

    kind = "float32"

    def __array_finalize__(self, source: Any) -> None:
        self.kind = getattr(source, "kind", "float32")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **how: Any) -> Any:
        plain = [np.asarray(a).view(np.ndarray) if isinstance(a, np.ndarray) else a for a in inputs]
        if ufunc is np.matmul and method == "__call__":
            found = _dot(plain[0], plain[1], self.kind)
        elif ufunc is np.add and method == "reduce":
            found = _summed(plain[0], how.get("axis", 0), how.get("keepdims", False), self.kind)
        else:
            targets = {"out": tuple(np.asarray(o).view(np.ndarray) for o in out)} if out else {}
            where = {k: np.asarray(v).view(np.ndarray) if isinstance(v, np.ndarray) else v for k, v in how.items()}
            found = getattr(ufunc, method)(*plain, **where, **targets)
        if out:
            out[0].view(np.ndarray)[...] = _rounded(found, self.kind)
            return out[0]
        return _wrapped(_rounded(found, self.kind), self.kind)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if function is np.einsum and arguments[0] in _EINSUMS:
            a, b = (np.asarray(x).view(np.ndarray) for x in arguments[1:3])
            products = _rounded(a * b, self.kind)
            return _wrapped(_summed(products, _EINSUMS[arguments[0]], False, self.kind), self.kind)
        if function in (np.sum, np.mean):
            return getattr(arguments[0], function.__name__)(*arguments[1:], **keywords)
        return super().__array_function__(function, types, arguments, keywords)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **_: Any) -> Any:
        found = _summed(np.asarray(self).view(np.ndarray), axis, bool(keepdims), self.kind)
        return _wrapped(_rounded(found / (self.size / max(np.size(found), 1)), self.kind), self.kind)


_EINSUMS = {"ij,ij->i": 1, "ij,ij->j": 0}


def _wrapped(values: Any, kind: str) -> Any:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return values
    made = values.view(Rounding)
    made.kind = kind
    return made


def _rounded(values: Any, kind: str) -> Any:
    if not isinstance(values, (np.ndarray, np.floating)) or np.asarray(values).dtype.kind != "f":
        return values
    return decode(encode(np.asarray(values, dtype=np.float64), kind), kind)


def _summed(values: Array, axis: Any, keepdims: bool, kind: str) -> Array:
    """The sum along an axis (None: all), one term after the other."""
    if axis is None:
        return _summed(values.reshape(-1), 0, False, kind).reshape((1,) * values.ndim if keepdims else ())
    if isinstance(axis, tuple):
        for one in sorted((a % values.ndim for a in axis), reverse=True):
            values = _summed(values, one, keepdims, kind)
        return values
    terms = np.moveaxis(values, axis, 0)
    total = np.zeros(terms.shape[1:])
    for term in terms:
        total = _rounded(total + term, kind)
    return np.expand_dims(total, axis) if keepdims else total


def _dot(a: Array, b: Array, kind: str) -> Array:
    total = np.zeros((*a.shape[:-1], b.shape[-1])) if b.ndim > 1 else np.zeros(a.shape[:-1])
    for k in range(a.shape[-1]):
        row = b[..., k, :] if b.ndim > 1 else b[k]
        total = _rounded(total + _rounded(a[..., k, None] * row if b.ndim > 1 else a[..., k] * row, kind), kind)
    return total


def evaluated(
    reference: Callable[[Any, Mapping[str, Array]], Mapping[str, Array]],
    cell: Any,
    values: Mapping[str, Array],
    kind: str,
    names: Iterable[str],
) -> dict[str, Array]:
    """The named arrays of a reference whose arithmetic is that of `kind`."""
    wrapped = {
        name: _wrapped(np.array(a, dtype=np.float64), kind) if np.asarray(a).dtype.kind == "f" else a
        for name, a in values.items()
    }
    with np.errstate(all="ignore"):
        found = reference(cell, wrapped)
    return {name: np.asarray(found[name]).view(np.ndarray) for name in names}
