"""From the profiler's records of one device to the kernel time of each call.  Pure, standard library.

Between the timed calls a marker kernel runs, so that the records themselves say where a call begins: no clock of the
host is in it.  What ran between two markers is one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from farm.errors import RecordsLost

#: Part of the name of the marker, the kernel that `torch.cuda._sleep` launches.
MARKER = "spin_kernel"
#: Kinds of record that are work; anything else a profiler may list (synchronisation, annotations) is not.
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Record:
    """One activity of the device: its name, nanoseconds of its beginning and end, its stream, its kind."""

    name: str
    start_ns: int
    end_ns: int
    stream: int = 0
    kind: str = "kernel"


@dataclass(frozen=True)
class KernelCalls:
    """Per call in order: the kernel time in microseconds, how many activities, of them kernels; then how many
    activities of all ran on another stream than the markers."""

    times_us: tuple[float, ...]
    launched: tuple[int, ...]
    kernels: tuple[int, ...]
    elsewhere: int


def per_call(records: Sequence[Record], calls: int, marker: str = MARKER) -> KernelCalls:
    """The calls between `calls + 1` markers.  RecordsLost where there are more or fewer.

    A call's kernel time is the time in which at least one of its activities ran: the sum of their durations where they
    follow each other.  Where they overlap (side streams, or a launch that begins while its predecessor drains) the sum
    would count the same microsecond twice.
    """
    work = sorted((r for r in records if r.kind in WORK), key=lambda r: (r.start_ns, r.end_ns))
    marks = [i for i, r in enumerate(work) if marker in r.name]
    if len(marks) != calls + 1:
        raise RecordsLost(f"the profiler recorded {len(marks)} of {calls + 1} markers")
    streams = {work[i].stream for i in marks}
    groups = [work[a + 1 : b] for a, b in pairwise(marks)]
    return KernelCalls(
        tuple(busy_ns(g) / 1e3 for g in groups),
        tuple(len(g) for g in groups),
        tuple(sum(r.kind == "kernel" for r in g) for g in groups),
        sum(r.stream not in streams for g in groups for r in g),
    )


def busy_ns(records: Sequence[Record]) -> int:
    """Nanoseconds covered by at least one of the records."""
    total, until = 0, None
    for r in sorted(records, key=lambda r: r.start_ns):
        begin = r.start_ns if until is None else max(r.start_ns, until)
        total += max(0, r.end_ns - begin)
        until = r.end_ns if until is None else max(until, r.end_ns)
    return total
