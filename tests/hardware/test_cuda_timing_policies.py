"""The timing policies on a real NVIDIA GPU: they agree, they count kernels, and a launch that cheats is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nvidia_gpus
import pytest

from benchmarks import timers
from farm.cli import main
from farm.store import Store

pytestmark = pytest.mark.cuda

nvidia_gpus.need()

MATRIX = """
name: policies
op: rms_norm
axes:
  shape: [{rows: 8192, hidden: 4096}]
  dtype: bfloat16
  operation: forward
providers: [farm, torch]
timing: [{method: rotating_graph}, {method: events}, {method: profiler}, {method: host}]
"""

CHEATS = """
import torch

def right(x, weight, eps):
    y = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (y * weight.float()).to(x.dtype)

kept = {}

def cached(x, weight, eps):
    key = (tuple(x.shape), x.dtype)
    if torch.cuda.is_current_stream_capturing():  # detects the timing loop
        return kept[key]
    kept[key] = right(x, weight, eps)
    return kept[key].clone()

def copied(x, weight, eps):
    key = (tuple(x.shape), x.dtype)
    if torch.cuda.is_current_stream_capturing():
        return kept[key].clone()
    kept[key] = right(x, weight, eps)
    return kept[key].clone()

side = None

def aside(x, weight, eps):
    global side
    side = side or torch.cuda.Stream()
    out = torch.empty_like(x)
    with torch.cuda.stream(side):
        for _ in range(30):  # long enough to outlive the host's way back
            out.copy_(right(x, weight, eps))
    return out
"""


def rows_of(tmp_path: Path, matrix: str, *words: str) -> list[dict[str, Any]]:
    (tmp_path / "m.yaml").write_text(matrix)
    main(
        [
            "run",
            str(tmp_path / "m.yaml"),
            "--out",
            str(tmp_path / "store"),
            "--backend",
            "cuda",
            "--no-page",
            "--address",
            "inline",
            *words,
        ]
    )
    return Store(tmp_path / "store").run("last").rows


def test_the_policies_agree_and_say_what_was_launched(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, MATRIX)
    assert {(r["status"], r["reason"]) for r in rows} == {("passed", "")}
    found = {(r["provider"], r["timing_method"]): r for r in rows}
    for provider in ("farm", "torch"):
        graph, kernels = found[provider, "rotating_graph"], found[provider, "profiler"]
        launched = kernels["kernels_per_call"]
        assert launched >= 1 and graph["kernels_per_call"] == launched
        allowed = max(0.05 * kernels["time_us_p50"], 2.0 * launched)
        assert abs(graph["time_us_p50"] - kernels["time_us_p50"]) <= allowed, (provider, graph["time_us_p50"])
        assert kernels["time_us_p50"] < found[provider, "events"]["time_us_p50"]
        assert kernels["timing_quality"] == "ok" and kernels["timing_cold"] == 1
        assert not json.loads(graph["flags"]), graph["flags"]


@pytest.mark.parametrize("name", ["cached", "copied", "aside"])
def test_launches_that_do_not_do_the_work_are_never_a_speed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cheats.py").write_text(CHEATS)
    monkeypatch.syspath_prepend(str(tmp_path))
    matrix = MATRIX.replace("farm, torch", "torch").partition("timing:")[0]
    rows = rows_of(tmp_path, matrix, "--provider", f"{name}=cheats:{name}")
    (row,) = [r for r in rows if r["provider"] == name]
    assert (row["status"], row["timing_quality"]) != ("passed", "ok"), row["flags"]
    assert row["status"] == "inaccurate" or row["timing_quality"] == "impossible", (row["status"], row["flags"])


def test_a_table_of_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "BF16", timers.BF16[:4])
    monkeypatch.setattr(timers, "FP32", timers.FP32[:1])
    argv = ["--ops", "rms_norm", "--providers", "farm", "torch", "--warm", "2", "--budget", "200"]
    assert timers.main([*argv, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "timers.json").read_text())
    assert len(report["cells"]) == 20 and not any(c["problems"] for c in report["cells"])
    assert all(c["kernels"] for c in report["cells"])


def test_medians_of_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "REPEATED", timers.REPEATED[:3])
    argv = ["--repeat", "2", "--providers", "farm", "torch", "--warm", "0", "--budget", "120", "--out", str(tmp_path)]
    assert timers.main(argv) == 0
    cells = json.loads((tmp_path / "repeat.json").read_text())["cells"]
    assert [len(c["medians"]) for c in cells] == [2] * 6
