"""Which calls of one device cannot be captured in a graph, and what times them instead.

A capture fails in two ways: the child says so, or the child does not live to say it.  Where that happens, the device's
backend says it (`TRIAL_CAPTURE`), and each call is tried in a child of its own before the first cell of it is timed
(`farm.actor.capture.trial`).  A call is a provider's mode, operation and parameters: what captures badly is what it
launches and asks of the runtime, and a trial costs a child's start, so shapes and dtypes share one.

Hence a second line (`CAPTURE_MAY_KILL`): a process that ends while a graph is timed is first taken for the capture's
doing, which is no fault of the code under test; it is timed once more without one, and accused if it ends again.

Pure; what is known is kept for the run by `farm.actor.capture.cache`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.child import protocol

CAPTURING = "rotating_graph"  # the timing method that captures a graph
#: After so many trials of a call that did not come as far as the capture, it is timed without one.
MAX_UNREACHED = 4


@dataclass(frozen=True)
class CaptureOutcome:
    """How a trial ended.  `captures`: None where it did not come as far as the capture.  `why`: what is to be said
    where it does not capture.  `fit`: the child may go on.  `compile_s`: seconds of the first call in it.
    `hollow`: it ended before the provider was called at all, so there is nothing to capture.  `lost`: the child ended
    in it, or had to be ended."""

    captures: bool | None
    why: str = ""
    fit: bool = True
    compile_s: float | None = None
    hollow: bool = False
    lost: bool = False


class CapturePolicy:
    """`fallback`: the method that times what no graph captures.  `trial`: no graph is timed before its trial."""

    def __init__(self, fallback: str, may_kill: bool, trial: bool = False):
        self.fallback, self._may_kill, self._trial = fallback, may_kill, trial
        self._known: dict[str, str] = {}  # provider/op/operation and parameters -> why there is no capture, "": it is
        self._open: dict[str, str] = {}  # the same -> why the last trial did not settle it
        self._unreached: Counter[str] = Counter()

    @property
    def known(self) -> dict[str, str]:
        """Call -> why it is not captured, "" where it is."""
        return dict(self._known)

    def learn(self, known: Mapping[str, str]) -> None:
        """What an actor before this one came to know of the same device."""
        self._known = {**known, **self._known}

    def untried(self, cell: dict[str, Any]) -> bool:
        """Whether a trial has to come before the cell."""
        return self._trial and _captured(cell) and _key(cell) not in self._known

    def tried(self, cell: dict[str, Any], outcome: CaptureOutcome) -> None:
        """A trial has ended."""
        key = _key(cell)
        if outcome.captures is None and not outcome.hollow:
            self._unsettled(key, outcome.why)
        else:
            self._known[key] = "" if outcome.captures or outcome.hollow else outcome.why

    def why_not(self, cell: dict[str, Any]) -> str:
        """Why this cell is timed by the fallback, "" where it is timed as it asks."""
        if not _captured(cell):
            return ""
        known = self._known.get(_key(cell))
        if known is None and self._trial:
            return self._open.get(_key(cell), "capture was not tried")
        return known or ""

    def method(self, cell: dict[str, Any]) -> str:
        """What the cell is timed by, as far as is known."""
        return self.fallback if self.why_not(cell) else str(cell["timing"]["method"])

    def suspected(self, cell: dict[str, Any], call: dict[str, Any], phase: str) -> bool:
        """Whether a process that ended in `phase` may have been ended by a capture."""
        graph = _captured(cell) and "timing_override" not in call
        return self._may_kill and graph and phase == "timing"

    def failed(self, cell: dict[str, Any], reply: protocol.Failed) -> str:
        """Remember that there is no capture; the reason."""
        self._known[_key(cell)] = why = f"capture {reply.reason}"
        return why

    def tried_without(self, cell: dict[str, Any], measured: bool) -> None:
        """The cell has been timed by the fallback.  A process that ended without a capture too was not ended by that
        (so the next cell is not spared it, but for the bound)."""
        known = self._known.get(_key(cell), "")
        if not measured and known and not known.startswith("capture failed"):
            del self._known[_key(cell)]
            if self._trial:
                self._unsettled(_key(cell), f"{known}, and the call also failed without a capture")

    def _unsettled(self, key: str, why: str) -> None:
        self._open[key] = why
        self._unreached[key] += 1
        if self._unreached[key] >= MAX_UNREACHED:
            self._known[key] = f"capture failed to start in {MAX_UNREACHED} trials; the last: {why}"


def told(reply: protocol.Failed) -> protocol.Failed:
    """A child's own word of a failed capture."""
    return protocol.Failed(**{**reply.__dict__, "reason": f"failed ({reply.reason})"})


def blamed(ids: tuple[str, int, int], what: str, log: str) -> protocol.Failed:
    """What a child would have said of its capture, had it lived to."""
    return protocol.Failed(*ids, "capture_failed", "harness", what, log, fatal=True)


def _captured(cell: dict[str, Any]) -> bool:
    return bool(cell["timing"]["method"] == CAPTURING)


def _key(cell: dict[str, Any]) -> str:
    return f"{cell['provider']}/{cell['op']}/{cell['mode']}/{cell['operation']}/{sorted(cell['params'].items())}"
