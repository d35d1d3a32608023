"""The timing methods by name and version, and what each does to the process that it runs in.  Pure.

A version is raised when what a policy measures changes, and only then: it is in the key of every cell that is timed by
it, and results are compared within equal keys.  History:

    rotating_graph  1  samples began before the device had left its idle state;  2  works for 25 ms first
    events          1, 2  the same fault;  3  works for 25 ms first
    profiler        1  first
    host            1  first;  2  the same (one number stood for all methods then)
    mspti           1  first
"""

from __future__ import annotations

from collections.abc import Mapping

VERSIONS: Mapping[str, int] = {"rotating_graph": 2, "events": 3, "profiler": 1, "host": 2, "mspti": 1, "none": 2}
METHODS: tuple[str, ...] = tuple(VERSIONS)
#: After these a process cannot capture graphs any more, and launches slower: it times nothing else.
SPENDING = frozenset({"profiler", "mspti"})


def spends(method: str) -> bool:
    """Whether a process that has timed by `method` may be used for other methods afterwards no more."""
    return method in SPENDING
