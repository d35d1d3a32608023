"""A trial of a capture on a pretend device: what comes through, what is refused, what replays wrong, how full it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import FakeApi, norm

from farm.cell import Timing
from farm.child import measure
from farm.child.provider_call import Problem
from farm.child.timing import Bench, common, graph, rotating_graph, trial
from farm.child.timing.trial import DIFFERS, try_capture
from farm.errors import CaptureFailed

CPU = torch.device("cpu")
POLICY = Timing("rotating_graph").to_dict()


class Graphs(FakeApi):
    """Remembers its graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []
        plain, made = self.CUDAGraph, self.made

        class Kept(plain):  # type: ignore[valid-type,misc]
            def __init__(self) -> None:
                super().__init__()
                self.replays = 0
                made.append(self)

            def replay(self) -> None:
                self.replays += 1
                super().replay()

        self.CUDAGraph = Kept


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    fake = Graphs()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: fake)
    monkeypatch.setattr(graph, "_FLOOR", {})
    monkeypatch.setattr(trial, "REPLAY_SECONDS", 1e3)  # no test waits for so many calls
    return fake


def problem(operation: str = "no-grad-forward", rows: int = 4) -> Problem:
    generator = torch.Generator().manual_seed(5)
    x, weight, dy = (torch.randn(s, generator=generator) for s in ((rows, 32), (32,), (rows, 32)))
    if operation in ("backward", "full"):
        return Problem([x.requires_grad_(), weight.requires_grad_()], [dy], [x, weight], operation)
    return Problem([x, weight], [], [], operation)


def bench(function: Callable[..., Any] = norm, operation: str = "no-grad-forward", **more: Any) -> Bench:
    given = {"max_launches": 16, "policy": POLICY, **more}
    return measure.bench_of(function, problem(operation), device=CPU, cache_bytes=4096, bytes_moved=64, **given)


@pytest.mark.parametrize("operation", ["forward", "no-grad-forward", "backward", "full"])
def test_a_right_call_comes_through(api: Graphs, operation: str) -> None:
    assert try_capture(bench(operation=operation)) == ""
    mine, floor = api.made
    assert mine.replays == trial.REPLAYS == 2
    assert floor.replays > 0  # the graph that every later cell's floor is read from has been there too


def test_a_trials_graph_is_as_full_as_the_devices_get(api: Graphs) -> None:
    calls: list[bool] = []

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(api.capturing is not None)
        return norm(x, weight)

    assert try_capture(bench(counted, max_launches=256)) == ""
    assert sum(calls) == 256
    calls.clear()
    rotating_graph(bench(counted, max_launches=256, policy=Timing("rotating_graph", max_seconds=0.01).to_dict()))
    assert 0 < sum(calls) <= 256  # and no graph that is timed holds more


def test_it_is_less_full_where_outputs_or_time_do_not_allow_it(api: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    captured = graph.capture
    monkeypatch.setattr(trial, "capture", lambda b, p, rounds: seen.append(rounds) or captured(b, p, rounds))
    each = 2 * 4 * 32 * 4
    api.free_bytes = int(3 * each / common.MEMORY_SHARE)
    assert try_capture(bench()) == ""
    api.free_bytes = 0
    assert try_capture(bench()) == ""
    api.free_bytes = 1 << 40
    monkeypatch.setattr(trial, "REPLAY_SECONDS", 0.0)
    assert try_capture(bench()) == ""
    assert seen == [3, 1, 1]


def test_what_the_runtime_refuses_is_a_failed_capture(api: Graphs) -> None:
    def waits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        api.synchronize()
        return norm(x, weight)

    with pytest.raises(CaptureFailed, match="operation not permitted when stream is capturing"):
        try_capture(bench(waits))


def test_replays_that_write_nothing_are_seen(api: Graphs) -> None:
    def aside(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        before, api.here = api.here, "other"  # a stream that the graph does not hold
        try:
            return norm(x, weight)
        finally:
            api.here = before

    assert try_capture(bench(aside)) == DIFFERS


def test_a_replay_that_goes_wrong_the_second_time_is_seen(api: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = api.CUDAGraph.replay

    def replay(self: Any) -> None:
        plain(self)
        if self.replays == 2:
            self.steps[-1][-1].mul_(2)

    monkeypatch.setattr(api.CUDAGraph, "replay", replay)
    assert try_capture(bench()) == DIFFERS


def test_an_output_that_is_an_input_is_left_alone(api: Graphs) -> None:
    assert try_capture(bench(lambda x, weight: x)) == ""


def test_sums_in_another_order_are_no_difference(api: Graphs) -> None:
    dice = torch.Generator().manual_seed(1)

    def atomic(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm(x, weight) * (1 + 1e-6 * torch.rand((), generator=dice))

    assert try_capture(bench(atomic)) == ""


def test_the_nodes_are_asked_for_there_too(api: Graphs) -> None:
    asked: list[Any] = []
    assert try_capture(bench(nodes=lambda g: asked.append(g) or {"kernel": 1})) == ""
    assert len(asked) == 1
