"""How long each thing may take: the one table, in seconds.  A matrix may ask for other limits (`deadlines`), and a node
may cap what is asked of it.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: What a child is allowed; every matrix holds all of these.
PHASES: Mapping[str, float] = {
    "spawn": 120.0,  # to say that it is ready
    "import": 120.0,
    "compile": 120.0,
    "check": 60.0,
    "timing": 60.0,
    "teardown": 10.0,  # to end, once it was killed
}
#: What surrounds a child; a matrix holds those that it sets.
AROUND: Mapping[str, float] = {
    "prepare": 300.0,  # the judge makes a cell's inputs
    "judge": 900.0,  # and judges its outputs, its reference included
    "lock": 60.0,  # a thread of a judge waits for another that makes the same
    "write": 30.0,  # an order waits for room in the child's pipe
    "silence": 45.0,  # a device's actor, or its node, does not answer
}
TABLE: Mapping[str, float] = {**PHASES, **AROUND}
#: What a node may cap; how long it may be silent is measured elsewhere.
CAPPED = tuple(name for name in TABLE if name != "silence")
#: For what precedes and follows a child's start: the end of the last one, its device's memory.
AROUND_START = 60.0
#: For what follows a phase that was overrun: to kill the child, and what stands behind it.
AFTER_PHASE = 45.0


def of(asked: Mapping[str, float], caps: Mapping[str, float] | None = None) -> dict[str, float]:
    """The whole table: what is asked for, else the default; at most the node's `caps`."""
    most = caps or {}
    return {name: min(float(asked.get(name, usual)), most.get(name, math.inf)) for name, usual in TABLE.items()}


def loosest(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each limit the longest that one of the `tables` asks for."""
    whole = [of(table) for table in tables] or [of({})]
    return {name: max(table[name] for table in whole) for name in TABLE}


def start(limits: Mapping[str, float]) -> float:
    """The start of a child, with what precedes it."""
    return limits["spawn"] + AROUND_START


def slack(limits: Mapping[str, float]) -> float:
    """What is granted beyond a phase's limit until its device is taken to be stuck: the phase's own supervisor comes
    first, and so does the search for actors that do not answer."""
    return limits["silence"] + AFTER_PHASE
