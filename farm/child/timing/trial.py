"""Whether a call can be captured: one graph of it, as full as the device's graphs get, replayed and compared.

For devices on which a capture may end the process: there this is done first, in a process in which no cell is at stake
(`farm.actor.capture.trial`).  What `rotating_graph` asks of a graph is asked here: the capture, its nodes, replays,
and the graph of small kernels that its floor is read from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from farm.child.permuted_inputs import alike, memory
from farm.child.provider_call import Problem
from farm.child.timing.common import MAX_SETS, MEMORY_SHARE, Bench, call_of
from farm.child.timing.graph import capture, given_to, graph_floor, spoil

REPLAYS = 2
#: A replay of the trial's graph may take so long, in seconds.
REPLAY_SECONDS = 0.25
DIFFERS = "replays gave different outputs than the call"


def try_capture(bench: Bench) -> str:
    """What did not come out of the replays of a captured call as the call itself gives it, "" where all did.

    CaptureFailed where the runtime refuses the capture.  The process may end here, or never come back.
    """
    first = bench.make()
    problems = [first, bench.other(1) if bench.other else bench.make()]
    expected, seconds = _called(bench, problems)
    graph, outputs, _ = capture(bench, problems, _rounds(bench, expected, seconds))
    bench.nodes(graph)
    last = [_tensors(launch) for launch in outputs[-len(problems) :]]
    given = given_to(problems)
    for _ in range(REPLAYS):
        for tensor in (t for launch in last for t in launch):
            if memory(tensor) not in given:
                spoil(tensor)
        graph.replay()
        bench.api.synchronize(bench.device)
        if not all(_same(want, got) for want, got in zip(expected, last)):
            return DIFFERS
    del graph, outputs, last  # a graph's end may be the process's too
    bench.api.synchronize(bench.device)
    graph_floor(bench)
    return ""


def _called(bench: Bench, problems: Sequence[Problem]) -> tuple[list[list[torch.Tensor]], float]:
    """(outputs of each problem's call outside of a graph, seconds of one such call, the host's time included)."""
    out = []
    begun = time.perf_counter()
    for problem in problems:
        out.append([t.clone() for t in _tensors(call_of(bench, problem)())])
        bench.api.synchronize(bench.device)
    return out, (time.perf_counter() - begun) / len(problems)


def _rounds(bench: Bench, outputs: Sequence[Sequence[torch.Tensor]], seconds: float) -> int:
    """How often each problem's call is captured: as many calls as the device's graphs hold, since some die of their
    number and not of what they hold; fewer where their outputs, all of which are kept, or their time do not allow it.
    """
    most = (bench.max_launches or MAX_SETS) // len(outputs)
    each = sum(t.nbytes for launch in outputs for t in launch)
    fit = int(bench.api.mem_get_info(bench.device)[0] * MEMORY_SHARE / max(1, each))
    quick = int(REPLAY_SECONDS / max(1e-9, seconds * len(outputs)))
    return max(1, min(most, fit, quick))


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v.detach() for v in values if isinstance(v, torch.Tensor)]


def _same(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> bool:
    return len(want) == len(got) and all(alike(a, b) for a, b in zip(want, got))
