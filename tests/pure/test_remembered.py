"""Calls that compute before a graph is captured and only hand out in it, on a pretend device whose graphs replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_device import FakeApi, norm  # noqa: E402

from farm.cell import Timing  # noqa: E402
from farm.child import measure  # noqa: E402
from farm.child.findings import REMEMBERED, RETURNED_AGAIN, disqualifying  # noqa: E402
from farm.child.provider_call import Problem  # noqa: E402
from farm.child.timing import common, graph  # noqa: E402

POLICY = Timing("rotating_graph", min_samples=6, max_samples=12, max_seconds=0.05).to_dict()
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: fake)
    monkeypatch.setattr(common, "SETTLE_MS", 0.01)
    monkeypatch.setattr(graph, "SETTLE_MS", 0.01)
    monkeypatch.setattr(graph, "MIN_REPLAY_US", 16.0)
    monkeypatch.setattr(graph, "_FLOOR", {})
    return fake


def by_pointer(copy: bool) -> Function:
    kept: dict[int, Any] = {}

    def cached(x: Any, weight: Any) -> Any:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = (x, norm(x, weight))
        answer = kept[x.data_ptr()][1]
        return answer.clone() if copy else answer

    return cached


def flags(function: Function, operation: str) -> list[str]:
    generator = torch.Generator().manual_seed(3)
    x, weight, dy = (torch.randn(s, generator=generator) for s in ((8, 32), (32,), (8, 32)))
    if operation != "no-grad-forward":
        x.requires_grad_()
        weight.requires_grad_()
    upstream = [dy] if operation in ("backward", "full") else []
    given = Problem([x, weight], upstream, [x, weight] if upstream else [], operation)
    bench = measure.bench_of(
        function, given, device=torch.device("cpu"), cache_bytes=4096, bytes_moved=2048, policy=POLICY
    )
    return disqualifying(measure.measure("rotating_graph", bench, given).flags)


@pytest.mark.parametrize("operation", ["no-grad-forward", "forward", "backward", "full"])
def test_a_call_that_computes_is_not_accused(operation: str) -> None:
    assert flags(norm, operation) == []


@pytest.mark.parametrize("operation", ["no-grad-forward", "forward"])
def test_a_copy_of_what_the_warm_up_computed_is_found(operation: str) -> None:
    assert flags(by_pointer(copy=True), operation) == [REMEMBERED]


def test_an_answer_that_several_launches_hand_out_is_found() -> None:
    assert RETURNED_AGAIN in flags(by_pointer(copy=False), "no-grad-forward")


class Stale(torch.autograd.Function):
    """A backward that gives what it gave before for the same upstream's address."""

    kept: dict[int, Any] = {}

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return norm(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        if dy.data_ptr() not in Stale.kept:
            x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                Stale.kept[dy.data_ptr()] = (dy, torch.autograd.grad(norm(x, weight), (x, weight), dy.clone()))
        return tuple(t.clone() for t in Stale.kept[dy.data_ptr()][1])


def test_a_backward_that_remembers_is_found() -> None:
    Stale.kept.clear()
    assert flags(Stale.apply, "backward") == [REMEMBERED]
