"""`rotating_graph`: one graph of launches over buffer sets larger than the cache together; replay time over launches.

Outputs are kept alive, so that no buffer is reused inside the graph; launches follow each other as in a model.  Why it
is the default: docs/facts.md (event pairs tell a 6.8 us kernel as 11.4).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from farm.child import poison
from farm.child.findings import RETURNED_AGAIN
from farm.child.permuted_inputs import memory
from farm.child.provider_call import Problem
from farm.child.timing.common import DICE, SETTLE_MS, Bench, TimingResult, call_of, differ, host_times, median
from farm.child.timing.remembered import remembered
from farm.errors import CaptureFailed
from farm.timing.statistics import enough

#: A replay shorter than this is mostly its own launch.
MIN_REPLAY_US = 150.0
#: Replays between two looks at the samples, and how long (microseconds) one may take to be one of several.
BLOCK, LONG_US = 5, 50_000.0


def rotating_graph(bench: Bench) -> TimingResult:
    """See the module's first lines.  CaptureFailed where the call cannot be captured."""
    first = bench.make()
    host = host_times(bench, first)
    count, cold = bench.sets(max(bench.bytes_moved, 1))
    problems, own = bench.problems(first, count)
    graph, outputs, launches = capture(bench, problems)
    held = bench.nodes(graph)
    reused = handed_out_twice(outputs, given_to(problems))
    idle = ["launches no work that a graph can capture"] if held is not None and not held else []
    samples: list[float] = []
    usual = settle(bench, graph)
    begun = time.perf_counter()
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        samples += [t / launches for t in replay(bench, graph, block_of(usual))]
    kept, others = rewritten(bench, graph, outputs, problems, own)
    last = len(outputs) - count  # the last round: the first may have computed what later ones hand out
    reused += remembered(bench, graph, ((problems[i], outputs[last + i]) for i in sorted({0, own})))
    del graph, outputs
    return TimingResult(
        "rotating_graph",
        samples,
        host.us,
        kept,
        count,
        launches,
        cold,
        floor_us=graph_floor(bench),
        flags=[*bench.cold_flags(cold), *host.flags, *reused, *idle],
        kernels=None if held is None else sum(held.values()) / launches,
        outside_us=host.outside_us,
        other_outputs=others,
    )


def capture(bench: Bench, problems: list[Problem], rounds: int | None = None) -> tuple[Any, list[tuple[Any, ...]], int]:
    """(graph, outputs of each launch in it, how many): one call per buffer set, as often as a replay of MIN_REPLAY_US
    needs, or `rounds` times, and the device's graphs hold."""
    api = bench.api
    stream = api.Stream(bench.device)
    stream.wait_stream(api.current_stream(bench.device))
    graph = empty(api)
    outputs: list[tuple[Any, ...]] = []
    try:
        with api.stream(stream):
            for _ in range(2):  # compile, and let the allocator settle
                problems[0].run(bench.function)
            calls = [call_of(bench, p) for p in problems]  # a backward's forward runs here, on this stream
            calls[0]()
            api.synchronize(bench.device)
            per_round = len(calls) * _least_us(bench)
            rounds = rounds or min(64, max(1, -(-int(MIN_REPLAY_US) // max(1, int(per_round)))))
            if bench.max_launches:
                rounds = min(rounds, max(1, bench.max_launches // len(calls)))
            with api.graph(graph, stream=stream):
                for _ in range(rounds):
                    for call in calls:
                        outputs.append(call())
            if hasattr(graph, "instantiate"):
                graph.instantiate()  # kept graphs are not made ready by the capture's end
    except (torch.OutOfMemoryError, NotImplementedError):
        raise
    except Exception as error:
        raise CaptureFailed(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    api.current_stream(bench.device).wait_stream(stream)
    api.synchronize(bench.device)
    return graph, outputs, rounds * len(calls)


def given_to(problems: Sequence[Problem]) -> set[int]:
    """Where the buffer sets lie: an output there is a view of an input, which another check tells (or a gradient that
    is its upstream one unchanged, which autograd hands on as it is)."""
    return {memory(t) for p in problems for t in _tensors((*p.inputs, *p.upstream))}


def handed_out_twice(outputs: Sequence[tuple[Any, ...]], given: Collection[int] = ()) -> list[str]:
    """A finding where two launches, all of whose outputs are alive, gave out the same memory outside of `given` (of one
    launch two may: the gradients of an addition's operands are one tensor)."""
    taken: set[int] = set()
    for launch in outputs:
        mine = {memory(t) for t in _tensors(launch)} - {0, *given}
        if mine & taken:
            return [RETURNED_AGAIN]
        taken |= mine
    return []


def empty(api: Any, countable: bool = True) -> Any:
    """A graph to capture into, by the name that the device's module has for it (torch.cuda's, ROCm's too, or
    torch.npu's); one whose nodes can be counted after the capture, where this torch has such.  CaptureFailed where the
    module has none."""
    kind = getattr(api, "NPUGraph", None) or getattr(api, "CUDAGraph", None)
    if kind is None:
        raise CaptureFailed("this torch does not support graphs on this device")
    return kind(keep_graph=True) if countable and hasattr(kind, "raw_cuda_graph") else kind()


def _least_us(bench: Bench) -> float:
    """No call takes less, in microseconds: 1 for a launch, or its bytes at 8 TB/s."""
    return max(1.0, bench.bytes_moved / 8e6)


def replay(bench: Bench, graph: Any, count: int) -> list[float]:
    """Microseconds of `count` replays."""
    pairs = []
    if count > 1:
        graph.replay()  # not measured: the first one after a wait has the host's launch in it
    for _ in range(count):
        pair = (bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True))
        pair[0].record()
        graph.replay()
        pair[1].record()
        pairs.append(pair)
    bench.api.synchronize(bench.device)
    return [a.elapsed_time(b) * 1e3 for a, b in pairs]


def block_of(replay_us: float) -> int:
    """How many replays to make before looking at the samples: one where it is so long that its launch is nothing to
    it, so that a call of seconds stays within the phase's deadline."""
    return BLOCK if replay_us < LONG_US else 1


def settle(bench: Bench, graph: Any, seconds: float = 0.15) -> float:
    """Replay for SETTLE_MS, and on until two blocks agree within 1 % or the time is over: the clock is settled then.
    Gives the microseconds of one replay."""
    begun, last, spent_us, count = time.perf_counter(), 0.0, 0.0, 1
    while True:
        replays = replay(bench, graph, count)
        spent_us += sum(replays)
        now, over = median(replays), time.perf_counter() - begun >= seconds
        if over or (last and abs(now - last) <= 0.01 * last and spent_us >= SETTLE_MS * 1e3):
            return now
        last, count = now, block_of(now)


def rewritten(
    bench: Bench, graph: Any, outputs: Sequence[tuple[Any, ...]], problems: Sequence[Problem], own: int
) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """(outputs of a launch over the cell's own values, those of a launch over other values or None), both overwritten
    first and written again by one more replay.

    So what is compared was written by the launches that were timed: not by the capture, by a stream that the graph does
    not hold, or by an earlier call whose outputs are handed out again.
    """
    rounds, count = len(outputs) // len(problems), len(problems)
    mine = outputs[DICE.randrange(rounds) * count + own]
    others: tuple[Any, ...] | None = None
    if count > 1:
        at = (own + DICE.randrange(1, count)) % count
        if bench.other is not None and differ(problems[own], problems[at]):
            others = outputs[DICE.randrange(rounds) * count + at]
    given = given_to(problems)
    for tensor in _tensors((*mine, *(others or ()))):
        if memory(tensor) not in given:
            spoil(tensor)
    graph.replay()
    bench.api.synchronize(bench.device)
    return _copied(mine), None if others is None else _copied(others)


def spoil(tensor: torch.Tensor) -> None:
    """Overwrite every element with what no kernel writes.  A tensor whose elements share memory is left."""
    plain = tensor.detach()
    if not any(stride == 0 and size > 1 for stride, size in zip(plain.stride(), plain.shape)):
        poison.fill(plain)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    return (v for v in values if isinstance(v, torch.Tensor))


def _copied(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values)


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
        graph = empty(bench.api, countable=False)
        count = min(100, bench.max_launches or 100)
        with bench.api.graph(graph, stream=stream):
            for _ in range(count):
                tiny.add_(1)
        replay(bench, graph, 3)
        _FLOOR[key] = median(replay(bench, graph, 10)) / count
    return _FLOOR[key]
