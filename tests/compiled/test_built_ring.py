"""The ring kernels, compiled for GPUs that are not here: whether they are what they were written to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Bytes of shared memory that a block may have on sm_90 and sm_100.
SHARED = 232448
CASES: dict[str, dict[str, Any]] = {
    "forward": {
        "op": "forward",
        "fused": False,
        "hidden": 32768,
        "dtype": "bfloat16",
        "config": {"block": 4096, "num_warps": 16},
    },
    "registers": {
        "op": "forward",
        "fused": False,
        "hidden": 131072,
        "dtype": "bfloat16",
        "config": {"block": 8192, "num_warps": 16, "regs": 5},
    },
    "again": {
        "op": "forward",
        "fused": False,
        "hidden": 131072,
        "dtype": "bfloat16",
        "config": {"block": 8192, "num_warps": 16},
    },
    "fused": {
        "op": "forward",
        "fused": True,
        "hidden": 20000,
        "dtype": "bfloat16",
        "config": {"block": 4096, "num_warps": 16},
    },
    "float32": {
        "op": "forward",
        "fused": True,
        "hidden": 16384,
        "dtype": "float32",
        "config": {"block": 2048, "num_warps": 16},
    },
    "backward": {
        "op": "backward",
        "fused": False,
        "hidden": 16384,
        "dtype": "bfloat16",
        "config": {"block": 4096, "num_warps": 16},
    },
    "wide backward": {
        "op": "backward",
        "fused": False,
        "hidden": 32768,
        "dtype": "bfloat16",
        "config": {"block": 4096, "num_warps": 16},
    },
    "fused backward": {
        "op": "backward",
        "fused": True,
        "hidden": 16384,
        "dtype": "float32",
        "config": {"block": 2048, "num_warps": 16},
    },
}


def compile_for(target: str, cases: list[dict[str, Any]], cache: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(cache)}
    variables.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, str(HERE / "ring_kernels.py"), target, json.dumps(cases)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module", params=[pytest.param(t, marks=pytest.mark.long) for t in ("sm_90", "sm_100")])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    done = compile_for(request.param, list(CASES.values()), tmp_path_factory.mktemp("triton"))
    assert done.returncode == 0, done.stderr[-2000:]
    made = dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))
    return {"target": request.param, **made}


@pytest.mark.parametrize("name", CASES)
def test_it_fits_and_does_not_spill(found: dict[str, Any], name: str) -> None:
    kernel = found[name]
    assert kernel["shared_bytes"] <= SHARED
    if (found["target"], name) != ("sm_100", "wide backward"):  # 8 bytes there, triton 3.7.1
        assert kernel["spill_store_bytes"] == 0
    assert kernel["registers"] * kernel["warps"] * 32 <= 65536
    assert kernel["dependents"]


@pytest.mark.parametrize("name", CASES)
def test_what_moves_is_16_bytes_wide(found: dict[str, Any], name: str) -> None:
    kernel = found[name]
    assert kernel["copies"] and set(kernel["copies"]) == {16}
    wide = [s for s in kernel["stores"] if "v4.b32" in s]
    assert wide and all("v4.b32" in s or s == "st.global.b32" for s in kernel["stores"])  # rstd is a scalar
    assert all(
        "v4" in s or s in ("ld.global.b32", "ld.global.L1::evict_last.L2::cache_hint.v4.b32")
        for s in kernel["loads"]
        if s != "ld.global.L1"
    )


@pytest.mark.parametrize("name", CASES)
def test_it_waits_for_no_more_than_it_reads(found: dict[str, Any], name: str) -> None:
    kernel = found[name]
    c = kernel["constants"]
    kept = c["CHUNKS"] - c["REGS"] - c["AGAIN"]
    streamed = [c["SLOTS"] - 1] * (c["REGS"] + c["AGAIN"])
    assert kernel["waits"] == [*streamed, *(c["SLOTS"] - 1 - i for i in range(kept)), *[c["SLOTS"] - 1] * c["AGAIN"], 0]


def test_a_wide_row_stays_in_registers_and_in_the_ring(found: dict[str, Any]) -> None:
    assert found["registers"]["constants"]["AGAIN"] == 0
    assert found["again"]["constants"]["AGAIN"] > 0
    # 5 chunks of 16 elements a thread: 40 registers, packed; as float32 they would be 80
    assert found["registers"]["registers"] < found["again"]["registers"] + 60


@pytest.mark.long
def test_rows_that_are_not_aligned_do_not_compile(tmp_path: Path) -> None:
    """The planted fault: such copies would be 2 bytes, which cp.async has not.  `dispatch.can_ring` keeps them away."""
    done = compile_for("sm_90", [{**CASES["forward"], "shift": 1}], tmp_path)
    assert done.returncode != 0
    assert "cp.async does not support transfers smaller than 4 bytes" in done.stderr


@pytest.mark.long
def test_a_weight_that_cannot_be_copied_16_bytes_at_a_time_is_not_held(tmp_path: Path) -> None:
    """A view into a buffer of all parameters begins anywhere; a float32 weight is wider than x.  What is recorded is
    what ran."""
    case = {**CASES["forward"], "config": {**CASES["forward"]["config"], "hold": True}}
    changes: list[dict[str, Any]] = [{}, {"weight_shift": 8}, {"weight_shift": 1}, {"weight": "float32"}]
    done = compile_for("sm_90", [{**case, **changed} for changed in changes], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout.splitlines()[-1])
    assert [bool(kernel["constants"]["HOLD"]) for kernel in made] == [True, True, False, False]
    for kernel in made:
        recorded, constants = kernel["recorded"], kernel["constants"]
        for name in ("hold", "slots", "regs", "again"):
            assert recorded[name] == constants[name.upper()], name
