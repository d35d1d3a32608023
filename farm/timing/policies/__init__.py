"""The timing policies, as they run in the child on a device: a file each, and what they share in `common`.

Every policy gives raw samples in microseconds per call of the operation, outputs kept from a timed launch, and the
host's own time.  torch is imported here; only the child loads this.
"""

from __future__ import annotations

from farm.timing.policies.common import Bench, CaptureFailed, Policy, Recorder, TimingResult, Unusable
from farm.timing.policies.event import event_floor, events
from farm.timing.policies.graph import graph_floor, rotating_graph
from farm.timing.policies.monitored import mspti
from farm.timing.policies.profiled import profiler
from farm.timing.policies.wall import host

POLICIES: dict[str, Policy] = {
    "rotating_graph": Policy("rotating_graph", rotating_graph),
    "events": Policy("events", events),
    "profiler": Policy("profiler", profiler),
    "host": Policy("host", host),
    "mspti": Policy("mspti", mspti),
}

__all__ = [
    "POLICIES", "Bench", "CaptureFailed", "Policy", "Recorder", "TimingResult", "Unusable", "event_floor", "events",
    "graph_floor", "host", "mspti", "profiler", "rotating_graph",
]  # fmt: skip
