"""Laws of wrong values: planted ones are named, and random errors are said to follow none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.accuracy import elsewhere, fitted_words, places
from farm.accuracy.dtypes import encode

Array = Any
NAMES = {1: ["column"], 2: ["row", "column"], 4: ["batch", "head", "query", "width"]}


def report(want: Array, got: Array, dtype: str = "float32", wrong: Array | None = None) -> dict[str, Any]:
    """The report on an output whose elements differ by more than 2 ULP, as `find_places` makes it."""
    shape = want.shape
    high = (shape[0], -1)
    stored = encode(np.asarray(got, np.float32), dtype).reshape(high)
    flat = want.reshape(high)
    bad = places.wrong_elements(stored, flat, dtype, {"max_ulp": 2.0}) if wrong is None else wrong.reshape(high)
    if not bad.any():
        return {"count": 0, "values": ""}
    marks = places.mark(bad, stored, flat, dtype, shape, np.arange(shape[0]))
    return places.finish(marks, dtype, names=NAMES[len(shape)])


def values(want: Array, got: Array, dtype: str = "float32") -> str:
    return str(report(want, got, dtype)["values"])


def rounded(dice: Any, *shape: int) -> Array:
    return dice.standard_normal(shape).astype(np.float32).astype(np.float64)


def planted(name: str, dice: Any) -> tuple[Array, Array]:
    """Expected values, and got ones with the fault of this name."""
    rows = rounded(dice, 12, 300)
    heads = rounded(dice, 2, 4, 24, 16)
    noise = 1 + 0.02 * dice.standard_normal(rows.shape)
    own = dice.uniform(0.2, 0.8, (12, 1))
    terms = dice.standard_normal((30, 700))
    made = {
        "about one factor": lambda: (rows, rows * 1.5 * noise),
        "each row its own": lambda: (rows, rows * own * noise),
        "each row off": lambda: (rows, rows + 8 * own - 9 + 0.1 * noise),
        "scaled and moved": lambda: (rows, rows * own + 0.3 * own + 0.02 * noise),
        "toward a bias": lambda: ((bias := dice.standard_normal(300)) + rows, bias + rows * own),
        "each column its own": lambda: (rows, rows * dice.uniform(0.3, 3, 300) * noise),
        "a third is missing": lambda: (terms.sum(axis=0), terms[10:].sum(axis=0)),
        "a tail of k": lambda: (terms.reshape(30, 7, 100).sum(axis=0), terms[6:].reshape(24, 7, 100).sum(axis=0)),
        "unrelated": lambda: (rows[0], rows[1]),
        "another head": lambda: (heads, np.roll(heads, 1, axis=1) + 0 * heads),
        "the first row": lambda: (rows, np.where(np.arange(12)[:, None] > 0, rows[:1], rows)),
        "32 columns further": lambda: (rows, np.concatenate([rows[:, 32:], rows[:, :32] * 0 + 9], axis=1)),
        "grows along queries": lambda: (
            heads,
            heads * (1 + 2.0 ** np.linspace(-6, 1, 24)[:, None] * dice.standard_normal(heads.shape)),
        ),
    }
    return made[name]()


WORDS = {
    "about one factor": "scaled by about 1.",
    "each row its own": "each row scaled by about a factor of its own, 0.",
    "each row off": "each row off by about a constant of its own, -",
    "scaled and moved": "each row scaled by about a factor of its own, 0.",
    "toward a bias": "pulled toward a value of each column's own (as a bias is)",
    "each column its own": "each column scaled by about a factor of its own, 0.",
    "a third is missing": "of what is expected, as a sum without 3",
    "a tail of k": "of what is expected, as a sum without ",
    "unrelated": "unrelated to what is expected",
    "another head": "holding values that are expected in another head",
    "the first row": "holding the value that is expected in row 0",
    "32 columns further": "holding the value that is expected 32 columns further",
    "grows along queries": "the error grows along the queries, from ",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WORDS)
def test_a_planted_law_is_named(name: str, dtype: str) -> None:
    for seed in range(5):
        dice = np.random.default_rng(seed)
        want, got = planted(name, dice)
        if dtype == "bfloat16":
            want = np.asarray(want, np.float32).astype(np.float64)
        assert WORDS[name] in values(want, got, dtype), (seed, values(want, got, dtype))


LAWS = ("scaled", "moved", "pulled", "pushed", "about a", "unrelated", "expected", "without", "grows", "falls")


@settings(max_examples=80, deadline=None)
@example(36946856, (40, 64), "bfloat16", -14.25, 0.5, "signs")  # roundings next to 1 were "scaled by 1.009"
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(600,), (8, 100), (40, 64), (2, 3, 20, 16)]),
    st.sampled_from(["float32", "bfloat16"]),
    st.floats(-16, 0),
    st.floats(0.02, 1),
    st.sampled_from(["normal", "heavy", "signs"]),
)
def test_random_errors_follow_no_law(
    seed: int, shape: tuple[int, ...], dtype: str, size: float, share: float, kind: str
) -> None:
    """Whatever their size (up to that of the values), how many elements have one, and how they are distributed."""
    dice = np.random.default_rng(seed)
    want = rounded(dice, *shape)
    error = {
        "normal": lambda: dice.standard_normal(shape),
        "heavy": lambda: dice.standard_t(2, shape),
        "signs": lambda: dice.choice([-1.0, 1.0], shape),
    }[kind]() * 2.0**size
    got = want + np.where(dice.random(shape) < share, error, 0.0)
    with np.errstate(over="ignore"):
        found = report(want, got, dtype)
    said = found["values"].replace("off by about", "off by")
    assert not any(word in said for word in LAWS) or found["count"] < 4, said


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(600,), (12, 64), (2, 3, 20, 16)]), st.floats(0.1, 4))
def test_what_is_said_of_unlike_rows_is_true_of_them(seed: int, shape: tuple[int, ...], size: float) -> None:
    """Elements each scaled by a factor of its own, around 1: no factor of rows, no share, nothing elsewhere."""
    dice = np.random.default_rng(seed)
    want = rounded(dice, *shape)
    said = values(want, want * (1 + min(size, 0.5) * dice.standard_normal(shape)))
    assert not any(word in said for word in ("scaled", "pulled", "pushed", "unrelated", "without", "holding")), said


def test_a_line_is_not_found_where_too_few_values_differ() -> None:
    want = np.zeros((6, 40))
    find = elsewhere.Finder(want, (6, 40), np.arange(6), "float32")
    assert find.line(np.full(40, 2.0), np.zeros(40, int), np.arange(40)) is None
    assert elsewhere.words([None, ((0, 0), ())], ["row", "column"]) == ""
    assert fitted_words.fitted([], "row") == "" and fitted_words.fitted([np.full((2, 40), np.nan)], "row") == ""
    assert fitted_words.factor_text(1 - 1.9e-5) == "1 - 1.9e-05" and fitted_words.factor_text(1.5) == "1.5"
