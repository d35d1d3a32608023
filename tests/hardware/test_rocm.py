"""On a real AMD GPU: what the host says of it, a small matrix, its telemetry, and a planted bad access.

Run by an operator on a node with AMD GPUs: `pytest -q -s tests/hardware/test_rocm.py` in the environment that has
torch for ROCm.  It has not been run on hardware yet; docs/rocm.md says what each test is to show.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import capture_faults
import pytest

from farm.backends import _amdsmi, _kfd, rocm
from farm.cli import main
from farm.guard.sampler import Sampler
from farm.store import Store

pytestmark = pytest.mark.rocm

if not Path("/dev/kfd").exists():
    pytest.skip("no AMD GPU on this host (there is no /dev/kfd)", allow_module_level=True)

MATRIX = """
name: hardware
op: rms_norm
axes:
  shape: [{rows: [3, 4096], hidden: [1000, 4096]}]
  dtype: [float32, float16, bfloat16]
  operation: [forward, backward]
providers: [farm, torch]
"""
SMALL = """
name: small
op: rms_norm
axes: {shape: [{rows: 4096, hidden: 4096}], dtype: [bfloat16]}
providers: [torch]
"""
FAULTS = """
import torch, triton, triton.language as tl

@triton.jit
def _wild(ptr):
    tl.store(ptr + (1 << 40), 1.0)

def wild(x, weight, eps):
    _wild[(1,)](x)
    torch.cuda.synchronize()
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "locks"))


def farm(tmp_path: Path, *words: str, matrix: str = MATRIX) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and rows of one run."""
    (tmp_path / "m.yaml").write_text(matrix)
    code = main(
        [
            "run",
            str(tmp_path / "m.yaml"),
            "--out",
            str(tmp_path / "store"),
            "--backend",
            "rocm",
            "--no-page",
            "--address",
            "inline",
            *words,
        ]
    )
    return code, Store(tmp_path / "store").run("last").rows


def test_what_the_host_says() -> None:
    found = rocm.detect()
    assert found, rocm.trouble()
    for device in found:
        said = rocm.identity(device.id, {})
        print(device, said, rocm.physical_id(device.id, {}))
        assert said is not None
        assert said.model, "the part has no name: add its PCI id to farm/backends/_amd.py"
        assert said.driver and said.stack
        assert rocm.peaks(said.model), "the part is not in PEAKS of farm/backends/rocm.py"
    assert len({rocm.physical_id(d.id, {}) for d in found}) == len(found)


def test_amds_library_and_the_driver_count_alike() -> None:
    """The order of ids is the driver's: a device that is locked and read is then the one that is opened."""
    library = _amdsmi.load()
    if library is None:
        pytest.skip(rocm.trouble())
    by_library = [(d.id, d.physical) for d in _amdsmi.listing(library)]
    by_driver = [(d.id, d.physical) for d in _kfd.listing(Path("/sys"), Path("/dev"))]
    assert by_library == by_driver


def test_every_cell_passes_with_a_time(tmp_path: Path) -> None:
    code, rows = farm(tmp_path, "--devices", "1")
    assert code == 0, [(r["cell_id"], r["status"], r["reason"]) for r in rows if r["status"] != "passed"]
    for row in rows:
        assert row["evidence"] == "executed"
        assert row["target"].startswith("rocm:AMD"), row["target"]
        assert row["timing_quality"] in ("ok", "launch_bound", "noisy"), (row["cell_id"], row["flags"])
        assert row["time_us_p20"] <= row["time_us_p50"] <= row["time_us_p80"]
    print(Counter(r["timing_method"] for r in rows))  # with -s: how many captures failed


def test_every_device_is_opened_as_itself(tmp_path: Path) -> None:
    count = len(rocm.detect())
    code, _ = farm(tmp_path, matrix=SMALL)
    assert code == 0
    ups = [e for e in Store(tmp_path / "store").run("last").journal() if e["event"] == "device_up"]
    assert len(ups) == count
    assert len({e["fingerprint"]["uuid"] for e in ups}) == count or rocm.identity("0", {}).partition  # type: ignore[union-attr]


def test_telemetry(tmp_path: Path) -> None:
    reader = rocm.telemetry("0", {}, "")
    assert reader is not None, rocm.trouble()
    watch = Sampler(reader)
    watch.begin()
    time.sleep(1.0)
    samples = watch.end()[0]
    counters, used = watch.counters(), watch.memory_used_mib()
    watch.close()
    print(len(samples), samples[-1], counters, used)  # with -s: what this driver lets us read
    last = samples[-1]
    assert last.sm_clock_mhz and 50 < last.sm_clock_mhz < 4000
    assert last.temperature_c and 5 < last.temperature_c < 120
    assert last.power_w and 5 < last.power_w < 3000
    assert any(s.throttle is not None for s in samples)
    assert used is not None and used >= 0
    code, rows = farm(tmp_path, "--devices", "1", matrix=SMALL)
    assert code == 0 and rows[0]["sm_clock_mhz"] > 50 and rows[0]["power_w"] > 5


def test_a_bad_access_costs_its_cell_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, rows = farm(tmp_path, "--devices", "1", "--provider", "rms_norm:wild=faults:wild", matrix=SMALL)
    assert code == 1
    by_provider = {r["provider"]: r for r in rows}
    print(by_provider["wild"]["reason"])  # with -s: the words of this ROCm
    assert by_provider["torch"]["status"] == "passed"
    assert (by_provider["wild"]["status"], by_provider["wild"]["fault_owner"]) == ("crashed", "kernel")
    assert "memory access" in by_provider["wild"]["reason"].lower()
    downs = [e for e in Store(tmp_path / "store").run("last").journal() if e["event"] == "device_down"]
    assert json.dumps(downs) == "[]"


def test_what_a_capture_kills_stops_or_spoils_is_timed_by_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, journal = capture_faults.run("rocm", tmp_path, monkeypatch)
    for row in sorted(rows, key=lambda r: r["cell_id"]):
        print(row["cell_id"], row["timing_method"], row["flags"])  # with -s: what this ROCm refuses, and how
    capture_faults.assert_each_is_timed_as_its_trial_says(rows, journal)


def test_a_graph_of_as_many_launches_as_we_allow_lives() -> None:
    """`MAX_GRAPH_LAUNCHES` holds here; in a process of its own, since the alternative is a dead one."""
    import subprocess
    import sys

    code = (
        "import torch; x = torch.zeros(16, device='cuda'); g = torch.cuda.CUDAGraph()\n"
        "s = torch.cuda.Stream()\n"
        "with torch.cuda.graph(g, stream=s):\n"
        f"    for _ in range({rocm.MAX_GRAPH_LAUNCHES}): x.add_(1)\n"
        "for _ in range(50): g.replay()\n"
        "torch.cuda.synchronize(); print(float(x[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) == 50.0 * rocm.MAX_GRAPH_LAUNCHES


def test_the_commands_reader_says_much_the_same() -> None:
    from farm.backends import _amd_tool

    if not shutil.which("amd-smi") or _amdsmi.load() is None:
        pytest.skip("amd-smi or its package is not here")
    device = _amd_tool.listing(_amd_tool.smi)[0]
    by_tool = _amd_tool.ToolReader(device, device, _amd_tool.smi).sample()
    by_library = rocm.telemetry("0", {}, "").sample()
    print(by_tool, by_library)
    assert by_tool.temperature_c == pytest.approx(by_library.temperature_c, abs=15)
    said = _amd_tool.identity(_amd_tool.smi, device)
    theirs = rocm.identity(device.id, {})
    assert theirs is not None
    assert (said.partition, said.power_limit_w, said.clocks) == (theirs.partition, theirs.power_limit_w, theirs.clocks)
