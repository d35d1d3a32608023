"""Input families: the same bits everywhere, in any blocks, of the kinds they promise."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.accuracy.dtypes import decode, encode
from farm.accuracy.inputs import FAMILIES, NONFINITE, NONFINITE_UPSTREAM, SHIFTED, SIGNED, Family

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("float32", "float16", "bfloat16")


FINITE = tuple(name for name in FAMILIES if name not in NONFINITE)
#: The families that came first.  The keys of older runs name them.
FIRST = ("mixed", "normal", "outlier", "alternating", "tiny", "large")


def digest(families: tuple[str, ...] = FIRST) -> str:
    """A hash over every family, dtype and way to make a tensor."""
    found = hashlib.sha256()
    for name in families:
        family = Family(name, 3)
        for dtype in DTYPES:
            for made in (
                family.rows("x", (0, 23), 1001, dtype, total=23),
                family.normal("dy", (5, 9), 40000, dtype),
                family.vector("weight", 4097, dtype),
            ):
                found.update(np.ascontiguousarray(encode(made, dtype)).tobytes())
    return found.hexdigest()


#: Made once; NumPy 1.26 to 2.4 and Python 3.10 to 3.13 must agree.  A change here changes every input of every store.
GOLDEN = "20aa1f6745d05132aa4ee38f1a32597126d667665479a0ab1f1452727652dc08"
GOLDEN_NONFINITE = "b4351f37c6da9ba62ec6ff28769d4d71a29ea97555e96bf6cbccf8320cd4385c"
GOLDEN_SIGNED = "419ff1c3a8228108f857c8208566d241c830b4e7c109f0509236a4feb0566970"
GOLDEN_UPSTREAM = "4025a966846fbe5eddb828dd7c384eb16e4eed62a13d641c35bcb14ab216d52d"
GOLDEN_SHIFTED = "ed5277e8c793b6b57f925e91d438fd339d37de151d3ca1f488d3dfc96d33b894"


def test_values_are_the_same_on_every_host() -> None:
    assert digest() == GOLDEN
    assert digest(("nan", "inf")) == GOLDEN_NONFINITE and set(NONFINITE) == {"nan", "inf"}
    assert digest(SIGNED) == GOLDEN_SIGNED and {*FIRST, *NONFINITE, *SIGNED, SHIFTED} == set(FAMILIES)
    assert digest((SHIFTED,)) == GOLDEN_SHIFTED
    found = hashlib.sha256()
    for name, dtype in itertools.product(SIGNED, DTYPES):
        made = Family(name, 3).upstream("dy", (1, 9), 4000, dtype, total=11)
        found.update(np.ascontiguousarray(encode(made, dtype)).tobytes())
    assert found.hexdigest() == GOLDEN_UPSTREAM


@pytest.mark.parametrize("name", [*FIRST, *NONFINITE])
def test_upstream_gradients_of_the_first_families_are_as_they_were(name: str) -> None:
    """Keys of older cells name these families: their upstream gradients are plain."""
    for dtype in DTYPES:
        family = Family(name, 2)
        for scale in (1.0, 0.25):
            old = family.normal("dy", (3, 9), 300, dtype, scale=scale)
            assert family.upstream("dy", (3, 9), 300, dtype, total=9, scale=scale).tobytes() == old.tobytes()
        assert (family.vector("weight", 300, dtype) > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIGNED)
def test_weights_of_the_newer_families_have_signs_and_exact_zeros(name: str, dtype: str) -> None:
    w = Family(name, 1).vector("weight", 1024, dtype)
    assert (w == 0).sum() == 64 and not np.signbit(w[w == 0]).any()
    assert 0.4 < (w < 0).mean() < 0.6
    large = {"signed": 4.0, "large_weight": 100.0}.get(name, 1.5)
    assert abs(w).max() > large
    small = Family(name).vector("weight", 16, dtype)  # so they are in the narrowest rows that are judged
    assert (small == 0).any() and (small < 0).any() and (small > 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_signed_rows_are_those_of_mixed(dtype: str) -> None:
    mixed, signed = (Family(name, 2).rows("x", (0, 11), 300, dtype, total=11) for name in ("mixed", "signed"))
    assert mixed.tobytes() == signed.tobytes()


@pytest.mark.parametrize(("dtype", "large"), [("float32", 2.0**16), ("bfloat16", 2.0**16), ("float16", 2.0**12)])
def test_upstream_rows_take_their_kinds(dtype: str, large: float) -> None:
    dy = Family("upstream").upstream("dy", (0, 21), 4096, dtype, total=21).astype(np.float64)
    size = dy.std(axis=1)
    assert size[1] == pytest.approx(large, rel=0.06) and size[0] == pytest.approx(1, rel=0.06)
    assert not dy[2::4].any() and 0 < size[3] < 0.005 and size[20] == pytest.approx(1, rel=0.06)
    # in float16 one row is large: the sum of many rows' products would not fit
    assert size[5] == pytest.approx(1.0 if dtype == "float16" else large, rel=0.06)
    assert not np.signbit(Family("upstream").upstream("dy", (2, 3), 64, dtype, total=21)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "what"), [("upstream_nan", np.isnan), ("upstream_inf", np.isinf)])
def test_upstream_gradients_that_are_not_finite(name: str, what: Any, dtype: str) -> None:
    family = Family(name, 1)
    dy = family.upstream("dy", (0, 64), 300, dtype, total=64)
    assert what(dy).sum(axis=1).tolist() == [1, 0] * 32 and (what(dy) | np.isfinite(dy)).all()
    assert np.isfinite(family.rows("x", (0, 8), 300, dtype, total=8)).all() and name in NONFINITE_UPSTREAM


def test_values_do_not_depend_on_the_instruction_set() -> None:
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    enabled = [f for f in core.__cpu_dispatch__ if core.__cpu_features__.get(f)]
    if not enabled:
        pytest.skip("NumPy dispatches to no CPU feature here")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_accuracy_families as t, numpy as np\n"
        "core = sys.modules.get('numpy._core._multiarray_umath') or sys.modules['numpy.core._multiarray_umath']\n"
        "print(sum(map(bool, (core.__cpu_features__[f] for f in core.__cpu_dispatch__))), t.digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(Path(__file__).parent)],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": ",".join(enabled)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["0", GOLDEN], done.stderr


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(FAMILIES),
    dtype=st.sampled_from(DTYPES),
    width=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_blocks_join_to_the_whole(name: str, dtype: str, width: int, cuts: list[int]) -> None:
    family, edges = Family(name, 1), [0, *sorted(cuts), 40]
    for make in (
        lambda b: family.rows("x", b, width, dtype, total=40),
        lambda b: family.normal("x", b, width, dtype),
        lambda b: family.upstream("x", b, width, dtype, total=40),
    ):
        whole = make((0, 40))
        parts = np.concatenate([make(b) for b in pairwise(edges)])
        assert whole.tobytes() == parts.tobytes()


def test_a_block_far_inside_a_huge_tensor_is_made_alone() -> None:
    total = 1 << 40
    assert Family().rows("x", (total - 3, total), 64, "float32", total=total).shape == (3, 64)


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_exact_in_their_dtype_and_finite(name: str, dtype: str) -> None:
    family = Family(name)
    for made in (
        family.rows("x", (0, 16), 70000, dtype, total=16),
        family.normal("x", (0, 2), 999, dtype),
        family.vector("w", 999, dtype),
    ):
        assert made.dtype == np.float32 and np.isfinite(made).all()
        np.testing.assert_array_equal(decode(encode(made, dtype), dtype), made)


@pytest.mark.parametrize(("dtype", "large"), [("float32", 1e6), ("bfloat16", 1e6), ("float16", 1e3)])
def test_mixed_rows_take_their_kinds(dtype: str, large: float) -> None:
    x = Family("mixed").rows("x", (0, 21), 4096, dtype, total=21)
    body = x[:, :-1]  # the last column of some rows is heavy
    for row, scale in ((0, 1.0), (1, 1e-3), (2, large), (5, 1.0), (17, large)):
        assert body[row].std() == pytest.approx(1.155 * scale, rel=0.06), row
        assert len(np.unique(x[row])) > 200
    assert not x[[3, 8, 13, 18]].any() and not np.signbit(x[3]).any()
    for row in (4, 9, 14, 19):
        assert len(np.unique(x[row])) == 1 and 0.5 <= abs(x[row, 0]) < 2
    assert len({float(x[r, 0]) for r in (4, 9, 14, 19)}) > 1
    energy = x[2].astype(np.float64) ** 2
    assert 0.03 < energy[-1] / energy.sum() < 0.09


@pytest.mark.parametrize("total", range(1, 12))
def test_the_last_row_is_never_zero_and_some_row_has_a_heavy_last_column(total: int) -> None:
    x = Family("mixed").rows("x", (0, total), 1024, "bfloat16", total=total).astype(np.float64)
    assert x[-1].any()
    share = x[:, -1] ** 2 / np.maximum((x**2).sum(axis=1), 1e-30)
    assert share.max() > 0.03


def test_unlike_names_and_seeds_give_unlike_values() -> None:
    rows = [Family("normal", s).normal(n, (0, 1), 1000, "float32")[0] for s in (0, 1) for n in ("x", "dy")]
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


def test_plain_values_look_normal() -> None:
    x = Family("normal").normal("x", (0, 100), 10000, "float32").astype(np.float64)
    assert abs(x.mean()) < 3e-3 and x.std() == pytest.approx(1.0, abs=3e-3)
    assert 3.2 < abs(x).max() < 3.5 and abs((x[:, 1:] * x[:, :-1]).mean()) < 4e-3
    assert abs((x[1:] * x[:-1]).mean()) < 4e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_vary_around_one(dtype: str) -> None:
    w = Family().vector("weight", 1000, dtype)
    assert w.min() > 0.1 and w.max() < 1.9 and w.std() == pytest.approx(0.25, abs=0.02)
    assert len(np.unique(w)) > 80


def test_the_other_families_are_what_their_names_say() -> None:
    make = lambda name: Family(name).rows("x", (0, 4), 1000, "float32", total=4)  # noqa: E731
    assert (abs(make("outlier")).argmax(axis=1) == 999).all() and abs(make("outlier")).max() == 1024
    assert (make("alternating")[:, ::2] >= 0).all() and (make("alternating")[:, 1::2] <= 0).all()
    assert make("tiny").std() == pytest.approx(1.155e-3, rel=0.05)
    assert make("large").std() == pytest.approx(1.155e6, rel=0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_shifted_lie_far_from_zero_and_are_plain_around_their_mean(dtype: str) -> None:
    x = Family(SHIFTED, 1).rows("x", (0, 40), 500, dtype, total=40).astype(np.float64)
    mean, spread = x.mean(axis=1), x.std(axis=1)
    assert (abs(mean) > 9 * spread).all() and (abs(mean) < 24 * spread).all() and (mean > 0).any() and (mean < 0).any()
    plain = Family("normal", 1).rows("x", (0, 40), 500, "float32", total=40)
    assert np.corrcoef((x - mean[:, None]).ravel(), (plain - plain.mean(axis=1, keepdims=True)).ravel())[0, 1] > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "what"), [("nan", np.isnan), ("inf", np.isinf)])
def test_even_rows_hold_one_element_that_is_not_finite(name: str, what: Any, dtype: str) -> None:
    x = decode(encode(Family(name, 1).rows("x", (0, 64), 300, dtype, total=64), dtype), dtype)
    assert what(x).sum(axis=1).tolist() == [1, 0] * 32 and (what(x) | np.isfinite(x)).all()
    assert len(set(np.argwhere(what(x))[:, 1])) > 20  # not one and the same column
    assert len(set(np.signbit(x[what(x)]))) == 2
    clean = Family("normal", 1).rows("x", (0, 64), 300, dtype, total=64)
    np.testing.assert_array_equal(x[~what(x)], clean[~what(x)])
    assert np.isfinite(Family(name).normal("dy", (0, 4), 300, dtype)).all()
    assert what(Family(name).rows("x", (0, 1), 1, dtype, total=1)).all()  # one row of one element has it too


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="mixde"):
        Family("mixde")
