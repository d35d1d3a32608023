"""`events`: event pairs around single calls, the cache flushed before each, the queue kept ahead of the host.

What `do_bench` of triton and its kin do, without the host's launch path in it.  It reads 4 to 9 us more than the kernel
takes (docs/facts.md), so it is for calls that no graph holds, and for comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from farm.child.timing.common import (
    SETTLE_MS,
    Bench,
    TimingResult,
    host_times,
    median,
    other_outputs,
    repeatable,
    restorer,
)
from farm.timing.statistics import enough

_CYCLES_PER_US = 2000  # at the highest clock of an H200 (1.98 GHz); at a lower one the wait is only longer
#: Samples between two looks at them, and how long (microseconds) one may take to be one of several.
BLOCK, LONG_US = 5, 50_000.0


def events(bench: Bench) -> TimingResult:
    """See the module's first lines."""
    problem = bench.make()
    begin_anew = restorer(bench, problem)
    host = host_times(bench, problem)
    begin_anew()
    call, restore = repeatable(bench, problem)
    floor = event_floor(bench)
    flush = torch.empty(max(256 << 20, 2 * bench.cache_bytes) // 4, dtype=torch.int32, device=bench.device)
    wait_us = 1.5 * median(host.us)
    hidden = hasattr(bench.api, "_sleep")
    samples: list[float] = []
    out: tuple[Any, ...] = ()
    usual = _settle(bench, call, flush, restore)
    begun = time.perf_counter()
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        pairs = []
        for _ in range(BLOCK if usual < LONG_US else 1):
            restore()  # before the wait and the flush, so that it is neither timed nor in the cache
            keep_busy(bench, wait_us)
            if not bench.warm:
                flush.zero_()
            pair = (bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True))
            pair[0].record()
            out = call()
            pair[1].record()
            pairs.append(pair)
        bench.api.synchronize(bench.device)
        samples += [a.elapsed_time(b) * 1e3 for a, b in pairs]
    if bench.overwrites:  # what lies in an input is overwritten by what follows
        out = tuple(t.detach().clone() for t in out)
    flags = [] if hidden else ["the host could not keep the queue filled, so samples may include host time"]
    return TimingResult(
        "events",
        samples,
        host.us,
        out,
        cold=not bench.warm,
        floor_us=floor,
        flags=[*flags, *host.flags],
        outside_us=host.outside_us,
        other_outputs=other_outputs(bench, problem),
    )


def _settle(bench: Bench, call: Callable[[], Any], flush: torch.Tensor, restore: Callable[[], None]) -> float:
    """Work for SETTLE_MS; gives the microseconds of one call and flush, host included."""
    begun, done = time.perf_counter(), 0
    while True:
        restore()
        flush.zero_()
        out = call()
        del out
        bench.api.synchronize(bench.device)
        done += 1
        spent = time.perf_counter() - begun
        if spent >= SETTLE_MS / 1e3:
            return spent / done * 1e6


def keep_busy(bench: Bench, microseconds: float) -> None:
    """Give the device a wait that touches no memory, so that the host, needing less, is ahead of it."""
    if hasattr(bench.api, "_sleep"):
        bench.api._sleep(int(_CYCLES_PER_US * min(microseconds, 20_000.0)))


def event_floor(bench: Bench) -> float:
    """Microseconds that an event pair reads around the smallest kernel."""
    tiny = torch.zeros(16, device=bench.device)
    reads = []
    for _ in range(20):
        a, b = bench.api.Event(enable_timing=True), bench.api.Event(enable_timing=True)
        a.record()
        tiny.add_(1)
        b.record()
        bench.api.synchronize(bench.device)
        reads.append(a.elapsed_time(b) * 1e3)
    return median(reads)
