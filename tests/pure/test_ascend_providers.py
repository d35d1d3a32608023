"""The peer torch_npu: its fused norms are called as documented, and what they cannot do is said."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.providers import torch_npu as provider


def _rms(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


def _add_rms(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    total = x1 + x2
    return (*_rms(total, gamma, epsilon), total)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = SimpleNamespace(__version__="2.6.0", npu_rms_norm=_rms, npu_add_rms_norm=_add_rms)
    monkeypatch.setitem(sys.modules, "torch_npu", fake)
    return fake


def test_both_norms(module: Any) -> None:
    x, residual, weight = torch.randn(4, 16), torch.randn(4, 16), torch.randn(16)
    want = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    assert torch.allclose(provider.load("rms_norm")(x, weight, 1e-5), want, atol=1e-6)
    y, total = provider.load("fused_add_rms_norm")(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.allclose(y, torch.nn.functional.rms_norm(x + residual, (16,), weight, 1e-5), atol=1e-6)


def test_what_they_cannot_do(module: Any) -> None:
    x, weight = torch.randn(2, 8), torch.randn(8)
    for op, inputs in (("rms_norm", (x,)), ("fused_add_rms_norm", (x, x))):
        function = provider.load(op)
        with pytest.raises(NotImplementedError, match="no weight offset"):
            function(*inputs, weight, offset=1.0)
        with pytest.raises(NotImplementedError, match="always have a weight"):
            function(*inputs, None)
        with pytest.raises(
            NotImplementedError, match=r"weight of the same dtype as x, but the weight is torch\.bfloat16"
        ):
            function(*inputs, weight.bfloat16())


def test_where_torch_npu_is_not_or_lacks_them(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    with pytest.raises(NotImplementedError, match="has no matmul"):
        provider.load("matmul")
    del module.npu_add_rms_norm
    with pytest.raises(NotImplementedError, match=r"torch_npu 2\.6\.0 has no npu_add_rms_norm"):
        provider.load("fused_add_rms_norm")
    monkeypatch.delitem(sys.modules, "torch_npu")
    with pytest.raises(ImportError, match="only backend ascend loads it"):
        provider.load("rms_norm")
