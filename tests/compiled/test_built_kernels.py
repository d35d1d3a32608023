"""Our own kernels, compiled for GPUs that are not here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long  # 18 s of a core

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("sm_90", "sm_100", "gfx942", "gfx950")
#: One width that auto keeps whole, on every backend, with every mode; rows that differ are one specialisation.
MATRIX = """
name: sample
op: {op}
axes:
  shape: [{{rows: [512, 4096], hidden: 4096}}, {{rows: 64, hidden: 1000}}]
  dtype: bfloat16
  operation: [forward, backward]
providers: {{farm: {{mode: [auto, multi_wave_reload]}}, torch: {{}}}}
"""


@pytest.fixture(scope="module")
def found(farm_compile: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("matrix") / "sample.yaml"
    file.write_text(MATRIX.format(op="rms_norm"))
    return farm_compile(str(file), "--target", ",".join(TARGETS))


def test_every_cell_is_built(found: Any) -> None:
    assert found.code == 0
    assert {r["status"] for r in found.run.rows} == {"built"}
    assert len(found.rows) == len(TARGETS) * 3 * 2 * 2  # the peer is not planned
    assert found.run.head["kind"] == "compile"


@pytest.mark.parametrize("target", TARGETS)
def test_a_report_for_every_launch(found: Any, target: str) -> None:
    head = found.run.head["targets"][target]
    rows = [r for name, r in found.rows.items() if name.endswith(f"@{target}")]
    reports = [k for r in rows for k in json.loads(r["resources"])]
    assert sum(k["launches"] for k in reports) == head["launches"]
    assert len({k["hash"] for k in reports}) == head["kernels"] < len(reports)
    for kernel in reports:
        assert 0 < kernel["registers"] <= 512
        assert 0 < kernel["occupancy"] <= 1
        instructions = kernel["instructions"]
        assert instructions["global_stores"] and (instructions["global_loads"] or instructions["async_copies"])
        assert 0 < kernel["code_bytes"] < kernel["binary_bytes"]
    assert {k["phase"] for k in reports} == {"forward", "backward"}
    for row in rows:
        assert row["mode_resolved"] != "auto"
        assert (row["target"], row["evidence"], row["time_us_p50"]) == (f"{row['backend']}:{target}", "compiled", None)
        assert json.loads(row["launch"])["kernels"]


def test_the_forward_comes_before_the_backward(found: Any) -> None:
    for row in found.rows.values():
        phases = [k["phase"] for k in json.loads(row["resources"])]
        assert phases == sorted(phases, reverse=True)
        assert ("backward" in phases) is (row["operation"] == "backward")


def test_nothing_that_auto_chooses_spills(found: Any) -> None:
    for row in found.rows.values():
        if row["mode"] == "auto":
            assert not any(k["spill_store_bytes"] for k in json.loads(row["resources"])), row["cell_id"]


def test_a_second_compilation_makes_no_kernel_again(
    found: Any, farm_compile: Callable[..., Any], cache: Path, tmp_path: Path
) -> None:
    def kept() -> set[str]:
        return {p.name for kind in ("triton", "reports") for p in (cache / "compile" / kind).iterdir()}

    before = kept()
    assert before
    file = tmp_path / "sample.yaml"
    file.write_text(MATRIX.format(op="rms_norm"))
    again = farm_compile(str(file), "--target", "sm_90,gfx950", "--no-page")
    assert again.code == 0
    assert kept() == before
    for name, row in again.rows.items():
        assert row["resources"] == found.rows[name]["resources"]
