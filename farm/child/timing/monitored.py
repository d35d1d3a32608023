"""`mspti`: an NPU's own record, without files, of how long the kernels of a call ran; for calls that no graph holds.

The calls go over the same buffer sets as in `rotating_graph`, so they are as cold.  Between two of them runs a marker,
a kernel that the call is seen not to launch, so that the records say by themselves where a call begins; its time is in
no number.  The monitor is started once a process and stays (one a lease, and no trace is parsed); afterwards the
process times by nothing else.  Copies and fills that are no kernels are in no record of it, and so in no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from farm.child.timing.common import Bench, KernelRecorder, TimingResult, TimingUnusable, median
from farm.child.timing.profiled import recorded
from farm.errors import RecordsLost
from farm.timing.kernels import KernelCalls, Record, per_call

#: What markers are called among the records, so that no kernel's name can be taken for one.
MARK = "the farm's marker"
#: Operators that norms, products and attention have no use for: the first that a call does not launch either is taken.
OPERATORS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: t.bitwise_xor_(1),
    lambda t: t.remainder_(7),
    lambda t: t.bitwise_and_(3),
)
#: How often a marker is launched to learn its kernel's name.
LEARNT_FROM = 3


class Marker:
    """Launches one small kernel, of the name `kernel`."""

    def __init__(self, operator: Callable[[torch.Tensor], Any], tensor: torch.Tensor, kernel: str):
        self._operator, self._tensor, self.kernel = operator, tensor, kernel

    def __call__(self) -> None:
        self._operator(self._tensor)


def mspti(bench: Bench) -> TimingResult:
    """See the module's first lines.  Unusable where this environment has no such record, or no marker can be found."""
    if bench.recorder is None:
        raise TimingUnusable(f"the mspti policy has no kernel monitor on {bench.device.type}")
    try:
        recorder = bench.recorder()
    except NotImplementedError as reason:
        raise TimingUnusable(str(reason)) from reason
    found: list[Marker] = []

    def session(call: Callable[[], Any], count: int) -> KernelCalls:
        if not found:
            found.append(marker_of(bench, recorder, call))
        return session_of(bench, recorder, found[0], call, count)

    return recorded(bench, "mspti", session, lambda b: mspti_floor(b, recorder))


def marker_of(bench: Bench, recorder: KernelRecorder, call: Callable[[], Any]) -> Marker:
    """The first operator that is one kernel, and one that the call does not launch."""
    theirs: set[str] = {r.name for r in run(bench, recorder, call, 1)}
    if not theirs:
        raise TimingUnusable("MSPTI records no kernels in this process; preload libmspti.so (LD_PRELOAD)")
    tensor = torch.ones(8, dtype=torch.int32, device=bench.device)
    for operator in OPERATORS:
        names = Counter(r.name for r in run(bench, recorder, partial(operator, tensor), LEARNT_FROM))
        name = next(iter(names), "")
        if names == {name: LEARNT_FROM} and name not in theirs:
            return Marker(operator, tensor, name)
    raise TimingUnusable(
        "MSPTI has no marker for this call: every candidate operator launches several kernels, or a kernel of the call"
    )


def run(bench: Bench, recorder: KernelRecorder, call: Callable[[], Any], count: int) -> list[Record]:
    """The kernels of `count` calls after a first one, which may compile."""
    call()
    bench.api.synchronize(bench.device)
    recorder.drain(bool)
    for _ in range(count):
        call()
    bench.api.synchronize(bench.device)
    return recorder.drain(lambda said: len(said) >= count)


def session_of(
    bench: Bench, recorder: KernelRecorder, marker: Marker, call: Callable[[], Any], count: int, tries: int = 3
) -> KernelCalls:
    """The kernel times of `count` calls.  Where records were lost it is tried again, at most `tries` times in all."""
    for n in range(1, tries + 1):
        bench.api.synchronize(bench.device)
        recorder.drain(lambda said: True)
        for _ in range(count):
            marker()
            call()
        marker()
        bench.api.synchronize(bench.device)
        said = recorder.drain(lambda some: sum(r.name == marker.kernel for r in some) > count)
        named = [replace(r, name=MARK if r.name == marker.kernel else r.name) for r in said]
        try:
            return per_call(named, count, MARK)
        except RecordsLost as error:
            if n == tries:
                raise TimingUnusable(f"{error}; MSPTI loses kernels in this environment") from error
    raise AssertionError("unreachable")


_FLOOR: dict[str, float] = {}


def mspti_floor(bench: Bench, recorder: KernelRecorder) -> float:
    """Microseconds that the monitor reads for the smallest kernel, measured once per process."""
    key = str(bench.device)
    if key not in _FLOOR:
        tiny = torch.zeros(16, device=bench.device)
        times = [(r.end_ns - r.start_ns) / 1e3 for r in run(bench, recorder, lambda: tiny.add_(1), 20)]
        _FLOOR[key] = median(times)
    return _FLOOR[key]
