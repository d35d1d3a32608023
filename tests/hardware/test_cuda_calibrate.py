"""`farm calibrate` on a real NVIDIA GPU: a curve that can be true, and a run that is held against it."""

from __future__ import annotations

import time
from pathlib import Path

import nvidia_gpus
import pytest

from farm.backends.cuda import peaks
from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.cuda

nvidia_gpus.need()

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one calibration of the first device."""
    path = tmp_path_factory.mktemp("calibrated")
    begun = time.monotonic()
    assert main(["calibrate", "--backend", "cuda", "--address", "inline", "--devices", "1", "--out", str(path)]) == 0
    print(f"calibrated in {time.monotonic() - begun:.1f} s")
    return path


def test_the_curve_can_be_true(store: Path) -> None:
    (found,), bad = Store(store).calibrations()
    assert bad == [] and found.uuid.startswith("GPU-") and found.policy["method"] == "rotating_graph"
    speeds = {p.nbytes: p.gbps for p in found.curve}
    peak = peaks(found.target["model"])
    if peak:
        assert all(gbps < peak[0] for gbps in speeds.values()), speeds
        assert all(tflops < peak[1] for tflops in found.gemm.values()), found.gemm
        assert max(speeds.values()) > 0.75 * peak[0], speeds
    assert speeds[512 * MIB] > 1.5 * speeds[2 * MIB]
    assert found.gemm["bfloat16"] > 3 * found.gemm["float32"] > 0
    assert 0 < found.record["floors"]["rotating_graph"] < found.record["floors"]["events"] < 50
    assert len(found.record["drift"]["us"]) == 3
    powers = {MIB << i for i in range(14)}
    assert powers <= set(speeds) | {s["bytes"] for s in found.record["skipped"]}


def test_a_run_is_held_against_it(store: Path, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "name: m\nop: rms_norm\nproviders: [farm, torch]\n"
        "axes: {shape: [{rows: 8192, hidden: 4096}], dtype: bfloat16}\n"
    )
    argv = ["run", str(tmp_path / "m.yaml"), "--backend", "cuda", "--address", "inline", "--devices", "1"]
    assert main([*argv, "--out", str(store), "--run-id", "held"]) == 0
    run = Store(store).run("held")
    shares = {r["provider"]: r["share_of_roof"] for r in run.rows}
    assert all(0.2 < s < 1.05 for s in shares.values()), shares
    (device,) = run.head["backends"]["cuda"]["devices"]
    assert device["calibration"]["own"] and not device["calibration"]["stale"]
    assert 'class="curve"' in (store / "pages" / "run-held.html").read_text(encoding="utf-8")
