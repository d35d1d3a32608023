"""The kernels of rows that programs share, compiled for GPUs that are not here: whether they are what they were written
to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.ops.rms_norm.gpu import choose, tuned

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Bytes of shared memory that a block may have on sm_90 and sm_100.
SHARED = 232448
WIDE: dict[str, Any] = {"fused": False, "hidden": 131072, "dtype": "bfloat16"}
CASES: dict[str, dict[str, Any]] = {
    "forward": {**WIDE, "op": "forward", "config": {"parts": 8, "num_warps": 16}},
    "weight first": {**WIDE, "op": "forward", "config": {"parts": 16, "num_warps": 8, "weight": "first"}},
    "fused": {**WIDE, "op": "forward", "fused": True, "config": {"parts": 8, "num_warps": 16}},
    "odd parts": {**WIDE, "op": "forward", "hidden": 100_000, "config": {"parts": 7, "num_warps": 16}},
    "float32": {**WIDE, "op": "forward", "hidden": 65536, "dtype": "float32", "config": {"parts": 8, "num_warps": 16}},
    "backward": {**WIDE, "op": "backward", "config": {"parts": 16, "num_warps": 16, "num_stages": 3}},
    "backward of 132": {**WIDE, "op": "backward", "config": {"parts": 33, "num_warps": 8, "num_stages": 3}},
    "backward at once": {
        **WIDE,
        "op": "backward",
        "config": {"parts": 32, "num_warps": 8, "per_core": 2, "num_stages": 3, "later": False},
    },
    "fused backward": {
        **WIDE,
        "op": "backward",
        "fused": True,
        "config": {"parts": 32, "num_warps": 8, "num_stages": 3},
    },
}


def compile_for(
    target: str, cases: list[dict[str, Any]], cache: Path, script: Path = HERE / "split_kernels.py"
) -> list[dict[str, Any]]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(cache)}
    variables.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(script), target, json.dumps(cases)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module", params=[pytest.param(t, marks=pytest.mark.long) for t in ("sm_90", "sm_100")])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = compile_for(request.param, list(CASES.values()), tmp_path_factory.mktemp("triton"))
    return {"target": request.param, **dict(zip(CASES, made, strict=True))}


@pytest.mark.parametrize("name", CASES)
def test_it_fits_and_does_not_spill(found: dict[str, Any], name: str) -> None:
    kernel = found[name]
    assert kernel["spill_store_bytes"] == 0 and not kernel["local"]
    assert kernel["shared_bytes"] <= SHARED


@pytest.mark.parametrize(
    ("name", "target", "every"),
    [
        pytest.param("sm_90", "cuda:90", 4, id="sm_90-some"),
        pytest.param("sm_90", "cuda:90", 1, id="sm_90", marks=pytest.mark.long),
        pytest.param("sm_100", "cuda:100", 1, id="sm_100", marks=pytest.mark.long),
    ],
)
def test_what_auto_chooses_spills_nothing_and_runs_at_once(name: str, target: str, every: int, tmp_path: Path) -> None:
    """Where the table has them, and where a backward that was not searched has parts of a measured width."""
    wanted = {
        (*key, rows, hidden)
        for key, entries in tuned.TABLE.items()
        for rows, hidden, config in entries
        if config["kernel"] in choose.SPLITS
    }
    wanted |= {
        (op, "backward", dtype, 4096, hidden)
        for op in ("rms_norm", "fused_add_rms_norm")
        for dtype in ("float32", "bfloat16")
        for hidden in (40_000, 65536)
    }
    cases = []
    for op, operation, dtype, rows, hidden in sorted(wanted):
        config = choose.configuration(target, rows, hidden, dtype, operation, cores=132, op=op, ring=True, split=True)
        if config["kernel"] in choose.SPLITS:
            config = {k: v for k, v in config.items() if k not in ("mode", "kernel")}
            cases.append(
                {"op": operation, "fused": op.startswith("fused"), "hidden": hidden, "dtype": dtype, "config": config}
            )
    assert len(cases) >= 12 and {c["op"] for c in cases} == {"forward", "backward"}
    cases = cases[::every]
    for case, kernel in zip(cases, compile_for(name, cases, tmp_path), strict=True):
        few = (name, case["op"], case["fused"], case["hidden"]) == ("sm_100", "backward", False, 40_000)
        assert kernel["spill_store_bytes"] <= (4 if few and case["dtype"] == "bfloat16" else 0), case
        assert kernel["blocks_per_core"] >= (case["config"].get("per_core", 1) if case["op"] == "backward" else 2), case


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["op"] == "backward"])
def test_all_programs_of_a_backward_run_at_once(found: dict[str, Any], name: str) -> None:
    """Else they would wait for others that have not begun, and give up."""
    assert found[name]["blocks_per_core"] >= CASES[name]["config"].get("per_core", 1)
    assert found[name]["grid"][0] <= 132 * CASES[name]["config"].get("per_core", 1)


@pytest.mark.parametrize("name", ["forward", "float32"])
def test_while_one_program_waits_others_can_run(found: dict[str, Any], name: str) -> None:
    """sm_100's code takes more registers."""
    assert found[name]["blocks_per_core"] >= (3 if found["target"] == "sm_90" else 2)


@pytest.mark.parametrize("name", CASES)
def test_what_moves_is_16_bytes_wide(found: dict[str, Any], name: str) -> None:
    kernel = found[name]
    scalars = ("ld.global.b32", "st.global.b32")  # rstd
    assert all("v4.b32" in word or word in scalars for word in kernel["moved"] if word != "ld.global.L1")
    if CASES[name]["op"] == "backward":
        assert kernel["copies"] == [16]  # x and dy are on their way while a row is waited for


@pytest.mark.parametrize("name", CASES)
def test_one_thread_asks_for_one_word(found: dict[str, Any], name: str) -> None:
    """Were a word asked for by two, one might find it and the other not: then the threads of a block would part, and
    meet at different barriers."""
    kernel = found[name]
    warps = kernel["warps"]
    assert kernel["asked"] == 1 and kernel["published"] == ["atom.global.gpu.relaxed.exch.b64"]
    assert kernel["lanes"] == 32 * warps == kernel["recorded"]["lanes"]
    assert kernel["layout"].startswith(f"{{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [{warps}]")


@pytest.mark.parametrize("name", CASES)
def test_it_waits_for_the_kernel_before_ahead_of_all_else(found: dict[str, Any], name: str) -> None:
    """That is what clears the words."""
    assert found[name]["waits_before"]


MATRIX = """
name: divided
op: rms_norm
axes: {shape: [{rows: 4096, hidden: 65536}], dtype: bfloat16, operation: backward}
"""


@pytest.mark.long
def test_farm_compile_builds_what_auto_would_choose(farm_compile: Any, tmp_path: Path) -> None:
    """Its tensors have no memory, by which those that share some are told; on AMD, and where dx is dy, there is another
    kernel."""
    file = tmp_path / "divided.yaml"
    file.write_text(MATRIX)
    own = [w for p in ("divided", "divided_in_place") for w in ("--provider", f"{p}=planted_split:{p}")]
    made = farm_compile(str(file), "--target", "sm_90,gfx942", "--no-page", *own)

    def names(*parts: str) -> list[str]:
        assert made.row(*parts)["status"] == "built"
        return [kernel["kernel"] for kernel in made.kernels(*parts)]

    assert names("divided", "sm_90") == ["forward_split", "backward_split", "sum_partials"]
    kernels = made.kernels("divided", "sm_90")[:2]
    assert all(kernel["spill_store_bytes"] == 0 and kernel["constants"]["PARTS"] >= 8 for kernel in kernels)
    others = ["row_means", "backward_columns", "sum_partials"]
    assert names("divided_in_place", "sm_90") == ["forward_split", *others]
    assert names("divided", "gfx942") == ["forward_chunks", *others]


@pytest.mark.skipif(
    not os.environ.get("FARM_NIGHTLY"), reason="20 s of one core, for what nothing chooses: make nightly"
)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_they_compile_for_amd(target: str, tmp_path: Path) -> None:
    """Nothing chooses them there; they ran on no AMD GPU."""
    made = compile_for(target, [CASES["forward"], CASES["backward"]], tmp_path)
    assert [kernel["spill_store_bytes"] for kernel in made] == [0, 0]
    assert [kernel["recorded"]["lanes"] for kernel in made] == [1024, 1024]


def test_what_spills_is_seen(tmp_path: Path) -> None:
    """The planted fault: fewer registers than a part takes."""
    case = {**CASES["forward"], "config": {**CASES["forward"]["config"], "registers": 24}}
    (kernel,) = compile_for("sm_90", [case], tmp_path)
    assert kernel["spill_store_bytes"] > 0


def test_words_that_are_asked_for_by_two_threads_are_seen(tmp_path: Path) -> None:
    """The planted fault: fewer lanes than a block has threads."""
    planted = tmp_path / "planted.py"
    source = (HERE / "split_kernels.py").read_text()
    before = "    x, weight, rstd = "
    assert source.count(before) == 1
    fewer = (
        "    fewer = tuple((k, 32 if k == 'lanes' else v) for k, v in choice.options)\n"
        "    choice = choice.__class__(**{**choice.__dict__, 'options': fewer})\n"
    )
    planted.write_text(source.replace(before, fewer + before))
    (kernel,) = compile_for("sm_90", [CASES["forward"]], tmp_path, planted)
    assert kernel["lanes"] != 32 * kernel["warps"]
