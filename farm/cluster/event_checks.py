"""The door for what actors say: they are the farm's own, but maybe another revision of it, on a node that is not well.

An event of an unknown kind, or with a field of another type, is its device's fault: the actor is replaced.  Fields that
are not known here pass: a newer actor may have more to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farm.actor.child_messages import EVIDENCE, FACTS, FINGERPRINT, FOUND, MAY_SAY, SUBJECT, TARGET, TIMING
from farm.cell import Evidence, Owner, Status
from farm.errors import Message
from farm.field_checks import (
    BadField,
    Check,
    integer,
    listed,
    mapped,
    number,
    one_of,
    optional,
    plain,
    record,
    refuse,
    switch,
    text,
    verify,
)

_SHORT, _LONG, _LOG = text(4096), text(1 << 17), text(1 << 21)
_OF_CELL = {"cell": integer(), "attempt": integer(1)}
_ORIGIN = record(
    {
        "target": optional(TARGET),
        "device": _SHORT,
        "node": _SHORT,
        "fingerprint": FINGERPRINT,
        "evidence": one_of("", *(e.value for e in Evidence)),
        "revision": _SHORT,
        "started": number(),
        "seconds": optional(number()),
    },
    open=True,
)
_TELEMETRY = optional(mapped(plain()))
_SPENT = {"spent": mapped(number(0))}  # by cause (farm.utilisation), seconds
_METRICS = mapped(mapped(number(finite=False)))
EVENTS: Mapping[str, Check] = {
    name: record({"event": _SHORT, **fields}, {"device": _SHORT, "age_s": number(0), **more}, open=True)
    for name, fields, more in (
        (
            "device_up",
            {
                "backend": _SHORT,
                "target": TARGET,
                "name": _SHORT,
                "node": _SHORT,
                "fingerprint": FINGERPRINT,
                "evidence": EVIDENCE,
            },
            {
                "pid": optional(integer()),
                "identity": mapped(plain()),
                "environment": _SHORT,
                "command": listed(_LONG),
                "labels": mapped(plain()),
                "subject": SUBJECT,
                "versions": mapped(_SHORT),
                "arms": mapped(plain(depth=6)),
                **_SPENT,
            },
        ),
        ("placed", {}, {}),
        ("node_farm", {"protocol": integer(), "content": _SHORT}, {}),
        ("device_waits", {"reason": _LONG}, {"up_to_s": number(0)}),
        ("device_down", {"reason": _LONG}, {"final": switch, "busy": switch, "subject_refused": switch}),
        ("judge_down", {"reason": _LONG, "judge": integer(), "generation": integer()}, {}),
        (
            "probe",
            {"probe": integer(1), "status": _SHORT, "owner": optional(_SHORT)},
            {"cell_id": _LONG, "reason": _LONG, "log": _LOG, "judged_by": _SHORT},
        ),
        ("lease_done", {"lease": integer()}, _SPENT),
        ("started", _OF_CELL, {"up_to_s": number(0)}),
        ("progress", {**_OF_CELL, "phase": _SHORT, "up_to_s": number(0)}, {}),
        (
            "measured",
            {**_OF_CELL, "facts": FACTS, "timing": TIMING, "origin": _ORIGIN},
            {"round": integer(), "revision": _SHORT, "telemetry": _TELEMETRY, "log": _LOG, **_SPENT},
        ),
        (
            "judged",
            {**_OF_CELL, "status": _SHORT, "owner": optional(_SHORT)},
            {
                "reason": _LONG,
                "judge_died": switch,
                "metrics": _METRICS,
                "gates": _METRICS,
                **dict.fromkeys(("worst_output", "worst_metric", "output_hash", "input_hash"), optional(_SHORT)),
                "worst_ratio": optional(number(finite=False)),
                "places": mapped(plain(depth=6)),
                "judged_as": _LONG,
                "sampled_rows": integer(1),
            },
        ),
        (
            "ended",
            {**_OF_CELL, "status": _SHORT, "owner": _SHORT, "reason": _LONG, "origin": _ORIGIN},
            {"log": _LOG, **_SPENT},
        ),
        ("calibrating", {"step": _LONG}, {}),
        ("calibrated", {}, {"found": FOUND, "reason": _LONG, "log": _LOG, "policy": mapped(plain())}),
    )
}
_FARMS = (Owner.HARNESS, Owner.DEVICE, Owner.INFRA)
_JUDGED: Mapping[str, tuple[str | None, ...]] = {
    Status.PASSED.value: (None, ""),
    Status.INACCURATE.value: (Owner.KERNEL.value,),
    Status.CRASHED.value: (Owner.KERNEL.value,),
    Status.INFRA_ERROR.value: tuple(o.value for o in _FARMS),
}
_ENDED = {**MAY_SAY, Status.CRASHED.value: (Owner.KERNEL.value, Owner.INFRA.value)}  # the first SIGKILL
#: Event -> status -> the owners that it may have.
OWNERS: Mapping[str, Mapping[str, tuple[str | None, ...]]] = {
    "judged": _JUDGED,
    "ended": _ENDED,
    "probe": {**_JUDGED, **_ENDED},
}


def check(event: Any) -> None:
    """BadField unless it is an event as an actor of this farm says it."""
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise refuse("event", kind, "one that is known")
    verify(EVENTS[kind], event, kind)
    if kind in OWNERS:
        allowed = OWNERS[kind].get(event["status"], ())
        if event["owner"] not in allowed:
            raise refuse(f"{kind}.owner", event["owner"], f"one of status {event['status']!r:.80}")


def taken(device: str, answer: Any, now: float) -> tuple[list[dict[str, Any]], bool]:
    """The events of an actor's answer, dated by the age that it tells (hosts' clocks differ); after one that is not
    right, its device's end instead, and False."""
    found: list[dict[str, Any]] = []
    try:
        for event in _each(answer):
            check(event)
            found.append({**{k: v for k, v in event.items() if k != "age_s"}, "device": device})
            found[-1]["at"] = now - event.get("age_s", 0.0)
    except BadField as wrong:
        reason = Message(f"its actor sent what is no event ({wrong})", id="event-malformed")
        down = {"event": "device_down", "device": device, "at": now, "final": False, "reason": reason}
        return [*found, down], False
    return found, True


def _each(answer: Any) -> Iterable[Any]:
    if not isinstance(answer, list):
        raise refuse("its answer", answer, "a list")
    return answer
