"""Stage 0 of two revisions of a small repository: kernels moved and commented, a callee and a constant that changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farm.cli import main

SUBJECT = """farm: 1
subject: mylib
overlay: {path: src, modules: [mylib]}
providers:
  mylib:
    ops:
      rms_norm: {call: "mylib.ops:rms_norm", modes: [auto, called, scaled]}
"""
KERNELS = """import triton
import triton.language as tl
from mylib.helpers import SCALE, mean


@triton.jit
def norm(X, W, Y, N, eps, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N, other=0.0).to(tl.float32)
    w = tl.load(W + at, mask=at < N, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / N + eps) * w
    tl.store(Y + tl.program_id(0) * N + at, y, mask=at < N)


@triton.jit
def norm_called(X, W, Y, N, eps, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N, other=0.0).to(tl.float32)
    w = tl.load(W + at, mask=at < N, other=0.0).to(tl.float32)
    tl.store(Y + tl.program_id(0) * N + at, x * tl.rsqrt(mean(x, N) + eps) * w, mask=at < N)


@triton.jit
def norm_scaled(X, W, Y, N, eps, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(X + tl.program_id(0) * N + at, mask=at < N, other=0.0).to(tl.float32)
    w = tl.load(W + at, mask=at < N, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / N + eps) * w * SCALE
    tl.store(Y + tl.program_id(0) * N + at, y, mask=at < N)
"""
HELPERS = """import triton
import triton.language as tl
SCALE = tl.constexpr(1.0)


@triton.jit
def mean(x, N):
    return tl.sum(x * x) / N
"""
OPS = """import torch
from mylib import kernels


def rms_norm(x, weight, eps, *, mode="auto"):
    y = torch.empty_like(x)
    kernel = getattr(kernels, {"auto": "norm", "called": "norm_called", "scaled": "norm_scaled"}[mode])
    kernel[(x.shape[0],)](x, weight, y, x.shape[1], eps, B=1024)
    return y
"""
MATRIX = """
name: tiny
op: rms_norm
axes: {shape: [{rows: 3, hidden: 1000}], dtype: bfloat16, weight: true}
providers: {mylib: {mode: [auto, called, scaled]}}
"""


def commit(folder: Path) -> None:
    name = ("-c", "user.name=tester", "-c", "user.email=tester@example.com")
    for words in (("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Any]:
    """The answer on the first revision against the second, for sm_90 and interpreted."""
    folder = tmp_path_factory.mktemp("stage-zero")
    texts = {"kernels": KERNELS, "helpers": HELPERS, "ops": OPS, "__init__": ""}
    (folder / "repo/src/mylib").mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"repo/src/mylib/{name}.py").write_text(text)
    (folder / "repo/farm.yaml").write_text(SUBJECT)
    (folder / "tiny.yaml").write_text(MATRIX)
    repo = folder / "repo"
    subprocess.run(["git", "init", "-q", str(repo)], check=True, timeout=60)
    commit(repo)
    moved = KERNELS.replace("@triton.jit\ndef norm(", "# Moved down by a comment.\n\n\n@triton.jit\ndef norm(")
    (repo / "src/mylib/kernels.py").write_text(moved.replace("    at = ", '    """One row a program."""\n    at = ', 1))
    helpers = HELPERS.replace("/ N", "* (1.0 / N)").replace("constexpr(1.0)", "constexpr(1.0009765625)")
    (repo / "src/mylib/helpers.py").write_text(helpers)
    commit(repo)
    words = ["ab", str(folder / "tiny.yaml"), "--stage-0", "--a", "revision=HEAD~1", "--b", "revision=HEAD"]
    words += ["--repo", str(repo), "--target", "sm_90", "--workers", "1", "--devices", "1", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE", str(cache))
        patch.chdir(folder)
        out = folder / "answer.json"
        with out.open("w") as file:
            patch.setattr("sys.stdout", file)
            code = main([*words, "--out", str(folder / "store")])
    answer: dict[str, Any] = json.loads(out.read_text())
    return {**answer, "code": code}


def test_a_moved_and_commented_kernel_is_the_same_a_changed_callee_or_constant_is_not(found: dict[str, Any]) -> None:
    states = {k["kernel"]: (k["change"], k["why"]) for k in found["kernels"]["not_same"]}
    assert "norm" not in states and found["kernels"]["counts"]["same"] == 1
    assert states["norm_called"] == ("changed", ["mean()"]) and states["norm_scaled"] == ("changed", ["SCALE"])


def test_the_machine_code_says_the_same(found: dict[str, Any]) -> None:
    target = found["targets"]["sm_90"]
    assert (target["state"], target["cells"], target["same"]) == ("touched", 3, 1)
    assert target["chain"]["triton"] and not target["unread"]


def test_bits_and_bytes_are_compared_and_every_changed_kernel_was_reached(found: dict[str, Any]) -> None:
    assert found["cpu"]["compared"] == 3 and found["cpu"]["equal_bits"] in (1, 2)  # of a mean to a factor of one ULP
    assert found["cpu"]["bytes_same"] == found["cpu"]["bytes_known"] == 3
    for kernel in found["kernels"]["not_same"]:
        assert kernel["state"] == "reached", kernel
        assert kernel["kernel"] == "mean" or any("B=1024" in name for name in kernel["cells"]), kernel
    assert found["code"] == 0 and found["verdict"] == "not worse"
