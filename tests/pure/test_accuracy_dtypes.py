"""Rounding, storage and the size of the last place."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.accuracy import dtypes

FLOATS = ("float32", "float16", "bfloat16")


def exact_bfloat16(value: float) -> float:
    """`value` rounded to 8 significand bits, ties to even, by rational arithmetic."""
    if value == 0 or not math.isfinite(value):
        return value
    exponent = max(math.frexp(value)[1] - 8, -133)
    step = Fraction(2) ** exponent
    rounded = float(round(Fraction(value) / step) * step)
    return (
        math.copysign(math.inf, value) if abs(rounded) > dtypes.LARGEST["bfloat16"] else math.copysign(rounded, value)
    )


@given(st.floats(allow_nan=False, min_value=-3.5e38, max_value=3.5e38))
def test_bfloat16_rounds_float64_once(value: float) -> None:
    got = dtypes.decode(dtypes.encode(np.array([value]), "bfloat16"), "bfloat16")[0]
    assert got == exact_bfloat16(value)
    assert math.copysign(1, got) == math.copysign(1, value)


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_float32(value: float) -> None:
    got = dtypes.decode(dtypes.encode(np.array([value], dtype=np.float32), "bfloat16"), "bfloat16")[0]
    assert got == exact_bfloat16(value)


def test_a_tie_made_by_a_first_rounding_is_not_a_tie() -> None:
    just_above = 1 + 2.0**-8 + 2.0**-40  # float32 has it at the tie, which would go to even, below
    assert dtypes.decode(dtypes.encode(np.array([just_above]), "bfloat16"), "bfloat16")[0] == 1 + 2.0**-7


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_nan_stays_nan_in_bfloat16(bits: int) -> None:
    value = np.array([bits], dtype=np.uint32).view(np.float32)
    assert np.isnan(dtypes.decode(dtypes.encode(value, "bfloat16"), "bfloat16")).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_16_bit_value_survives(dtype: str) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16)
    stored = stored.view(dtypes.storage_dtype(dtype)) if dtype != "float32" else dtypes.decode(stored, "bfloat16")
    values = dtypes.decode(stored.astype(dtypes.storage_dtype(dtype)), dtype)
    again = dtypes.decode(dtypes.encode(values, dtype), dtype)
    np.testing.assert_array_equal(again, values)
    np.testing.assert_array_equal(dtypes.finite_mask(dtypes.encode(values, dtype), dtype), np.isfinite(values))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_is_the_distance_to_the_next_number(dtype: str) -> None:
    assert dtypes.ulp(np.array([1.0]), dtype)[0] == 2.0 ** (1 - dtypes.PRECISION[dtype])
    assert dtypes.ulp(np.array([1.99]), dtype)[0] == 2.0 ** (1 - dtypes.PRECISION[dtype])
    assert dtypes.ulp(np.array([-2.0]), dtype)[0] == 2.0 ** (2 - dtypes.PRECISION[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulp_is_floored_at_the_smallest_normal(dtype: str) -> None:
    low = -14 if dtype == "float16" else -126
    sizes = dtypes.ulp(np.array([0.0, 2.0 ** (low - 5), 2.0**low]), dtype)
    assert (sizes == 2.0 ** (low + 1 - dtypes.PRECISION[dtype])).all()
    assert np.isfinite(dtypes.ulp(np.array([np.inf, np.nan]), dtype)).all()


def test_ulp_of_float32_is_numpys() -> None:
    values = np.array([1e-30, 0.3, 7.0, 1e10], dtype=np.float32)
    np.testing.assert_array_equal(dtypes.ulp(values.astype(np.float64), "float32"), np.spacing(values))


def test_storage() -> None:
    assert dtypes.storage_dtype("bfloat16") == np.dtype("<u2")
    assert [dtypes.storage_dtype(d).itemsize for d in ("bfloat16", "int8", "float64", "bool")] == [2, 1, 8, 1]
    assert dtypes.decode(np.array([-3], dtype=np.int8), "int8").dtype == np.int8
    with pytest.raises(ValueError, match="bf61"):
        dtypes.storage_dtype("bf61")


def test_encode_takes_any_shape_and_layout() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert dtypes.encode(values.T, "bfloat16").shape == (4, 3)
    np.testing.assert_array_equal(dtypes.decode(dtypes.encode(values.T, "bfloat16"), "bfloat16"), values.T)
    assert dtypes.encode(np.zeros((0, 5)), "bfloat16").shape == (0, 5)
