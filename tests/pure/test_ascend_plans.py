"""Reading what bishengir plans: buffers, scalar accesses, waits, copies; and its refusals and accidents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.compile import ascend
from farm.compile.targets import TARGETS

UB = "#hivm.address_space<ub>"


def buffer(name: str, bits: int, *offsets: int, at: int = 0) -> dict[str, Any]:
    return {"buffer": name, "alloc_time_in_ir": at, "extent": bits, "offset": list(offsets)}


def test_buffers_are_counted_once_and_reach_as_far_as_the_last() -> None:
    twice = buffer("%a", 8 * 1000, 0, 1024)  # listed once for each of its places
    record = {"scope": "ub", "status": "success", "memory_info_array": [twice, twice, buffer("%b", 33, 4096)]}
    failed = {"scope": "ub", "status": "failed", "memory_info_array": [buffer("%c", 8, 500000)]}
    other = {"scope": "cbuf", "status": "success", "memory_info_array": [buffer("%d", 8, 500000)]}
    assert ascend.buffers([{"Record": [failed, record, other]}], 196608) == {
        "ub_bytes": 4096 + 5,
        "ub_limit_bytes": 196608,
        "ub_share": round(4101 / 196608, 4),
        "buffers": 2,
        "multi_buffered": 1,
    }


HIVM = f"""
  func.func private @load_gm_to_ubuf_2d_float(memref<?x?xf32>) attributes {{hacc.always_inline}}
  func.call @load_gm_to_ubuf_2d_float(%a, %b) : (memref<?x?xf32>) -> ()
  call @vmul_1d_float(%a) : (memref<?xf32>) -> ()
  hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
  hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
  hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_MTE2>, %70]
  hivm.hir.pipe_barrier[<PIPE_V>]
  %1 = memref.load %x[%c0, %c0] : memref<1x8xf32, {UB}>
  scf.for %arg9 = %c0 to %c1024 step %c1 {{
    %2 = memref.load %0[%arg9] {{DiscreteMemAccess}} : memref<1024xi32, {UB}>
    %4 = memref.load %y[%c0] {{x = 0 : i32}} : memref<1xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    memref.store %4, %z[%c1_7, %arg9] : memref<8x16xf32, strided<[16, 1]>, {UB}>
    memref.store %4, %z[%arg9] : memref<?xf32, {UB}>
  }}
  func.call @store_ubuf_to_gm_1d_bfloat16_t(%a) : (memref<?xbf16>) -> ()
"""


def test_counts_of_a_text() -> None:
    found = ascend.counts(HIVM)
    assert found["scalar_accesses"] == 1 + 1024 + 16 + ascend.UNKNOWN_DIMENSION
    assert found["flags"] == 2 and found["barriers"] == 1 and found["syncs"] == 3
    assert found["flag_pairs"] == {"MTE2->V": 1, "MTE3->MTE2": 1}
    assert found["vector_calls"] == 1
    assert found["instructions"]["global_loads"] == {"2d_float": 1, "scalar": 1}
    assert found["instructions"]["global_stores"] == {"1d_bfloat16_t": 1}
    assert found["ir_bytes"] == len(HIVM)


def test_a_refusal_is_one_line_with_the_compilers_words() -> None:
    said = 'loc("/tmp/x/k":1:1): error: Failed to run BiShengHIR pipeline\nloc("/tmp/x/k":2:3): error: no such\n'
    assert ascend.refusal("bishengir-compile", 1, said) == (
        "error: bishengir-compile ended with exit code 1: error: no such"
    )
    text = ascend.refusal("triton-adapter-opt", -6, "opt: /root/TypeSupport.h:173: x: Assertion `a && b' failed.\n")
    assert text == "error: triton-adapter-opt ended with signal SIGABRT: opt: x: Assertion `a && b' failed."
    assert ascend.refusal("a", 3, "").endswith("exit code 3: no reason reported")


@pytest.mark.parametrize("deaths", range(ascend.ATTEMPTS + 1))
def test_what_dies_of_a_signal_is_taken_again_but_not_for_ever(deaths: int) -> None:
    taken = []

    def step() -> str:
        taken.append(1)
        if len(taken) <= deaths:
            raise subprocess.CalledProcessError(-6, ["/opt/triton-adapter-opt"], None, b"Assertion failed\n")
        return "lowered"

    if deaths < ascend.ATTEMPTS:
        assert ascend.again(step) == "lowered" and len(taken) == deaths + 1
    else:
        with pytest.raises(ascend.PlanError, match="triton-adapter-opt ended with signal SIGABRT: Assertion failed"):
            ascend.again(step)
        assert len(taken) == ascend.ATTEMPTS


def test_a_refusal_is_not_asked_for_twice() -> None:
    taken = []

    def step() -> str:
        taken.append(1)
        raise subprocess.CalledProcessError(1, ["bishengir-compile"], b"", b"error: unsupported")

    with pytest.raises(ascend.PlanError, match="exit code 1: error: unsupported"):
        ascend.again(step)
    assert len(taken) == 1


#: Stands for bishengir-compile: puts its files where it is told to, and says what it is told.
COMPILER = """#!/bin/sh
for word; do case "$word" in --save-temps=*) folder="${word#*=}" ;; esac; done
[ "$(hivmc --version)" = "hivmc 1.2.0" ] || exit 9
echo "$@" > "$0.words"
case "$(cat kernel.mlir)" in
  overflow) echo 'loc("k":2:3): error: ub overflow, requires 2621696 bits while 1572864 bits available!' >&2; exit 1 ;;
  refused) echo 'loc("k":2:3): error: no float64' >&2; exit 1 ;;
  hang) exec sleep 30 ;;
esac
echo '{"Record": [{"scope": "ub", "status": "success", "memory_info_array": []}]}' > memory_info_aiv.json
echo 'hivm.hir.pipe_barrier[<PIPE_V>]' > "$folder/module.hivm.opt.mlir"
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    file = tmp_path / "bishengir-compile"
    file.write_text(COMPILER)
    file.chmod(0o755)
    return file


def plan(compiler: Path, linalg: str, **options: Any) -> dict[str, Any]:
    return ascend.plan(compiler, "Ascend910B3", 196608, linalg, options)


def test_a_plan_is_read_with_a_kernels_own_options_handed_on(compiler: Path) -> None:
    found = plan(compiler, "fine", multibuffer=False, sync_solver=None, enable_auto_bind_sub_block=True)
    assert found["ub_bytes"] == 0 and found["barriers"] == 1
    words = compiler.with_suffix(".words").read_text()
    assert "--target=Ascend910B3" in words and "--enable-auto-multi-buffer=False" in words
    assert "--enable-auto-bind-sub-block=True" in words and "graph-sync-solver" not in words


def test_an_overflow_is_a_result_and_a_refusal_is_not(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(compiler, "overflow") == {"ub_bytes": None, "ub_overflow_bytes": 327712, "ub_limit_bytes": 196608}
    with pytest.raises(ascend.PlanError, match="exit code 1: error: no float64"):
        plan(compiler, "refused")
    monkeypatch.setattr(ascend, "PLAN_SECONDS", 0.3)
    with pytest.raises(ascend.PlanError, match=r"bishengir-compile took longer than 0\.3 s"):
        plan(compiler, "hang")


def test_a_python_without_the_tool_chain_says_how_to_get_it() -> None:
    code = (
        "from farm.compile import ascend\n"
        "try:\n    ascend.offline().__enter__()\n"
        "except ImportError as error: print(error)"
    )
    env = {"PYTHONPATH": str(Path(ascend.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, check=True
    )
    assert done.stdout.startswith(("this Python has no triton-ascend", "No module named 'triton"))
    if "this Python" in done.stdout:
        assert "farm compile --setup ascend" in done.stdout


def test_the_driver_tells_vector_cores() -> None:
    utils = ascend._Utils(TARGETS["ascend910b"])
    assert utils.get_device_properties(0)["num_vectorcore"] == utils.get_aivector_core_num() == 40
    assert utils.get_aicore_num() == 20
    assert json.dumps(utils.load_binary()) == "[1, 1, 0, 0]"
