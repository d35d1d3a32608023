"""A kit in a Python that has NumPy, torch and Triton alone: it is killed, continues, comes back, and says what an
ordinary run says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bare_python import bare_python
from farm_process import clean_environ

from farm.cli import main
from farm.store import Run, Store
from farm.store.results import COLUMNS

MATRIX = {
    "name": "kit",
    "op": "rms_norm",
    "axes": {
        "shape": [{"rows": 4, "hidden": [64, 65, 1024, 2048]}],
        "dtype": ["float32", "bfloat16"],
        "operation": ["forward", "backward"],
    },
    "providers": ["farm", "torch", "mine"],
}
WRONG = (
    "import torch\ndef norm(x, weight, eps): return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight\n"
)
#: What differs between two runs of the same cells, whatever the farm does.
OF_A_RUN = {"started", "seconds", "check_s", "compile_s", "log", "peak_memory_mib", "peak_memory_live_mib"}
OF_A_RUN |= {"device", "attempt", "index", "neighbours_busy", "revision"}


@pytest.mark.soak(seconds=60)
def test_a_kit_runs_where_only_numpy_torch_and_triton_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels of the kit are Triton's")
    python = bare_python(tmp_path / "bare")
    (tmp_path / "m.yaml").write_text(json.dumps(MATRIX))
    (tmp_path / "wrong_kernels.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    words = ["m.yaml", "--provider", "mine=wrong_kernels:norm", "--subject", "none"]
    assert main(["kit", *words, "--target", "cpu", "--out", "kit.tar.gz", "--store", "store"]) == 0
    subprocess.run(["tar", "xzf", "kit.tar.gz"], check=True)
    (there,) = tmp_path.glob("kit-cpu-*")
    environ = {**clean_environ(), "FARM_MARK": there.name}

    def run_py(*options: str) -> subprocess.Popen[str]:
        command = [str(python), "run.py", "--anonymous", "--site", "lab", *options]
        return subprocess.Popen(
            command, cwd=there, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    first = run_py()
    results = 0
    deadline = time.monotonic() + 120
    while results < 5 and time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.2)
        results = sum(p.read_text().count('"event":"result"') for p in there.glob("result/runs/*/journal.jsonl"))
    assert first.poll() is None and results >= 5, first.communicate()[0]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    (run,) = (there / "result/runs").iterdir()
    assert not (run / "run.json").exists() and not list(there.glob("result/result-*"))
    second = run_py()
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 1 and "findings in" in said and "are done already" in said, said
    assert not _of(there.name), "nothing is left running"
    (archive,) = there.glob("result/result-*.tar.gz")
    third = run_py()
    assert third.communicate(timeout=60)[0].count("this kit has been run here") == 1 and third.returncode == 1

    assert main(["merge", str(archive), "--out", "store", "--run-id", "merged"]) == 1
    assert main(["run", *words, "--backend", "cpu", "--address", "inline", "--out", "store", "--run-id", "own"]) == 1
    kit, own = (Store("store").run(name) for name in ("merged", "own"))
    assert kit.head["counts"] == own.head["counts"] and kit.head["counts"]["inaccurate"]
    for a, b in zip(_rows(kit), _rows(own), strict=True):
        assert a == b
    (told,) = kit.head["merged"]
    assert told["complete"] and told["kit"]["evidence"] == ["interpreted"]
    assert "interpreted by lab" in (Path("store/pages/run-merged.html")).read_text()
    assert str(tmp_path) not in json.dumps(kit.head["merged"])


@pytest.mark.soak(seconds=60)
def test_two_arms_of_a_kit_are_killed_in_a_round_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated device, where one pair is planted 10 % slower."""
    matrix = {
        "name": "arms",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66, 67]}], "dtype": "float32"},
        "providers": {"farm": {"mode": ["static_persistent", "multi_wave_cached"]}},
        "sim": {
            "default": {"time_us": 100, "noise": 0.004},
            "rules": [{"when": {"mode": "multi_wave_cached", "hidden": 65}, "time_us": 110}],
        },
    }
    node = {"backend": "cuda", "simulate": {"model": "NVIDIA GB200", "devices": 1}}
    (tmp_path / "m.yaml").write_text(json.dumps(matrix))
    (tmp_path / "node.yaml").write_text(json.dumps(node))
    monkeypatch.chdir(tmp_path)
    arms = ["--a", "mode=static_persistent", "--b", "mode=multi_wave_cached"]
    assert main(["kit", "m.yaml", "--target", "cuda", *arms, "--out", "kit.tar.gz", "--store", "store"]) == 0
    subprocess.run(["tar", "xzf", "kit.tar.gz"], check=True)
    (there,) = tmp_path.glob("kit-cuda-*")
    environ = {**clean_environ(), "FARM_NODE": str(tmp_path / "node.yaml")}
    command = [sys.executable, "run.py", "--site", "lab"]
    first = subprocess.Popen(command, cwd=there, env=environ, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and first.poll() is None:
        time.sleep(0.1)
        if any('"event":"round"' in p.read_text() for p in there.glob("result/runs/*/journal.jsonl")):
            break
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    second = subprocess.run(
        command, cwd=there, env=environ, stdout=subprocess.PIPE, text=True, timeout=300, check=False
    )
    assert second.returncode == 1 and "1 regressed, 3 same" in second.stdout, second.stdout
    (archive,) = there.glob("result/result-*.tar.gz")
    assert main(["merge", str(archive), "--out", "store"]) == 1
    (run,) = Store("store").runs()
    verdicts = {row["shape"]: row["verdict"] for row in run.table("pairs")}
    assert run.head["comparison"]["verdict"] == "worse"
    assert verdicts == {f"2x{h}": "regressed" if h == 65 else "same" for h in (64, 65, 66, 67)}


def _rows(run: Run) -> list[dict[str, object]]:
    """What must be equal: all but times and places."""
    kept = [name for name in COLUMNS if name not in OF_A_RUN]
    rows = [{name: row[name] for name in kept} for row in run.rows]
    for row in rows:
        row["fingerprint"] = {k: v for k, v in json.loads(str(row["fingerprint"])).items() if k != "python"}
        row["node"] = ""
    return sorted(rows, key=lambda row: str(row["cell_id"]))


def _of(mark: str) -> list[str]:
    """The processes whose environment has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"FARM_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return [words for words in found if sys.executable not in words]
