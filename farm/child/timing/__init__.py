"""The timing policies, as they run in the child on a device: a file each, and what they share in `common`.

Every policy gives raw samples in microseconds per call of the operation, outputs kept from a timed launch, and the
host's own time.  torch is imported here; only the child loads this.
"""

from __future__ import annotations

from farm.child.timing.common import Bench, KernelRecorder, Policy, TimingResult, TimingUnusable, consumes
from farm.child.timing.event import event_floor, events
from farm.child.timing.graph import graph_floor, rotating_graph
from farm.child.timing.monitored import mspti
from farm.child.timing.profiled import profiler
from farm.child.timing.wall import host

POLICIES: dict[str, Policy] = {
    "rotating_graph": Policy("rotating_graph", rotating_graph),
    "events": Policy("events", events),
    "profiler": Policy("profiler", profiler),
    "host": Policy("host", host),
    "mspti": Policy("mspti", mspti),
}

__all__ = [
    "POLICIES",
    "Bench",
    "KernelRecorder",
    "Policy",
    "TimingResult",
    "TimingUnusable",
    "consumes",
    "event_floor",
    "events",
    "graph_floor",
    "host",
    "mspti",
    "profiler",
    "rotating_graph",
]
