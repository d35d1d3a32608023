"""On a real NVIDIA GPU: the whole way of the data, faults of the code under test, and the timing policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nvidia_gpus
import pytest

from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.cuda


nvidia_gpus.need()

MATRIX = """
name: hardware
op: rms_norm
axes:
  shape: [{rows: [3, 4096], hidden: [1000, 4096]}]
  dtype: [float32, float16, bfloat16]
  operation: [forward, backward]
providers: [farm, torch]
"""

FAULTS = """
import os, time, torch
import triton, triton.language as tl

def right(x, weight, eps, casting="llama"):
    y = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (y * weight.float()).to(x.dtype)

def no_eps(x, weight, eps):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True)) * weight.float()).to(x.dtype)

def scaled(x, weight, eps):
    return (right(x, weight, eps).float() * 1.005).to(x.dtype)

def last_column(x, weight, eps):
    xf = x.float()
    ms = xf[..., :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
    y = (xf * torch.rsqrt(ms + eps) * weight.float()).to(x.dtype)
    return torch.cat([y[..., :-1], torch.zeros_like(y[..., -1:])], -1)

def unwritten(x, weight, eps):
    out = torch.empty_like(x)
    out.view(-1)[:-1] = right(x, weight, eps).view(-1)[:-1]
    return out

@triton.jit
def _wild(ptr):
    tl.store(ptr + (1 << 40), 1.0)

def illegal(x, weight, eps):
    _wild[(1,)](x)
    torch.cuda.synchronize()
    return right(x, weight, eps)

@triton.jit
def _spin(ptr):
    while tl.load(ptr, volatile=True) == 0.0:
        pass

def hangs(x, weight, eps):
    _spin[(1,)](torch.zeros(1, device=x.device))
    return right(x, weight, eps)

def synchronizes(x, weight, eps):
    torch.cuda.synchronize()
    return right(x, weight, eps)

class Own(torch.autograd.Function):
    fault = ""

    @staticmethod
    def forward(ctx, x, weight, eps, fault):
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.fault = eps, fault
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (t.detach().requires_grad_(True) for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = right(x, weight, ctx.eps)
        dx, dw = torch.autograd.grad(y, (x, weight), dy.clone())
        if ctx.fault == "dw":
            dw = dw * 1.005
        if ctx.fault == "dy":
            dy.zero_()
        if ctx.fault == "dx":
            out = torch.empty_like(dx)
            out.view(-1)[:-1] = dx.view(-1)[:-1]
            dx = out
        return dx, dw, None, None

def own(x, weight, eps):
    return Own.apply(x, weight, eps, "")

def dw_scaled(x, weight, eps):
    return Own.apply(x, weight, eps, "dw")

def dy_clobbered(x, weight, eps):
    return Own.apply(x, weight, eps, "dy")

def dx_unwritten(x, weight, eps):
    return Own.apply(x, weight, eps, "dx")

def exhausts(x, weight, eps):
    torch.empty(1 << 42, device=x.device)
"""


def farm(tmp_path: Path, *words: str, matrix: str = MATRIX) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and rows of one run in this process's directory."""
    (tmp_path / "m.yaml").write_text(matrix)
    code = main(
        ["run", str(tmp_path / "m.yaml"), "--out", str(tmp_path / "store"), "--backend", "cuda", "--no-page", *words]
    )
    return code, Store(tmp_path / "store").run("last").rows


def test_every_cell_passes_with_a_time_and_where_it_ran(tmp_path: Path) -> None:
    code, rows = farm(tmp_path, "--address", "inline")
    assert code == 0, [(r["cell_id"], r["status"], r["reason"]) for r in rows if r["status"] != "passed"]
    assert len(rows) == 48
    for row in rows:
        assert row["evidence"] == "executed"
        assert row["target"].startswith("cuda:NVIDIA")
        assert row["timing_method"] == "rotating_graph", row["flags"]
        assert row["timing_quality"] in ("ok", "launch_bound", "noisy")
        assert row["time_us_p20"] <= row["time_us_p50"] <= row["time_us_p80"]


def test_events_and_host_time_side_by_side(tmp_path: Path) -> None:
    matrix = MATRIX + "timing: [{method: rotating_graph}, {method: events}, {method: host}]\n"
    code, rows = farm(tmp_path, "--address", "inline", "--select", "rows=4096,hidden=4096,dtype=bf16", matrix=matrix)
    assert code == 0
    times = {(r["provider"], r["operation"], r["timing_method"]): r["time_us_p50"] for r in rows}
    for provider in ("farm", "torch"):
        assert times[provider, "forward", "rotating_graph"] < times[provider, "forward", "host"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """One run with every fault as a provider; rows by provider."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "gpu_faults.py").write_text(FAULTS)
    names = ["right", "no_eps", "scaled", "last_column", "unwritten", "illegal", "hangs", "synchronizes", "exhausts"]
    providers = [w for n in names for w in ("--provider", f"{n}=gpu_faults:{n}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        code, rows = farm(
            folder,
            "--address",
            "inline",
            "--select",
            "operation=forward,rows=4096,hidden=1000",
            "--set",
            "deadlines.check=8",
            "--set",
            "deadlines.compile=8",
            *providers,
        )
    assert code == 1
    assert len(rows) == 3 * (len(names) + 2)
    out: dict[str, list[dict[str, Any]]] = {}
    folder_of_run = Store(folder / "store").run("last").dir
    for row in rows:
        text = (folder_of_run / row["log"]).read_text() if row["log"] else ""
        out.setdefault(row["provider"], []).append({**row, "log_text": text})
    return out


@pytest.mark.parametrize(
    ("provider", "status"),
    [
        ("farm", "passed"),
        ("torch", "passed"),
        ("right", "passed"),
        ("synchronizes", "passed"),
        ("no_eps", "inaccurate"),
        ("scaled", "inaccurate"),
        ("last_column", "inaccurate"),
        ("unwritten", "inaccurate"),
        ("illegal", "crashed"),
        ("hangs", "timed_out"),
        ("exhausts", "out_of_memory"),
    ],
)
def test_each_fault_is_named_and_no_other_cell_suffers(faulty: Any, provider: str, status: str) -> None:
    assert {r["status"] for r in faulty[provider]} == {status}, [(r["cell_id"], r["reason"]) for r in faulty[provider]]


def test_a_failed_cell_has_its_log(faulty: Any) -> None:
    for provider in ("illegal", "hangs"):
        for row in faulty[provider]:
            assert row["log"].startswith("logs/"), row["cell_id"]
    assert all("illegal memory access" in r["log_text"] for r in faulty["illegal"])


def test_a_call_that_cannot_be_captured_is_timed_by_events_and_says_so(faulty: Any) -> None:
    for row in faulty["synchronizes"]:
        assert row["timing_method"] == "events"
        assert "capture failed" in row["flags"]


def test_backward_faults_are_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu_faults.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["own", "dw_scaled", "dy_clobbered", "dx_unwritten"]
    providers = [w for n in names for w in ("--provider", f"{n}=gpu_faults:{n}")]
    code, rows = farm(
        tmp_path, "--address", "inline", "--select", "operation=backward,rows=4096,hidden=1000", *providers
    )
    assert code == 1
    found = {(r["provider"], r["dtype"]): (r["status"], r["reason"]) for r in rows}
    for (provider, dtype), (status, reason) in found.items():
        assert status == ("passed" if provider in ("own", "farm", "torch") else "inaccurate"), (provider, dtype, reason)
        if provider == "dy_clobbered":
            assert reason == "the provider changed its inputs"
    assert len(found) == 18


def test_in_place_is_right_and_timed_with_what_it_overwrites_restored(tmp_path: Path) -> None:
    matrix = MATRIX.replace("providers: [farm, torch]", "  in_place: true\nproviders: [farm]")
    code, rows = farm(tmp_path, "--address", "inline", "--select", "operation=backward,dtype=bf16", matrix=matrix)
    assert code == 0, [(r["cell_id"], r["reason"]) for r in rows]
    assert all(r["time_us_p50"] > 0 for r in rows), [(r["cell_id"], r["timing_quality"], r["flags"]) for r in rows]


@pytest.mark.skipif(nvidia_gpus.count() < 2, reason="needs two GPUs on this host")
def test_two_gpus_are_two_actors_on_two_uuids(tmp_path: Path) -> None:
    code, rows = farm(tmp_path, "--address", "local", "--select", "dtype=bf16")
    assert code == 0
    assert len({r["device"] for r in rows}) == 2
