"""The registry of dtypes: how each lies in memory, and, of floats, its precision and range.  Pure.

The formats of 8 bits and fewer: OCP 8-bit Floating Point Specification 1.0 (e4m3fn, e5m2), OCP Microscaling Formats 1.0
(float4 e2m1fn: neither infinity nor NaN), and the FNUZ variants of AMD and Graphcore (arXiv:2206.02915): no infinity,
no negative zero, one NaN (0x80), exponent bias greater by one.

Elements of 4 bits are packed: two along the last dimension share a byte, the first in its lower half.  Only inputs may
be packed, and a provider is given their bytes, as uint8 with half as many columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from farm.errors import ContractError


@dataclass(frozen=True)
class Dtype:
    """`bits` per element; `storage`: the NumPy dtype of one stored element, or of the byte that several share.  Of
    floats: `precision` in bits with the hidden one, `exponent` bits, `smallest` normal number as a power of two,
    `largest` finite number, and whether there are infinities.  What is beyond `largest` rounds to infinity, where there
    is none to NaN, and of 4 bits to `largest`."""

    name: str
    short: str
    bits: int
    storage: Any
    precision: int = 0
    exponent: int = 0
    smallest: int = 0
    largest: float = 0.0
    infinite: bool = True
    fnuz: bool = False

    @property
    def is_float(self) -> bool:
        return self.precision > 0

    @property
    def packed(self) -> bool:
        """Whether several elements share a byte."""
        return self.bits < 8

    def stored_shape(self, dims: Sequence[int]) -> tuple[int, ...]:
        """The shape of the stored array of a tensor of these dimensions."""
        return (*dims[:-1], dims[-1] * self.bits // 8) if self.packed else tuple(dims)

    @property
    def coded(self) -> bool:
        """Whether NumPy has no such dtype, so that its codes are stored as whole numbers."""
        return self.is_float and self.name not in ("float64", "float32", "float16")


_ALL = (
    Dtype("float64", "fp64", 64, np.float64, 53, 11, -1022, float(np.finfo(np.float64).max)),
    Dtype("float32", "fp32", 32, np.float32, 24, 8, -126, float(np.finfo(np.float32).max)),
    Dtype("float16", "fp16", 16, np.float16, 11, 5, -14, 65504.0),
    Dtype("bfloat16", "bf16", 16, np.uint16, 8, 8, -126, float.fromhex("0x1.fep127")),
    Dtype("float8_e4m3fn", "e4m3fn", 8, np.uint8, 4, 4, -6, 448.0, infinite=False),
    Dtype("float8_e5m2", "e5m2", 8, np.uint8, 3, 5, -14, 57344.0),
    Dtype("float8_e4m3fnuz", "e4m3fnuz", 8, np.uint8, 4, 4, -7, 240.0, infinite=False, fnuz=True),
    Dtype("float8_e5m2fnuz", "e5m2fnuz", 8, np.uint8, 3, 5, -15, 57344.0, infinite=False, fnuz=True),
    Dtype("float4_e2m1fn", "e2m1", 4, np.uint8, 2, 2, 0, 6.0, infinite=False),
    Dtype("int64", "i64", 64, np.int64),
    Dtype("int32", "i32", 32, np.int32),
    Dtype("int16", "i16", 16, np.int16),
    Dtype("int8", "i8", 8, np.int8),
    Dtype("uint8", "u8", 8, np.uint8),
    Dtype("int4", "i4", 4, np.uint8),
    Dtype("uint4", "u4", 4, np.uint8),
    Dtype("bool", "bool", 8, np.bool_),
)
DTYPES: Mapping[str, Dtype] = MappingProxyType({d.name: d for d in _ALL})
FLOATS = frozenset(d.name for d in _ALL if d.is_float)
FLOATS8 = tuple(d.name for d in _ALL if d.is_float and d.bits == 8)
PACKED = tuple(d.name for d in _ALL if d.packed)


def get(name: str) -> Dtype:
    """The dtype of that name; ContractError if there is none."""
    if name not in DTYPES:
        raise ContractError(f'there is no dtype "{name}"; known dtypes: {", ".join(DTYPES)}', id="contract-dtype")
    return DTYPES[name]


def code_values(name: str) -> Any:
    """The value of each code of a float of at most 8 bits, float64 [256] or [16]."""
    d = get(name)
    code, sign = np.arange(1 << d.bits), 1 << (d.bits - 1)
    mantissa = d.precision - 1
    exponent, fraction = (code & (sign - 1)) >> mantissa, code & ((1 << mantissa) - 1)
    normal = (1 + fraction * 2.0**-mantissa) * 2.0 ** (exponent - 1 + d.smallest)
    values = np.where(exponent == 0, fraction * 2.0 ** (d.smallest - mantissa), normal)
    values = np.where(code & sign, -values, values)
    if d.fnuz:
        values[sign] = np.nan
    elif d.infinite:  # as IEEE 754: the largest exponent is for infinities and NaN
        top = exponent == (1 << d.exponent) - 1
        values[top] = np.where(fraction[top] == 0, np.copysign(np.inf, values[top]), np.nan)
    elif not d.packed:
        values[(code & 0x7F) == 0x7F] = np.nan
    return values
