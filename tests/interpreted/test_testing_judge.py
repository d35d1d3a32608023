"""`farm.testing.judge`: right and wrong functions, what it takes, what it refuses, and the device's lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from farm import backends
from farm.errors import BackendError, FarmError, LockRefused, MatrixError, UsageError
from farm.guard import locks
from farm.testing import judge, judging

ROOT = Path(__file__).resolve().parents[2]


def norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + offset)).to(x.dtype)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"shape": (7, 100), "dtype": torch.bfloat16, "operation": "backward"},
        {"shape": [{"rows": 4, "hidden": [32, 33]}, (5, 16)], "dtype": ["float16", "float32"], "operation": ["full"]},
        {"dtype": {"x": "bfloat16", "weight": "float32"}, "eps": 1e-3, "offset": 1.0, "family": "normal", "seed": 3},
        {"weight": False, "operation": "no-grad-forward"},
        {"shape": (0, 64)},
    ],
)
def test_a_right_function_passes(asked: dict[str, Any]) -> None:
    judge("rms_norm", norm, device="cpu", **asked)


def unwritten(x: Any, weight: Any, eps: float) -> Any:
    y = torch.empty_like(x)
    y[:, :-1] = norm(x, weight, eps)[:, :-1]
    return y


def changes(x: Any, weight: Any, eps: float) -> Any:
    y = norm(x, weight, eps)
    x.data.mul_(2)
    return y


KEPT: list[Any] = []


def remembers(x: Any, weight: Any, eps: float) -> Any:
    KEPT.append(norm(x, weight, eps))
    return KEPT[0].clone()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unwritten, "the last column (71) of every row, never written; first [0, 71]"),
        (lambda x, w, e: norm(x, w, e) * 1.5, "scaled by 1.5"),
        (lambda x, w, e: norm(x, w, e).double(), "has dtype float64, expected float32"),
        (lambda x, w, e: norm(x, w, e)[:1], "has shape [1, 72]"),
        (lambda x, w, e: (norm(x, w, e), x), "returned 2 tensors"),
        (lambda x, w, e: None, "y is a NoneType"),
        (changes, "the function changed its inputs"),
        (remembers, "called again at the same addresses with other values"),
    ],
)
def test_a_wrong_function_is_told_where(function: Any, words: str) -> None:
    KEPT.clear()
    with pytest.raises(AssertionError) as caught:
        judge("rms_norm", function, device="cpu")
    said = str(caught.value)
    assert said.startswith("cpu/rms_norm/tested/auto/forward/fp32/40x72/llama: ") and words in said
    assert "\n" not in said


def test_every_wrong_cell_is_named_once() -> None:
    with pytest.raises(AssertionError) as caught:
        judge("rms_norm", unwritten, device="cpu", shape=[(4, 64), (4, 65)], dtype=["float32", "float16"])
    assert [line.split(": ")[0].split("/")[5] for line in str(caught.value).splitlines()].count("fp16") == 2
    with pytest.raises(AssertionError) as caught:
        judge("rms_norm", lambda x, w, e: norm(x, w, e) * 2, device="cpu", seed=list(range(12)), shape=(2, 8))
    assert str(caught.value).splitlines()[-1] == "and 2 more cells"


def test_tolerances_widen_a_gate() -> None:
    wide = [{"output": "y", "metric": m, "limit": 1e9, "reason": "a test", "date": "2026-11-23"} for m in METRICS]
    judge("rms_norm", lambda x, w, e: norm(x, w, e) * 1.01, device="cpu", tolerances=wide)


METRICS = ("max_ulp", "rel_l2", "row_l2_max", "gain_max")


def test_what_the_function_raises_is_raised() -> None:
    def broken(*_: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        judge("rms_norm", broken, device="cpu")


def test_a_parameter_that_the_function_does_not_take() -> None:
    with pytest.raises(AssertionError, match="takes no parameter offset"):
        judge("rms_norm", unwritten, device="cpu", offset=1.0)


@pytest.mark.parametrize(
    ("op", "asked", "kind", "words"),
    [
        ("rms_nrm", {}, UsageError, 'there is no op "rms_nrm"'),
        ("rms_norm", {"dtype": "bf61"}, MatrixError, 'judge: dtype is "bf61"; did you mean "bfloat16"?'),
        ("rms_norm", {"shape": (4,)}, UsageError, "shape has 1 sizes"),
        ("rms_norm", {"shape": {"rows": 4}}, MatrixError, "has no hidden"),
        ("rms_norm", {"shape": 4}, MatrixError, "shape[0] is 4"),
        ("rms_norm", {"shape": (-4, 2)}, MatrixError, "must be between"),
        ("rms_norm", {"epsilon": 1}, MatrixError, "epsilon is not an axis of rms_norm"),
        ("rms_norm", {"operation": "sideways"}, MatrixError, "available operations"),
        ("rms_norm", {"seed": object()}, UsageError, "is not a value"),
        ("rms_norm", {"device": "nowhere"}, BackendError, "device nowhere cannot be used"),
        ("rms_norm", {"device": "meta"}, BackendError, "no backend for meta"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    op: str, asked: dict[str, Any], kind: type[FarmError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        judge(op, norm, **{"device": "cpu", **asked})
    said = str(caught.value)
    assert words in said and said.startswith("farm.testing.judge: ") and "\n" not in said and caught.value.id


@triton.jit
def _doubled(X, Y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(Y + at, tl.load(X + at, mask=at < n - 1) * 2, mask=at < n - 1)


def test_a_triton_kernel_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def tile(x: Any, weight: Any, eps: float) -> Any:
        y = torch.empty_like(x)
        _doubled[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), B=64)
        return y

    with pytest.raises(AssertionError, match="1 never written"):
        judge("rms_norm", tile, device="cpu", shape=(2, 40))


def test_the_lock_of_the_device_is_held_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path))
    monkeypatch.setenv("FARM_LOCK_WAIT", "0")
    monkeypatch.setattr(backends.get("cpu"), "physical_id", lambda device, options: f"part-{device}")
    seen = []

    def looks(x: Any, weight: Any, eps: float) -> Any:
        with pytest.raises(LockRefused, match="in use by another farm"):
            locks.acquire("part-0", {}, 0)
        seen.append(1)
        return norm(x, weight, eps)

    judge("rms_norm", looks, device="cpu")
    assert seen
    held = locks.acquire("part-0", {"run": "r"}, 0)  # given back, so it can be had
    with pytest.raises(LockRefused, match="run 'r'"):
        judge("rms_norm", looks, device="cpu")
    held.release()


def test_the_lock_is_of_the_device_that_a_mask_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b, 3")
    assert [judging._masked(i) for i in (0, 1, 2)] == ["GPU-b", "3", "2"]


def test_importing_the_package_imports_nothing_of_the_farm() -> None:
    code = "import sys, farm.testing; print([m for m in sys.modules if m.startswith(('farm.', 'torch', 'numpy'))])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['farm.testing']"
