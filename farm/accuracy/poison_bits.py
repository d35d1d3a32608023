"""What memory holds that the farm handed out and nobody has written: a pattern of bits per dtype.

In floats it is a *signalling* NaN with a payload of its own.  Arithmetic sets a NaN's quiet bit (IEEE 754, 6.2) and a
copy does not, so an element that holds exactly these bits was never written, one that holds them quiet was computed
from memory that was never written (on processors that keep payloads; a GPU's arithmetic gives a NaN of its own), and
any other NaN was computed.  Standard library only: children import this.
"""

from __future__ import annotations

#: What freed blocks are filled with, whose next dtype nobody knows: both halves are the pattern of bfloat16.
WORD = 0x7FAB7FAB
#: Float dtype -> its pattern.  That of float16 and of float64 is what a conversion makes of that of float32, but for
#: the quiet bit.
FLOATS = {
    "float32": WORD,
    "bfloat16": 0x7FAB,
    "float16": 0x7D5B,
    "float64": 0x7FF0_0000_0000_0000 | (WORD & 0x7F_FFFF) << 29,
    "float8_e5m2": 0x7D,
}
#: The bit that arithmetic sets.
QUIET = {"float32": 1 << 22, "bfloat16": 1 << 6, "float16": 1 << 9, "float64": 1 << 51, "float8_e5m2": 1 << 1}
#: What a freed block's pattern is in dtypes of another width: bfloat16's in float16, a large finite number in float64.
FREED = {"float16": (0x7FAB,), "float64": (WORD << 32 | WORD,)}
#: Integers have no NaN: a value that no quantizer of ours gives (-128 is outside [-127, 127]).
INTEGERS = {"int8": -128, "uint8": 0xA5, "int16": -31073, "int32": -1515870811, "int64": -1515870811, "bool": 1}
SIGN = {"float32": 1 << 31, "bfloat16": 1 << 15, "float16": 1 << 15, "float64": 1 << 63, "float8_e5m2": 1 << 7}
#: Dtypes in which what was never written looks like some value that is computed: one NaN is all that they have, or
#: every value is a right one.
AMBIGUOUS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "bool")


def unwritten(dtype: str) -> tuple[int, ...]:
    """Bits (floats: unsigned; integers: the value) of an element that nobody has written; () where they cannot be
    told from what is computed."""
    if dtype in AMBIGUOUS:
        return ()
    if dtype in FLOATS:
        return (FLOATS[dtype], *FREED.get(dtype, ()))
    return (INTEGERS[dtype],) if dtype in INTEGERS else ()


def spread(dtype: str) -> tuple[int, ...]:
    """Bits of a float that was computed from such an element, and kept its payload."""
    if dtype not in FLOATS:
        return ()
    return (FLOATS[dtype] | QUIET[dtype],)
