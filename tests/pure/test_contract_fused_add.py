"""The contract of fused_add_rms_norm against a formula written down apart from it, its gradients against finite
differences, and what makes its inputs able to tell a wrong kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.accuracy.dtypes import decode, encode
from farm.accuracy.evaluate import fill_reference, input_key, make_inputs, reference_key
from farm.accuracy.inputs import NONFINITE
from farm.accuracy.plans import _with_absent
from farm.cell import Cell
from farm.contracts.discovery import contract
from farm.contracts.ops.rms import rounded

OP = contract("fused_add_rms_norm")
DTYPES = ("float32", "float16", "bfloat16")


def cell(operation: str = "full", dims: tuple[int, int] = (6, 10), dtype: str = "float32", **more: Any) -> Cell:
    fields = {k: more.pop(k) for k in ("family", "seed") if k in more}
    return Cell(
        "cpu",
        OP.op,
        "farm",
        "auto",
        operation,
        dict.fromkeys(OP.typed, dtype),
        dict(zip(("rows", "hidden"), dims)),
        {p.name: p.default for p in OP.parameters} | more,
        **fields,
    )


def values_of(c: Cell) -> dict[str, Any]:
    stored, dtypes = make_inputs(c, OP, (0, c.dims["rows"])), {t.name: t.dtype for t in OP.tensors(c)}
    return {name: decode(a, dtypes[name]) for name, a in stored.items()}


def stored_sum(values: dict[str, Any], dtype: str) -> Any:
    """The sum as every right kernel stores it."""
    return decode(encode(values["x"] + values["residual"], dtype), dtype)


def straightforward(values: dict[str, Any], c: Cell, used: Any, kept: Any) -> dict[str, Any]:
    """Row by row: `used` is what y and 1/rms are of, `kept` what backward reads."""
    eps, weight = c.params["eps"], values.get("weight", np.ones(c.dims["hidden"]))
    factor = weight + (c.params["offset"] if "weight" in values else 0.0)
    out: dict[str, Any] = {"y": [], "dx": [], "dw": np.zeros(c.dims["hidden"])}
    for row, s, dy, dsum in zip(used, kept, values["dy"], values["dsum"]):
        r = 1 / np.sqrt(sum(v * v for v in row) / len(row) + eps)
        out["y"].append(row * r * factor)
        dot = sum(dy * factor * s * r) / len(row)
        out["dx"].append(r * (dy * factor - s * r * dot) + dsum)
        out["dw"] += dy * s * r
    return {**out, "y": np.array(out["y"]), "dx": np.array(out["dx"])}


@pytest.mark.parametrize("which", ["rounded", "unrounded"])
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_formula(dtype: str, weight: bool, which: str) -> None:
    c = cell(dtype=dtype, weight=weight, offset=0.5, eps=1e-3, sum=which)
    values = values_of(c)
    kept = stored_sum(values, dtype)
    exact = values["x"] + values["residual"]
    want = straightforward(values, c, kept if which == "rounded" else exact, kept)
    got = OP.reference(values, c, (0, 6))
    np.testing.assert_allclose(got["sum"], exact, rtol=1e-15)  # what is stored is held to the unrounded value
    for name, wanted in (("y", want["y"]), ("dx", want["dx"]), ("dresidual", want["dx"])):
        np.testing.assert_allclose(got[name], wanted, rtol=1e-11, atol=1e-13 * abs(wanted).max(), err_msg=name)
    assert ("dw" in got) == weight
    if weight:
        np.testing.assert_allclose(got["dw"], want["dw"], rtol=1e-11)


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("hidden", [1, 9])
def test_its_gradients_are_finite_differences(weight: bool, hidden: int) -> None:
    c = cell(dims=(3, hidden), weight=weight, offset=0.25, eps=1e-2)
    values = values_of(c)
    for name in ("x", "residual"):
        values[name][1] *= 1e3  # a row whose RMS is not far from the root of eps
        values[name][2] *= 1e-6  # else the sum of 1e6 dsum leaves no digits for differences
        values[name] = values[name].astype(np.float32).astype(np.float64)

    def loss(**changed: Any) -> float:
        v = {**values, **changed}
        total = v["x"] + v["residual"]
        normed = total / np.sqrt((total * total).mean(axis=1, keepdims=True) + 1e-2)
        y = normed * (v["weight"] + 0.25) if weight else normed
        return float((y * v["dy"]).sum() + (total * v["dsum"]).sum())

    analytic = OP.reference(values, c, (0, 3))
    names = {"x": "dx", "residual": "dresidual", **({"weight": "dw"} if weight else {})}
    for name, gradient in ((name, analytic[of]) for name, of in names.items()):
        for at in np.ndindex(gradient.shape):
            size = max(abs(values[name][at]), 1.0)
            step = np.zeros_like(values[name])
            step[at] = 1e-5 * size
            slope = (loss(**{name: values[name] + step}) - loss(**{name: values[name] - step})) / (2e-5 * size)
            assert gradient[at] == pytest.approx(slope, rel=1e-5, abs=2e-6 * abs(gradient).max() + 1e-9)


def test_the_two_sums_are_two_references_of_one_input() -> None:
    one, other = cell("forward", dtype="bfloat16"), cell("forward", dtype="bfloat16", sum="unrounded")
    assert input_key(one, OP) == input_key(other, OP) and one.cell_key != other.cell_key
    assert reference_key(one, OP) != reference_key(other, OP)
    stored = make_inputs(one, OP, (0, 6))
    a, b = (fill_reference(c, OP, stored) for c in (one, other))
    assert np.array_equal(a["sum"], b["sum"]) and not np.array_equal(a["y"], b["y"])
    np.testing.assert_allclose(a["y"], b["y"], rtol=2.0**-7)


SIXTEEN_BITS = st.integers(0, 2**16 - 1)


@given(st.sampled_from(DTYPES), st.lists(st.tuples(SIXTEEN_BITS, SIXTEEN_BITS), min_size=1, max_size=50))
def test_a_sum_is_rounded_as_it_is_stored(dtype: str, pairs: list[tuple[int, int]]) -> None:
    bits = np.array(pairs, dtype=np.uint16)
    as_stored = bits.view(np.float16) if dtype == "float16" else bits  # bfloat16's numbers are float32's too
    a, b = decode(as_stored, "float16" if dtype == "float16" else "bfloat16").T
    with np.errstate(over="ignore", invalid="ignore"):
        total = a + b
    largest = {"float16": 65504.0}.get(dtype, 3.3e38)
    total = total[np.isfinite(total) & (np.abs(total) <= largest)]
    assert np.array_equal(rounded(total, dtype), decode(encode(total, dtype), dtype))


@given(st.lists(st.floats(-1e38, 1e38, width=64).filter(lambda v: abs(v) > 1e-37), min_size=1, max_size=50))
def test_rounding_to_bfloat16_is_to_nearest_even(numbers: list[float]) -> None:
    values = np.array(numbers)
    assert np.array_equal(rounded(values, "bfloat16"), decode(encode(values, "bfloat16"), "bfloat16"))


def test_tensors_by_operation_and_weight() -> None:
    names = lambda *a, **kw: [t.name for t in OP.tensors(cell(*a, **kw))]  # noqa: E731
    assert names("forward") == names("no-grad-forward") == ["x", "residual", "weight", "y", "sum"]
    assert names("backward") == ["x", "residual", "weight", "dy", "dsum", "dx", "dresidual", "dw"]
    assert names("full") == ["x", "residual", "weight", "dy", "dsum", "y", "sum", "dx", "dresidual", "dw"]
    assert names("backward", weight=False) == ["x", "residual", "dy", "dsum", "dx", "dresidual"]
    of = {t.name: t.of for t in OP.tensors(cell()) if t.role == "gradient"}
    assert of == {"dx": "x", "dresidual": "residual", "dw": "weight"}
    assert not any(t.may_overwrite for t in OP.tensors(cell()))


@pytest.mark.parametrize(
    ("op", "order"), [("rms_norm", ["x", "weight", "y"]), (OP.op, ["x", "residual", "weight", "y", "sum"])]
)
def test_an_absent_weight_keeps_its_place_among_the_arguments(op: str, order: list[str]) -> None:
    c = replace(cell("forward", weight=False), op=op)
    if op != OP.op:
        c = replace(c, params={p.name: p.default for p in contract(op).parameters} | {"weight": False})
    told = [{"name": t.name, "role": t.role} for t in contract(op).tensors(c)]
    found = _with_absent(c, contract(c.op), told)
    assert [t["name"] for t in found] == order
    assert "file" not in found[order.index("weight")]


def test_work_counts_every_tensor_once_and_equal_gradients_as_one() -> None:
    forward, backward, full = (OP.work(cell(o, (100, 64), "bfloat16")) for o in ("forward", "backward", "full"))
    unit, weight = 100 * 128, 128
    assert (forward.bytes_read, forward.bytes_written) == (2 * unit + weight, 2 * unit)
    assert (backward.bytes_read, backward.bytes_written) == (3 * unit + weight, unit + weight)
    assert full.bytes_read == forward.bytes_read + backward.bytes_read
    assert full.bytes_written == forward.bytes_written + backward.bytes_written
    assert full.operations["vector"] == forward.operations["vector"] + backward.operations["vector"]
    assert OP.work(cell("backward", (100, 64), "bfloat16", weight=False)).bytes_written == unit


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_may_be_one_place_off_and_both_gradients_are_held_alike(dtype: str) -> None:
    for casting in ("llama", "gemma", "none"):
        gates = OP.gates(cell(dims=(64, 256), dtype=dtype, casting=casting))
        assert gates["sum"]["max_ulp"] == 1.0
        assert gates["dx"] == gates["dresidual"]
        assert set(gates) == {"y", "sum", "dx", "dresidual", "dw"}


def test_scales_are_the_sizes_of_the_terms() -> None:
    c = cell("backward", (5, 8))
    values = values_of(c)
    total = stored_sum(values, "float32")
    r = 1 / np.sqrt((total * total).mean(axis=1, keepdims=True) + 1e-6)
    want = ((r * values["dy"] * values["weight"]) ** 2 + values["dsum"] ** 2).mean(axis=1, keepdims=True)
    found = OP.scales(values, c, (0, 5))
    np.testing.assert_allclose(found["dx"], want)
    np.testing.assert_allclose(found["dresidual"], want)
    np.testing.assert_allclose(found["dw"], ((values["dy"] * total * r) ** 2).sum(axis=0))


def test_rows_of_one_value_are_not_spread() -> None:
    c = cell("forward", (10, 64))
    found = OP.spread(values_of(c), c, (0, 10))
    assert found["y"].ravel().tolist() == found["sum"].ravel().tolist() == [True, True, True, False, False] * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", OP.families)
def test_inputs_are_exact_and_no_sum_leaves_the_dtype(dtype: str, family: str) -> None:
    c = cell(dims=(11, 1000), dtype=dtype, family=family)
    stored = make_inputs(c, OP, (0, 11))
    values = values_of(c)
    for name in ("x", "residual", "dy", "dsum"):
        assert np.array_equal(decode(encode(values[name], dtype), dtype), values[name], equal_nan=True)
        assert stored[name].shape == (11, 1000)
    clean = slice(1, None, 2) if family in NONFINITE else slice(None)
    with np.errstate(invalid="ignore"):  # an infinity may meet one of the other sign
        assert np.isfinite(stored_sum(values, dtype)[clean]).all()
    part = make_inputs(c, OP, (3, 7))  # any block of rows can be made alone
    for name in ("x", "residual", "dy", "dsum"):
        assert part[name].tobytes() == stored[name][3:7].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_heavy_elements_and_constant_rows_do_not_cancel(dtype: str) -> None:
    for seed in range(20):
        values = values_of(cell(dims=(10, 256), dtype=dtype, seed=seed))
        total = values["x"] + values["residual"]
        energy = total * total
        for row in (2, 7):  # large, with an element of weight at the end
            assert energy[row, -1] > energy[row].sum() / 20
        assert not total[3].any() and not total[8].any()
        for row in (4, 9):
            assert np.ptp(total[row]) == 0 and total[row, 0] != 0
            assert (
                abs(total[row, 0]) * 4 % 1 == 0 and abs(total[row, 0]) < 4
            )  # few bits: float32 adds its square exactly


def test_no_rows_still_have_a_weight_gradient() -> None:
    c = cell(dims=(0, 7))
    reference = fill_reference(c, OP, make_inputs(c, OP, (0, 0)))
    assert reference["y"].shape == reference["dresidual"].shape == (0, 7) and reference["dw"].tolist() == [0.0] * 7
