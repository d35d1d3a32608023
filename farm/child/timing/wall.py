"""`host`: wall time of the call until the device has finished it: what a user of one call waits for."""

from __future__ import annotations

import time
from typing import Any

import torch

from farm.child.timing.common import Bench, TimingResult, call_of, median, other_outputs
from farm.timing.statistics import enough


def host(bench: Bench) -> TimingResult:
    """See the module's first line.  Nothing is flushed: it is never cold."""
    problem = bench.make()
    call = call_of(bench, problem)
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
    others = other_outputs(bench, problem)
    return TimingResult(
        "host", samples, list(samples), out, cold=False, floor_us=host_floor(bench), other_outputs=others
    )


def host_floor(bench: Bench) -> float:
    """Microseconds from the smallest launch to its end, as the host sees them."""
    tiny = torch.zeros(16, device=bench.device)
    reads = []
    for _ in range(30):
        bench.api.synchronize(bench.device)
        start = time.perf_counter()
        tiny.add_(1)
        bench.api.synchronize(bench.device)
        reads.append((time.perf_counter() - start) * 1e6)
    return median(reads)
