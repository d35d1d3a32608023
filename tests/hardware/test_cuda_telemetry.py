"""On a real NVIDIA GPU: what it says of itself while cells are timed, and that it is one farm's at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import nvidia_gpus
import pytest

from farm.backends import _nvml, cuda
from farm.cli import main
from farm.guard import locks, telemetry
from farm.guard.sampler import Sampler
from farm.store import Store

pytestmark = pytest.mark.cuda


def _uuids() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    query = [tool, "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.split()


UUIDS = _uuids()
nvidia_gpus.need()

MATRIX = """
name: telemetry
op: rms_norm
axes: {shape: [{rows: [4096, 8192], hidden: 4096}], dtype: [bfloat16]}
providers: [farm, torch]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "locks"))


def test_the_driver_names_the_device_and_says_what_it_does() -> None:
    assert cuda.physical_id("0", {}) == UUIDS[0]
    assert cuda.physical_id(UUIDS[-1][:12], {}).startswith(UUIDS[-1][:12])
    reader = cuda.telemetry("0", {}, "")
    assert isinstance(reader, _nvml.NvmlReader)
    sample, counters = reader.sample(), reader.counters()
    print(sample, counters, reader.memory_used_mib())  # with -s: what this driver lets us read
    assert sample.sm_clock_mhz and 100 < sample.sm_clock_mhz < 5000
    assert sample.mem_clock_mhz and sample.mem_clock_mhz > 100
    assert sample.temperature_c and 5 < sample.temperature_c < 120
    assert sample.power_w and 5 < sample.power_w < 3000
    assert sample.throttle is not None
    assert (reader.memory_used_mib() or -1) >= 0
    begun, cpu = time.monotonic(), time.thread_time()
    for _ in range(100):
        reader.sample()
    took, core = time.monotonic() - begun, time.thread_time() - cpu
    begun = time.monotonic()
    for _ in range(20):
        reader.counters()
    counting = time.monotonic() - begun
    print(f"a sample: {took * 10:.3f} ms, of a core {core * 10:.3f} ms; counters: {counting * 50:.3f} ms")
    reader.close()


def test_nvidia_smi_says_much_the_same() -> None:
    by_tool = _nvml.SmiReader("0", cuda.smi).sample()
    watch = Sampler(cuda.telemetry("0", {}, ""))
    watch.begin()
    by_library = watch.end()[0][-1]
    watch.close()
    assert by_tool.sm_clock_mhz and by_library.sm_clock_mhz
    assert by_tool.mem_clock_mhz and by_library.mem_clock_mhz
    assert by_tool.temperature_c == pytest.approx(by_library.temperature_c, abs=15)
    assert by_tool.throttle is not None


def test_a_run_has_telemetry_of_every_timed_cell(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    command = [
        "run",
        str(tmp_path / "m.yaml"),
        "--backend",
        "cuda",
        "--address",
        "inline",
        "--devices",
        "1",
        "--out",
        str(tmp_path / "store"),
        "--no-page",
    ]
    assert main(command) == 0
    run = Store(tmp_path / "store").run("last")
    assert len(run.rows) == 4
    for row in run.rows:
        assert row["timing_quality"] != "none"
        assert row["sm_clock_mhz"] > 100
        assert row["temperature_c"] > 5
        assert row["power_w"] > 5
    for event in run.journal():
        if event["event"] == "measured":
            said = event["telemetry"]
            print({k: v for k, v in said.items() if k != "raw"})
            assert said["samples"] >= 2
            assert said["throttle"] is not None
            assert len(said["raw"][0]) == len(telemetry.KEPT)
            assert said["foreign"] in (None, [])  # this test wants the device for itself


def test_a_second_farm_is_told_who_has_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOCK_WAIT", "0.5")
    (tmp_path / "m.yaml").write_text(MATRIX)
    ids = [d.id for d in cuda.detect()]
    lock = locks.acquire(cuda.physical_id(ids[0], {}), {"run": "mine"}, 0)
    command = [
        "run",
        str(tmp_path / "m.yaml"),
        "--backend",
        "cuda",
        "--address",
        "inline",
        "--devices",
        "1",
        "--out",
        str(tmp_path / "store"),
        "--no-page",
    ]
    assert main(command) == 3
    lock.release()
    run = Store(tmp_path / "store").run("last")
    (down,) = [e for e in run.journal() if e["event"] == "device_down"]
    assert "run 'mine'" in down["reason"]
    assert {r["status"] for r in run.rows} == {"lost"}


def test_memory_is_back_after_a_child_that_died_with_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greedy.py").write_text(
        "import os, torch\nkept = []\n"
        "def dies(x, weight, eps):\n"
        "    kept.append(torch.ones(4 << 30, dtype=torch.uint8, device=x.device))\n"
        "    torch.cuda.synchronize()\n    os._exit(7)\n"
    )
    (tmp_path / "m.yaml").write_text(MATRIX)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "m.yaml",
        "--backend",
        "cuda",
        "--address",
        "inline",
        "--devices",
        "1",
        "--provider",
        "rms_norm:dies=greedy:dies",
        "--out",
        "store",
        "--no-page",
    ]
    assert main(command) == 1
    run = Store(tmp_path / "store").run("last")
    assert json.dumps([e for e in run.journal() if e["event"] == "device_down"]) == "[]"
    assert not [r["flags"] for r in run.rows if "memory is in use than before" in r["flags"]]
    statuses = {(r["provider"], r["status"]) for r in run.rows}
    assert statuses == {("farm", "passed"), ("torch", "passed"), ("dies", "crashed")}
