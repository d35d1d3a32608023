"""Where an output is wrong: planted faults over the ops and two 4-D contracts, each named by place and content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.accuracy import evaluate as core
from farm.accuracy import place_words, places, poison_bits, prepare, tolerances
from farm.accuracy.dtypes import decode, encode, storage_dtype
from farm.accuracy.evaluate import evaluate
from farm.cell import Cell
from farm.contracts.base import Contract, Dimension, Tensor, Work
from farm.contracts.discovery import contract
from farm.dashboards import place_map

Plant = Callable[[Any, str], Any]


class FourD(Contract):
    """y = 2 x of [batch, heads, queries, width]: the batch is the row."""

    op = "four_d"
    dimensions = tuple(Dimension(n, 1, 4096) for n in ("batch", "heads", "queries", "width"))
    typed = ("x",)

    def tensors(self, cell: Any) -> tuple[Tensor, ...]:
        dims = tuple(cell.dims.values())
        return Tensor("x", cell.dtypes["x"], dims, "input"), Tensor("y", cell.dtypes["x"], dims, "output")

    def inputs(self, cell: Any, family: Any, block: tuple[int, int]) -> dict[str, Any]:
        _, *rest = cell.dims.values()
        width = int(np.prod(rest))
        return {"x": family.normal("x", block, width, cell.dtypes["x"]).reshape(-1, *rest)}

    def reference(self, inputs: Mapping[str, Any], cell: Any, block: tuple[int, int]) -> dict[str, Any]:
        return {"y": 2.0 * inputs["x"].astype(np.float64)}

    def work(self, cell: Any) -> Work:
        return Work(1, 1, {"vector": 1})

    def gates(self, cell: Any) -> dict[str, dict[str, float]]:
        return {"y": {"max_ulp": 1.0, "row_l2_max": 1e-2, "gain_max": 1e-3}}


class Scanned(FourD):
    """[chunks, heads, steps, width], whose rows depend on each other, and their sum over the chunks: [heads, width]."""

    op = "scanned"
    dimensions = tuple(Dimension(n, 1, 4096) for n in ("chunks", "heads", "steps", "width"))
    rows_independent = False

    def tensors(self, cell: Any) -> tuple[Tensor, ...]:
        _, heads, _, width = cell.dims.values()
        last = Tensor("state", cell.dtypes["x"], (heads, width), "output", blocked=False)
        return *super().tensors(cell), last

    def reference(self, inputs: Mapping[str, Any], cell: Any, block: tuple[int, int]) -> dict[str, Any]:
        x = inputs["x"].astype(np.float64)
        return {"y": np.cumsum(x, axis=0), "state": x.sum(axis=(0, 2))}

    def gates(self, cell: Any) -> dict[str, dict[str, float]]:
        return {"y": {"max_ulp": 1.0}, "state": {"max_ulp": 1.0}}


OWN = {"four_d": FourD(), "scanned": Scanned()}
DIMS = {
    "rms_norm": (50, 1000),
    "fused_add_rms_norm": (16, 256),
    "rms_norm_quantize": (40, 128),
    "matmul": (256, 192, 64),
    "four_d": (2, 4, 32, 64),
    "scanned": (3, 4, 8, 16),
}


def of(op: str) -> Contract:
    return OWN.get(op) or contract(op)


def cell(op: str, dtype: str = "float32", operation: str = "forward", dims: tuple[int, ...] = (), **more: Any) -> Cell:
    c = of(op)
    names = [d.name for d in c.dimensions]
    params = {p.name: p.default for p in c.parameters}
    return Cell(
        "cpu", op, "mine", "auto", operation, dict.fromkeys(c.typed, dtype),
        dict(zip(names, dims or DIMS[op])), params, **more,
    )  # fmt: skip


def judged(c: Cell, output: str, plant: Plant, **how: Any) -> core.Judgement:
    """The right outputs of a cell, with `plant` applied to one of them (its storage array, and its values)."""
    op = of(c.op)
    inputs = core.fill_inputs(c, op)
    reference = core.fill_reference(c, op, inputs)
    tensors = {t.name: t for t in core.judged_tensors(c, op)}
    if core.row_sample(c, max(t.size for t in tensors.values())) is None:
        outputs = {n: encode(reference[n], t.dtype).reshape(t.dims) for n, t in tensors.items()}
    else:
        whole = core.make_reference(c, op, inputs, (0, core.row_count(c)))
        outputs = {n: encode(whole[n], t.dtype).reshape(t.dims) for n, t in tensors.items()}
    plant(outputs[output], tensors[output].dtype)
    return evaluate(c, op, outputs, inputs, reference=reference, **how)


def scale(where: Any, factor: Any) -> Any:
    def plant(stored: Any, dtype: str) -> None:
        stored[where] = encode(decode(stored[where], dtype) * factor, dtype)

    return plant


def put(where: Any, value: float) -> Any:
    def plant(stored: Any, dtype: str) -> None:
        part = stored[where]
        stored[where] = encode(np.full(part.shape, value, np.float32), dtype)

    return plant


def unwritten(where: Any, which: int = 0) -> Any:
    def plant(stored: Any, dtype: str) -> None:
        bits = poison_bits.unwritten(dtype)[which]
        if dtype in poison_bits.FLOATS:
            stored.view(f"u{stored.dtype.itemsize}")[where] = bits
        else:
            stored[where] = bits

    return plant


def shifted(stored: Any, dtype: str) -> None:
    stored[..., 1:] = stored[..., :-1].copy()


def rows_of_kind(k: int, rows: int) -> Any:
    return np.arange(k, rows, 5)


ALL = np.s_[:]
#: (op, dtype, operation, output, plant, words of the sentence)
FAULTS: dict[str, tuple[str, str, str, str, Any, tuple[str, ...]]] = {
    "last column unwritten": (
        "rms_norm",
        "float32",
        "forward",
        "y",
        unwritten(np.s_[:, 999]),
        ("50 of 50,000", "the last column (999) of every row, never written", "first [0, 999]: expected"),
    ),
    "one row unwritten": (
        "rms_norm",
        "bfloat16",
        "forward",
        "y",
        unwritten(5),
        ("1,000 of 50,000", "row 5, never written", "first [5, 0]"),
    ),
    "two columns scaled": (
        "rms_norm",
        "float32",
        "forward",
        "y",
        scale(np.s_[:, 256:258], 1.5),
        ("columns 256 to 257 of", "scaled by 1.5", "first [0, 256]"),
    ),
    "large rows scaled": (
        "rms_norm",
        "float32",
        "forward",
        "y",
        scale(rows_of_kind(2, 50), 1.024),
        ("rows of kind large only (2, 7, 12,", "scaled by 1.024", "first [2, 0]"),
    ),
    "large rows scaled in bfloat16": (
        "rms_norm",
        "bfloat16",
        "forward",
        "y",
        scale(rows_of_kind(2, 50), 1.024),
        ("rows of kind large only (2, 7, 12,", "scaled by 1.02"),
    ),
    "large rows each their own": (
        "rms_norm",
        "float32",
        "forward",
        "y",
        lambda a, d: scale(rows_of_kind(2, 50), np.linspace(1.02, 1.03, 10)[:, None])(a, d),
        ("rows of kind large only", "each row scaled by a factor of its own, 1.02 to 1.03"),
    ),
    "tail of rows": (
        "rms_norm",
        "float16",
        "forward",
        "y",
        unwritten(np.s_[48:]),
        ("rows 48 to 49 (the last 2), never written",),
    ),
    "the last row": ("rms_norm", "float32", "forward", "y", put(49, np.nan), ("the last row (49), computed NaN",)),
    "every 64th of dw": (
        "rms_norm",
        "float32",
        "backward",
        "dw",
        unwritten(np.s_[63::64]),
        ("dw: 15 of 1,000 elements are wrong: every 64th column (63, 127, ..., 959), never written", "first [63]"),
    ),
    "dx reversed": ("rms_norm", "float32", "backward", "dx", scale(ALL, -1.0), ("dx:", "sign reversed")),
    "a tile of a matrix": (
        "matmul",
        "float16",
        "forward",
        "c",
        unwritten(np.s_[128:, 64:128]),
        ("columns 64 to 127 of rows 128 to 255 (the last 128), never written", "first [128, 64]"),
    ),
    "everything scaled": (
        "matmul",
        "float32",
        "forward",
        "c",
        scale(ALL, 2.0),
        ("every element is wrong, scaled by 2",),
    ),
    "most of everything": (
        "rms_norm",
        "bfloat16",
        "forward",
        "y",
        put(np.random.default_rng(1).random((50, 1000)) < 0.8, 99.0),
        ("% of all elements; first",),
    ),
    "tiles of a matrix": (
        "matmul",
        "bfloat16",
        "forward",
        "c",
        put(np.s_[:, np.arange(192) % 64 >= 48], np.inf),
        ("columns 48 to 63 of every 64 of every row, infinite",),
    ),
    "one element": (
        "matmul",
        "float32",
        "forward",
        "c",
        put(np.s_[3, 77], 1000.0),
        ("1 of 49,152 elements is wrong: column 77 of row 3", "first [3, 77]: got 1000, expected"),
    ),
    "zero instead": (
        "rms_norm",
        "float16",
        "forward",
        "y",
        put(np.s_[:, :4], 0.0),
        ("columns 0 to 3 of all rows but those of kind zero, holding zero",),
    ),
    "one column further": (
        "four_d",
        "float32",
        "forward",
        "y",
        shifted,
        ("holding the value that is expected one place before",),
    ),
    "the sum of a fused op": (
        "fused_add_rms_norm",
        "bfloat16",
        "forward",
        "sum",
        unwritten(np.s_[8:]),
        ("sum:", "rows 8 to 15 (the last 8), never written"),
    ),
    "integers never written": (
        "rms_norm_quantize",
        "float32",
        "forward",
        "q",
        unwritten(np.s_[:, 100:]),
        ("q:", "columns 100 to 127 (the last 28) of every row, never written"),
    ),
    "memory from an element on": (
        "matmul",
        "float32",
        "forward",
        "c",
        lambda a, d: unwritten(np.s_[45132:])(a.reshape(-1), d),
        ("4,020 elements one after the other in memory, from [235, 12] to the end, never written",),
    ),
    "every 3rd in memory": (
        "fused_add_rms_norm",
        "float32",
        "forward",
        "y",
        lambda a, d: put(np.s_[::3], np.nan)(a.reshape(-1), d),
        ("every 3rd element in memory, from [0, 0]", "computed NaN"),
    ),
    "one head": (
        "four_d",
        "float32",
        "forward",
        "y",
        unwritten(np.s_[:, 3]),
        ("all of the last head (3), never written", "first [0, 3, 0, 0]"),
    ),
    "one head scaled": (
        "four_d",
        "bfloat16",
        "forward",
        "y",
        scale(np.s_[:, 1], 1.25),
        ("all of head 1, scaled by 1.25", "first [0, 1, 0, 0]"),
    ),
    "late queries of one head": (
        "four_d",
        "float32",
        "forward",
        "y",
        put(np.s_[1, 2, 16:], np.nan),
        ("queries 16 to 31 (the last 16) of head 2 of the last batch (1), computed NaN", "first [1, 2, 16, 0]"),
    ),
    "a column in four dimensions": (
        "four_d",
        "float16",
        "forward",
        "y",
        unwritten(np.s_[..., 63], 1),
        ("the last width (63) of every query, never written",),
    ),
    "one step of a scan": (
        "scanned",
        "float32",
        "forward",
        "y",
        scale(np.s_[:, :, 5], -1.0),
        ("all of step 5, sign reversed", "first [0, 0, 5, 0]"),
    ),
    "a reduction of two axes": (
        "scanned",
        "float32",
        "forward",
        "state",
        unwritten(np.s_[2]),
        ("state: 16 of 64", "head 2, never written"),
    ),
    "all heads but one scaled": (
        "four_d",
        "float32",
        "forward",
        "y",
        scale(np.s_[:, 1:], 1.25),
        ("all of heads 1 to 3 (the last 3), scaled by 1.25", "first [0, 1, 0, 0]"),
    ),
    "all queries but the last": (
        "four_d",
        "bfloat16",
        "forward",
        "y",
        lambda a, d: scale(np.s_[:, :, :-1], np.linspace(1.5, 3, 31)[:, None])(a, d),
        (
            "every query but the last (31), each line scaled by a factor of its own, 1.5 to 3, the error grows along",
            "the queries, from 55 % to 200 %; first [0, 0, 0, 0] (batch, head, query, width): got",
        ),
    ),
    "half of the large rows": (
        "rms_norm",
        "float32",
        "forward",
        "y",
        lambda a, d: put(
            np.isin(np.arange(50) % 5, 2)[:, None] & (np.random.default_rng(1).random((50, 1000)) < 0.6), np.nan
        )(a, d),
        ("61 % of the elements of rows of kind large only (2, 7, 12,", "computed NaN"),
    ),
    "sums of few digits": (
        "matmul",
        "float32",
        "forward",
        "c",
        lambda a, d: scale(ALL, 1 + 1e-3 * np.random.default_rng(1).standard_normal(a.shape))(a, d),
        ("off by about 0.098 % in both directions",),
    ),
    "too large": (
        "matmul",
        "float32",
        "forward",
        "c",
        lambda a, d: put(np.s_[3], decode(a[3], d) + np.linspace(1, 9, 192, dtype=np.float32))(a, d),
        ("row 3, too large by 1 to 9; first [3, 0]",),
    ),
    "one of two gradients": (
        "rms_norm",
        "bfloat16",
        "backward",
        "dw",
        put(ALL, 7.0),
        ("dw: every element is wrong, all 7; first [0]: got 7, expected", "; dx is right"),
    ),
    "scattered": (
        "matmul",
        "float32",
        "forward",
        "c",
        put((np.array([1, 70, 200]), np.array([5, 9, 100])), 1e6),
        ("scattered: rows 1, 70, 200, columns 5, 9, 100", "all 1e+06"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_by_place_and_by_what_it_holds(fault: str) -> None:
    op, dtype, operation, output, plant, words = FAULTS[fault]
    found = judged(cell(op, dtype, operation), output, plant)
    assert not found.ok
    for some in words:
        assert some in found.reason, found.reason
    assert "1e+30" not in found.reason and "2141945771" not in found.reason
    assert json.loads(json.dumps(found.places)) == found.places
    assert len(json.dumps(found.places)) < 8_000
    text = places.report(output, found.places[output])
    assert all(len(line) < 400 for line in text.splitlines())


def test_the_map_of_the_page_shades_what_is_wrong_and_takes_no_row_on_trust() -> None:
    found = judged(cell("matmul", "float16"), "c", unwritten(np.s_[128:, 64:128])).places
    (one,) = place_map.of_row({"places": json.dumps(found)})
    assert one["sentence"].startswith("c: 8,192 of 49,152") and 'viewBox="0 0 320 ' in one["svg"]
    high, wide = len(found["c"]["map"]), len(found["c"]["map"][0])
    shaded = sum(digit != "0" for line in found["c"]["map"] for digit in line)
    assert (high, wide) == (places.MAP_ROWS, places.MAP_COLUMNS) and abs(shaded - high * wide / 6) <= high
    assert one["svg"].count("<rect") <= 3 * high / 2 + 3  # one for a run of one shade
    hostile = {**found["c"], "map": ["9<script>"], "shape": ["<script>"]}
    for bad in ("", "{}", "[]", "nonsense", json.dumps({"c": hostile}), json.dumps({"c": {"map": 3}}), "null"):
        assert place_map.of_row({"places": bad}) == []
    named = place_map.of_row({"places": json.dumps({"<script>": {**found["c"], "pattern": "<script>"}})})
    assert "<script" not in named[0]["svg"]  # the sentence is escaped by the page


PLACES = {
    "column": ("rms_norm", np.s_[:, 7], "column 7 of every row"),
    "rows": ("rms_norm", np.s_[10:20], "rows 10 to 19"),
    "head": ("four_d", np.s_[:, 2], "all of head 2"),
    "stride": ("rms_norm", np.s_[:, ::8], "every 8th column (0, 8, ..., 992) of every row"),
    "one": ("four_d", np.s_[0, 0, 0, 0], "width 0 of query 0 of head 0 of batch 0"),
    "everything": ("rms_norm", np.s_[:], "every element"),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_never_written_is_told_from_a_computed_nan_in_each_place(where: str, dtype: str) -> None:
    op, place, words = PLACES[where]
    never = judged(cell(op, dtype), "y", unwritten(place)).reason
    nan = judged(cell(op, dtype), "y", put(place, np.nan)).reason
    assert words in never and "never written" in never and "NaN" not in never
    assert words in nan and "computed NaN" in nan and "never written" not in nan
    mixed = judged(cell("rms_norm", dtype), "y", lambda a, d: (unwritten(3)(a, d), put(4, np.nan)(a, d))).reason
    assert "rows 3 to 4, 1,000 never written, 1,000 computed NaN" in mixed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])  # in which NumPy computes
def test_arithmetic_on_what_was_never_written_is_not_called_never_written(dtype: str) -> None:
    bits = np.full(4, poison_bits.FLOATS[dtype], f"u{storage_dtype(dtype).itemsize}")
    assert places.unwritten(bits.view(storage_dtype(dtype)), dtype).all()
    with np.errstate(invalid="ignore"):
        moved = bits.view(dtype) * np.array(1.5, dtype)
    assert np.isnan(moved).all() and not places.unwritten(moved, dtype).any()


def test_a_right_output_has_no_place() -> None:
    found = judged(cell("rms_norm"), "y", lambda a, d: None)
    assert found.ok and found.places == {} and found.reason == ""


@pytest.mark.parametrize("step", [1, 3, 7, 50])
@pytest.mark.parametrize("fault", ["large rows scaled", "a tile of a matrix", "memory from an element on"])
def test_blocks_merge_to_the_same_report(fault: str, step: int) -> None:
    op, dtype, operation, output, plant, _ = FAULTS[fault]
    c = cell(op, dtype, operation)
    whole = judged(c, output, plant, rows_per_block=10**6).places[output]
    cut = judged(c, output, plant, rows_per_block=step).places[output]
    same = ("count", "of", "first", "box", "pattern", "values", "kinds", "map")
    assert {k: whole[k] for k in same} == {k: cut[k] for k in same}


def test_only_compared_rows_are_claimed_and_what_is_not_finite_is_found_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SAMPLE_ABOVE", 10_000)
    monkeypatch.setattr(prepare, "SAMPLE_ROWS", 50)
    c = cell("rms_norm", dims=(400, 64))
    scaled = judged(c, "y", scale(np.s_[:, 3], 3.0)).reason
    assert "column 3 of" in scaled and "rows that were compared)" in scaled
    assert "of 3,3" in scaled or "of 3,2" in scaled  # 50 to 52 rows of 64
    never = judged(c, "y", unwritten(np.s_[200:300])).reason
    assert "6,400 of 25,600 elements are wrong: rows 200 to 299, never written" in never
    assert "compared)" not in never


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_numbers_that_differ_are_shown_with_digits_that_differ(dtype: str) -> None:
    want = np.full((1, 4), 1 / 3)
    stored = np.nextafter(want.astype(dtype), np.dtype(dtype).type(1))
    marks = places.mark(np.ones((1, 4), bool), stored, want, dtype, (1, 4), np.arange(1))
    assert all(got != expected for _, got, expected in marks.examples)


def test_kinds_of_rows_that_fail_differently_are_each_named() -> None:
    def plant(stored: Any, dtype: str) -> None:
        scale(rows_of_kind(1, 50), 1.5)(stored, dtype)
        put(rows_of_kind(2, 50), np.nan)(stored, dtype)

    said = judged(cell("rms_norm"), "y", plant).reason
    assert "rows of kind tiny and large only (1, 2, 6, 7, 11, 12, ...), those of kind tiny scaled by 1.5, " in said
    assert "those of kind large computed NaN; first [1, 0]: got" in said
    both = judged(cell("rms_norm"), "y", scale(np.isin(np.arange(50) % 5, (1, 2)), 1.5)).reason
    assert ", scaled by 1.5; first" in both and "those of kind" not in both


@pytest.mark.parametrize("rows", [5, 6, 33, 50])
def test_one_wording_for_rows_of_a_kind_whatever_their_number(rows: int) -> None:
    """Of five rows each kind has one: `every row but 3` there and `all rows but those of kind zero` elsewhere are one
    pattern."""
    c = cell("rms_norm", dims=(rows, 64))
    said = judged(c, "y", put(np.arange(rows) % 5 != 3, 9.0)).reason
    assert "elements are wrong: all rows but those of kind zero, all 9; first [0, 0]" in said


def test_axes_are_named_at_the_first_place_of_a_tensor_that_is_no_matrix() -> None:
    said = judged(cell("four_d"), "y", unwritten(np.s_[:, 3])).reason
    assert "first [0, 3, 0, 0] (batch, head, query, width): expected" in said
    assert "first [3, 77]: got" in judged(cell("rms_norm"), "y", put(np.s_[3, 77], 1.0)).reason


def test_the_metric_of_the_sentence_says_what_it_counts_and_is_of_some_size() -> None:
    gates = {"c": {"max_ulp": 100.0, "mismatch_ratio": 0.04, "rel_l2": 1e-5, "nonfinite": 0.0}}

    def said(**of: float) -> str:
        metrics = {"c": {"max_ulp": 1.0, "mismatch_ratio": 0.0, "rel_l2": 0.0, "nonfinite": 0.0, **of}}
        return tolerances.explain(tolerances.verdict(metrics, gates), metrics, gates)

    assert "rel_l2 is 0.5, tolerance 1e-05" in said(max_ulp=3e9, rel_l2=0.5), "not 3e9 ULP next to zero"
    assert "max_ulp is 3e+09, tolerance 100" in said(max_ulp=3e9), "nothing else exceeds its tolerance"
    assert "max_ulp is 3e+04, tolerance 100" in said(max_ulp=3e4, rel_l2=2e-5)
    of_elements = said(mismatch_ratio=0.284)
    assert "mismatch_ratio is 0.284 (the share of elements that are more than 1 ULP off), tolerance 0.04" in of_elements
    never = judged(cell("matmul"), "c", unwritten(np.s_[:12])).reason
    assert "nonfinite is 2,304, tolerance 0" in never


def test_an_error_against_zero_is_no_number_of_ulp() -> None:
    c = cell("rms_norm")
    found = judged(c, "y", put(np.s_[3, 77], 1.0))  # row 3 is of kind zero
    assert "1 of 50,000 elements is wrong: column 77 of row 3; first [3, 77]: got 1, expected 0" in found.reason
    assert "e+30" not in found.reason


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "bfloat16"]), st.floats(0.05, 0.9), st.floats(0.1, 2))
def test_right_lines_stay_unmarked_beside_wrong_ones(seed: int, dtype: str, share: float, excess: float) -> None:
    """Of a row of many lines that exceeds a limit of rows, those lines are marked that make it do so: whatever is wrong
    with them, and whatever the rounding errors of the others."""
    dice = np.random.default_rng(seed)
    lines, width = int(dice.integers(2, 40)), int(dice.integers(8, 200))
    want = dice.standard_normal((2, lines, width)) * 2.0 ** dice.integers(-3, 4, (2, lines, 1))
    planted = dice.random((2, lines)) < share
    factor = np.where(planted, 1 + excess, 1.0)[..., None]
    stored = encode((want * factor).astype(np.float32), dtype).reshape(2, -1)
    limits = {"row_l2_max": 6e-3 if dtype == "bfloat16" else 1e-6, "gain_max": 3e-3 if dtype == "bfloat16" else 1e-6}
    wrong = places.wrong_elements(stored, want.reshape(2, -1), dtype, limits, line=width).reshape(2, lines, width)
    assert not wrong[~planted].any()
    # a line that is small beside its row may be left out where its row does not exceed the limit by it
    rr = (want**2).sum(-1)
    off = np.sqrt((rr * planted).sum(-1) / rr.sum(-1)) * excess > 2 * limits["row_l2_max"]
    assert wrong[planted & off[:, None]].all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_product_of_index_sets_is_described_and_counted(data: st.DataObject) -> None:
    """The words never contradict the marks: the count, the box and the first are those of the mask."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    mask = np.zeros(shape, bool)
    at = tuple(np.array(data.draw(st.sets(st.integers(0, n - 1), min_size=1).map(sorted))) for n in shape)
    mask[np.ix_(*at)] = True
    flat = mask.reshape(shape[0], -1)
    stored = np.where(flat, np.float32(5), np.float32(1))
    marks = places.Marks(shape)
    step = data.draw(st.integers(1, shape[0]))
    for begin in range(0, shape[0], step):
        rows = np.arange(begin, min(begin + step, shape[0]))
        marks = marks.merge(
            places.mark(flat[rows], stored[rows], np.ones_like(flat[rows], float), "float32", shape, rows)
        )
    found = places.finish(marks, "float32", names=[f"a{i}" for i in range(len(shape))])
    assert found["count"] == mask.sum() and found["first"] == [int(i[0]) for i in at]
    assert found["box"] == [[int(i[0]), int(i[-1])] for i in at]
    assert "scattered" not in found["pattern"] and "%" not in found["pattern"]
    assert {len(line) for line in found["map"]} == {min(places.MAP_COLUMNS, shape[-1])}


@pytest.mark.parametrize(("rows", "which"), [(1, "the only row"), (2, "every row")])
def test_one_row_is_not_called_every_row(rows: int, which: str) -> None:
    pattern = place_words.Pattern((rows, 64), (np.arange(rows), np.array([63])), rows, ("row", "column"), {}, None)
    assert pattern._product() == f"the last column (63) of {which}"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.data())
def test_words_of_indices_name_no_other_set(size: int, data: st.DataObject) -> None:
    """Two different sets of indices never have the same words, but for those that only count."""
    one, two = (np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))) for _ in "ab")
    a, b = (place_words.indices(s, size, "row", {}) for s in (one, two))
    if " of " in a and ", from " in a:
        return
    assert a != b or np.array_equal(one, two)


@settings(max_examples=200, deadline=None)
@given(st.integers(5, 23), st.data())
def test_what_is_said_of_kinds_of_rows_is_true_of_every_row(rows: int, data: st.DataObject) -> None:
    kinds = {name: np.arange(k, rows, 5) for k, name in enumerate(("unit", "zero", "large", "small", "constant"))}
    picked = data.draw(st.sets(st.sampled_from(sorted(kinds)), max_size=4))
    odd = data.draw(st.sets(st.integers(0, rows - 1), max_size=5))
    found = np.array(sorted({int(r) for k in picked for r in kinds[k]} ^ odd), np.int64)
    if not len(found):
        return
    words = place_words.indices(found, rows, "row", kinds)
    last = {rows - 1} if ", and the last (" in words else set()
    match = re.match(r"(all rows but those|rows) of kind (.*?)( only \(.*?(, (\d+) of \d+)?\))?(, and|$)", words)
    if match is None:
        assert "of kind" not in words
        return
    named = {int(r) for k in match[2].split(" and ") for r in kinds[k]}
    claimed = (named if match[1] == "rows" else set(range(rows)) - named) - last
    said = set(found.tolist()) - last
    assert said <= claimed and len(said) == int(match[5] or len(claimed)) and last <= set(found.tolist())
