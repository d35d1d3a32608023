"""Judging a whole cell: blocks, threads, kept references, samples, layouts; and each planted fault falls."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.accuracy import evaluate as core
from farm.accuracy import prepare
from farm.accuracy.dtypes import decode, encode
from farm.accuracy.evaluate import check_layout, evaluate, fill_reference, judged_tensors, make_inputs, reference_key
from farm.cell import Cell
from farm.contracts.base import Contract, Tensor
from farm.contracts.discovery import contract
from farm.contracts.ops.rms import RmsContract

DTYPES = ("float32", "float16", "bfloat16")

_spec = importlib.util.spec_from_file_location(
    "calibrate_gates", Path(__file__).resolve().parents[2] / "benchmarks" / "calibrate_gates.py"
)
assert _spec and _spec.loader
simulated: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(simulated)


def cell(op: str = "rms_norm", dtype: str = "bfloat16", operation: str = "forward", **more: Any) -> Cell:
    c = contract(op)
    dims = more.pop("dims", None) or (16, 256)
    fields = {k: more.pop(k) for k in ("family", "seed") if k in more}
    return Cell(
        "cpu",
        op,
        "farm",
        "auto",
        operation,
        dict.fromkeys(c.typed, dtype),
        dict(zip([d.name for d in c.dimensions], dims)),
        {p.name: p.default for p in c.parameters} | more,
        **fields,
    )


def inputs_of(c: Cell) -> dict[str, Any]:
    return make_inputs(c, contract(c.op), (0, core.row_count(c)))


def right_outputs(c: Cell) -> dict[str, Any]:
    """The reference itself, rounded once."""
    op = contract(c.op)
    reference = fill_reference(c, op, inputs_of(c))
    return {t.name: encode(reference[t.name], t.dtype) for t in judged_tensors(c, op)}


def run(c: Cell, outputs: dict[str, Any] | None = None, **kw: Any) -> core.Judgement:
    return evaluate(c, contract(c.op), right_outputs(c) if outputs is None else outputs, inputs_of(c), **kw)


def kernel(c: Cell, casting: str = "gemma", **faults: Any) -> dict[str, Any]:
    """The outputs of a simulated norm."""
    values = {n: decode(a, c.dtypes.get(n, c.dtypes["x"])).astype(np.float32) for n, a in inputs_of(c).items()}
    return simulated.Kernel(casting, **faults)(c, values)


NORMS = ("rms_norm", "fused_add_rms_norm")
CASES = [
    *[(op, d, o) for op in NORMS for d in DTYPES for o in ("forward", "backward", "full")],
    *[("matmul", d, "forward") for d in DTYPES],
    *[("rms_norm_quantize", d, "forward") for d in DTYPES],
]


@pytest.mark.parametrize(("op", "dtype", "operation"), CASES)
@pytest.mark.parametrize("rows", [0, 1, 2, 7])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_right_outputs_pass(op: str, dtype: str, operation: str, rows: int, width: int) -> None:
    c = cell(op, dtype, operation, dims=(rows, width, 9))
    found = run(c)
    assert found.ok, found.reason
    assert found.worst_ratio is not None and found.worst_ratio <= 1
    assert set(found.metrics) == set(found.gates) == {t.name for t in judged_tensors(c, contract(op))}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting", ["llama", "gemma", "none"])
@pytest.mark.parametrize("operation", ["forward", "backward"])
@pytest.mark.parametrize("dims", [(16, 256), (3, 63), (1, 1), (5, 2048)])
@pytest.mark.parametrize("op", NORMS)
def test_correct_kernels_pass(op: str, dtype: str, casting: str, operation: str, dims: tuple[int, int]) -> None:
    kinds: list[dict[str, Any]] = [{}] if op == "rms_norm" else [{}, {"eager": True}]
    for offset in (0.0, 1.0):
        c = cell(op, dtype, operation, casting=casting, dims=dims, offset=offset)
        for kind in kinds:
            found = run(c, kernel(c, casting, **kind))
            assert found.ok, found.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting", ["llama", "gemma", "none"])
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_the_norm_of_the_unrounded_sum_passes_where_it_is_declared(dtype: str, casting: str, operation: str) -> None:
    c = cell("fused_add_rms_norm", dtype, operation, casting=casting, dims=(16, 1024), sum="unrounded")
    found = run(c, kernel(c, casting, unrounded=True))
    assert found.ok, found.reason


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("declared", "unrounded"), [("rounded", True), ("unrounded", False)])
def test_the_norm_of_the_other_sum_falls(dtype: str, declared: str, unrounded: bool) -> None:
    c = cell("fused_add_rms_norm", dtype, casting="gemma", dims=(16, 1024), sum=declared)
    found = run(c, kernel(c, "gemma", unrounded=unrounded))
    assert not found.ok and found.reason.startswith("y: ")


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eps forgotten": ("forward", {"no_eps": True}),
    "scaled by 1.005": ("forward", {"scale": 1.005}),
    "last column not summed": ("forward", {"drop_last_sum": True}),
    "last column left zero": ("forward", {"unwritten": "column"}),
    "one element NaN": ("forward", {"unwritten": float("nan")}),
    "one element stale": ("forward", {"unwritten": 0.123}),
    "weight ignored": ("forward", {"no_weight": True}),
    "offset wrong": ("forward", {"offset": 1.0}),
    "wrong N": ("forward", {"n": 1.01}),
    "dx without projection": ("backward", {"no_projection": True}),
    "dx scaled": ("backward", {"scale": 1.005}),
    "dw without a row": ("backward", {"drop_last_row": True}),
    "dw scaled": ("backward", {"dw_scale": 1.005}),
}
#: Of fused_add_rms_norm alone; each begins with what must be accused.
OF_SUMS: dict[str, tuple[str, dict[str, Any]]] = {
    "y of x alone": ("forward", {"norm_of_x": True}),
    "sum without residual": ("forward", {"sum_of_x": True}),
    "sum scaled": ("forward", {"sum_scale": 1.005}),
    "sum with a column left zero": ("forward", {"sum_unwritten": "column"}),
    "sum with one element NaN": ("forward", {"sum_unwritten": float("nan")}),
    "sum with one element stale": ("forward", {"sum_unwritten": 0.123}),
    "gradients of x alone": ("backward", {"norm_of_x": True}),
    "dx without dsum": ("backward", {"no_dsum": ("dx",)}),
    "dresidual without dsum": ("backward", {"no_dsum": ("dresidual",)}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting", ["llama", "gemma"])
@pytest.mark.parametrize(
    ("op", "fault"), [*[(op, f) for op in NORMS for f in FAULTS], *[(NORMS[1], f) for f in OF_SUMS]]
)
def test_planted_faults_fall(op: str, fault: str, casting: str, dtype: str) -> None:
    operation, faults = {**FAULTS, **OF_SUMS}[fault]
    c = cell(op, dtype, operation, casting=casting, dims=(17, 1024))
    found = run(c, kernel(c, casting, **faults))
    assert not found.ok and found.worst_ratio is not None and found.worst_ratio > 1
    assert found.worst_output in found.reason and found.worst_metric in found.gates[found.worst_output]
    accused = fault.split()[0]
    assert fault not in OF_SUMS or accused == "gradients" or found.worst_output == accused


def noisy(y: Any) -> Any:
    return y * (1 + 0.01 * np.random.default_rng(1).normal(size=y.shape))


def in_row(y: Any, change: Any) -> Any:
    y = y.copy()
    y[5] = change(y[5])
    return y


def some(y: Any) -> Any:
    """Every 20th element two ULP off."""
    return np.where(np.arange(y.size).reshape(y.shape) % 20 == 0, y * (1 + 2.0**-6), y)


#: gate -> what it must see by itself.
SEEN_ALONE = {
    "rel_l2": noisy,
    "row_l2_max": lambda y: in_row(y, noisy),
    "gain_max": lambda y: in_row(y, lambda row: row * 1.005),
    "max_ulp": lambda y: in_row(y, lambda row: np.where(np.arange(row.size) == 9, 2 * row, row)),
    "mismatch_ratio": some,
    "nonfinite": lambda y: in_row(y, lambda row: np.where(np.arange(row.size) == 9, np.inf, row)),
}


@pytest.mark.parametrize("gate", SEEN_ALONE)
def test_each_gate_sees_its_fault_without_the_others(gate: str) -> None:
    c = cell(dims=(12, 1024))
    y = fill_reference(c, contract(c.op), inputs_of(c))["y"]
    assert set(SEEN_ALONE) == set(contract(c.op).gates(c)["y"]) | {"nonfinite"}
    others = [{"output": "y", "metric": m, "limit": np.inf, "reason": "off"} for m in SEEN_ALONE if m != gate]
    assert run(c, {"y": encode(y, "bfloat16")}, tolerances=others).ok
    found = run(c, {"y": encode(SEEN_ALONE[gate](y), "bfloat16")}, tolerances=others)
    assert not found.ok and found.worst_metric == gate


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_in_the_dtype_fall(dtype: str) -> None:
    c = cell(dtype=dtype, dims=(4, 2048))
    assert not run(c, kernel(c, "llama", sum="narrow")).ok
    c = cell(dtype=dtype, operation="backward", dims=(512, 64))
    assert not run(c, kernel(c, "llama", narrow_dw=True)).ok


def test_a_row_shifted_by_one_falls() -> None:
    c = cell(dims=(64, 256), family="normal")
    outputs = right_outputs(c)
    assert not run(c, {"y": np.roll(outputs["y"], 1, axis=0)}).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_faults_fall(dtype: str) -> None:
    c = cell("matmul", dtype, dims=(33, 130, 700))
    a, b = (decode(v, dtype) for v in inputs_of(c).values())
    exact = a @ b
    assert run(c, {"c": encode((a.astype(np.float32) @ b.astype(np.float32)), dtype)}).ok
    for wrong in (exact * 1.005, a[:, :-1] @ b[:-1], np.where(np.arange(130) == 129, 0, exact)):
        assert not run(c, {"c": encode(wrong, dtype)}).ok
    if dtype == "float32":  # TF32: operands of 11 bits
        tf32 = decode(encode(a, "float16"), "float16") @ decode(encode(b, "float16"), "float16")
        assert not run(c, {"c": encode(tf32, dtype)}).ok


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz"])
def test_faults_of_block_scaled_matmul_fall(dtype: str) -> None:
    c = cell("block_scaled_matmul", dtype, dims=(9, 200, 384))
    inputs = inputs_of(c)
    a, b = (decode(inputs[n], dtype).astype(np.float32) for n in ("a", "b"))
    of_a, of_b = np.repeat(inputs["a_scale"], 128, axis=1), np.repeat(inputs["b_scale"], 128, axis=0)[:200]
    by_row = np.repeat(of_b, 128, axis=1)

    def product(a: Any, b: Any) -> dict[str, Any]:
        return {"c": encode(a @ b.T, "bfloat16")}

    assert run(c, product(a * of_a, b * by_row)).ok
    swapped = np.repeat(inputs["b_scale"][::-1], 128, axis=0)[:200]
    for wrong in (
        product(a * of_a[:1], b * by_row),  # the first row's scales for all
        product(a * of_a[:, :1], b * by_row),  # the first group's
        product(a * of_a, b * np.repeat(swapped, 128, axis=1)),
        product(a * of_a, b * np.repeat(of_b[:, :1], 384, axis=1)),
        product((a * of_a)[:, :-128], (b * by_row)[:, :-128]),
        {"c": encode(decode(encode((a * of_a) @ (b * by_row).T, "bfloat16"), "bfloat16") * 1.005, "bfloat16")},
    ):
        assert not run(c, wrong).ok
    assert contract(c.op).supports(cell(c.op, dtype, dims=(1, 1, 130))) == "k must be a multiple of 128, but is 130"


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_faults_fall(dtype: str) -> None:
    c = cell("rms_norm_quantize", dtype, dims=(11, 300))
    right = right_outputs(c)
    stored = inputs_of(c)
    x, w = (decode(stored[n], dtype).astype(np.float32) for n in ("x", "weight"))
    y = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)) * w
    scale = abs(y).max(axis=1, keepdims=True) / np.float32(127)
    q = np.rint(np.divide(y, scale, out=np.zeros_like(y), where=scale > 0)).astype(np.int8)
    assert run(c, {"q": q, "scale": scale}).ok
    one_off = right["q"].copy()
    one_off[2, 5] += 1 if one_off[2, 5] < 100 else -1
    found = run(c, {**right, "q": one_off})
    assert not found.ok and found.worst_metric == "max_steps" and found.metrics["q"]["max_steps"] > 0.5
    truncated = np.trunc(np.divide(y, scale, out=np.zeros_like(y), where=scale > 0)).astype(np.int8)
    assert not run(c, {**right, "q": truncated}).ok
    assert not run(c, {**right, "scale": (right["scale"] * np.float32(1.005)).astype(np.float32)}).ok
    nan = right["scale"].copy()
    nan[3] = np.nan  # the zero row, 0/0
    found = run(c, {**right, "scale": nan})
    assert not found.ok and found.worst_metric == "nonfinite"


@pytest.mark.parametrize("group", [0, 128])
def test_faults_of_quantising_to_8_bit_floats_fall(group: int) -> None:
    c = cell("rms_norm_quantize", "bfloat16", dims=(11, 384), quantized="float8_e4m3fn", group=group)
    right = right_outputs(c)
    assert right["scale"].shape == (11, 384 // (group or 384)) and run(c, right).ok
    q = decode(right["q"], "float8_e4m3fn")
    real = fill_reference(c, contract(c.op), inputs_of(c))["q.real"]
    others: list[tuple[str, Any]] = [
        ("q", encode(np.where(q > 1, q * 1.125, q), "float8_e4m3fn")),
        ("q", right["q"] & np.uint8(0x7F)),
        ("q", right["q"] ^ (np.arange(384) == 383).astype(np.uint8)),
        ("q", right["q"] - (np.abs(q) > np.abs(real)).astype(np.uint8)),  # rounded towards zero: one code less
        ("scale", (right["scale"] * np.float32(1.005)).astype(np.float32)),
    ]
    if group:  # one scale a row, written for each of its groups
        others.append(("scale", np.repeat(right["scale"].max(axis=1, keepdims=True), 3, axis=1)))
    for name, wrong in others:
        assert not run(c, {**right, name: wrong}).ok


def test_a_row_without_whole_groups_is_unsupported() -> None:
    c = cell("rms_norm_quantize", dims=(2, 100), group=128)
    assert contract(c.op).supports(c) == "hidden must be a multiple of the group, 128, but is 100"


def test_a_tie_may_fall_either_way() -> None:
    c = cell("rms_norm_quantize", dims=(1, 2))
    op = contract(c.op)
    reference = {"q.real": np.array([[0.5, 127.0]])}
    for q in (0, 1):
        found = op.judge(c, {"q": np.array([[q, 127]], dtype=np.int8)}, reference, (0, 1))
        assert found is not None and found["q"]["max_steps"] <= op.gates(c)["q"]["max_steps"]


OPS = [("rms_norm", "full"), ("matmul", "forward"), ("rms_norm_quantize", "forward")]


@settings(max_examples=25, deadline=None)
@given(case=st.sampled_from(OPS), step=st.integers(1, 30), seed=st.integers(0, 3), threads=st.booleans())
def test_blocks_threads_and_kept_references_agree(case: tuple[str, str], step: int, seed: int, threads: bool) -> None:
    c = cell(case[0], "float16", case[1], dims=(23, 70, 5), seed=seed)
    op, stored = contract(c.op), inputs_of(c)
    outputs = right_outputs(c)
    outputs = {n: (a + a.dtype.type(a.dtype.kind == "f") * a.dtype.type(1e-3)) for n, a in outputs.items()}
    whole = evaluate(c, op, outputs, stored)
    with ThreadPoolExecutor(3) as pool:
        mapper: Any = pool.map if threads else map
        streamed = evaluate(c, op, outputs, stored, rows_per_block=step, map=mapper)
        kept = fill_reference(c, op, stored, rows_per_block=step, map=mapper)
        from_kept = evaluate(c, op, outputs, {}, reference=kept, rows_per_block=7, map=mapper)
    for other in (streamed, from_kept):
        for name, metrics in whole.metrics.items():
            assert metrics == pytest.approx(other.metrics[name], rel=1e-7, abs=1e-12), name
        assert (whole.ok, whole.worst_output, whole.worst_metric) == (other.ok, other.worst_output, other.worst_metric)


def test_inputs_are_the_same_in_any_blocks() -> None:
    for op, operation in OPS:
        c = cell(op, "bfloat16", operation, dims=(9, 33, 5))
        whole = inputs_of(c)
        parts = [make_inputs(c, contract(op), b) for b in core.blocks(9, 4)]
        blocked = {t.name for t in contract(op).tensors(c) if t.blocked}
        for name, values in whole.items():
            joined = np.concatenate([p[name] for p in parts]) if name in blocked else parts[2][name]
            assert joined.tobytes() == values.tobytes()


def test_blocks() -> None:
    assert core.blocks(5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert core.blocks(0, 2) == [(0, 0)]
    assert core.default_rows(cell(dims=(1 << 20, 128)), contract("rms_norm")) == prepare.BLOCK_ELEMENTS // 128
    assert core.default_rows(cell(dims=(0, 128)), contract("rms_norm")) == 1
    assert core.default_rows(cell(dims=(3, 1 << 30)), contract("rms_norm")) == 1


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SAMPLE_ABOVE", 1000)
    monkeypatch.setattr(prepare, "SAMPLE_ROWS", 16)


def test_row_sample_is_seeded_sorted_and_has_both_ends(small_sample: None) -> None:
    c = cell(dims=(500, 8))
    rows = core.row_sample(c, 4000)
    assert rows is not None and len(rows) in (16, 17, 18) and rows[0] == 0 and rows[-1] == 499
    assert (np.diff(rows) > 0).all() and (rows == core.row_sample(c, 4000)).all()
    other = core.row_sample(cell(dims=(500, 8), seed=1), 4000)
    assert other is not None and rows.tolist() != other.tolist()
    assert core.row_sample(c, 1000) is None
    assert core.row_sample(cell(dims=(18, 8)), 10**9) is None


def test_row_sample_is_of_its_real_size() -> None:
    c = cell(dims=(1 << 40, 128))
    rows = core.row_sample(c, 1 << 47)
    assert rows is not None and 1024 <= len(rows) <= 1026
    assert core.row_sample(cell(dims=(1 << 16, 1024)), 1 << 26) is None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_reductions_of_sampled_cells_are_those_of_dense_ones(data: st.DataObject) -> None:
    op = contract(name := data.draw(st.sampled_from(NORMS)))
    dims = (data.draw(st.integers(20, 60)), data.draw(st.integers(1, 40)))
    operation, dtype = data.draw(st.sampled_from([("backward", "bfloat16"), ("full", "float16"), ("full", "float32")]))
    c = cell(name, dtype, operation, dims=dims, family=data.draw(st.sampled_from(op.families)))
    stored, step = inputs_of(c), data.draw(st.integers(1, 25))
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        dense = fill_reference(c, op, stored, rows_per_block=step)
        if data.draw(st.booleans()):  # as a contract that does not make its reductions alone
            patch.setattr(RmsContract, "reductions", Contract.reductions)
        patch.setattr(prepare, "SAMPLE_ABOVE", 10)
        patch.setattr(prepare, "SAMPLE_ROWS", 8)
        sampled = fill_reference(c, op, stored, rows_per_block=step)
        outputs = {t.name: encode(np.nan_to_num(dense[t.name]), t.dtype) for t in judged_tensors(c, op)}
        if data.draw(st.booleans()):
            outputs["dw"].view(np.uint8)[-1] ^= 0x40  # the exponent
        found = evaluate(c, op, outputs, stored, rows_per_block=step)
    with np.errstate(all="ignore"):
        wanted = evaluate(c, op, outputs, stored, rows_per_block=step)
    reductions = core.reductions_of(c, op, dense)
    assert reductions.keys() == core.reductions_of(c, op, sampled).keys()
    for each, want in reductions.items():
        assert np.array_equal(sampled[each], want, equal_nan=True)
        output = each.split(".")[0]
        assert repr(found.metrics[output]) == repr(wanted.metrics[output])


@pytest.mark.parametrize("kept", [False, True])
def test_a_sampled_cell(small_sample: None, kept: bool) -> None:
    c = cell(operation="full", dims=(500, 64))
    op, stored = contract(c.op), inputs_of(c)
    rows = core.row_sample(c, 500 * 64)
    assert rows is not None
    full = simulated.Kernel  # whole outputs, made without the sample
    values = {n: decode(a, c.dtypes["x" if n == "dy" else n]).astype(np.float32) for n, a in stored.items()}
    forward, backward = (Cell(**{**c.__dict__, "operation": o, "cell_key": "-"}) for o in ("forward", "backward"))
    outputs = full("llama")(forward, values) | full("llama")(backward, values)
    reference = fill_reference(c, op, stored, rows_per_block=7) if kept else None
    judge = lambda out: evaluate(c, op, out, stored, reference=reference, rows_per_block=50)  # noqa: E731

    found = judge(outputs)
    assert found.ok, found.reason
    assert found.sampled_rows == len(rows) and found.metrics["y"]["count"] == len(rows) * 64
    assert found.metrics["dw"]["count"] == 64

    outside = next(r for r in range(500) if r not in rows)
    for row, expected in ((int(rows[5]), False), (outside, True)):
        wrong = outputs["y"].copy()
        wrong[row, 3] ^= 0x80  # another binade
        assert judge({**outputs, "y": wrong}).ok is expected
    wrong = outputs["dx"].copy()
    wrong[outside, 3] = 0x7FC0
    found = judge({**outputs, "dx": wrong})
    assert not found.ok and found.metrics["dx"]["nonfinite"] == 1
    without_a_row = full("llama", drop_last_row=True)(backward, values)
    assert not judge({**outputs, "dw": without_a_row["dw"]}).ok  # all rows count in a reduction


def test_layouts() -> None:
    expected = Tensor("y", "bfloat16", (4, 8), "output")
    assert check_layout(expected, "bfloat16", (4, 8)) is None
    assert check_layout(expected, "float32", (4, 8)) == "output y has dtype float32, expected bfloat16"
    assert check_layout(expected, "bfloat16", [32]) == "output y has shape [32], expected [4, 8]"
    c = cell()
    y = right_outputs(c)["y"]
    for outputs, word in (
        ({}, "missing"),
        ({"y": y[:-1]}, "shape"),
        ({"y": y.astype(np.float32)}, "stored as float32"),
    ):
        found = run(c, outputs)
        assert not found.ok and word in found.reason and found.worst_ratio and found.worst_ratio > 1


def test_a_reference_is_shared_by_what_does_not_change_it() -> None:
    op = contract("rms_norm")
    key = reference_key(cell(), op)
    assert key == reference_key(cell(casting="gemma"), op) == reference_key(cell(in_place=True), op)
    assert key == reference_key(cell(operation="no-grad-forward"), op)
    others = [
        cell(eps=1e-5),
        cell(offset=1.0),
        cell(weight=False),
        cell(operation="full"),
        cell(seed=1),
        cell(dims=(16, 257)),
        cell(dtype="float16"),
        cell(family="normal"),
    ]
    assert len({key, *(reference_key(c, op) for c in others)}) == len(others) + 1


def test_tolerances_change_the_verdict_and_are_kept() -> None:
    c = cell(dims=(16, 512), family="normal")
    wrong = kernel(c, scale=1.005)
    assert not run(c, wrong).ok
    loose = {"gain_max": 1, "rel_l2": 1, "row_l2_max": 1, "mismatch_ratio": 1, "max_ulp": 9}
    rules = [{"output": "y", "metric": m, "limit": limit, "reason": "planted"} for m, limit in loose.items()]
    found = run(c, wrong, tolerances=rules)
    assert found.ok and found.gates["y"]["max_ulp"] == 9
