"""On a real Ascend NPU: who it is, the whole way of the data, faults of the code under test, the timing policies.

Nothing here has run yet: no NPU was at hand when it was written (docs/ascend.md).  What fails first on a node is as
likely a wrong expectation as a fault of the farm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.backends import ascend
from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.ascend

DEVICES = ascend.detect()
if not DEVICES:
    pytest.skip(
        "no Ascend NPU on this host (npu-smi lists none, and there is no /dev/davinci0)", allow_module_level=True
    )

MATRIX = """
name: hardware
op: rms_norm
axes:
  shape: [{rows: [3, 2048], hidden: [1000, 2048]}]
  dtype: [float32, bfloat16]
  operation: [forward, backward]
providers: [farm, torch, torch_npu]
"""

FAULTS = """
import torch
import triton, triton.language as tl

def right(x, weight, eps):
    y = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (y * weight.float()).to(x.dtype)

def scaled(x, weight, eps):
    return (right(x, weight, eps).float() * 1.005).to(x.dtype)

def synchronizes(x, weight, eps):
    torch.npu.synchronize()
    return right(x, weight, eps)

@triton.jit
def _wild(ptr):
    tl.store(ptr + (1 << 40), 1.0)

def illegal(x, weight, eps):
    _wild[(1,)](x)
    torch.npu.synchronize()
    return right(x, weight, eps)

@triton.jit
def _spin(ptr):
    while tl.load(ptr) == 0.0:
        pass

def hangs(x, weight, eps):
    _spin[(1,)](torch.zeros(1, device=x.device))
    return right(x, weight, eps)

@triton.jit
def _wide(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(out + at, a * tl.sum(a, 0))

def overflows(x, weight, eps):
    big = torch.ones(1 << 18, device=x.device)
    _wide[(1,)](big, torch.empty_like(big), 1 << 18)
    return right(x, weight, eps)

def crowded(x, weight, eps):
    small = torch.ones(16, device=x.device)
    _wide[(1 << 17,)](small, torch.empty_like(small), 16)
    return right(x, weight, eps)
"""


def farm(tmp_path: Path, *words: str, matrix: str = MATRIX) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and rows of one run in this process's directory, on the first device."""
    (tmp_path / "m.yaml").write_text(matrix)
    code = main(
        [
            "run",
            str(tmp_path / "m.yaml"),
            "--out",
            str(tmp_path / "store"),
            "--backend",
            "ascend",
            "--address",
            "inline",
            "--devices",
            "1",
            "--no-page",
            *words,
        ]
    )
    return code, Store(tmp_path / "store").run("last").rows


def test_who_a_device_is() -> None:
    found = ascend.identity(DEVICES[0].id, {})
    assert found is not None and found.model == DEVICES[0].name and found.model.startswith("Ascend")
    assert found.driver and found.uuid and found.stack
    assert ascend.physical_id(DEVICES[0].id, {}).startswith("npu-")
    assert len({ascend.physical_id(d.id, {}) for d in DEVICES}) == len(DEVICES)
    assert ascend.unfit(DEVICES[0].id) == ""


def test_what_a_device_says_of_itself() -> None:
    reader = ascend.telemetry(DEVICES[0].id, {}, "")
    sample, counters = reader.sample(), reader.counters()
    assert sample.sm_clock_mhz and sample.temperature_c and sample.power_w
    assert counters.ecc_uncorrected is not None and counters.processes is not None
    used = reader.memory_used_mib()
    assert used is not None and used > 0


def test_every_cell_of_ours_passes_with_a_time_and_where_it_ran(tmp_path: Path) -> None:
    code, rows = farm(tmp_path)
    ours = [r for r in rows if r["provider"] == "farm"]
    assert code == 0, [(r["cell_id"], r["status"], r["reason"]) for r in ours if r["status"] != "passed"]
    for row in ours:
        assert row["evidence"] == "executed" and row["target"].startswith(f"ascend:{DEVICES[0].name}")
        assert row["timing_method"] in ("rotating_graph", "mspti", "events"), row["flags"]
        assert row["timing_quality"] in ("ok", "launch_bound", "noisy")
    assert {r["status"] for r in rows if r["provider"] != "farm"} <= {"passed", "unsupported"}


def test_the_policies_side_by_side(tmp_path: Path) -> None:
    matrix = MATRIX + "timing: [{method: rotating_graph}, {method: mspti}, {method: events}]\n"
    only = "provider=farm,operation=forward,rows=2048,hidden=2048,dtype=bf16"
    code, rows = farm(tmp_path, "--select", only, matrix=matrix)
    assert code == 0, [(r["cell_id"], r["reason"]) for r in rows]
    times = {r["timing_method"]: r["time_us_p50"] for r in rows}
    assert times["mspti"] <= times["events"]  # a kernel's own time has no launch in it
    assert times["rotating_graph"] <= times["events"] * 1.05


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One run with every fault as a provider; a row each."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "npu_faults.py").write_text(FAULTS)
    names = ["right", "scaled", "synchronizes", "illegal", "hangs", "overflows", "crowded"]
    providers = [w for n in names for w in ("--provider", f"{n}=npu_faults:{n}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        code, rows = farm(folder, "--select", "operation=forward,rows=2048,hidden=2048,dtype=float32", *providers)
    assert code == 1
    return {r["provider"]: r for r in rows}


@pytest.mark.parametrize(
    ("provider", "status"),
    [
        ("farm", "passed"),
        ("right", "passed"),
        ("synchronizes", "passed"),
        ("scaled", "inaccurate"),
        ("illegal", "crashed"),
        ("hangs", "timed_out"),
        ("overflows", "compile_error"),
        ("crowded", "crashed"),
    ],
)
def test_each_fault_is_named_and_no_other_cell_suffers(faulty: Any, provider: str, status: str) -> None:
    row = faulty[provider]
    assert (row["status"], row["fault_owner"]) == (status, "kernel" if status != "passed" else row["fault_owner"]), row


def test_what_no_graph_captures_is_timed_otherwise_and_says_so(faulty: Any) -> None:
    row = faulty["synchronizes"]
    assert row["timing_method"] in ("mspti", "events") and "timed by" in row["flags"]
