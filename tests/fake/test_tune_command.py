"""farm tune on fakes: what the farm refuses never wins, a killed search goes on, tables merge."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from farm_command import FarmCommand
from farm_process import marked, wait_for

from farm.cli.main import main
from farm.cli.tune import KernelSpace
from farm.store import Store
from farm.tuning.search import Task
from kernels.ops.rms_norm.gpu import carried

BEST = "forward_rows+load=evict_last+num_warps=8+rows=4"
#: Each far faster than anything right.
PLANTS: dict[str, dict[str, Any]] = {
    "forward_rows+num_warps=4+rows=2": {"time_us": 1, "unwritten": 132},  # a grid that does not cover
    "forward_chunks+block=1024+num_warps=2": {"time_us": 1, "error": 0.05},  # reads less
    "forward_rows+load=evict_last+num_warps=8": {"time_us": 0.0001},  # faster than the roof
    "forward_rows+load=evict_last+num_warps=2+tail=False": {"time_us": 2, "outside_us": 100},  # a clock that lies
}
SIM = {
    "default": {"time_us": 10, "noise": 0.001},
    "rules": [
        {"when": {"mode": BEST}, "time_us": 8},
        {"when": {"mode": f"{BEST}+weight=last"}, "time_us": 7},
        *({"when": {"mode": mode}, **script} for mode, script in PLANTS.items()),
    ],
}
WORDS = ["tune", "rms_norm", "--shapes", "64x1024", "--operation", "forward", "--backend", "sim", "--address", "inline"]
WORDS += ["--devices", "1"]


def test_a_killed_search_goes_on_and_what_is_refused_does_not_win(tmp_path: Path) -> None:
    sim = json.dumps({**SIM, "default": {**SIM["default"], "wall_s": 0.02}})
    words = [*WORDS, "--set", f"sim={sim}", "--out", "store", "--to", "t.json"]
    killed = FarmCommand(tmp_path, tmp_path / "store", "", *words).start()
    try:
        wait_for("the second round", lambda: sorted((tmp_path / "store/runs").glob("*-tune-*-2/journal.jsonl")))
        for pid in marked(killed.mark):
            os.kill(pid, signal.SIGKILL)
    finally:
        killed.end()
    before = {r.id for r in Store(tmp_path / "store").runs()}
    assert not (tmp_path / "t.json").exists()
    again = FarmCommand(tmp_path, tmp_path / "store", "", *words).start()
    try:
        assert again.wait(60) == 0, again.said()
    finally:
        again.end()
    runs = Store(tmp_path / "store").runs()
    assert before < {r.id for r in runs} and all(r.complete for r in runs)
    (entry,) = carried.read(tmp_path / "t.json")
    assert entry["launch"] == f"{BEST}+weight=last" and entry["time_us_p50"] == pytest.approx(7, rel=0.01)
    assert entry["auto_us_p50"] == pytest.approx(10, rel=0.01) and entry["refused"] == len(PLANTS)
    assert (entry["target"], entry["device"], entry["evidence"]) == ("cuda:90", "sim:sim-1", "simulated")
    assert entry["run"] == runs[-1].id and entry["samples"] >= 20 and entry["date"] and entry["revision"]


FORK = """
import torch
from kernels import rms_norm

COVERS_LESS, READS_LESS, STALE = {modes!r}
kept = []


def fork(x, weight, eps=1e-6, *, mode="auto", **kw):
    if mode == COVERS_LESS:  # rows that no program writes
        y = torch.empty_like(x)
        y[:2] = rms_norm(x[:2], weight, eps, **kw)
        return y
    if mode == READS_LESS:
        half = x[:, : x.shape[1] // 2].float()
        return (x * torch.rsqrt((half * half).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
    if mode == STALE:
        kept.append(kept[0] if kept else rms_norm(x, weight, eps, **kw))
        return kept[-1]
    return rms_norm(x, weight, eps, mode=mode, **kw)
"""


def test_planted_launches_of_a_real_child_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    first = KernelSpace("interpreter", 4).first(Task("rms_norm", "no-grad-forward", "bfloat16", 8, 128))
    modes = list(first[:3])
    (tmp_path / "forked.py").write_text(FORK.format(modes=modes))
    monkeypatch.chdir(tmp_path)
    words = [
        "tune",
        "rms_norm",
        "--shapes",
        "8x128",
        "--operation",
        "no-grad-forward",
        "--width",
        "2",
        "--devices",
        "1",
    ]
    words += ["--backend", "cpu", "--address", "inline", "--call", "fork=forked:fork"]
    assert main(words) == 4  # nothing is timed there
    said = capsys.readouterr().out
    assert "1 of 4 launches right, none timed" in said
    refused = {line.split(": ")[1] for line in said.splitlines() if line.startswith("  refused")}
    assert refused == set(modes) and not list(tmp_path.glob("farm-results/tunes/*.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name an op"),
        (["rms_norm"], "say what to tune"),
        (["matmul", "--shapes", "8x8"], "there is no search for matmul"),
        (["rms_norm", "--shapes", "8"], "is not like 4096x4096"),
        (["rms_norm", "--shapes", "8x8", "--operation", "full"], "there is no 'full'"),
        (["rms_norm", "--shapes", "8x8", "--dtype", "int8"], "take no 'int8'"),
        (["rms_norm", "--shapes", "8x8", "--limit-minutes", "nan"], "--limit-minutes nan"),
        (["rms_norm", "--shapes", "8x8", "--to", "bad.json"], "is no JSON"),
        (["rms_norm", "--shapes", "8x8", "--backend", "ascend"], "one kind of GPU"),
        (["rms_norm", "--sweep-of", "nothing"], "nothing"),
        (["--merge", "bad.json"], "and --to the file"),
        (["--merge", "bad.json", "--to", "c.json"], "is no JSON"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    assert main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and Path("bad.json").read_text() == "{"


def test_tables_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    entry = {"op": "rms_norm", "operation": "forward", "dtype": "bfloat16", "rows": 8, "hidden": 512, "cores": 4}
    entry |= {"target": "cuda:89", "launch": "forward_rows+num_warps=2", "date": "2026-11-01"}
    newer = {**entry, "launch": "forward_rows+num_warps=4", "date": "2026-11-02"}
    for name, entries in (("a.json", [newer]), ("b.json", [entry, {**entry, "rows": 9}])):
        Path(name).write_text(json.dumps({"schema": 1, "kind": "farm-kernels-table", "entries": entries}))
    assert main(["tune", "--merge", "a.json", "b.json", "--to", "c.json"]) == 0
    assert "2 entries of 2 tables, 1 replaced by newer ones: c.json" in capsys.readouterr().out
    assert carried.read("c.json") == [newer, {**entry, "rows": 9}]
