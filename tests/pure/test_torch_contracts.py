"""Contracts made from PyTorch functions: their tensors, references, own tolerances, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from farm.accuracy import dtypes, evaluate  # noqa: E402
from farm.accuracy.inputs import Family  # noqa: E402
from farm.cell import DTYPES as NAMES  # noqa: E402
from farm.cell import SHORT_DTYPES  # noqa: E402
from farm.child import reference  # noqa: E402
from farm.contracts import Spec, discovery, from_torch, integers  # noqa: E402
from farm.contracts.base import Tensor, nbytes  # noqa: E402
from farm.contracts.dtypes import DTYPES, FLOATS8, PACKED, code_values  # noqa: E402
from farm.contracts.sizes import value as size  # noqa: E402
from farm.coordinator import results_assembler  # noqa: E402
from farm.errors import ContractError  # noqa: E402
from farm.judge import rejudge  # noqa: E402
from farm.judge.references import References  # noqa: E402
from tests.pure.outside_contracts import known, write_text  # noqa: E402
from tests.pure.torch_contracts import cell_of, evaluated_here  # noqa: E402

TEN_LINES = """
import torch.nn.functional as F

from farm.contracts import from_torch


def norm(x, weight, eps=1e-6):
    return F.layer_norm(x, x.shape[-1:], weight, None, eps)


CONTRACT = from_torch(
    norm, inputs={"x": "rows columns", "weight": "columns"}, outputs={"y": "rows columns"}, rows="rows"
)
"""


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with evaluated_here():
        yield


def norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)


def made(function: Any = norm, **how: Any) -> Any:
    given = {
        "inputs": {"x": "rows columns", "weight": "columns"},
        "outputs": {"y": "rows columns"},
        "rows": "rows",
        **how,
    }
    contract = from_torch(function, **given)
    contract.op = "made"
    return contract


def outputs_of(contract: Any, cell: Any, inputs: Any, function: Any) -> dict[str, Any]:
    """What a function of tensors at the cell's dtype gives, as stored arrays."""
    given = {t.name: t for t in evaluate.given_tensors(cell, contract)}
    tensors = {
        n: torch.from_numpy(np.array(dtypes.decode(a, given[n].dtype))).to(getattr(torch, given[n].dtype))
        for n, a in inputs.items()
    }
    leaves = [tensors[n] for n in contract.given]
    wanted = [
        t.requires_grad_(n in contract.gradients) for n, t in zip(contract.given, leaves) if n in contract.gradients
    ]
    y = function(*leaves, **cell.params)
    found = {"y": y}
    if "dy" in tensors:
        found |= {f"d{n}": g for n, g in zip(contract.gradients, torch.autograd.grad(y, wanted, tensors["dy"]))}
    return {
        t.name: dtypes.encode(found[t.name].detach().to(torch.float64).numpy(), t.dtype)
        for t in evaluate.judged_tensors(cell, contract)
    }


def test_tensors_follow_from_the_signature_and_the_shapes() -> None:
    contract = made()
    cell = cell_of(contract, "full", "bfloat16", rows=4, columns=8)
    found = {t.name: (t.role, t.dtype, t.dims, t.blocked, t.of) for t in contract.tensors(cell)}
    assert list(found) == ["x", "weight", "dy", "y", "dx", "dweight"]
    assert found["weight"] == ("input", "bfloat16", (8,), False, None)
    assert found["dy"] == ("upstream", "bfloat16", (4, 8), True, None)
    assert found["dweight"] == ("gradient", "bfloat16", (8,), False, "weight")
    assert [p.name for p in contract.parameters] == ["eps"] and contract.typed == ("x", "weight")


@pytest.mark.parametrize(
    "dtype, operation, family",
    [
        *(("bfloat16", "full", "mixed"), ("float32", "full", "mixed"), ("float16", "forward", "normal")),
        *(
            pytest.param(d, o, f, marks=pytest.mark.long)
            for d in ("float32", "float16", "bfloat16")
            for o in ("forward", "full")
            for f in ("mixed", "normal")
        ),
    ],
)
def test_torch_and_a_float32_kernel_pass_and_a_scaled_one_fails(dtype: str, operation: str, family: str) -> None:
    contract = made()
    cell = cell_of(contract, operation, dtype, rows=96, columns=200, family=family)
    inputs = evaluate.fill_inputs(cell, contract)
    for correct in (norm, lambda x, w, eps: norm(x.float(), w.float(), eps).to(x.dtype)):
        found = evaluate.evaluate(cell, contract, outputs_of(contract, cell, inputs, correct), inputs)
        assert found.ok, found.reason
    for wrong in (
        lambda x, w, eps: norm(x, w, eps) * 1.005,
        lambda x, w, eps: norm(x, w.abs() * 0.99, eps),
        lambda x, w, eps: norm(x, w, 0.1),
    ):
        assert not evaluate.evaluate(cell, contract, outputs_of(contract, cell, inputs, wrong), inputs).ok


def test_tolerances_are_the_functions_own_error_times_a_factor_and_are_judged_again_from_the_metrics() -> None:
    def rough(x: Any, weight: Any, eps: float = 1e-6) -> Any:
        return (norm(x, weight, eps) / 3 * 3).square().sqrt() * norm(x, weight, eps).sign()

    contract = made(rough)
    cell = cell_of(contract, dtype="bfloat16", rows=96, columns=200, family="normal")
    inputs = evaluate.fill_inputs(cell, contract)
    found = evaluate.evaluate(cell, contract, outputs_of(contract, cell, inputs, rough), inputs)
    assert found.ok
    of, gates = found.metrics["y"], found.gates["y"]
    assert (
        gates["rel_l2"] == pytest.approx(2 * of["own_rel_l2"]) and gates["rel_l2"] > contract.gates(cell)["y"]["rel_l2"]
    )
    row = {"status": "passed", "metrics": json.dumps(found.metrics), "gates": json.dumps(found.gates)}
    again = rejudge.judge_again(row, cell, contract, [])
    assert again["status"] == "passed" and json.loads(again["gates"]) == found.gates
    tight = rejudge.judge_again(row, cell, contract, [{"output": "y", "metric": "rel_l2", "limit": 1e-6}])
    assert tight["status"] == "inaccurate"


def test_gradients_are_those_of_autograd_in_blocks_and_whole() -> None:
    contract = made()
    cell = cell_of(contract, "backward", rows=10, columns=16)
    inputs = evaluate.fill_inputs(cell, contract)
    whole = evaluate.fill_reference(cell, contract, inputs)
    cut = evaluate.fill_reference(cell, contract, inputs, rows_per_block=3)
    for name in ("dx", "dweight"):
        np.testing.assert_allclose(whole[name], cut[name], rtol=1e-12, atol=1e-12)


def test_without_rows_an_op_is_one_block_and_large_ones_are_unsupported() -> None:
    contract = from_torch(
        lambda x: torch.cumsum(x, 0), inputs={"x": Spec("n m", kind="normal")}, outputs={"y": "n m"}, gradients=()
    )
    contract.op = "scan"
    cell = cell_of(contract, n=40, m=30)
    inputs = evaluate.fill_inputs(cell, contract)
    right = np.cumsum(inputs["x"].astype(np.float64), axis=0).astype(np.float32)
    assert evaluate.evaluate(cell, contract, {"y": right}, inputs).ok
    assert not evaluate.evaluate(cell, contract, {"y": right * np.float32(1.005)}, inputs).ok
    assert "one piece" in str(evaluate.unsupported(cell_of(contract, n=1 << 14, m=1 << 13), contract))


def lookup(x: Any, labels: Any, ignore: int = -100) -> Any:
    return torch.nn.functional.cross_entropy(x, labels, ignore_index=ignore, reduction="none")


def test_integer_inputs_are_bounded_and_own_families_fill_them() -> None:
    contract = from_torch(
        lookup,
        inputs={"x": "rows classes", "labels": integers("rows", 0, "classes")},
        outputs={"loss": "rows"},
        rows="rows",
        families={"ignored": {"labels": -100}},
    )
    contract.op = "lookup"
    cell = cell_of(contract, "full", rows=50, classes=7)
    inputs = evaluate.fill_inputs(cell, contract)
    assert inputs["labels"].dtype == np.int64 and set(inputs["labels"]) == set(range(7))
    assert [t.name for t in evaluate.judged_tensors(cell, contract)] == ["loss", "dx"]
    ignored = cell_of(contract, "full", rows=50, classes=7, family="ignored")
    given = evaluate.fill_inputs(ignored, contract)
    assert set(given["labels"]) == {-100}
    assert not evaluate.fill_reference(ignored, contract, given)["dx"].any()
    assert evaluate.input_key(cell, contract) != evaluate.input_key(ignored, contract)


@pytest.mark.parametrize("dtype", FLOATS8)
def test_8_bit_floats_are_those_of_torch(dtype: str) -> None:
    kind = getattr(torch, dtype)
    codes = torch.arange(256, dtype=torch.uint8).view(kind).to(torch.float64).numpy()
    np.testing.assert_array_equal(codes, code_values(dtype))
    np.testing.assert_array_equal(dtypes.decode(np.arange(256, dtype=np.uint8), dtype), codes)
    finite = np.sort(codes[np.isfinite(codes)])
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, np.linspace(-1.2, 1.2, 4001) * finite[-1]])
    points = points[np.abs(points) <= DTYPES[dtype].largest]
    theirs = torch.from_numpy(points).to(torch.float32).to(kind).view(torch.uint8).numpy()
    np.testing.assert_array_equal(dtypes.encode(points.astype(np.float32), dtype), theirs)
    beyond = dtypes.decode(dtypes.encode(np.array([1e9, -1e9, np.nan]), dtype), dtype)
    assert not np.isfinite(beyond).any()
    assert dtypes.finite_mask(np.arange(256, dtype=np.uint8), dtype).sum() == np.isfinite(codes).sum()


@pytest.mark.parametrize("dtype", FLOATS8)
def test_a_contract_of_8_bit_floats_is_computed_in_float32_and_rounded_once(dtype: str) -> None:
    contract = made(lambda x: x * 0.75, inputs={"x": Spec("rows columns", kind="normal")}, dtypes=FLOATS8, gradients=())
    cell = cell_of(contract, dtype=dtype, rows=80, columns=128)
    inputs = evaluate.fill_inputs(cell, contract)
    exact = dtypes.decode(inputs["x"], dtype) * 0.75
    assert evaluate.evaluate(cell, contract, {"y": dtypes.encode(exact, dtype)}, inputs).ok
    assert not evaluate.evaluate(cell, contract, {"y": dtypes.encode(exact * 1.5, dtype)}, inputs).ok


@pytest.mark.parametrize("dtype", [*FLOATS8, "float4_e2m1fn"])
def test_values_beside_every_tie_round_to_the_nearest(dtype: str) -> None:
    """Also of a float64 that differs from a tie by less than a float32 can."""
    finite = np.sort(code_values(dtype)[np.isfinite(code_values(dtype))])
    finite = np.unique(finite)
    ties = (finite[1:] + finite[:-1]) / 2
    for tie, low, high in zip(ties, finite, finite[1:]):
        pairs = [[np.nextafter(tie, -np.inf), np.nextafter(tie, np.inf)]]
        assert dtypes.decode(dtypes.encode(np.array(pairs), dtype), dtype).tolist() == [[low, high]]


@pytest.mark.parametrize("dtype", PACKED)
def test_elements_of_4_bits_are_packed_in_pairs(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
    values = dtypes.decode(codes, dtype)
    assert values.shape == (4, 128) and len(np.unique(values)) == (15 if dtype == "float4_e2m1fn" else 16)
    np.testing.assert_array_equal(dtypes.encode(values, dtype), codes)
    low, high = values.reshape(4, 64, 2)[..., 0], values.reshape(4, 64, 2)[..., 1]
    np.testing.assert_array_equal(low[0, :16], low[0, 16:32])  # the first of a pair is the lower half of its byte
    assert len(np.unique(high[0, :16])) == 1
    assert dtypes.decode(np.empty((0, 3), np.uint8), dtype).shape == (0, 6)


def test_4_bit_floats_round_to_nearest_and_saturate() -> None:
    finite = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP Microscaling Formats 1.0, section 5.3.3
    np.testing.assert_array_equal(code_values("float4_e2m1fn"), [*finite, *(-v for v in finite)])
    for asked, found in {
        0.25: 0.0,
        0.3: 0.5,
        0.75: 1.0,
        1.25: 1.0,
        1.75: 2.0,
        2.5: 2.0,
        3.5: 4.0,
        5.0: 4.0,
        5.1: 6.0,
    }.items():
        for sign in (1, -1):
            pair = np.array([[sign * asked, sign * 1e9]])
            got = dtypes.decode(dtypes.encode(pair, "float4_e2m1fn"), "float4_e2m1fn")
            assert got.tolist() == [[sign * found, sign * 6.0]]
    assert dtypes.round_to(np.array([[2.6]]), "float4_e2m1fn").tolist() == [[3.0]]


@pytest.mark.parametrize("dtype", PACKED)
def test_a_packed_input_is_made_packed_and_read_as_values(dtype: str) -> None:
    spec = Spec("columns out", dtype=dtype, kind="normal")
    if dtype != "float4_e2m1fn":
        low = -8 if dtype == "int4" else 0
        spec = integers("columns out", low, low + 16, dtype)
    contract = made(
        lambda x, w: x @ w.to(x.dtype),
        inputs={"x": Spec("rows columns", kind="normal"), "w": spec},
        outputs={"y": "rows out"},
        rows="rows",
        gradients=(),
    )
    cell = cell_of(contract, dtype="float32", rows=30, columns=40, out=64)
    weight = next(t for t in evaluate.given_tensors(cell, contract) if t.name == "w")
    inputs = evaluate.fill_inputs(cell, contract)
    assert inputs["w"].shape == (40, 32) and inputs["w"].dtype == np.uint8 and weight.nbytes == 40 * 32
    exact = dtypes.decode(inputs["x"], "float32") @ dtypes.decode(inputs["w"], dtype).astype(np.float64)
    assert evaluate.evaluate(cell, contract, {"y": exact.astype(np.float32)}, inputs).ok
    wrong = dtypes.decode(inputs["x"], "float32") @ dtypes.decode(inputs["w"] >> 4 | inputs["w"] << 4, dtype)
    assert not evaluate.evaluate(cell, contract, {"y": wrong.astype(np.float32)}, inputs).ok


@pytest.mark.parametrize(
    ("dims", "role", "blocked", "said"),
    [
        ((4, 6), "output", True, "only inputs may be packed"),
        ((4, 7), "input", True, "the last dimension must be even"),
        ((8,), "input", True, "not that of the rows"),
    ],
)
def test_what_cannot_be_packed_is_refused(dims: tuple[int, ...], role: str, blocked: bool, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Tensor("w", "int4", dims, role, blocked)
    with pytest.raises(ContractError, match="use the nbytes of the tensor"):
        nbytes("int4")


def test_names_of_dtypes_are_those_of_the_registry() -> None:
    assert set(NAMES) == set(DTYPES)
    assert {name: d.short for name, d in DTYPES.items()} == SHORT_DTYPES


def test_sizes_are_products_sums_and_quotients() -> None:
    dims = {"hidden": 6, "heads": 2}
    assert [size(w, dims) for w in ("hidden", 4, "2*hidden", "hidden//heads", "hidden-1", "-100")] == [
        6,
        4,
        12,
        3,
        5,
        -100,
    ]
    for word in ("hidden()", "depth", "hidden/2", "a b"):
        with pytest.raises(ContractError):
            size(word, dims)


@pytest.mark.parametrize(
    "how, id",
    [
        ({"inputs": {"z": "rows columns", "weight": "columns"}}, "names"),
        ({"outputs": {"x": "rows columns"}}, "twice"),
        ({"outputs": {}}, "empty"),
        ({"rows": "hidden"}, "rows"),
        ({"outputs": {"y": "columns rows"}}, "rows-later"),
        ({"gradients": ("y",)}, "gradient"),
        ({"allowed": {"mode": ("a",)}}, "parameter"),
        ({"bounds": {"depth": (1, 2)}}, "bounds"),
        ({"families": {"odd": {"z": 1}}}, "family"),
        ({"inputs": {"x": Spec("rows columns", kind="odd"), "weight": "columns"}}, "kind"),
        ({"inputs": {"x": "rows (", "weight": "columns"}}, "size"),
        ({"function": lambda x, weight, eps: x}, "default"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(how: dict[str, Any], id: str) -> None:
    with pytest.raises(ContractError) as refused:
        made(**how)
    assert refused.value.id == f"contract-torch-{id}" and "\n" not in str(refused.value)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ContractError):
        made(outputs={"y": Spec("rows columns", "float4")})


def test_a_function_of_another_shape_is_refused() -> None:
    contract = made(lambda x, weight, eps=1e-6: x[:, :-1])
    cell = cell_of(contract)
    with pytest.raises(ContractError) as refused:
        evaluate.fill_reference(cell, contract, evaluate.fill_inputs(cell, contract))
    assert refused.value.id == "contract-torch-shape"


def test_ten_lines_in_a_folder_are_read_without_torch_and_evaluated_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one test here that starts a process."""
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")  # that of a build, where its package has 2.11.0
    assert reference.hello() == {"torch": discovery.own_torch()}
    with known(write_text(tmp_path / "c", "normed", TEN_LINES)):
        contract = discovery.contract("normed")
        assert contract.op == "normed" and contract.content.endswith(f"+torch-{discovery.own_torch()}")
        cell = cell_of(contract, "full", "bfloat16", rows=9, columns=16)
        inputs = evaluate.fill_inputs(cell, contract)
        want = evaluate.fill_reference(cell, contract, inputs)
        from farm.contracts.torch_contract import evaluate_with

        references = References(tmp_path / "spool", 1)
        evaluate_with(references)
        try:
            assert references.version() == discovery.own_torch()
            found = evaluate.fill_reference(cell, contract, inputs)
            assert set(found) == set(want)
            for name in (n for n in want if not n.endswith((".own", ".others"))):  # torch sums bfloat16 by thread
                np.testing.assert_allclose(found[name], want[name], rtol=1e-6, atol=1e-6)
            with pytest.raises(ContractError) as refused:
                evaluate.fill_reference(replace(cell, params={"eps": "no"}), contract, inputs)
            assert refused.value.id == "contract-reference-failed"
        finally:
            references.close()


def test_without_torch_its_cells_are_unsupported() -> None:
    contract = made()
    contract.content = "0123456789abcdef+torch-"
    assert "has no torch" in str(contract.supports(cell_of(contract)))
    contract.content = "0123456789abcdef+torch-2.9.0"
    assert contract.supports(cell_of(contract)) is None


def test_work_depends_on_the_inputs_where_the_contract_says_so() -> None:
    op = discovery.contract("cross_entropy")
    sizes = {"rows": 6, "classes": 10, "ignore": -100}
    full = evaluate.work_of(cell_of(op, **sizes), op)
    for operation, read, written in (
        ("forward", 6 * 10 * 4 + 6 * 8, 6 * 4),
        ("backward", 6 * 10 * 4 + 6 * 8 + 6 * 4, 6 * 10 * 4),
    ):
        cell = cell_of(op, operation, **sizes)
        inputs = evaluate.fill_inputs(cell, op)
        assert evaluate.work_of(cell, op, inputs).bytes_read == read
        inputs["target"][:4] = -100
        found = evaluate.work_of(cell, op, inputs)
        assert (found.bytes_read, found.bytes_written) == (read - 4 * 10 * 4, written)
        assert found.operations == {"vector": 5 * 2 * 10}
        assert results_assembler.work_done(cell, {"work": found.plain()}) == found.plain()
        assert results_assembler.work_done(cell, {}) == op.work(cell).plain()
    assert full.bytes_read == 6 * 10 * 4 + 6 * 8


def test_integers_are_uniform_and_any_block_can_be_made_alone() -> None:
    whole = Family("normal", 3).integers("labels", (0, 1000), 2, -5, 5)
    assert whole.min() == -5 and whole.max() == 4
    np.testing.assert_array_equal(Family("mixed", 3).integers("labels", (100, 110), 2, -5, 5), whole[100:110])
    with pytest.raises(ValueError):
        Family().integers("labels", (0, 1), 1, 3, 3)
