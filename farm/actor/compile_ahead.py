"""What compiles ahead beside a device's child: a process for each arm, which it never waits for.

Kernels of cells that are to come are built on cores that nobody else needs, into the cache that the child reads
(`farm.child.compile_ahead`).  While a cell is timed all of it stands still.  What it says is as doubtful as what a
child says, and counts for nothing but a number on a page: which of a cell's kernels were there when they were needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from farm.actor.child_process import Child
from farm.deadline import Deadline
from farm.field_checks import integer, listed, number, record, text, verify
from farm.node.environment import MASKS
from farm.process.line_process import ChildLied, LineProcess

#: Turns compiling ahead off where it is 0.
VARIABLE = "FARM_COMPILE_AHEAD"
#: More processes than this no host needs for one device: most cells have few kernels.
MOST_WORKERS = 8
#: Cores of a host that are for the coordinator, and for judges, where it has many and where it has not.
_FOR_OTHERS, _MANY_CORES, _FOR_JUDGES = 1, 12, 3
#: Rounds whose children import together, at most: those of screening, and one of a retry.
MOST_ROUNDS = 4
#: Hashes that are remembered.
_MOST_KNOWN = 200_000
_ANSWER = record(
    {
        "cell": integer(),
        "hashes": listed(text(64), 2000),
        "compiled": integer(),
        "loaded": integer(),
        "seconds": number(0),
        "reason": text(1000),
    }
)
_BEGUN = record({"begun": integer()})
#: For so long a child waits for a kernel that is being compiled ahead: it would compile it no sooner.
WAIT_SECONDS = 3.0
_LOOK_SECONDS = 0.005
#: No device is to be seen by what compiles: what each vendor's mask takes for none.
_NO_DEVICE: Mapping[str, str | None] = {
    **dict.fromkeys(MASKS),
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "",
}


def workers(cores: int, devices: int, arms: int = 1) -> int:
    """How many processes may compile for each arm of one of `devices` on a host with so many cores; 0 for none."""
    spare = cores - devices - _FOR_OTHERS - (_FOR_JUDGES if cores >= _MANY_CORES else 1)
    return max(0, min(MOST_WORKERS, spare // max(1, devices * arms)))


def variables(spool: str, arm: str) -> dict[str, str | None]:
    """What sets it apart from a child: it sees no device, and what others' builds lock or keep in a folder is its own,
    so that no child ever waits for a lock that it holds."""
    folder = str(Path(spool, f"ahead-{arm}"))
    own = {name: f"{folder}/{name.lower()}" for name in ("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    return {**_NO_DEVICE, **own, "TRITON_CACHE_AUTOTUNING": None}


def rounds(workers_: int) -> int:
    """For how many rounds to come the children of both arms import together, on a host that has so many cores to spare
    for each arm: no more than import side by side."""
    return max(1, min(MOST_ROUNDS, workers_))


class CompileAhead:
    """For the one thread that starts a device's children.  `start`: starts what compiles for an arm, or gives None;
    `signal_others`: signals what else is to stand still while a cell is timed."""

    def __init__(
        self, start: Callable[[str], Child | None], signal_others: Callable[[int], None] = lambda number: None
    ):
        self._start, self._signal_others = start, signal_others
        self._running: dict[str, Child] = {}
        self._unsent: dict[str, bytearray] = {}
        self._known: dict[str, set[str]] = {}  # arm -> hashes of kernels that were compiled ahead
        self._begun: dict[str, set[int]] = {}  # arm -> cells that it is at
        self._late: set[str] = set()  # arms for which a wait was in vain: there is no other
        self._stopped = False

    def begin(self, arms: Collection[str]) -> None:
        """Start one for each: they import meanwhile."""
        for arm in arms:
            with contextlib.suppress(Exception):  # then the children compile by themselves
                child = self._start(arm)
                if child is not None:
                    self._running[arm], self._unsent[arm], self._known[arm] = child, bytearray(), set()
                    self._begun[arm] = set()

    def order(self, order: Mapping[str, Any] | None) -> None:
        """Take a grant's order (farm.coordinator.compile_ahead)."""
        if not order:
            return
        for arm, cells in order["cells"].items():
            if arm in self._running:
                for told in ({"target": order["target"]}, {"cells": cells}):
                    self._unsent[arm] += json.dumps(told, separators=(",", ":")).encode() + b"\n"
        self.look()

    def look(self) -> None:
        """Send what fits into the pipes, and take what was answered.  Waits for nothing, and raises nothing."""
        for arm, child in list(self._running.items()):
            try:
                self._send(arm, child)
                for line in child.waiting():
                    self._hear(arm, line)
                if child.at_end or not child.alive:
                    self._drop(arm)
            except (ChildLied, OSError, ValueError, TypeError, RecursionError):
                self._drop(arm)

    def _send(self, arm: str, child: Child) -> None:
        unsent = self._unsent[arm]
        while unsent and child.stdin is not None:
            sent = child.stdin.write(bytes(unsent[: 1 << 16]))
            if not sent:
                return
            del unsent[:sent]

    def _hear(self, arm: str, line: bytes) -> None:
        """ValueError for what is no answer."""
        told = json.loads(line)
        if isinstance(told, dict) and "begun" in told:
            verify(_BEGUN, told, "answer")
            if len(self._begun[arm]) < _MOST_KNOWN:
                self._begun[arm].add(told["begun"])
            return
        verify(_ANSWER, told, "answer")
        self._begun[arm].discard(told["cell"])
        if told["compiled"] and len(self._known[arm]) < _MOST_KNOWN:
            self._known[arm].update(told["hashes"])

    def wait(self, arm: str, cell: int, stopping: Callable[[], bool] = lambda: False) -> None:
        """Wait until what is being compiled for a cell is there, within WAIT_SECONDS; not for a cell that nobody has
        begun with, and never again for an arm where it was in vain."""
        deadline = Deadline(WAIT_SECONDS)
        self.look()
        while arm in self._running and cell in self._begun[arm] and arm not in self._late and not stopping():
            if deadline.expired:
                self._late.add(arm)
            time.sleep(_LOOK_SECONDS)
            self.look()

    def count(self, arm: str, hashes: Collection[str]) -> int:
        """How many of these kernels it has compiled."""
        self.look()
        return len(self._known.get(arm, set()).intersection(hashes))

    def stop(self) -> None:
        """Have it stand still, until `go_on`."""
        if not self._stopped:
            self._stopped = True
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._stopped:
            self._stopped = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for child in self._running.values():
            child.signal(number)
        self._signal_others(number)

    def _drop(self, arm: str) -> None:
        child = self._running.pop(arm)
        child.kill(grace=0.0)
        LineProcess.close(child)  # it takes no message

    def close(self) -> None:
        for arm in list(self._running):
            with contextlib.suppress(Exception):
                self._drop(arm)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
