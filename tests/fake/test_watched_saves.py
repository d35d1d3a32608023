"""`farm run --watch` as its user has it: saves, a syntax error, Ctrl-C, and never a verdict on code that was edited."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_command import FarmCommand

from farm.process import procfs
from farm.store import Store

MATRIX = {
    "name": "w",
    "op": "rms_norm",
    "axes": {"shape": [{"rows": 2, "hidden": [64, 65]}], "dtype": "float32", "operation": "no-grad-forward"},
}
SIM = {"default": {"time_us": 10}, "rules": [{"when": {"hidden": 65}, "error": 0.1}]}
KERNEL = """import torch
def f(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps) * weight.double()
    return (y * FACTOR).to(x.dtype)
"""


class Watching:
    def __init__(self, folder: Path, *words: str):
        self.folder = folder
        self.command = FarmCommand(folder, folder / "store", "r", "run", "m.yaml", "--watch", "--no-page", *words)
        self.command.words += ("--out", "store", "--devices", "1")
        self.command.start()
        self.heard = 0

    def until(self, text: str, seconds: float = 120) -> str:
        """What is printed up to `text`, since the last time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = self.command.said()[self.heard :]
            if text in said:
                at = said.index(text) + len(text)
                self.heard += at
                return said[:at]
            time.sleep(0.05)
        raise AssertionError(f"{text!r} was not printed:\n{self.command.said()}")


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[list[Watching]]:
    made: list[Watching] = []
    yield made
    for one in made:
        one.command.end()


def save(file: Path, text: str) -> None:
    """As an editor does: beside it, then in its place."""
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(text)
    beside.replace(file)


def test_saves_a_broken_matrix_and_ctrl_c(tmp_path: Path, watching: list[Watching]) -> None:
    text = json.dumps({**MATRIX, "providers": ["farm"], "sim": SIM})
    (tmp_path / "m.yaml").write_text(text)
    watching.append(one := Watching(tmp_path, "--backend", "sim"))
    assert "findings in 1 cell: exit 1" in one.until("Ctrl-C ends this")
    save(tmp_path / "m.yaml", text.replace("0.1", "0.0"))
    assert "passed: exit 0" in one.until("Ctrl-C ends this")
    save(tmp_path / "m.yaml", "{name: [")
    said = one.until("Ctrl-C ends this")
    assert said.count("farm run: m.yaml:1") == 1 and "Traceback" not in said
    save(tmp_path / "m.yaml", text)
    assert "findings in 1 cell: exit 1" in one.until("Ctrl-C ends this")
    assert one.command.process is not None
    os.kill(one.command.process.pid, signal.SIGINT)
    assert one.command.wait() == 1
    assert one.command.said().splitlines()[-1] == "ended: exit 1, of the last complete run"
    assert [r.head["verdict"] for r in Store(tmp_path / "store").runs()] == ["findings", "passed", "findings"]
    assert procfs.find(lambda words: "--waits" in words and str(tmp_path) in words) is None


@pytest.mark.long
def test_each_verdict_is_on_what_was_saved_last(tmp_path: Path, watching: list[Watching]) -> None:
    (tmp_path / "m.yaml").write_text(json.dumps({**MATRIX, "providers": ["a", "b"]}))
    (tmp_path / "mine.py").write_text(f"import factor\nFACTOR = factor.FACTOR\n{KERNEL}")
    (tmp_path / "factor.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "other.py").write_text(f"FACTOR = 1.0\n{KERNEL}")
    calls = ("--provider", "a=mine:f", "--provider", "b=other:f")
    watching.append(one := Watching(tmp_path, "--backend", "cpu", *calls))
    assert "4 passed" in one.until("Ctrl-C ends this")
    for number, factor in enumerate(("1.5", "1.0", "1.25", "1.0")):
        save(tmp_path / "factor.py", f"FACTOR = {factor}\n")  # a neighbour of the provider, of the same size
        said = one.until("Ctrl-C ends this")
        assert "saved: factor.py; running provider=a" in said
        assert ("2 passed" if factor == "1.0" else f"scaled by {factor}") in said, (number, said)
    save(tmp_path / "other.py", "def f(:\n")
    assert "[shipping-provider-not-python]" in one.until("Ctrl-C ends this")
    save(tmp_path / "other.py", f"FACTOR = 2.0\n{KERNEL}")
    assert "scaled by 2" in one.until("Ctrl-C ends this")
    assert one.command.process is not None
    os.kill(one.command.process.pid, signal.SIGINT)
    assert one.command.wait() == 1
