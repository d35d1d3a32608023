"""Storage dtypes: how each dtype lies in memory, its rounding, and the size of its last place.

`bfloat16` and the 8-bit floats have no NumPy dtype; they are stored as their bits in `uint16` and `uint8`.  Elements of
4 bits share a byte, two along the last dimension.  Everything here is exact or rounds to nearest, ties to even, with
integer or correctly rounded arithmetic, so it gives the same bits on every host.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from farm.contracts.dtypes import DTYPES, FLOATS8, PACKED, code_values

Array = Any  # numpy.ndarray

#: Bits of the significand, the hidden one included.
PRECISION = {name: d.precision for name, d in DTYPES.items() if d.is_float}
#: The smallest normal number, as a power of two.
_SMALLEST_NORMAL = {name: d.smallest for name, d in DTYPES.items() if d.is_float}
#: The largest finite number.
LARGEST = {name: d.largest for name, d in DTYPES.items() if d.is_float}
_CHUNK = 1 << 15  # elements rounded at a time, in cache
_EXPONENT_BITS = np.uint64(0x7FF0000000000000)  # of a float64


def is_float(dtype: str) -> bool:
    """Whether the dtype rounds."""
    return dtype in PRECISION


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype in which values of `dtype` lie in memory and in files, little-endian."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known dtypes: {', '.join(DTYPES)}")
    return np.dtype(DTYPES[dtype].storage).newbyteorder("<")


def encode(values: Array, dtype: str) -> Array:
    """`values` rounded to `dtype`, in its storage dtype: ties to even, beyond the largest finite infinity, NaN kept."""
    values = np.asarray(values)
    if dtype in PACKED:
        codes = _coded(values, dtype) if is_float(dtype) else values.astype(np.int64).astype(np.uint8) & 0xF
        packed: Array = codes[..., ::2] | codes[..., 1::2] << 4
        return packed
    if dtype in FLOATS8:
        return _coded(values, dtype)
    if dtype != "bfloat16":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values.astype(storage_dtype(dtype))
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, dtype=storage_dtype(dtype))
    for at in range(0, flat.shape[0], _CHUNK):
        out[at : at + _CHUNK] = _bfloat16_bits(flat[at : at + _CHUNK])
    return out.reshape(values.shape)


def decode(stored: Array, dtype: str) -> Array:
    """The values of a storage array: float64 for floats, the integers themselves otherwise."""
    stored = np.asarray(stored)
    if dtype in PACKED:
        columns = 2 * stored.shape[-1]
        codes = np.stack((stored & 0xF, stored >> 4), axis=-1).reshape(*stored.shape[:-1], columns)
        return _table(dtype)[codes]
    if not is_float(dtype):
        return stored
    if dtype in FLOATS8:
        return _table(dtype)[stored]
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN, which poison may be
        return stored.astype(np.float64)


def round_to(values: Array, dtype: str) -> Array:
    """float32 `values` rounded to a float dtype of at most 32 bits, as float32."""
    values = np.asarray(values, dtype=np.float32)
    if dtype == "float32":
        return values
    if DTYPES[dtype].bits <= 8:
        return _table(dtype).astype(np.float32)[_coded(values, dtype)]
    stored = encode(values, dtype)
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


@cache
def _table(dtype: str) -> Array:
    """The value of each code: float64, or int8 of the packed integers."""
    if is_float(dtype):
        return code_values(dtype)
    codes = np.arange(16, dtype=np.int8)
    return codes if dtype == "uint4" else (codes ^ 8) - 8


@cache
def _steps(dtype: str) -> tuple[Array, int]:
    """The points half-way between the non-negative finite values of a float of at most 8 bits, the last one above the
    largest; and the code of what lies beyond."""
    positive = _table(dtype)[: 1 << (DTYPES[dtype].bits - 1)]
    finite = positive[np.isfinite(positive)]
    beyond = 2 * finite[-1] - finite[-2]
    code = 0x80 if DTYPES[dtype].fnuz else len(finite) if DTYPES[dtype].infinite else 0x7F
    return (finite + np.append(finite[1:], beyond)) / 2, code


def _nearest(values: Array, dtype: str) -> Array:
    """The codes of a float of at most 8 bits, to nearest, ties to even.  Beyond the largest: of 8 bits infinity, or NaN
    without one; of 4 bits the largest, and 0 for NaN."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = np.asarray(values, dtype=np.float64)
    points, beyond = _steps(dtype)
    size, packed = np.abs(values), DTYPES[dtype].packed
    code: Array = np.searchsorted(points, size, side="left")
    tie = points[np.minimum(code, len(points) - 1)] == size
    code = np.where(tie & (code & 1 == 1), code + 1, code)
    code = np.where((code >= len(points)) | ~(size <= np.inf), len(points) - 1 if packed else beyond, code)
    fnuz, nan = DTYPES[dtype].fnuz, np.isnan(values)
    code = np.where(nan, 0 if packed else 0x80 if fnuz else 0x7F, code)
    negative = np.signbit(values) & ~nan
    if fnuz:
        negative &= (code != 0) & (code != 0x80)
    return (code | np.where(negative, 1 << (DTYPES[dtype].bits - 1), 0)).astype(np.uint8)


@cache
def _by_upper_half(dtype: str) -> Array:
    """The code of a float32 by its upper 16 bits and whether any of the lower ones is set, uint8 [2^17]: these tell on
    which side of every tie it lies, since no tie has more than 7 bits behind the point."""
    place = np.arange(1 << 17, dtype=np.uint32)
    return _nearest(((place >> 1) << 16 | (place & 1)).view(np.float32), dtype)


def _coded(values: Array, dtype: str) -> Array:
    """`_nearest`, for many values."""
    flat = np.ascontiguousarray(values).reshape(-1)
    table, out = _by_upper_half(dtype), np.empty(flat.shape, dtype=np.uint8)
    for at in range(0, len(flat), _CHUNK):
        part = flat[at : at + _CHUNK]
        narrow = part if part.dtype == np.float32 else _narrow_to_odd(part.astype(np.float64))
        bits = narrow.view(np.uint32)
        out[at : at + _CHUNK] = table[(bits >> 15 & 0x1FFFE) | ((bits & 0xFFFF) != 0)]
    return out.reshape(np.shape(values))


def _bfloat16_bits(values: Array) -> Array:
    if values.dtype == np.float64:
        values = _narrow_to_odd(values)
    values = values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():  # the carry above would turn some NaN into infinity or zero
        quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
        rounded = np.where(nan, quiet, rounded)
    return rounded


def _narrow_to_odd(values: Array) -> Array:
    """float64 to float32 rounded to odd, so that a second rounding to 16 bits sees no false tie."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        inexact = np.isfinite(near) & (near.astype(np.float64) != values)
        away = inexact & (np.abs(near.astype(np.float64)) > np.abs(values))
    bits = near.view(np.uint32) - away.astype(np.uint32)  # towards zero first, then the odd neighbour
    return (bits | inexact.astype(np.uint32)).view(np.float32)


def ulp(values: Array, dtype: str) -> Array:
    """The distance between neighbours of `dtype` at |values| (float64), never below that at the smallest normal.

    The floor keeps flush-to-zero from being an infinite error.  Integers: 1.  Non-finite values give a finite size.
    """
    if not is_float(dtype):
        return np.ones(np.shape(values), dtype=np.float64)
    binade = (np.asarray(values, dtype=np.float64).view(np.uint64) & _EXPONENT_BITS).view(np.float64)
    low = 2.0 ** _SMALLEST_NORMAL[dtype]
    binade = np.clip(binade, low, 2.0 ** (1023 if dtype == "float64" else 127), out=binade)
    binade *= 2.0 ** (1 - PRECISION[dtype])
    return binade


def finite_mask(stored: Array, dtype: str) -> Array:
    """Which elements of a storage array are finite, without decoding it."""
    if dtype in FLOATS8:
        finite: Array = np.isfinite(_table(dtype))[stored]
        return finite
    if dtype == "bfloat16":
        return (stored & np.uint16(0x7F80)) != np.uint16(0x7F80)
    return np.isfinite(stored) if is_float(dtype) else np.ones(np.shape(stored), dtype=np.bool_)
