"""Which calls of one device cannot be captured in a graph, and what times them instead.

A capture fails in two ways: the child says so, or the child does not live to say it (the device's backend says whether
that happens: `CAPTURE_MAY_KILL`).  A process that ends while a graph is timed is therefore first taken for the
capture's doing, which is no fault of the code under test; it is timed once more without one, and accused if it ends
again.
"""

from __future__ import annotations

from typing import Any

from farm.child import protocol

CAPTURING = "rotating_graph"  # the timing method that captures a graph


class Captures:
    """`fallback`: the method that times what no graph captures."""

    def __init__(self, fallback: str, may_kill: bool):
        self.fallback, self._may_kill = fallback, may_kill
        self._known: dict[str, str] = {}  # provider/op/operation and parameters -> why there is no capture

    def why_not(self, cell: dict[str, Any]) -> str:
        """Why this cell is timed by the fallback, "" where it is timed as it asks."""
        return self._known.get(_key(cell), "") if cell["timing"]["method"] == CAPTURING else ""

    def method(self, cell: dict[str, Any]) -> str:
        """What the cell is timed by, as far as is known."""
        return self.fallback if self.why_not(cell) else str(cell["timing"]["method"])

    def suspected(self, cell: dict[str, Any], call: dict[str, Any], phase: str) -> bool:
        """Whether a process that ended in `phase` may have been ended by a capture."""
        graph = cell["timing"]["method"] == CAPTURING and "timing_override" not in call
        return self._may_kill and graph and phase == "timing"

    def failed(self, cell: dict[str, Any], reply: protocol.Failed) -> str:
        """Remember that there is no capture; the reason."""
        self._known[_key(cell)] = why = f"capture {reply.reason}"
        return why

    def tried_without(self, cell: dict[str, Any], measured: bool) -> None:
        """The cell's second try has ended.  A process that ended without a capture too was not ended by that."""
        if not measured and not self._known.get(_key(cell), "").startswith("capture failed"):
            self._known.pop(_key(cell), None)


def told(reply: protocol.Failed) -> protocol.Failed:
    """A child's own word of a failed capture."""
    return protocol.Failed(**{**reply.__dict__, "reason": f"failed ({reply.reason})"})


def blamed(ids: tuple[str, int, int], what: str, log: str) -> protocol.Failed:
    """What a child would have said of its capture, had it lived to."""
    return protocol.Failed(*ids, "capture_failed", "harness", what, log, fatal=True)


def _key(cell: dict[str, Any]) -> str:
    return f"{cell['provider']}/{cell['op']}/{cell['mode']}/{cell['operation']}/{sorted(cell['params'].items())}"
