"""A calibration seen from the supervisor: an order to a child, its steps, one end.

Where a capture may end or hang the process that makes it (a backend's `TRIAL_CAPTURE`), the calibration is its own
trial: no cell is at stake in its child.  A device where that ends the process, hangs or raises is measured again by the
method that times the cells of which no graph can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farm.actor import child_process, crash_owner
from farm.child import protocol
from farm.deadline import Deadline

if TYPE_CHECKING:
    from farm.actor.child_manager import ChildManager


def measure(
    children: ChildManager,
    revision: str,
    order: Mapping[str, Any],
    say: Callable[..., None],
    begin: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """`follow` in a child of the device's; after a failure, where the order has the policy `otherwise`, once more by
    that, and then the answer has the "policy".  `say(kind, **fields)` adds an event; `begin()`: there is a child."""
    first = _once(children, revision, order, say, begin)
    policy = order.get("otherwise")
    if not first.pop("capture", False) or not policy:
        return first
    was, now = order["policy"]["method"], policy["method"]
    say(
        "device_waits",
        reason=f"calibration by {was} failed ({first['reason']}); trying {now}",
        up_to_s=float(order["deadline"]) + RESTART_SECONDS,
    )
    again = _once(children, revision, {**order, "policy": policy}, say, begin)
    again.pop("capture", None)
    if "found" not in again:
        logs = "\n".join(e["log"] for e in (first, again) if e["log"])
        return {"reason": f"by {was}: {first['reason']}; by {now}: {again['reason']}", "log": logs}
    note = f"measured with {now}, because {was} failed ({first['reason']})"
    return {"found": {**again["found"], "notes": [*again["found"]["notes"], note]}, "policy": dict(policy)}


#: For the child after one that failed, besides what its order may take.
RESTART_SECONDS = 180.0


def _once(
    children: ChildManager, revision: str, order: Mapping[str, Any], say: Callable[..., None], begin: Callable[[], None]
) -> dict[str, Any]:
    try:
        child = children.child()
    except child_process.NoChild as reason:
        return {"reason": f"no child could be started: {reason}", "log": ""}
    children.served = True
    begin()
    ended = follow(child, revision, order, lambda text: say("calibrating", step=text))
    if "found" not in ended:
        children.replace()
    return ended


def follow(
    child: child_process.Child, revision: str, order: Mapping[str, Any], step: Callable[[str], None]
) -> dict[str, Any]:
    """Order {"policy", "seconds", "deadline"} in seconds, tell each step, and say how it ended: {"found"} (see
    `farm.calibration.procedure`), or {"reason", "log"}, after which the child is not fit for more; with "capture" where
    what failed may have been one: not who was killed by somebody else, nor who had no memory or cannot measure."""
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
                capture = said.status == "crashed" and "OutOfMemory" not in said.reason
                return {"reason": said.reason, "log": said.trace, **({"capture": True} if capture else {})}
    except child_process.ChildTimedOut:
        child.show_stacks()
        late = f"the calibration took more than {deadline.seconds:g} s"
        if child.suspended:
            return {"reason": f"{late}, and its child could not run: {child.suspended.why}", "log": child.log_tail()}
        return {"reason": late, "log": child.log_tail(), "capture": True}
    except child_process.ChildDied as error:
        ended = {"reason": f"the child ended with {error}", "log": child.log_tail()}
        return ended if crash_owner.sent(error.code) else {**ended, "capture": True}
    except child_process.ChildLied as error:
        return {"reason": f"the child {error}", "log": child.log_tail()}
