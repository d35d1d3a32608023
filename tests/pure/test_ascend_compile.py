"""Ascend's compiler on our kernels and on planted faults.  Needs the tool chain's own environment, and no device."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farm.compile import ascend_environment
from farm.matrix import cells, load_files
from kernels.ops.rms_norm.ascend import choose

ROOT = Path(__file__).resolve().parents[2]
OPS = ("rms_norm", "fused_add_rms_norm")
OPERATIONS = ("forward", "backward")

found = ascend_environment.find()
pytestmark = pytest.mark.skipif(
    found is None, reason="no Ascend tool chain on this host; make it by: farm compile --setup ascend"
)


def compiled(requests: list[dict[str, Any]], cache: Path) -> list[Any]:
    """The answers of `ascend_plans`, run by the tool chain's Python with a cache of its own."""
    assert found is not None
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRITON_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(ascend_environment.python_of(found)), str(ROOT / "tests" / "pure" / "ascend_plans.py")],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**clean, "TRITON_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[Any] = json.loads(done.stdout)
    return answers


def cell(op: str, operation: str, dtype: str, shape: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "op": op,
        "operation": operation,
        "rows": shape[0],
        "hidden": shape[1],
        "dtype": dtype,
        "weight": dtype,
        **more,
    }


def test_planted_faults_are_caught_and_named(tmp_path: Path) -> None:
    names = ("overflow", "gather", "int64", "float64")
    overflow, gather, int64, float64 = compiled([{"planted": name} for name in names], tmp_path)
    kernel, _, taken = overflow[0]
    assert kernel == "planted_overflow" and taken["ub_limit_bytes"] == 192 * 1024 < taken["ub_overflow_bytes"]
    assert taken["ub_bytes"] is None
    for one in (gather, int64):
        assert one[0][2]["scalar_accesses"] >= 2048 and one[0][2]["ub_bytes"] < 192 * 1024
    assert float64.startswith("MLIRCompilationError: ") and "unsupported datatype for arith::ExtFOp" in float64


def asked_of_a_matrix() -> list[dict[str, Any]]:
    """The shapes, dtypes and directions of rms_norm's matrix, for both ops, each once."""
    found = {}
    for matrix in load_files([ROOT / "matrices" / "rms_norm.yaml"]):
        for c in cells(matrix, ["cpu"]):
            shape = (c.dims["rows"], c.dims["hidden"])
            for op, operation in itertools.product(OPS, OPERATIONS):
                found[op, operation, c.dtypes["x"], shape] = cell(op, operation, c.dtypes["x"], shape)
    return list(found.values())


def test_what_auto_chooses_fits_keeps_its_double_buffers_and_never_falls_back(tmp_path: Path) -> None:
    asked = asked_of_a_matrix()
    for op, operation in itertools.product(OPS, OPERATIONS):
        asked += [cell(op, operation, "bfloat16", (17, 1000), weight=w) for w in ("float32", "none")]
        asked += [cell(op, operation, "bfloat16", shape) for shape in ((2**33, 1), (1, 2**30))]
    assert len(asked) > 100
    for request, answer in zip(asked, compiled(asked, tmp_path)):
        assert isinstance(answer, list), (request, answer)
        wants_dw = request["operation"] == "backward" and request["weight"] != "none"
        kernels = [kernel for kernel, _, _ in answer]
        assert kernels[0].startswith(request["operation"]) and kernels[1:] == ["sum_rows"] * wants_dw
        for kernel, grid, taken in answer:
            what = (request, kernel, taken)
            assert "ub_overflow_bytes" not in taken and 0 < taken["ub_bytes"] <= taken["ub_limit_bytes"], what
            assert taken["scalar_accesses"] <= 16, what
            assert taken["multi_buffered"] > 0, what
            assert taken["instructions"]["global_loads"] and taken["instructions"]["global_stores"], what
            assert grid[0] <= 40 and grid[1:] == [1, 1], what


def test_a_second_walk_waits_for_the_sum_that_the_first_stored(tmp_path: Path) -> None:
    """The fused forward of wide rows reads back what it stored: the compiler must let loads wait for stores there, and
    has no reason to where nothing is read back."""
    ops = [cell(op, "forward", "bfloat16", (4096, 16384)) for op in OPS]
    plain, fused = (answer[0][2]["flag_pairs"] for answer in compiled(ops, tmp_path))
    assert fused["MTE3->MTE2"] >= 1 and "MTE3->MTE2" not in plain


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_model_of_the_unified_buffer_is_what_the_compiler_plans(operation: str, tmp_path: Path) -> None:
    """Tiles as large as the model admits keep their double buffers; twice as large ones lose them, or overflow."""
    most = choose.tile_elements(operation)
    tiles = [(1, most), (most // 128, 128), (most // 1024, 1024)]
    asked = [
        cell(
            op,
            operation,
            dtype,
            (4096, 128 if tile[1] < 1024 else tile[1] if mode == "static_persistent" else 32768),
            mode=mode,
            tile=[scale * tile[0], tile[1]],
        )
        for scale in (1, 2)
        for op in OPS
        for dtype in ("float32", "bfloat16")
        for tile, mode in zip(tiles, ("static_persistent", "static_persistent", "column_tiled"))
    ]
    answers = compiled(asked, tmp_path)
    half = len(asked) // 2
    for request, answer in zip(asked[:half], answers[:half]):
        assert answer[0][2].get("multi_buffered", 0) > 0, (request, answer)
    lost = [a[0][2].get("multi_buffered", 0) == 0 for a in answers[half:]]
    assert sum(lost) >= half // 2, list(zip(asked[half:], lost))
