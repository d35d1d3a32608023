"""The kernel benchmarks on a real NVIDIA GPU: small tables of real numbers, and the same bits on every run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nvidia_gpus
import pytest

from benchmarks import bitwise, confirm, kernels

pytestmark = pytest.mark.cuda

nvidia_gpus.need()


def test_a_table_and_its_confirmation(tmp_path: Path) -> None:
    argv = ["--shapes", "2048x1024", "333x1000", "--dtypes", "bf16", "fp32", "--peers", "torch"]
    assert kernels.main([*argv, "--warm", "2", "--budget", "200", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "kernels.json").read_text())
    for group in report["groups"]:
        assert group["not_reached"] == [] and len(group["rows"]) == 4
        for row in group["rows"]:
            assert row["status"] == {"farm": "ok", "torch": "ok"}, row
            assert row["roof_gbps"] > 0 and row["ratio"] > 0 and row["choice"]["farm"]
    argv = [str(tmp_path / "kernels.json"), "--cells", "rms_norm/forward/bf16/*", "--rounds", "3", "--budget", "120"]
    assert confirm.main([*argv, "--out", str(tmp_path)]) in (0, 1)
    cells = json.loads((tmp_path / "confirm.json").read_text())["cells"]
    assert [len(c["ours_us"]) for c in cells] == [3, 3]


def test_two_runs_give_the_same_bits(capsys) -> None:
    code = bitwise.main(["--shapes", "333x1000", "2048x128", "70x16385", "--budget", "240"])
    assert code == 0, capsys.readouterr().out


def test_a_wrong_kernel_has_no_time(tmp_path: Path) -> None:
    """On the device as on the CPU: a provider that is 0.5 % off is told as wrong."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "import sys, time, torch\n"
        "from benchmarks import cases, child\n"
        "case = cases.Case('rms_norm', 'forward', 'bfloat16', 2048, 1024)\n"
        "plan = {'items': [cases.item(case, ['torch', 'farm'], check=True)], 'until': time.time() + 60, 'policy': {}}\n"
        "plan['policy'] = {'min_samples': 20, 'max_samples': 40, 'target_rel_width': 0.05, 'max_seconds': 0.2}\n"
        "here = child.Process(plan, lambda e: print(e.get('subject'), e.get('status')), child.open_device())\n"
        "right = torch.nn.functional.rms_norm\n"
        "here.functions['torch', 'rms_norm'] = lambda x, w, eps=1e-6: right(x, (1024,), w, eps) * 1.005\n"
        "here.run()\n"
    )
    root = str(Path(kernels.__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=root, env=_env(root)
    )
    assert "torch wrong" in done.stdout and "farm ok" in done.stdout, done.stdout + done.stderr


def _env(root: str) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": root}
