"""Calls whose launches are kept give the bits of calls that derive them, forward and backward, with their records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fused_add_rms_norm, launches, rms_norm
from kernels.ops.rms_norm import prepared


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield lambda keeps: monkeypatch.setattr(prepared, "keeps", keeps)
    prepared.forget()


def called(fused: bool, hidden: int, apart: int, at: int, seed: int) -> Any:
    """Outputs, gradients and records of one call with new values."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(at + 5 * (hidden + apart), generator=generator)
    x = base.as_strided((5, hidden), (hidden + apart, 1), at).detach().requires_grad_()
    weight = torch.randn(hidden, generator=generator, requires_grad=True)
    launches.enable()
    if fused:
        y, total = fused_add_rms_norm(x, x, weight, 1e-6 * (1 + seed), offset=seed / 4)
        out = torch.autograd.grad(y.square().sum() + total.sum(), (x, weight))
    else:
        y = total = rms_norm(x, weight, 1e-6 * (1 + seed), offset=seed / 4)
        out = torch.autograd.grad(y.square().sum(), (x, weight))
    launches.disable()
    return [t.detach() for t in (y, total, *out)], launches.drain()


def same(a: Any, b: Any) -> bool:
    return a[1] == b[1] and all(torch.equal(s, t) for s, t in zip(a[0], b[0], strict=True))


def test_kept_calls_give_the_bits_of_derived_ones(keeping: Any) -> None:
    cases = [(f, *layout) for f in (False, True) for layout in ((64, 0, 0), (65, 0, 0), (65, 3, 1))]
    keeping(False)
    derived = [called(*case, seed) for case in cases for seed in range(2)]
    assert all(records for _, records in derived)
    keeping(True)
    kept = [called(*case, seed) for case in cases for seed in range(2)]  # the second seed's are replayed
    assert all(same(a, b) for a, b in zip(kept, derived, strict=True))
    assert len(prepared._kept) >= len(cases)


def test_a_key_without_alignment_is_seen(keeping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(False)
    derived = called(False, 65, 0, 1, 0)
    keeping(True)
    monkeypatch.setattr(prepared, "ALIGNED", 0)
    called(False, 65, 0, 0, 0)
    assert not same(called(False, 65, 0, 1, 0), derived)


def test_what_cannot_be_kept_is_derived_each_time(keeping: Any) -> None:
    keeping(True)
    calls = []
    for _ in range(3):
        prepared.launch("nothing is launched", (torch.zeros(1),), (0.0, 0.0), lambda x: calls.append(x))
    assert len(calls) == 3


def test_keys_are_bounded(keeping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(True)
    monkeypatch.setattr(prepared, "MOST", 4)
    for number in range(9):
        prepared.launch(number, (torch.zeros(1),), (0.0, 0.0), lambda x: None)
    assert len(prepared._kept) <= 4
