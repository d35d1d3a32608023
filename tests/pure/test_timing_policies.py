"""The timing policies on a pretend device: buffer sets, what is kept, what a timed launch must prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import FakeApi, norm

from farm.cell import Timing
from farm.child import measure as timed
from farm.child.provider_call import Problem
from farm.child.timing import Bench, common, consumes, event, graph, rotating_graph
from farm.child.timing import profiled as profiler
from farm.errors import CaptureFailed, WrongAnswer

CPU = torch.device("cpu")
POLICY = Timing("rotating_graph", min_samples=6, max_samples=12, max_seconds=0.05).to_dict()
CACHE = 4096


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The pretend device in the place of the CPU's own module."""
    fake = FakeApi()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: fake)
    monkeypatch.setattr(common, "SETTLE_MS", 0.01)
    monkeypatch.setattr(graph, "SETTLE_MS", 0.01)
    monkeypatch.setattr(event, "SETTLE_MS", 0.01)
    monkeypatch.setattr(graph, "MIN_REPLAY_US", 16.0)  # two rounds over eight sets
    monkeypatch.setattr(graph, "_FLOOR", {})
    return fake


def problem(rows: int = 8, hidden: int = 32, operation: str = "no-grad-forward") -> Problem:
    generator = torch.Generator().manual_seed(12345)
    x, weight, dy = (torch.randn(s, generator=generator) for s in ((rows, hidden), (hidden,), (rows, hidden)))
    if operation == "backward":
        return Problem([x.requires_grad_(), weight.requires_grad_()], [dy], [x, weight], operation)
    return Problem([x, weight], [], [], operation)


def measure(function: Callable[..., Any], method: str = "rotating_graph", of: Problem | None = None, **policy: Any):
    given = of or problem()
    bench = timed.bench_of(
        function,
        given,
        device=CPU,
        cache_bytes=CACHE,
        bytes_moved=2 * given.inputs[0].nbytes,
        policy={**POLICY, "method": method, **policy},
    )
    return timed.measure(method, bench, given)


# buffer sets


def bench(cache_bytes: int = 60 << 20, **more: Any) -> Bench:
    return Bench(norm, problem, CPU, cache_bytes, 1, more.pop("policy", POLICY), **more)


def test_sets_exceed_four_times_the_cache(api: FakeApi) -> None:
    assert bench().sets(1 << 20) == (240, True)
    assert bench().sets(1 << 30) == (2, True)
    assert bench().sets(1 << 10) == (common.MAX_SETS, False)  # too tiny to ever leave the cache
    assert bench(policy={**POLICY, "cache": "warm"}).sets(1 << 20) == (1, False)
    api.free_bytes = 8 << 20
    assert bench().sets(1 << 20) == (2, False)  # memory is short


def test_amd_gets_half_a_gigabyte_at_least(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert bench(cache_bytes=4 << 20).sets(4 << 20) == (128, True)  # 16 MiB of L2, but 256 MiB behind it
    assert bench(cache_bytes=256 << 20).sets(64 << 20) == (16, True)


def test_every_set_but_one_has_values_of_its_own() -> None:
    own = problem(8, 32)
    sets = [own, *(timed.rolled(own, n) for n in range(1, 6)), timed.drawn(own, 99)]
    for i, a in enumerate(sets):
        for b in sets[i + 1 :]:
            assert common.differ(a, b)
    assert not common.differ(own, timed.copied(own))
    assert sorted(sets[1].inputs[0].flatten().tolist()) == sorted(own.inputs[0].flatten().tolist())
    assert torch.equal(sets[1].inputs[1], own.inputs[1])  # a vector keeps its values


def test_what_is_copied_is_another_buffer_that_learns_like_the_first() -> None:
    own = problem(operation="backward")
    for other in (timed.copied(own), timed.rolled(own, 3), timed.drawn(own, 3)):
        assert [t.requires_grad for t in other.inputs] == [True, True]
        assert all(a is b for a, b in zip(other.wrt, other.inputs))
        assert {t.data_ptr() for t in other.inputs}.isdisjoint(t.data_ptr() for t in own.inputs)


def test_integers_and_small_things_are_not_shifted() -> None:
    index = torch.arange(12).reshape(3, 4)
    own = Problem([index, torch.ones(1, 1), None], [], [], "no-grad-forward")
    for other in (timed.rolled(own, 2), timed.drawn(own, 2)):
        assert torch.equal(other.inputs[0], index) and other.inputs[2] is None


def test_a_nan_equals_itself_when_values_are_compared() -> None:
    nan = Problem([torch.full((2, 2), float("nan"))], [], [], "no-grad-forward")
    assert not common.differ(nan, timed.copied(nan))


# rotating_graph


@pytest.mark.parametrize("operation", ["no-grad-forward", "backward"])
def test_a_right_kernel_gives_its_own_bits_from_the_timed_launches(api: FakeApi, operation: str) -> None:
    given = problem(operation=operation)
    found = measure(norm, of=given)
    want = timed.copied(given).run(norm)
    assert all(common.same_bits(a, b) for a, b in zip(found.timed_outputs or (), want))
    assert not timed.deaf(found) and found.other_outputs is not None
    assert found.sets == 8 and found.cold and found.launches % found.sets == 0
    assert len(found.samples_us) >= 6 and all(s > 0 for s in found.samples_us)
    assert found.outside_us is None and found.flags == []


def test_what_no_timed_launch_writes_is_seen(api: FakeApi) -> None:
    """A stream that the graph does not hold works at capture only: the outputs are there, but nobody writes them."""

    def aside(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        class Elsewhere:
            name = "a stream of its own"

        with api.stream(Elsewhere()):  # type: ignore[arg-type]
            return norm(x, weight)

    found = measure(aside)
    assert found.timed_outputs is not None and torch.isnan(found.timed_outputs[0]).all()


def test_an_answer_that_is_handed_out_again_is_seen(api: FakeApi) -> None:
    kept: dict[Any, torch.Tensor] = {}

    def cached(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(x.shape, norm(x, weight).clone()) if x.shape not in kept else kept[x.shape]

    cached(*problem().inputs)
    found = measure(cached)
    assert found.timed_outputs is not None and torch.isnan(found.timed_outputs[0]).all()


@pytest.mark.parametrize("method", ["rotating_graph", "events", "host"])
def test_an_answer_that_is_copied_from_before_is_refused(api: FakeApi, method: str) -> None:
    kept: dict[Any, torch.Tensor] = {}

    def copies(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.shape not in kept:
            kept[x.shape] = norm(x, weight)
        return kept[x.shape].clone()

    copies(*problem().inputs)
    with pytest.raises(WrongAnswer, match="same outputs for other inputs"):
        measure(copies, method)


def test_a_gradient_that_is_its_upstream_one_unchanged_accuses_nobody(api: FakeApi) -> None:
    """Autograd hands it on as it is, so every launch over one set gives the same memory."""
    assert measure(lambda x, w: x + w, of=problem(operation="backward")).flags == []
    same = torch.zeros(4)
    assert graph.handed_out_twice([(same,), (same,)]) == [graph.RETURNED_AGAIN]
    assert graph.handed_out_twice([(same,), (same,)], {graph.memory(same)}) == []


@pytest.mark.parametrize("method", ["rotating_graph", "events", "host"])
def test_outputs_that_are_alike_by_nature_accuse_nobody(api: FakeApi, method: str) -> None:
    """A norm of one column is a sign, and rows that differ in scale alone have one norm: asked again over random values
    it answers otherwise."""
    scales = torch.arange(1.0, 129.0)[:, None].repeat(1, 32)  # rows are constant: each norm is 1
    ones = Problem([scales, torch.arange(32.0)], [], [], "no-grad-forward")
    found = measure(lambda x, w: torch.sign(x) * w, method, of=ones)
    assert timed.deaf(found)
    tiny = Problem([torch.tensor([[0.5], [0.7]]), torch.ones(1)], [], [], "no-grad-forward")
    assert not timed.deaf(measure(lambda x, w: torch.sign(x) * w, method, of=tiny))  # too few elements to tell


def test_what_cannot_be_captured_says_so(api: FakeApi) -> None:
    def waits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        api.synchronize()
        return norm(x, weight)

    with pytest.raises(CaptureFailed, match="not permitted"):
        measure(waits)


def test_outputs_stay_alive_and_apart_within_the_graph(api: FakeApi) -> None:
    b = Bench(norm, problem, CPU, CACHE, 2048, POLICY)
    problems, _ = b.problems(problem(), 4)
    _, outputs, launches = graph.capture(b, problems)
    places = {o[0].data_ptr() for o in outputs}
    assert len(places) == len(outputs) == launches


def test_nodes_become_kernels_per_call(api: FakeApi) -> None:
    b = Bench(norm, problem, CPU, CACHE, 2048, POLICY, nodes=lambda g: {"kernel": 3 * 150, "memset": 150})
    found = rotating_graph(b)
    assert found.kernels == pytest.approx(600 / found.launches)
    assert rotating_graph(Bench(norm, problem, CPU, CACHE, 2048, POLICY)).kernels is None
    empty = rotating_graph(Bench(norm, problem, CPU, CACHE, 2048, POLICY, nodes=lambda g: {}))
    assert empty.kernels == 0 and "launches no work that a graph can capture" in empty.flags


def test_a_call_of_seconds_is_replayed_one_by_one(api: FakeApi) -> None:
    api.us_per_op = 100_000.0  # a replay of dozens of operations takes seconds of the device's clock
    replays = 0
    count = graph.replay

    def counted(*arguments: Any) -> list[float]:
        nonlocal replays
        replays += arguments[2]
        return count(*arguments)

    b = Bench(norm, problem, CPU, CACHE, 64 << 20, {**POLICY, "min_samples": 6, "max_samples": 6})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "replay", counted)
        patch.setattr(graph, "graph_floor", lambda bench: 1.0)
        rotating_graph(b)
    assert replays <= 6 + 2  # a block of five would have been 5 + 10 at least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int32])
def test_spoiled_memory_holds_nothing_of_what_it_did(dtype: torch.dtype) -> None:
    before = torch.ones(4, 4).to(dtype)
    for tensor in (before.clone(), before.clone().t()):
        graph.spoil(tensor)
        assert not (tensor == before).any()
    wide = torch.ones(1).expand(5)
    graph.spoil(wide)  # elements that share memory cannot be filled one by one
    assert wide.sum() == 5


# events, host, profiler


def test_event_samples_are_flushed_and_kept_ahead(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(norm, "events")
    assert api.sleeps >= len(found.samples_us) and found.cold and found.floor_us is not None
    assert measure(norm, "events", cache="warm").cold is False


def test_host_times_have_a_floor_of_their_own(api: FakeApi) -> None:
    found = measure(norm, "host")
    assert found.floor_us is not None and found.floor_us > 0 and not found.cold


def test_work_that_outlives_the_timed_stream_is_told() -> None:
    assert common.outside([], []) is None
    assert common.outside([6.0] * 14 + [900.0], [50.0] * 15) is None  # one hiccup of the host
    assert common.outside([80.0] * 15, [50.0] * 15) == 80.0
    assert common.outside([32.0] * 15, [785.0] * 15) is None  # an honest long call, whose end is noticed late
    assert common.outside([400.0] * 15, [420.0] * 15) == 400.0  # half of the work on another stream
    assert common.HostTimes([1.0], 80.0).flags == [
        "works outside the timed stream: the device was busy 80 us after the stream ended"
    ]
    assert common.HostTimes([1.0], None).flags == []


class Kineto:
    """One event as torch's profiler has it."""

    def __init__(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        kind: str | None = "kernel",
        stream: int = 7,
        device: Any = torch.autograd.DeviceType.CUDA,
    ):
        self._said = (name, start, duration, stream, device)
        if kind is not None:
            self.activity_type = lambda: kind

    def name(self) -> str:
        return self._said[0]

    def start_ns(self) -> int:
        return self._said[1]

    def duration_ns(self) -> int:
        return self._said[2]

    def device_resource_id(self) -> int:
        return self._said[3]

    def device_type(self) -> Any:
        return self._said[4]


def test_the_profilers_events_become_records_of_the_device() -> None:
    class Session:
        class profiler:  # noqa: N801 - as torch names it
            class kineto_results:  # noqa: N801
                @staticmethod
                def events() -> list[Kineto]:
                    host = torch.autograd.DeviceType.CPU
                    return [Kineto("k", 100, 50), Kineto("cudaLaunchKernel", 90, 5, device=host, kind="cuda_runtime")]

    (only,) = profiler.records(Session)
    assert (only.name, only.start_ns, only.end_ns, only.stream, only.kind) == ("k", 100, 150, 7, "kernel")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused_0", "kernel"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy"),
        ("Memset (Device)", "gpu_memset"),
        ("Context Sync", "sync"),
        ("Stream Synchronize", "sync"),
    ],
)
def test_a_torch_that_tells_no_kind_is_read_by_name(name: str, kind: str) -> None:
    assert profiler.kind_of(Kineto(name, 0, 1, kind=None)) == kind
    assert profiler.kind_of(Kineto("anything", 0, 1, kind="gpu_memset")) == "gpu_memset"


def test_the_profiler_goes_round_the_sets_and_spends_the_process(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.timing.kernels import KernelCalls

    sessions: list[int] = []

    def session_of(bench: Bench, call: Callable[[], Any], count: int, tries: int = 3) -> KernelCalls:
        for _ in range(count):
            call()
        sessions.append(count)
        return KernelCalls((5.0,) * count, (2,) * count, (2,) * count, 0)

    monkeypatch.setattr(profiler, "session_of", session_of)
    monkeypatch.setattr(profiler, "SETTLE_MS", 0.01)
    monkeypatch.setattr(profiler, "_FLOOR", {})
    given = problem()
    found = measure(norm, "profiler", of=given)
    want = timed.copied(given).run(norm)
    assert found.profiled and (found.kernels, found.sets, found.floor_us) == (2.0, 8, 5.0)
    assert found.timed_outputs is not None and common.same_bits(found.timed_outputs[0], want[0])
    assert found.other_outputs is not None and not timed.deaf(found)
    assert timed.told(found)["profiled"] is True and timed.told(found)["version"] == 1
    assert sessions[:2] == [1, 20] and len(found.samples_us) >= POLICY["min_samples"]


def test_a_device_without_the_marker_or_the_profiler_is_unsupported(api: FakeApi) -> None:
    with pytest.raises(NotImplementedError, match=r"CUPTI|does not start"):  # torch records nothing of a pretend device
        measure(norm, "profiler")
    del FakeApi._sleep
    try:
        with pytest.raises(NotImplementedError, match="no marker"):
            measure(norm, "profiler")
    finally:
        FakeApi._sleep = _SLEEP


_SLEEP = FakeApi._sleep


# inputs that a call overwrites


def overwriting(seen: list[float]) -> Callable[..., Any]:
    def scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.detach().abs().sum()))
        y = x + 1
        x.mul_(weight)
        return y

    return scale


def test_a_call_that_overwrites_sees_the_same_values_each_time_and_its_restoring_is_not_timed(api: FakeApi) -> None:
    given, seen = problem(), []
    own = given.inputs[0].clone()
    bench = timed.bench_of(
        overwriting(seen),
        Problem(given.inputs, [], [], given.operation, mutated=[given.inputs[0]]),
        device=CPU,
        cache_bytes=CACHE,
        bytes_moved=1,
        policy={**POLICY, "method": "events"},
        overwrites=True,
    )
    result = timed.measure("events", bench, Problem(given.inputs, [], [], given.operation, mutated=[given.inputs[0]]))
    assert len(set(seen[:-1])) == 1, "all but the call over other values"
    y, x = result.timed_outputs or ()
    assert torch.equal(y, own + 1) and torch.equal(x, own * given.inputs[1])
    assert max(result.samples_us) == min(result.samples_us) < 4 * api.us_per_op, "two operations and their reading"
    assert torch.equal(given.inputs[0], own), "the cell's own buffers are nobody's"


def test_without_restoring_the_values_would_drift(api: FakeApi) -> None:
    given, seen = problem(), []
    bench = timed.bench_of(
        overwriting(seen), given, device=CPU, cache_bytes=CACHE, bytes_moved=1, policy={**POLICY, "method": "events"}
    )
    timed.measure("events", bench, given)
    assert len(set(seen[:-1])) > 1


def test_a_backward_that_reads_what_its_forward_left_in_an_input_is_restored_to_that(api: FakeApi) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = x * x
            x.data.mul_(2)  # the derivative, in the input's memory
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
            (slope,) = ctx.saved_tensors
            found = slope * dy
            slope.data.zero_()
            return found, None

    given = problem(operation="backward")
    given = Problem(given.inputs, given.upstream, given.wrt[:1], "backward")
    want = 2 * given.inputs[0].detach().clone() * given.upstream[0]
    bench = timed.bench_of(
        Square.apply,
        given,
        device=CPU,
        cache_bytes=CACHE,
        bytes_moved=1,
        policy={**POLICY, "method": "events"},
        overwrites=True,
    )
    (dx,) = timed.measure("events", bench, given).timed_outputs or ()
    assert torch.equal(dx, want)


class Doubling(torch.autograd.Function):
    """y = 2 x, whose backward writes the gradient over what its forward saved, as Liger's do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.full_like(x, 2.0))
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        (slope,) = ctx.saved_tensors
        slope.data.mul_(dy)
        return slope, None


class Freeing(Doubling):
    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        (slope,) = ctx.saved_tensors
        slope.add_(0)  # autograd refuses to hand it out again
        return slope * dy, None


@pytest.mark.parametrize("function", [Doubling, Freeing])
def test_a_backward_that_overwrites_what_its_forward_saved_has_a_forward_before_each_call(
    api: FakeApi, function: type[torch.autograd.Function]
) -> None:
    given = problem(operation="backward")
    given = Problem(given.inputs, given.upstream, given.wrt[:1], "backward")
    more = {"device": CPU, "cache_bytes": CACHE, "bytes_moved": 1, "policy": {**POLICY, "method": "events"}}
    bench = timed.bench_of(function.apply, given, **more)
    assert consumes(bench, bench.make())
    bench.consumes = True
    result = timed.measure("events", bench, given)
    assert torch.equal((result.timed_outputs or ())[0], 2 * given.upstream[0])
    assert max(result.samples_us) < 6 * api.us_per_op, "the forward is not timed"
    usual = timed.bench_of(lambda x, weight: 2 * x, given, **more)
    assert not consumes(usual, usual.make())
