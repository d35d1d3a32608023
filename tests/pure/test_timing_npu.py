"""The timing policies on a pretend NPU: its graphs by torch.npu's name, graphs that hold few launches, and MSPTI's
kernel monitor, played by the stub whose kernels are torch's operators on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeApi, norm

from farm.backends import _mspti
from farm.cell import METHODS, Timing, spends
from farm.child import measure as timed
from farm.child import timing
from farm.child.provider_call import Problem
from farm.child.timing import Bench, common, event, graph, monitored, profiled
from farm.errors import CaptureFailed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stubs" / "mspti"))

import mspti as stub

CPU = torch.device("cpu")
POLICY = Timing("mspti", min_samples=6, max_samples=12, max_seconds=0.05).to_dict()
CACHE = 4096


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The pretend device, as torch.npu names things: NPUGraph, and no wait that touches no memory."""
    fake = FakeApi()
    fake.NPUGraph = fake.CUDAGraph  # type: ignore[attr-defined]
    del fake.CUDAGraph
    monkeypatch.delattr(FakeApi, "_sleep")
    monkeypatch.setattr(torch, "get_device_module", lambda kind: fake)
    for module in (common, graph, event, profiled):
        monkeypatch.setattr(module, "SETTLE_MS", 0.01)
    monkeypatch.setattr(graph, "MIN_REPLAY_US", 16.0)
    monkeypatch.setattr(graph, "_FLOOR", {})
    monkeypatch.setattr(monitored, "_FLOOR", {})
    return fake


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """The backend's recorder over the stub."""
    monkeypatch.setitem(sys.modules, "mspti", stub)
    monkeypatch.setattr(_mspti, "_RECORDER", [])
    monkeypatch.setattr(_mspti, "ARRIVAL_S", 0.1)
    del stub.STARTS[:]
    yield _mspti.recorder
    for running in _mspti._RECORDER:
        running._monitor.stop()


def problem(operation: str = "no-grad-forward") -> Problem:
    generator = torch.Generator().manual_seed(12345)
    x, weight, dy = (torch.randn(s, generator=generator) for s in ((8, 32), (32,), (8, 32)))
    if operation == "backward":
        return Problem([x.requires_grad_(), weight.requires_grad_()], [dy], [x, weight], operation)
    return Problem([x, weight], [], [], operation)


def measure(function: Callable[..., Any], method: str = "mspti", of: Problem | None = None, **more: Any) -> Any:
    given = of or problem()
    own = more.pop("own", method)
    bench = timed.bench_of(
        function,
        given,
        device=CPU,
        cache_bytes=CACHE,
        bytes_moved=2 * given.inputs[0].nbytes,
        policy={**POLICY, "method": own},
        **more,
    )
    return timed.measure(method, bench, given)


# graphs


@pytest.mark.parametrize("operation", ["no-grad-forward", "backward"])
def test_a_rotating_graph_is_an_npu_graph_there(api: FakeApi, operation: str) -> None:
    given = problem(operation)
    found = measure(norm, "rotating_graph", of=given)
    want = timed.copied(given).run(norm)
    assert all(common.same_bits(a, b) for a, b in zip(found.timed_outputs, want))
    assert found.sets == 8 and found.launches == 16 and found.cold and found.floor_us is not None
    assert found.kernels is None and not found.profiled


def test_a_module_without_graphs_is_a_failed_capture(api: FakeApi) -> None:
    del api.NPUGraph  # type: ignore[attr-defined]
    with pytest.raises(CaptureFailed, match="graphs on this device"):
        measure(norm, "rotating_graph")


@pytest.mark.parametrize(("most", "launches", "sets"), [(None, 16, 8), (1000, 16, 8), (15, 8, 8), (5, 5, 5)])
def test_a_graph_holds_no_more_launches_than_the_device_allows(
    api: FakeApi, most: int | None, launches: int, sets: int
) -> None:
    found = measure(norm, "rotating_graph", max_launches=most)
    assert (found.launches, found.sets) == (launches, sets)
    assert found.cold is (sets == 8)  # fewer sets do not exceed the cache, which is told
    assert ("the buffer sets fit in the cache, so inputs may be warm" in found.flags) is (sets < 8)


def test_the_floors_graph_keeps_to_that_too(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = graph.replay

    def counted(bench: Bench, made: Any, count: int) -> list[float]:
        seen.append(len(made.steps))
        return real(bench, made, count)

    monkeypatch.setattr(graph, "replay", counted)
    graph.graph_floor(Bench(norm, problem, CPU, CACHE, 1, POLICY, max_launches=10))
    assert set(seen) == {10}


# mspti


def test_mspti_is_a_method_that_spends_its_process() -> None:
    assert "mspti" in METHODS and spends("mspti") and timing.POLICIES["mspti"].version == 1
    assert Timing("mspti").version == 1


@pytest.mark.parametrize("operation", ["no-grad-forward", "backward"])
def test_a_calls_kernels_are_summed_and_its_outputs_kept(
    api: FakeApi, recorder: Callable[[], Any], operation: str
) -> None:
    given = problem(operation)
    found = measure(norm, of=given, recorder=recorder)
    want = timed.copied(given).run(norm)
    assert all(common.same_bits(a, b) for a, b in zip(found.timed_outputs, want))
    assert found.method == "mspti" and found.profiled and found.sets == 8 and found.cold
    assert len(found.samples_us) >= 6 and len(set(found.samples_us)) == 1
    assert found.samples_us[0] == pytest.approx(found.kernels * stub.NS / 1e3)
    if operation == "no-grad-forward":
        assert found.kernels == 6.0
    assert found.floor_us == stub.NS / 1e3 and found.host_us
    assert found.other_outputs is not None and not timed.deaf(found)
    told = timed.told(found)
    assert (told["method"], told["version"], told["profiled"]) == ("mspti", 1, True)


def test_one_monitor_serves_a_whole_process(api: FakeApi, recorder: Callable[[], Any]) -> None:
    for _ in range(3):
        assert measure(norm, recorder=recorder).samples_us[0] == pytest.approx(18.0)
    assert len(stub.STARTS) == 1
    assert recorder()._monitor.buffer_mb == _mspti.BUFFER_MB


def test_a_call_that_launches_the_marker_gets_another(api: FakeApi, recorder: Callable[[], Any]) -> None:
    def with_bits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        torch.zeros(4, dtype=torch.int32).bitwise_xor_(1)
        return norm(x, weight)

    plain, more = measure(norm, recorder=recorder), measure(with_bits, recorder=recorder)
    assert more.samples_us[0] == pytest.approx(plain.samples_us[0] + 2 * stub.NS / 1e3)  # the fill, and that

    def with_all(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        bits = torch.zeros(4, dtype=torch.int32)
        for operator in monitored.OPERATORS:
            operator(bits)
        return norm(x, weight)

    with pytest.raises(timing.TimingUnusable, match="no marker for this call"):
        measure(with_all, recorder=recorder)


def test_a_call_that_launches_now_and_then_says_so(api: FakeApi, recorder: Callable[[], Any]) -> None:
    calls = 0

    def odd(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return norm(x, weight).clone() if calls % 2 else norm(x, weight)

    assert "launches 6 to 7 kernels per call" in measure(odd, recorder=recorder).flags


def test_records_that_are_lost_are_not_made_up_for(
    api: FakeApi, recorder: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mspti, "ARRIVAL_S", 0.01)
    bench = Bench(norm, problem, CPU, CACHE, 2048, POLICY, recorder=recorder)
    running = recorder()
    marker = monitored.marker_of(bench, running, lambda: norm(*problem().inputs))
    monkeypatch.setattr(stub, "LOSES", 3)
    inputs = problem().inputs
    with pytest.raises(timing.TimingUnusable, match=r"\d+ of 11 markers; MSPTI loses kernels"):
        monitored.session_of(bench, running, marker, lambda: norm(*inputs), 10)


def test_kernels_without_times_are_no_record(
    api: FakeApi, recorder: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mspti, "ARRIVAL_S", 0.01)
    monkeypatch.setattr(stub, "BLIND", True)
    with pytest.raises(timing.TimingUnusable, match=r"records no kernels in this process.*LD_PRELOAD"):
        measure(norm, recorder=recorder)


def test_a_device_without_a_monitor_or_one_that_does_not_start(
    api: FakeApi, recorder: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(timing.TimingUnusable, match="no kernel monitor on cpu"):
        measure(norm)
    monkeypatch.setattr(stub, "REFUSES", True)
    with pytest.raises(
        timing.TimingUnusable, match=r"does not start in this process \(MsptiResult.MSPTI_ERROR_INNER\)"
    ):
        measure(norm, recorder=recorder)
    monkeypatch.setitem(sys.modules, "mspti", None)
    with pytest.raises(timing.TimingUnusable, match="cannot be loaded in this process"):
        measure(norm, recorder=recorder)


def test_where_it_only_stands_in_events_do_instead(api: FakeApi, recorder: Callable[[], Any]) -> None:
    """A cell of the default policy whose capture failed is told to use mspti; one that asks for mspti is not fooled."""
    api.us_per_op = 1.0
    found = measure(norm, own="rotating_graph")
    assert found.method == "events" and found.profiled
    assert "timed by events: the mspti policy has no kernel monitor on cpu" in found.flags
    stands_in = measure(norm, own="rotating_graph", recorder=recorder)
    assert stands_in.method == "mspti" and stands_in.samples_us[0] == pytest.approx(18.0)


def test_a_kernel_that_is_not_implemented_is_not_taken_for_that(api: FakeApi, recorder: Callable[[], Any]) -> None:
    def refuses(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no such rows")

    with pytest.raises(NotImplementedError, match="no such rows"):
        measure(refuses, own="rotating_graph", recorder=recorder)
