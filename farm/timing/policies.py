"""The timing policies, as they run in the child on a device.  torch is imported here; only the child loads this.

Every policy gives raw samples in microseconds per call of the operation, outputs kept from a timed launch, and the
host's own time.  Why `rotating_graph` is the default: docs/facts.md (event pairs tell a 6.8 us kernel as 11.4).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from farm.child.calling import Problem
from farm.timing.statistics import enough, summarize

#: All buffer sets together exceed the last-level cache this many times, so that no launch finds its inputs there.
CACHE_FACTOR = 4
#: More sets than this cost more memory traffic to prepare than they tell; tiny cells are then flagged as warm.
MAX_SETS = 256
#: A replay shorter than this is mostly its own launch.
MIN_REPLAY_US = 150.0
#: Share of the device's free memory that timing may take.
MEMORY_SHARE = 0.5


class CaptureFailed(Exception):
    """The call cannot be captured in a graph; this process is spent (its generator state may be poisoned too)."""


@dataclass
class TimingResult:
    """What a policy measured; see the module's first lines."""

    method: str
    samples_us: list[float]
    host_us: list[float] = field(default_factory=list)
    timed_outputs: tuple[torch.Tensor, ...] | None = None
    sets: int = 1
    launches: int = 1
    cold: bool = True
    floor_us: float | None = None
    flags: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """What a policy needs: the function, fresh problems of the cell, the device and its cache size."""

    function: Callable[..., Any]
    make: Callable[[], Problem]  # a new set of buffers with the cell's values
    device: torch.device
    cache_bytes: int
    bytes_moved: int
    policy: dict[str, Any]

    @property
    def api(self) -> Any:
        return torch.get_device_module(self.device.type)

    def sets(self, per_set: int) -> tuple[int, bool]:
        """(number of buffer sets, whether they are enough to keep every launch cold)."""
        if self.policy.get("cache") == "warm":
            return 1, False
        wanted = max(2, -(-CACHE_FACTOR * self.cache_bytes // max(1, per_set)))
        free = self.api.mem_get_info(self.device)[0]
        possible = max(1, int(free * MEMORY_SHARE / max(1, 2 * per_set)))
        count = min(wanted, MAX_SETS, possible)
        return count, count * per_set >= CACHE_FACTOR * self.cache_bytes


def host_times(bench: Bench, problem: Problem, count: int = 15) -> list[float]:
    """Microseconds that the host spends in one call, the device idle before it and not waited for."""
    out = []
    call = _call(bench, problem)
    for _ in range(count):
        bench.api.synchronize(bench.device)
        start = time.perf_counter()
        result = call()
        out.append((time.perf_counter() - start) * 1e6)
        del result
    bench.api.synchronize(bench.device)
    return out


def _call(bench: Bench, problem: Problem) -> Callable[[], tuple[Any, ...]]:
    """One timed call of the operation; for `backward` the forward has run before and is not in it."""
    if problem.operation != "backward":
        return lambda: problem.run(bench.function)
    outputs = problem.forward(bench.function)
    return lambda: problem.gradients(outputs, retain=True)


def host(bench: Bench) -> TimingResult:
    """Wall time of the call until the device has finished it: what a user of one call waits for."""
    problem = bench.make()
    call = _call(bench, problem)
    for _ in range(3):
        call()
    samples: list[float] = []
    begun = time.perf_counter()
    out: tuple[Any, ...] = ()
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        bench.api.synchronize(bench.device)
        start = time.perf_counter()
        out = call()
        bench.api.synchronize(bench.device)
        samples.append((time.perf_counter() - start) * 1e6)
    return TimingResult("host", samples, list(samples), out, cold=False)


def events(bench: Bench) -> TimingResult:
    """Event pairs around single calls, the cache flushed before each, the queue kept ahead of the host."""
    problem = bench.make()
    call = _call(bench, problem)
    host_us = host_times(bench, problem)
    floor = _event_floor(bench)
    flush = torch.empty(max(256 << 20, 2 * bench.cache_bytes) // 4, dtype=torch.int32, device=bench.device)
    warm = bench.policy.get("cache") == "warm"
    host_median = sorted(host_us)[len(host_us) // 2]
    hidden = hasattr(bench.api, "_sleep")
    samples: list[float] = []
    out: tuple[Any, ...] = ()
    begun = time.perf_counter()
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        pairs = []
        for _ in range(5):
            _keep_busy(bench, 1.5 * host_median)
            if not warm:
                flush.zero_()
            pair = (bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True))
            pair[0].record()
            out = call()
            pair[1].record()
            pairs.append(pair)
        bench.api.synchronize(bench.device)
        samples += [a.elapsed_time(b) * 1e3 for a, b in pairs]
    flags = [] if hidden else ["the queue could not be kept ahead: the host's time may be in the samples"]
    return TimingResult("events", samples, host_us, out, cold=not warm, floor_us=floor, flags=flags)


def _keep_busy(bench: Bench, microseconds: float) -> None:
    """Give the device a wait that touches no memory, so that the host, needing less, is ahead of it."""
    if hasattr(bench.api, "_sleep"):
        bench.api._sleep(int(_CYCLES_PER_US * min(microseconds, 20_000.0)))


_CYCLES_PER_US = 2000  # at the highest clock of an H200 (1.98 GHz); at a lower one the wait is only longer


def _event_floor(bench: Bench) -> float:
    tiny = torch.zeros(16, device=bench.device)
    reads = []
    for _ in range(20):
        a, b = bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True)
        a.record()
        tiny.add_(1)
        b.record()
        bench.api.synchronize(bench.device)
        reads.append(a.elapsed_time(b) * 1e3)
    return sorted(reads)[len(reads) // 2]


def rotating_graph(bench: Bench) -> TimingResult:
    """One graph that launches the call over K buffer sets larger than the cache together; replay time over launches.

    Outputs are kept alive, so that no buffer is reused inside the graph; launches follow each other as in a model.
    """
    first = bench.make()
    host_us = host_times(bench, first)
    per_set = max(bench.bytes_moved, 1)
    count, cold = bench.sets(per_set)
    problems = [first] + [bench.make() for _ in range(count - 1)]
    graph, outputs, launches = _capture(bench, problems)
    samples: list[float] = []
    _settle(bench, graph)
    begun = time.perf_counter()
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        samples += [t / launches for t in _replay(bench, graph, 5)]
    kept = tuple(o.clone() if isinstance(o, torch.Tensor) else o for o in outputs[len(outputs) // 2])
    bench.api.synchronize(bench.device)
    flags = [] if cold or bench.policy.get("cache") == "warm" else ["buffer sets do not exceed the cache"]
    del graph, outputs
    return TimingResult(
        "rotating_graph", samples, host_us, kept, count, launches, cold, floor_us=graph_floor(bench), flags=flags
    )


def _capture(bench: Bench, problems: list[Problem]) -> tuple[Any, list[tuple[Any, ...]], int]:
    """Capture one call per buffer set, as often as a replay of MIN_REPLAY_US needs (warm policies: one set)."""
    api = bench.api
    stream = api.Stream(bench.device)
    stream.wait_stream(api.current_stream(bench.device))
    graph = api.CUDAGraph()
    outputs: list[tuple[Any, ...]] = []
    try:
        with api.stream(stream):
            for _ in range(2):  # compile, and let the allocator settle
                problems[0].run(bench.function)
            calls = [_call(bench, p) for p in problems]  # a backward's forward runs here, on this stream
            calls[0]()
            api.synchronize(bench.device)
            per_round = len(calls) * _least_us(bench)
            rounds = min(64, max(1, -(-int(MIN_REPLAY_US) // max(1, int(per_round)))))
            with api.graph(graph, stream=stream):
                for _ in range(rounds):
                    for call in calls:
                        outputs.append(call())
    except (torch.OutOfMemoryError, NotImplementedError):
        raise
    except Exception as error:
        raise CaptureFailed(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    api.current_stream(bench.device).wait_stream(stream)
    api.synchronize(bench.device)
    return graph, outputs, rounds * len(calls)


def _least_us(bench: Bench) -> float:
    """No call takes less, in microseconds: 1 for a launch, or its bytes at 8 TB/s."""
    return max(1.0, bench.bytes_moved / 8e6)


def _replay(bench: Bench, graph: Any, count: int) -> list[float]:
    """Microseconds of `count` replays."""
    pairs = []
    graph.replay()  # not measured: the first one after a wait has the host's launch in it
    for _ in range(count):
        pair = (bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True))
        pair[0].record()
        graph.replay()
        pair[1].record()
        pairs.append(pair)
    bench.api.synchronize(bench.device)
    return [a.elapsed_time(b) * 1e3 for a, b in pairs]


#: Device time spent before the first sample, in ms.  After some idle milliseconds an H200 runs its first ones slower:
#: 8192x4096 read 38 us after 0.7 ms of work, 34.4 after 20 (2026-11-21, docs/facts.md).
SETTLE_MS = 25.0


def _settle(bench: Bench, graph: Any, seconds: float = 0.15) -> None:
    """Replay for SETTLE_MS, and on until two blocks agree within 1 % or the time is over: the clock is settled then."""
    begun, last, spent_us = time.perf_counter(), 0.0, 0.0
    while time.perf_counter() - begun < seconds:
        replays = _replay(bench, graph, 5)
        spent_us += sum(replays)
        block = summarize(replays)
        now = block.p50 if block else 0.0
        if last and abs(now - last) <= 0.01 * last and spent_us >= SETTLE_MS * 1e3:
            return
        last = now


_FLOOR: dict[str, float] = {}


def graph_floor(bench: Bench) -> float:
    """Microseconds per launch of the smallest kernel in a graph on this device, measured once per process."""
    key = str(bench.device)
    if key not in _FLOOR:
        tiny = torch.zeros(16, device=bench.device)
        stream = bench.api.Stream(bench.device)
        with bench.api.stream(stream):
            tiny.add_(1)
        bench.api.synchronize(bench.device)
        graph = bench.api.CUDAGraph()
        with bench.api.graph(graph, stream=stream):
            for _ in range(100):
                tiny.add_(1)
        _replay(bench, graph, 3)
        block = summarize(_replay(bench, graph, 10))
        _FLOOR[key] = block.p50 / 100 if block else 0.0
    return _FLOOR[key]


POLICIES: dict[str, Callable[[Bench], TimingResult]] = {
    "rotating_graph": rotating_graph,
    "events": events,
    "host": host,
}
