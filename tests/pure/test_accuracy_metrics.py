"""Error metrics: each sees its own fault, parts merge in any order, and what is not a number never hides."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.accuracy.dtypes import encode
from farm.accuracy.metrics import CAP, Partial, compare

RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=(40, 200))
COUNTED = ("count", "nonfinite", "worst_row", "worst_column", "worst_got", "worst_want", "max_ulp", "max_abs")


def metrics(values: np.ndarray, reference: np.ndarray = REFERENCE, dtype: str = "bfloat16", **kw: object) -> dict:
    return compare(encode(values, dtype), reference, dtype, **kw).finish()


def test_a_correctly_rounded_output_is_half_an_ulp_off() -> None:
    found = metrics(REFERENCE)
    assert 0.45 < found["max_ulp"] <= 0.5 and found["mismatch_ratio"] == 0 and found["nonfinite"] == 0
    assert 1.5e-3 < found["rel_l2"] < 1.8e-3 < found["row_l2_max"] < 2.2e-3
    assert found["gain_max"] < 1e-3 and found["count"] == 8000


def test_exact_equality_is_zero_everywhere() -> None:
    exact = np.round(REFERENCE * 8) / 8
    found = metrics(exact, exact)
    assert all(found[m] == 0 for m in ("max_abs", "max_rel", "rel_l2", "row_l2_max", "gain_max", "max_ulp"))


def test_one_wrong_element_is_named() -> None:
    wrong = REFERENCE.copy()
    wrong[7, 33] = 3.0
    found = metrics(wrong, dtype="float32")
    assert (found["worst_row"], found["worst_column"], found["worst_got"]) == (7, 33, 3.0)
    assert found["worst_want"] == REFERENCE[7, 33]
    assert found["max_abs"] == pytest.approx(3 - REFERENCE[7, 33])
    assert found["mismatch_ratio"] == 1 / 8000


def test_row_numbers_name_the_rows_of_a_sample() -> None:
    wrong = REFERENCE[:3].copy()
    wrong[1, 5] += 1
    found = metrics(wrong, REFERENCE[:3], "float32", row_numbers=np.array([10, 700, 9000]))
    assert (found["worst_row"], found["worst_column"]) == (700, 5)


def test_gain_sees_a_scaled_row_that_l2_dilutes() -> None:
    wrong = REFERENCE.copy()
    wrong[3] *= 1.01
    found = metrics(wrong, dtype="float32")
    assert found["gain_max"] == pytest.approx(0.01, rel=1e-4)
    assert found["row_l2_max"] == pytest.approx(0.01, rel=1e-4)
    assert found["rel_l2"] == pytest.approx(0.01 / math.sqrt(40), rel=0.2)


def test_max_rel_is_floored_near_zero() -> None:
    reference = np.array([[1.0, 1.0, 1.0, 0.0]])
    found = metrics(np.array([[1.0, 1.0, 1.0, 1e-3]]), reference, "float32")
    assert found["max_rel"] == pytest.approx(1e-3 / (1e-3 * math.sqrt(0.75)), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_not_finite_is_counted_and_hides_nothing(value: float, dtype: str) -> None:
    wrong = REFERENCE.copy()
    wrong[0, 0], wrong[1, 1] = value, wrong[1, 1] + 5
    found = metrics(wrong, dtype=dtype)
    assert found["nonfinite"] == 1
    assert (found["worst_row"], found["worst_column"]) == (1, 1)
    assert all(math.isfinite(v) for v in found.values())


def test_a_reference_that_is_nan_wants_nan() -> None:
    reference = REFERENCE.copy()
    reference[0] = math.nan
    assert metrics(reference, reference)["nonfinite"] == 0
    assert metrics(REFERENCE, reference)["nonfinite"] == 200
    infinite = np.where(np.isnan(reference), math.inf, reference)
    assert metrics(infinite, reference)["nonfinite"] == 0


def test_beyond_the_largest_number_infinity_of_the_same_sign_is_right() -> None:
    reference = np.array([[70000.0, -70000.0, 65500.0, 1.0]])
    right = np.array([[math.inf, -65504.0, 65504.0, 1.0]])
    assert metrics(right, reference, "float16")["nonfinite"] == 0
    assert metrics(np.array([[-math.inf, -math.inf, 65504.0, 1.0]]), reference, "float16")["nonfinite"] == 1
    assert metrics(np.array([[1.0, -math.inf, 65504.0, 1.0]]), reference, "float16")["nonfinite"] == 1
    assert metrics(np.array([[math.nan, -math.inf, 65504.0, 1.0]]), reference, "float16")["nonfinite"] == 1


def test_an_expected_zero_row_must_be_zero() -> None:
    reference = REFERENCE.copy()
    reference[2] = 0
    right, wrong = reference.copy(), reference.copy()
    wrong[2, 9] = 1e-3
    assert metrics(right, reference)["max_ulp"] <= 0.5
    found = metrics(wrong, reference)
    assert found["max_ulp"] > 1e9 and found["max_rel"] == CAP and found["worst_row"] == 2


def test_flush_to_zero_is_no_infinite_error() -> None:
    reference = np.full((1, 4), 2.0**-130)
    assert metrics(np.zeros((1, 4)), reference, "float32")["max_ulp"] <= 2.0**20


def test_a_scale_floors_ulp_and_norms() -> None:
    reference = np.full((2, 100), 1e-6)
    wrong = reference + 1e-3
    held_to_itself = metrics(wrong, reference, "float32")
    held_to_terms = metrics(wrong, reference, "float32", squared_scale=np.ones((2, 1)))
    assert held_to_itself["rel_l2"] > 100 and held_to_itself["max_ulp"] > 1e6
    assert held_to_terms["rel_l2"] == pytest.approx(1e-3, rel=1e-3)
    assert held_to_terms["row_l2_max"] == pytest.approx(1e-3, rel=1e-3)
    assert held_to_terms["max_ulp"] == pytest.approx(1e-3 / 2.0**-23, rel=1e-3)
    assert held_to_terms["gain_max"] == pytest.approx(1e-9, rel=1e-2)


def test_no_column_of_a_reduction_outweighs_the_others() -> None:
    scale = np.ones((1, 1000))
    scale[0, 0] = 1e12
    reference = RNG.normal(size=(1, 1000)) * np.sqrt(scale)
    wrong = reference * np.where(np.arange(1000) == 0, 1.0, 1.01)
    assert metrics(wrong, reference, "float32", squared_scale=scale)["rel_l2"] == pytest.approx(0.01, rel=0.1)
    assert metrics(wrong, reference, "float32")["rel_l2"] < 1e-3


def test_rows_that_are_not_spread_count_element_by_element_alone() -> None:
    wrong = REFERENCE.copy()
    wrong[5] *= 1.1
    spread = np.ones((40, 1), dtype=bool)
    assert metrics(wrong, dtype="float32", spread=spread)["gain_max"] > 0.05
    spread[5] = False
    found = metrics(wrong, dtype="float32", spread=spread)
    assert found["gain_max"] < 1e-6 and found["rel_l2"] < 1e-6 and found["row_l2_max"] < 1e-6
    assert found["max_ulp"] > 1e4 and found["count"] == 8000


def test_integers() -> None:
    reference = np.arange(-6, 6).reshape(3, 4)
    wrong = reference.copy()
    wrong[2, 1] += 3
    found = compare(wrong.astype(np.int8), reference, "int8").finish()
    assert found["max_abs"] == 3 and found["max_ulp"] == 3 and found["mismatch_ratio"] == 1 / 12


def test_nothing_is_no_error() -> None:
    found = metrics(np.zeros((0, 7)), np.zeros((0, 7)))
    assert found["count"] == 0 and found["rel_l2"] == 0 and found["mismatch_ratio"] == 0
    assert Partial().merge(Partial()) == Partial()


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=6), order=st.randoms(use_true_random=False), seed=st.integers(0, 9))
def test_parts_merge_in_any_split_and_order(cuts: list[int], order: object, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=REFERENCE.shape) * 1e-3
    stored, spread = encode(REFERENCE + noise, "float16"), (np.arange(40) % 5 != 4)[:, None]
    whole = compare(stored, REFERENCE, "float16", spread=spread).finish()
    edges = [0, *sorted(cuts), 40]
    parts = [
        compare(stored[a:b], REFERENCE[a:b], "float16", spread=spread[a:b], row_numbers=np.arange(a, b))
        for a, b in pairwise(edges)
    ]
    order.shuffle(parts)  # type: ignore[attr-defined]
    merged = Partial()
    for part in parts:
        merged = merged.merge(part)
    for name, value in merged.finish().items():
        if name in COUNTED:
            assert value == whole[name], name
        else:
            assert value == pytest.approx(whole[name], rel=1e-12), name
