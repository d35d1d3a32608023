"""The contracts: tensors, references against other ways to compute them, work, gates; NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.accuracy.dtypes import decode
from farm.accuracy.evaluate import fill_reference, judged_tensors, make_inputs, make_reference
from farm.cell import Cell
from farm.contracts.discovery import contract, known_ops

ROOT = Path(__file__).resolve().parents[2]


def cell(
    op: str, operation: str = "forward", dims: tuple[int, ...] = (6, 10, 5), dtype: str = "float32", **params: Any
) -> Cell:
    c = contract(op)
    return Cell(
        "cpu",
        op,
        "farm",
        "auto",
        operation,
        dict.fromkeys(c.typed, dtype),
        dict(zip([d.name for d in c.dimensions], dims)),
        {p.name: p.default for p in c.parameters} | params,
    )


def made(c: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs in float64 and the reference, of the whole cell."""
    op, rows = contract(c.op), next(iter(c.dims.values()))
    stored = make_inputs(c, op, (0, rows))
    dtypes = {t.name: t.dtype for t in op.tensors(c)}
    return {n: decode(a, dtypes[n]) for n, a in stored.items()}, make_reference(c, op, stored, (0, rows))


OPS = ("fused_add_rms_norm", "matmul", "rms_norm", "rms_norm_quantize")


def test_the_four_ops_are_found() -> None:
    assert set(OPS) <= set(known_ops())


@pytest.mark.parametrize("op", OPS)
def test_every_op_says_all_it_must(op: str) -> None:
    c = contract(op)
    assert c.op == op and c.version >= 1 and c.dimensions and c.typed
    for operation in c.operations:
        one = cell(op, operation, dtype="bfloat16")
        tensors = c.tensors(one)
        roles = [t.role for t in tensors]
        assert roles == sorted(roles, key=["input", "upstream", "output", "gradient"].index)
        names = [t.name for t in tensors]
        assert len(set(names)) == len(names)
        assert set(c.typed) <= {t.name for t in tensors if t.role == "input"}
        assert all(t.of in names for t in tensors if t.role == "gradient")
        assert set(c.gates(one)) == {t.name for t in judged_tensors(one, c)}
        inputs = {t.name for t in tensors if t.role in ("input", "upstream")}
        values, reference = made(one)
        assert set(values) == inputs
        for t in tensors:
            got = values[t.name] if t.name in inputs else reference[t.name]
            assert got.shape == t.dims, t.name
        work = c.work(one)
        assert work.bytes_read > 0 and work.bytes_written > 0 and all(v > 0 for v in work.operations.values())
        assert c.supports(one) is None


def test_rms_norm_is_the_formula() -> None:
    c = cell("rms_norm", offset=0.5, eps=1e-3)
    values, reference = made(c)
    for x, y in zip(values["x"], reference["y"]):
        rms = np.sqrt(sum(v * v for v in x) / len(x) + 1e-3)
        np.testing.assert_allclose(y, x / rms * (values["weight"] + 0.5), rtol=1e-13)
    assert not reference["y"][3].any()  # the zero row


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("hidden", [1, 9])
def test_rms_norm_gradients_are_finite_differences(weight: bool, hidden: int) -> None:
    c = cell("rms_norm", "full", (3, hidden), weight=weight, offset=0.25, eps=1e-2)
    op = contract("rms_norm")
    values, reference = made(c)
    values["x"][1] *= 1e3  # a row whose RMS is not far from the root of eps

    def loss(**changed: Any) -> float:
        given = {**values, **changed}
        return float((op.reference(given, c, (0, 3))["y"] * values["dy"]).sum())

    analytic = op.reference(values, c, (0, 3))
    for name, gradient in (("x", analytic["dx"]), *((("weight", analytic["dw"]),) if weight else ())):
        for at in np.ndindex(gradient.shape):
            size = max(abs(values[name][at]), 1.0)
            step = np.zeros_like(values[name])
            step[at] = 1e-5 * size
            slope = (loss(**{name: values[name] + step}) - loss(**{name: values[name] - step})) / (2e-5 * size)
            assert gradient[at] == pytest.approx(slope, rel=1e-5, abs=1e-6 * abs(gradient).max() + 1e-9)
    assert ("dw" in reference) == weight


def test_rms_norm_scales_are_the_sizes_of_the_terms() -> None:
    c = cell("rms_norm", "backward", (5, 8))
    values, reference = made(c)
    x, dy, w = values["x"], values["dy"], values["weight"]
    rstd = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(reference["dx.scale2"], ((rstd * dy * w) ** 2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(reference["dw.scale2"], ((dy * x * rstd) ** 2).sum(axis=0))


def test_rms_norm_tensors_by_operation_and_weight() -> None:
    op = contract("rms_norm")
    names = lambda **kw: [t.name for t in op.tensors(cell("rms_norm", **kw))]  # noqa: E731
    assert names() == names(operation="no-grad-forward") == ["x", "weight", "y"]
    assert names(operation="backward") == ["x", "weight", "dy", "dx", "dw"]
    assert names(operation="full") == ["x", "weight", "dy", "y", "dx", "dw"]
    assert names(operation="backward", weight=False) == ["x", "dy", "dx"]
    dy = {t.name: t for t in op.tensors(cell("rms_norm", operation="backward", in_place=True))}["dy"]
    assert dy.may_overwrite


def test_rms_norm_rows_of_one_value_are_not_spread() -> None:
    _, reference = made(cell("rms_norm", dims=(10, 64)))
    assert reference["y.spread"].ravel().tolist() == [True, True, True, False, False] * 2
    c = cell("rms_norm", dims=(4, 64))
    outlier = Cell(**{**c.__dict__, "family": "outlier", "cell_key": ""})
    assert not made(outlier)[1]["y.spread"].any()


def test_no_rows_still_have_a_weight_gradient() -> None:
    c = cell("rms_norm", "full", (0, 7))
    op = contract("rms_norm")
    reference = fill_reference(c, op, make_inputs(c, op, (0, 0)))
    assert reference["y"].shape == (0, 7) and reference["dw"].tolist() == [0.0] * 7


def test_rms_norm_work_counts_every_tensor_once() -> None:
    op = contract("rms_norm")
    forward, backward, full = (
        op.work(cell("rms_norm", o, (100, 64), "bfloat16")) for o in ("forward", "backward", "full")
    )
    assert (forward.bytes_read, forward.bytes_written) == (100 * 128 + 128, 100 * 128)
    assert (backward.bytes_read, backward.bytes_written) == (2 * 100 * 128 + 128, 100 * 128 + 128)
    assert full.bytes_read == forward.bytes_read + backward.bytes_read
    bare = op.work(cell("rms_norm", "forward", (100, 64), "bfloat16", weight=False))
    assert bare.bytes_read == 100 * 128


def test_rms_norm_short_rows_are_held_by_their_worst_element_alone() -> None:
    op = contract("rms_norm")
    for operation in ("forward", "backward"):
        for gates in op.gates(cell("rms_norm", operation, (8, 63), "bfloat16")).values():
            assert set(gates) == {"max_ulp"}
        for gates in op.gates(cell("rms_norm", operation, (8, 64), "bfloat16")).values():
            assert {"max_ulp", "rel_l2", "row_l2_max", "gain_max"} <= set(gates)


def test_a_weight_gradient_stored_wide_is_held_to_what_was_rounded() -> None:
    op = contract("rms_norm")
    c = cell("rms_norm", "backward", (64, 128), "bfloat16")
    wide = Cell(**{**c.__dict__, "dtypes": {"x": "bfloat16", "weight": "float32"}, "cell_key": ""})
    assert op.gates(wide)["dw"]["rel_l2"] == op.gates(c)["dw"]["rel_l2"]
    assert op.gates(wide)["dw"]["max_ulp"] == op.gates(c)["dw"]["max_ulp"] * 2**16
    once = Cell(**{**wide.__dict__, "params": {**wide.params, "casting": "gemma"}, "cell_key": ""})
    assert op.gates(once)["dw"]["rel_l2"] < 1e-4


def test_matmul() -> None:
    c = cell("matmul", dims=(3, 4, 5))
    op = contract("matmul")
    values, reference = made(c)
    a, b = values["a"], values["b"]
    for i, j in np.ndindex(3, 4):
        assert reference["c"][i, j] == pytest.approx(sum(a[i, k] * b[k, j] for k in range(5)), rel=1e-13)
    terms = np.array([[sum((a[i, k] * b[k, j]) ** 2 for k in range(5)) for j in range(4)] for i in range(3)])
    np.testing.assert_allclose(reference["c.scale2"], terms.mean(axis=1, keepdims=True))
    assert op.work(c).operations == {"tensor": 120}
    mixed = Cell(**{**c.__dict__, "dtypes": {"a": "float32", "b": "float16"}, "cell_key": ""})
    assert "one dtype" in (op.supports(mixed) or "")


def test_quantize() -> None:
    c = cell("rms_norm_quantize", dims=(6, 40))
    values, reference = made(c)
    x, w = values["x"], values["weight"]
    y = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * w
    assert reference["q"].dtype == np.int8
    np.testing.assert_allclose(reference["scale"][:, 0], abs(y).max(axis=1) / 127)
    assert abs(reference["q"]).max(axis=1).tolist() == [127, 127, 127, 0, 127, 127]
    assert reference["scale"][3] == 0 and not reference["q"][3].any()
    assert (abs(reference["q"] * reference["scale"] - y) <= reference["scale"] / 2 * (1 + 1e-12)).all()


def test_contracts_need_numpy_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'ray', 'yaml', 'pyarrow', 'kernels'): sys.modules[name] = None\n"
        "import importlib\n"
        "for op in sys.argv[1:]: importlib.import_module(f'farm.contracts.ops.{op}.contract').CONTRACT\n"
        "print(len(sys.argv))"
    )
    ops = known_ops()
    done = subprocess.run([sys.executable, "-c", code, *ops], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == str(len(ops) + 1), done.stderr
