"""Planted faults: each is caught, named, and costs its own cell alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # 17 s of a core

PROVIDERS = (
    "honest",
    "spilling",
    "overflowing",
    "rejected",
    "asserting",
    "aborting",
    "tuned",
    "declining",
    "plain",
    "raising",
)
TARGETS = ("sm_90", "gfx942")


@pytest.fixture(scope="module")
def found(farm_compile, tmp_path_factory: pytest.TempPathFactory):
    matrix = tmp_path_factory.mktemp("matrix") / "planted.yaml"
    matrix.write_text("name: planted\nop: rms_norm\naxes: {shape: [{rows: 64, hidden: 4096}], dtype: bfloat16}\n")
    own = [w for p in PROVIDERS for w in ("--provider", f"{p}=planted:{p}")]
    return farm_compile(str(matrix), "--target", ",".join(TARGETS), *own)


def test_every_cell_is_accounted_for_and_findings_exit_1(found) -> None:
    assert found.code == 1
    assert len(found.rows) == len(PROVIDERS) * len(TARGETS) == found.run.head["planned"]
    assert found.run.head["counts"] == dict(Counter(r["status"] for r in found.run.rows))
    assert found.run.head["verdict"] == "findings"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("provider", "status", "reason"),
    [
        ("honest", "built", ""),
        ("overflowing", "compile_error", "kernel buffering: OutOfResources: out of resource: shared memory"),
        ("asserting", "compile_error", "planted: this kernel does not compile"),
        ("aborting", "crashed", "signal 6 (SIGABRT)"),
        ("declining", "unsupported", "planted: not for this target"),
        ("plain", "unsupported", "launches no Triton kernel"),
        ("raising", "crashed", "ZeroDivisionError: planted: a mistake before any kernel"),
        ("tuned", "built", ""),
    ],
)
def test_a_planted_fault_is_named(found, target: str, provider: str, status: str, reason: str) -> None:
    row = found.row(provider, target)
    assert (row["status"], row["evidence"]) == (status, "compiled")
    assert reason in row["reason"]
    assert bool(row["log"]) is (status not in ("built", "unsupported"))


def test_what_ptxas_rejects_is_named_and_amd_takes(found) -> None:
    row = found.row("rejected", "sm_90")
    assert row["status"] == "compile_error"
    assert "kernel contradictory: PTXASError" in row["reason"]
    assert "Modifier '.evict_first' cannot be combined with modifier '.cg'" in row["reason"]
    assert "/tmp" not in row["reason"]  # alike for like errors
    assert found.row("rejected", "gfx942")["status"] == "built"


def test_the_compilers_chatter_is_in_the_log_of_its_cell(found) -> None:
    assert ".target sm_90" in found.log("rejected", "sm_90")  # ptxas' failure prints the whole PTX
    assert "planted: the compiler has seen enough" in found.log("aborting", "sm_90")
    assert ".target sm_90" not in found.log("raising", "sm_90")


def test_a_hanging_cell_is_named_and_says_where_it_hangs(farm_compile, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "name: hanging\nop: rms_norm\naxes: {shape: [{rows: 64, hidden: 4096}]}\ndeadlines: {compile: 1.5}\n"
    )
    found = farm_compile(str(tmp_path / "m.yaml"), "--target", "gfx942", "--provider", "hanging=planted:hanging")
    assert (found.code, found.row("hanging")["status"]) == (1, "timed_out")
    assert "within 1.5 s" in found.row("hanging")["reason"]
    assert "in hanging" in found.log("hanging")


def test_a_spill_in_what_auto_runs_is_a_finding(found) -> None:
    row, (kernel,) = found.row("spilling", "sm_90"), found.kernels("spilling", "sm_90")
    assert row["status"] == "compile_error"
    assert row["reason"].startswith("whole_row spills ")
    assert kernel["registers"] == 255
    assert kernel["spill_store_bytes"] > 0 and kernel["stack_bytes"] > 0
    assert found.kernels("spilling", "gfx942")[0]["spill_store_bytes"] == 0  # 512 registers a lane
    assert found.row("spilling", "gfx942")["status"] == "built"


def test_tuning_is_judged_by_the_variant_that_does_not_spill(found) -> None:
    (kernel,) = found.kernels("tuned", "sm_90")
    assert kernel["spill_store_bytes"] > 0  # the first of two, which offline nobody can time
    assert found.row("tuned", "sm_90")["status"] == "built"


def test_the_report_of_an_honest_kernel(found) -> None:
    (kernel,) = found.kernels("honest", "sm_90")
    assert (kernel["kernel"], kernel["phase"], kernel["grid"], kernel["warps"]) == (
        "whole_row",
        "forward",
        [64, 1, 1],
        8,
    )
    assert 16 <= kernel["registers"] <= 40 and kernel["occupancy"] == 1.0
    assert kernel["shared_bytes"] == 32  # a float for each warp
    assert kernel["constants"]["BLOCK"] == 4096
    # 4096 values of 2 bytes over 256 threads, 16 bytes an access
    assert kernel["instructions"]["global_loads"] == {"128": 2} == kernel["instructions"]["global_stores"]
    (wave,) = found.kernels("honest", "gfx942")
    assert wave["instructions"]["global_loads"] == {"128": 1}  # 512 lanes
    assert wave["occupancy"] == wave["compiler_occupancy"] / 8


def test_the_page_tells_each_of_them(found) -> None:
    page = (found.dir.parents[1] / "pages" / f"run-{found.dir.name}.html").read_text()
    assert "OutOfResources" in page and "SIGABRT" in page and "evict_first" in page
    assert "farm compile" in page and "--target sm_90" in page
