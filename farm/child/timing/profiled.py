"""`profiler`: the device's own record (CUPTI, roctracer) of how long the kernels of a call ran.

The calls go over the same buffer sets as in `rotating_graph`, so they are as cold; launch gaps, and the host, are in no
number.  Afterwards the process is spent: graph capture fails where the profiler has been (docs/facts.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from farm.child.timing.common import SETTLE_MS, Bench, TimingResult, TimingUnusable, call_of, differ, host_times, median
from farm.child.timing.event import keep_busy
from farm.errors import RecordsLost
from farm.timing.kernels import KernelCalls, Record, per_call
from farm.timing.statistics import enough

#: How long the marker between two calls runs, in microseconds.
MARK_US = 5.0
#: Calls in one session of the profiler: starting and ending one costs milliseconds, and memory while it lasts.
BLOCK = 40


def profiler(bench: Bench) -> TimingResult:
    """See the module's first lines.  `Unusable` (NotImplementedError) where this device or environment has none."""
    if not hasattr(bench.api, "_sleep"):
        raise TimingUnusable(f"the profiler policy has no marker kernel on {bench.device.type}")
    return recorded(bench, "profiler", lambda call, count: session_of(bench, call, count), profiler_floor)


def recorded(
    bench: Bench,
    method: str,
    session: Callable[[Callable[[], Any], int], KernelCalls],
    floor_of: Callable[[Bench], float],
) -> TimingResult:
    """What `method` measures, whose `session(call, count)` gives the recorded kernel times of so many calls, over
    rotating buffer sets; `floor_of`: what it reads for the smallest kernel."""
    first = bench.make()
    host = host_times(bench, first)
    count, cold = bench.sets(max(bench.bytes_moved, 1))
    problems, own = bench.problems(first, count)
    calls = [call_of(bench, p) for p in problems]
    kept: list[tuple[Any, ...]] = [()] * count  # alive until the next call over their set: no buffer is reused sooner
    at = 0

    def one() -> None:
        nonlocal at
        kept[at % count] = calls[at % count]()
        at += 1

    _settle(bench, one)
    floor = floor_of(bench)
    samples: list[float] = []
    kernels: list[int] = []
    elsewhere = 0
    begun = time.perf_counter()
    block = max(6, min(BLOCK, int(bench.policy["min_samples"])))
    while not enough(samples, time.perf_counter() - begun, bench.policy):
        found = session(one, block)
        samples += found.times_us
        kernels += found.launched
        elsewhere += found.elsewhere
    while at < count:  # so that every set has outputs
        one()
    bench.api.synchronize(bench.device)
    flags = [*bench.cold_flags(cold), *host.flags]
    if elsewhere:
        flags.append(
            f"launches on other streams ({elsewhere} of {sum(kernels)} activities); the time of these launches is "
            "included"
        )
    if len(set(kernels)) > 1:
        flags.append(f"launches {min(kernels)} to {max(kernels)} kernels per call")
    others = None
    if count > 1 and bench.other is not None and differ(problems[own], problems[(own + 1) % count]):
        others = kept[(own + 1) % count]
    return TimingResult(
        method,
        samples,
        host.us,
        kept[own],
        count,
        1,
        cold,
        floor_us=floor,
        flags=flags,
        kernels=median([float(k) for k in kernels]),
        other_outputs=others,
        profiled=True,
    )


def _settle(bench: Bench, one: Callable[[], None]) -> None:
    """Work for SETTLE_MS: once at least, since the first call may compile."""
    begun = time.perf_counter()
    while True:
        one()
        bench.api.synchronize(bench.device)
        if time.perf_counter() - begun >= SETTLE_MS / 1e3:
            return


_FLOOR: dict[str, float] = {}


def profiler_floor(bench: Bench) -> float:
    """Microseconds that the profiler reads for the smallest kernel, measured once per process."""
    key = str(bench.device)
    if key not in _FLOOR:
        tiny = torch.zeros(16, device=bench.device)
        session_of(bench, lambda: None, 1)  # the first session of a process makes ready what later ones find
        _FLOOR[key] = median(session_of(bench, lambda: tiny.add_(1), 20).times_us)
    return _FLOOR[key]


def session_of(bench: Bench, call: Callable[[], Any], count: int, tries: int = 3) -> Any:
    """The kernel times of `count` calls.  A session that lost records is repeated, at most `tries` times in all."""
    for n in range(1, tries + 1):
        try:
            session = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            session.start()
        except (RuntimeError, AssertionError) as error:
            raise TimingUnusable(f"torch's profiler does not start: {error}") from error
        try:
            for _ in range(count):
                keep_busy(bench, MARK_US)
                call()
            keep_busy(bench, MARK_US)
            bench.api.synchronize(bench.device)
        finally:
            session.stop()
        try:
            return per_call(records(session), count)
        except RecordsLost as error:
            if n == tries:
                raise TimingUnusable(
                    f"{error}; torch's profiler (CUPTI) records no kernels in this environment"
                ) from error
    raise AssertionError("unreachable")


def records(session: Any) -> list[Record]:
    """The activities of the device in a finished session of torch.profiler."""
    result = session.profiler.kineto_results
    if result is None:
        return []
    found = []
    for e in result.events():
        if e.device_type() == torch.autograd.DeviceType.CPU:
            continue
        start = e.start_ns()
        found.append(Record(e.name(), start, start + e.duration_ns(), e.device_resource_id(), kind_of(e)))
    return found


def kind_of(event: Any) -> str:
    """`kernel`, `gpu_memcpy`, `gpu_memset` or another word: what the profiler says, or what the name does where this
    torch does not tell."""
    said = getattr(event, "activity_type", None)
    if said is not None:
        return str(said())
    name = event.name().lower()
    if name.startswith(("memcpy", "copy")):
        return "gpu_memcpy"
    if name.startswith("memset"):
        return "gpu_memset"
    return "sync" if "synchronize" in name or name.endswith("sync") else "kernel"
