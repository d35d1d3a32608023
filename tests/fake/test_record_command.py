"""farm record watches real scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from farm.cli.main import main

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys, torch, torch.nn.functional as F, mine, kernels
x = torch.randn(2, 4, 8, requires_grad=True)
for _ in range(3):
    F.rms_norm(x, (8,), torch.ones(8), 1e-5).sum().backward()
F.layer_norm(x, (8,), torch.ones(8), torch.zeros(8))
x.softmax(-1); x @ torch.ones(8, 3)
F.cross_entropy(torch.randn(5, 7, requires_grad=True), torch.arange(5)).backward()
q = torch.randn(1, 2, 4, 8)
F.scaled_dot_product_attention(q, q, q, is_causal=True)
mine.Norm(8)(x)
try:
    kernels.rms_norm(torch.randn(4, 16), torch.ones(16))
except Exception:
    pass  # no device: that it was called counts
sys.exit(int(sys.argv[1]))
"""
MINE = """
import torch
class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.variance_epsilon, self.eps = torch.nn.Parameter(torch.ones(n)), 0.5, 0.25
    def forward(self, hidden):
        return torch.nn.functional.rms_norm(hidden, (8,), self.weight, self.eps)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(tmp_path))))
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mine.py").write_text(MINE)
    # a sitecustomize of the user's own still runs
    (tmp_path / "sitecustomize.py").write_text("import pathlib; pathlib.Path('customized').touch()\n")
    return tmp_path


def test_a_script_is_watched(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    asked_for = ["--function", "mine:Norm.forward=rms_norm", "--function", "absent.one:f=softmax"]
    assert main(["record", *asked_for, "--out", "r.yaml", "--", "script.py", "0"]) == 0
    out = capfd.readouterr().out
    assert "the command ended with exit code 0" in out and "no process imported absent.one" in out
    assert (place / "customized").exists()
    found = {}
    for document in yaml.safe_load_all((place / "r.yaml").read_text()):
        (shape,) = document["axes"].pop("shape")
        found[document["op"], shape["tag"], document["axes"].get("eps", [None])[0]] = document["axes"]["operation"]
    assert found == {
        ("rms_norm", "calls-3", 1e-5): ["forward", "backward"],
        ("rms_norm", "calls-1", 0.25): ["forward"],  # mine.Norm: what it calls inside is not counted again
        ("rms_norm", "calls-1", None): ["no-grad-forward"],  # kernels.rms_norm
        ("layer_norm", "calls-1", None): ["forward"],
        ("softmax", "calls-1", None): ["forward"],
        ("matmul", "calls-1", None): ["forward"],
        ("cross_entropy", "calls-1", None): ["forward", "backward"],
        ("attention", "calls-1", None): ["no-grad-forward"],
    }
    assert main(["plan", "r.yaml"]) == 0
    assert main(["record", "--out", "mine.py", "--", "script.py"]) == 2  # it is no recorded matrix


def test_a_command_that_records_nothing_or_does_not_end(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "idle.py").write_text("import time; time.sleep(60)\n")
    assert main(["record", "--seconds", "1", "--", sys.executable, "idle.py"]) == 3
    assert main(["record", "--", "true"]) == 4
    assert main(["record", "--", sys.executable, "-c", "import sys; sys.exit(0)"]) == 4
    out = capfd.readouterr().out
    assert "was stopped at its deadline" in out and "no Python process was watched" in out
    assert "no process imported torch or a module of --function" in out
    assert main(["record"]) == 2 and main(["record", "--", "no-such-program"]) == 2
    assert not (place / "recorded.yaml").exists()
