"""What a call may do to its inputs, which failing imports are whose fault, and when a run proves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farm.cli import main
from farm.store import Store

PROVIDERS = """
import torch


def right(x, weight, eps):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class TakesDy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (t.detach().requires_grad_(True) for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = right(x, weight, ctx.eps)
        dx, dw = torch.autograd.grad(y, (x, weight), dy.clone())
        dy.copy_(dx)
        return dy, dw, None


def takes_dy(x, weight, eps, in_place=False):
    return TakesDy.apply(x, weight, eps)


def takes_x(x, weight, eps, in_place=False):
    y = right(x, weight, eps)
    x.data.fill_(3)
    return y


def cannot(x, weight, eps):
    raise NotImplementedError("not on this machine")
"""
MATRIX = """
name: kept
op: rms_norm
axes:
  shape: [{rows: 8, hidden: 128}]
  dtype: [float32]
  operation: [forward, backward]
  in_place: [false, true]
providers: [torch]
"""


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, select: str) -> tuple[int, list[dict[str, Any]]]:
    (folder / "m.yaml").write_text(MATRIX)
    monkeypatch.chdir(folder)
    given = [word for name in names for word in ("--provider", f"{name.replace(':', '_')}={name}")]
    fixed = ["run", "m.yaml", "--out", "s", "--backend", "cpu", "--address", "inline", "--devices", "1", "--no-page"]
    code = main([*fixed, "--select", select, *given])
    return code, Store(folder / "s").run("last").rows


def test_only_what_the_contract_gives_up_may_be_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept_providers.py").write_text(PROVIDERS)
    code, rows = run(
        tmp_path, monkeypatch, "kept_providers:takes_dy", "kept_providers:takes_x", select="provider=!=torch"
    )
    assert code == 1
    found = {
        (r["provider"].removeprefix("kept_providers_"), r["operation"], json.loads(r["params"])["in_place"]): (
            r["status"],
            r["reason"],
        )
        for r in rows
    }
    changed = ("inaccurate", "the provider changed its inputs")
    assert found == {
        ("takes_dy", "forward", False): ("passed", ""),
        ("takes_dy", "forward", True): ("passed", ""),
        ("takes_dy", "backward", False): changed,
        ("takes_dy", "backward", True): ("passed", ""),  # in place: dx may take dy's memory
        ("takes_x", "forward", False): changed,
        ("takes_x", "forward", True): changed,
        ("takes_x", "backward", False): changed,
        ("takes_x", "backward", True): changed,
    }


BROKEN = "def f(x, weight, eps): pass"
#: (status, exit code) -> sources of providers that end so.
SOURCES = {
    ("crashed", 1): (f"from kernels.ops.rms_norm import gpuu\n{BROKEN}", f"import kernels.ops.nothing\n{BROKEN}"),
    ("unsupported", 4): (
        f"import a_peer_that_is_not_here\n{BROKEN}",
        "def f(x, weight, eps): raise NotImplementedError('never')",
    ),
}


@pytest.mark.parametrize(("status", "code"), SOURCES)
def test_a_broken_import_is_a_crash_an_absent_module_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    names = []
    for number, source in enumerate(SOURCES[status, code]):
        (tmp_path / f"broken_{number}.py").write_text(source)
        names.append(f"broken_{number}:f")
    got, rows = run(tmp_path, monkeypatch, *names, select="provider=!=torch,operation=forward,in_place=false")
    assert [r["status"] for r in rows] == [status] * len(names), [r["reason"] for r in rows]
    assert got == code
