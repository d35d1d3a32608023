"""What a run notes of its devices' health: who was suspect, quarantined, gone or drained, when and why.  Pure.

The journal has each event; run.json keeps the last of them as `health`, so that pages need not read journals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: States of a device that takes no cells.
OUT = ("quarantined", "gone", "drained")
STATES = ("suspect", *OUT, "ready")
#: So many entries are kept of a run, the last ones, each with a reason of at most so many characters.
KEPT, REASON = 200, 300


def of_line(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a line of a journal says of a device's health: {"device", "time", "state", "reason"}; None if nothing."""
    event, state = line.get("event"), ""
    if event == "health":
        state = str(line.get("state") or "")
    elif event == "drain":
        state = "drained"
    elif (event == "device_down" and line.get("final") and not line.get("busy")) or event == "retired":
        state = "drained" if line.get("drained") else "gone"
    if state not in STATES:
        return None
    reason = str(line.get("reason") or "")[:REASON]
    return {"device": str(line.get("device") or ""), "time": line.get("time"), "state": state, "reason": reason}


def kept(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The last entries that say something new of their device: the retirement of a quarantined one does not."""
    out: list[dict[str, Any]] = []
    last: dict[str, str] = {}
    for entry in entries:
        device, state = str(entry.get("device") or ""), str(entry.get("state") or "")
        if last.get(device) in OUT and state in OUT:
            continue
        last[device] = state
        out.append(dict(entry))
    return out[-KEPT:]


def sound(told: Any) -> list[dict[str, Any]]:
    """The entries of `health` in a run.json, without what this farm has not written."""
    entries = told if isinstance(told, list) else []
    names = ("device", "state", "reason")
    return [
        {**{n: str(e.get(n) or "") for n in names}, "time": e.get("time")}
        for e in entries[-KEPT:]
        if isinstance(e, Mapping) and e.get("state") in STATES
    ]
