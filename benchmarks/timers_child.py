"""A measuring process of `benchmarks.timers`: as `benchmarks.child`, with the timing policy in the subject's name.

A subject is `PROVIDER|METHOD`.  Items of phase 0 are timed by policies that leave the process fit, those of phase 1 by
the profiler, which does not: it comes last, and part of the time is kept for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import child
from benchmarks.cases import Case
from benchmarks.work import Work
from farm.backends.cuda import graph_nodes
from farm.child.timing import POLICIES, Bench, TimingResult

#: Share of a process's time that phase 1 gets.
KEPT = 0.45


class Process(child.Process):
    """The plan, its phase 0 cut short so that phase 1 has its share for the cases that phase 0 reached."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.left_out: set[str] = set()

    def item(self, case: Case, item: Mapping[str, Any]) -> None:
        if item.get("phase") == 0 and self.deadline.remaining < KEPT * self.deadline.seconds:
            self.left_out.add(case.id)
        elif item.get("phase") != 1 or case.id not in self.left_out:
            super().item(case, item)

    def measured(self, work: Work, subject: str) -> dict[str, Any]:
        provider, _, method = subject.partition("|")

        def timer(bench: Bench) -> TimingResult:
            bench.nodes = graph_nodes
            return POLICIES[method](bench)

        self.device.timer = timer
        return super().measured(work, provider)


if __name__ == "__main__":
    code = child.main(sys.argv[1:], Process)
    sys.stdout.flush()
    os._exit(code)  # a context that is lost would hang or crash the interpreter's own end
