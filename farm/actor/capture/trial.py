"""The trial of a capture, seen from the supervisor: one order to a child that has measured nothing, one outcome.

Where a runtime may end the process that captures a graph (a backend's `TRIAL_CAPTURE`), a call is captured first in a
child in which no cell is at stake.  What ends or hangs there costs that child; the cells are then timed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.actor import child_process, crash_owner
from farm.actor.capture.fallback import CaptureOutcome
from farm.child import protocol
from farm.deadline import Deadline

if TYPE_CHECKING:
    from farm.backends import Fault

#: How long a capture with its replays may take, in seconds, where the phase `timing` may take no less: it is a second's
#: work, and the lease waits for it.
TRIAL_SECONDS = 30.0


#: Of a call that is never captured: it may overwrite its inputs, so it is timed by events (`farm.child.session`).
NOT_NEEDED = CaptureOutcome(True)


def needed(tensors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call over these tensors may be captured."""
    return not any(t.get("may_overwrite") or t["role"] == "mutated" for t in tensors)


def follow(
    child: child_process.Child,
    message: protocol.Trial,
    limits: Mapping[str, float],
    words: Callable[[child_process.ChildDied], Fault | None],
    shows: Callable[[str, float], None] = lambda phase, seconds: None,
) -> CaptureOutcome:
    """Send the order, follow its phases within their deadlines, and say how it ended.  `words`: what the child printed
    as it died, understood; `shows(phase, seconds)` is called as a phase begins that may take so long."""
    phase, deadline = "import", Deadline(float(limits["import"]))
    try:
        child.send(message)
        while True:
            said = child.receive(deadline)
            if isinstance(said, protocol.Phase):
                phase = said.phase
                deadline = Deadline(_capture_seconds(limits) if phase == "timing" else float(limits[phase]))
                shows(phase, deadline.seconds)
            elif isinstance(said, protocol.Tried):
                why = f"capture's {said.differs} (in the trial)" if said.differs else ""
                return CaptureOutcome(not why, why, not said.spent, said.compile_s)
            elif isinstance(said, protocol.Failed):
                return _failed(said, phase)
    except child_process.ChildTimedOut:
        if child.suspended:
            return _unreached(f"the trial process did not run: {child.suspended.why}", False)
        if phase == "timing":
            return CaptureOutcome(
                False, f"capture did not end within {deadline.seconds:g} s in the trial", False, lost=True
            )
        return _unreached(f"phase {phase} took more than {deadline.seconds:g} s", False)
    except child_process.ChildDied as error:
        found = words(error)
        ended = f"{error}; {found.what}" if found and found.what else str(error)
        theirs = crash_owner.sent(error.code)  # an operator's, the OOM killer's, a run's end
        if phase == "timing" and not theirs:
            return CaptureOutcome(False, f"capture ended the trial process ({ended})", False, lost=True)
        return _unreached(f"the trial process ended with {ended}", False)
    except child_process.ChildLied as error:
        return _unreached(f"the trial process {error}", False)


def _failed(said: protocol.Failed, phase: str) -> CaptureOutcome:
    """A child's own word of how its trial ended."""
    if said.status == "capture_failed":
        return CaptureOutcome(False, f"capture failed in the trial ({said.reason})", not said.fatal)
    if phase == "timing" and said.owner == "kernel" and said.status == "crashed":
        # The first call went well, and the capture or a replay raised: on another day it might have failed alone.
        return CaptureOutcome(False, f"capture failed in the trial ({said.reason})", not said.fatal)
    hollow = phase == "import" and not said.fatal
    return CaptureOutcome(None, f"capture was not reached in the trial ({said.reason})", not said.fatal, hollow=hollow)


def _unreached(why: str, fit: bool) -> CaptureOutcome:
    return CaptureOutcome(None, f"capture was not reached in the trial ({why})", fit)


def _capture_seconds(deadlines: Mapping[str, float]) -> float:
    return min(TRIAL_SECONDS, float(deadlines["timing"]))
