"""A calibration seen from the supervisor: one order to a child, its steps, one end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farm.actor import supervise
from farm.child import protocol
from farm.deadline import Deadline


def follow(
    child: supervise.Child, revision: str, order: Mapping[str, Any], step: Callable[[str], None]
) -> dict[str, Any]:
    """Order {"policy", "seconds", "deadline"}, tell each step, and say how it ended: {"found"} (see
    `farm.calibration.procedure`), or {"reason", "log"}, after which the child is not fit for more."""
    ids, deadline = (revision, 0, 1), Deadline(float(order["deadline"]))
    try:
        child.send(protocol.Calibrate(*ids, dict(order["policy"]), float(order["seconds"])))
        while True:
            said = child.receive(deadline)
            if isinstance(said, protocol.Phase):
                step(said.phase)
            elif isinstance(said, protocol.Calibrated):
                return {"found": said.found}
            elif isinstance(said, protocol.Failed):
                return {"reason": said.reason, "log": said.trace}
            else:
                raise supervise.ChildLied(f"wrote a message that answers nothing: {said!r:.200}")
    except supervise.ChildTimedOut:
        child.show_stacks()
        return {"reason": f"it took more than {deadline.seconds:g} s", "log": child.log_tail()}
    except supervise.ChildDied as error:
        return {"reason": f"its process ended with {error}", "log": child.log_tail()}
    except supervise.ChildLied as error:
        return {"reason": f"its process {error}", "log": child.log_tail()}
