"""The cluster's door: events of a healthy actor pass; anything else is its device's fault."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from farm.cluster import event_checks
from farm.cluster.event_checks import EVENTS, check, taken
from farm.errors import id_of
from farm.field_checks import BadField, verify

Event = dict[str, Any]
ORIGIN = {
    "target": {"backend": "cuda", "model": "NVIDIA H200"},
    "device": "H200",
    "node": "n",
    "fingerprint": {"torch": "2.11"},
    "evidence": "executed",
    "revision": "r",
    "started": 1.5,
    "seconds": 0.1,
}
AT = {"device": "cuda:0", "age_s": 0.5}
CELL = {**AT, "cell": 3, "attempt": 1}
TIMED = {"method": "host", "samples_us": [1.5], "cold": True}
HEALTHY: list[Event] = [
    {
        "event": "device_up",
        **AT,
        "backend": "cuda",
        "name": "H200",
        "node": "n",
        "pid": 7,
        "labels": {"a": "b"},
        **{k: ORIGIN[k] for k in ("target", "fingerprint", "evidence")},
        "identity": {"module": ""},
        "environment": "default",
        "command": ["python"],
    },
    {"event": "device_waits", **AT, "reason": "in use", "up_to_s": 600.0},
    {"event": "device_down", **AT, "reason": "gone", "final": True, "busy": False},
    {"event": "lease_done", **AT, "lease": 4},
    {"event": "judge_down", **AT, "judge": 0, "generation": 2, "reason": "killed"},
    {"event": "probe", **AT, "probe": 1, "status": "crashed", "owner": "kernel", "reason": "r", "cell_id": "c"},
    {"event": "node_farm", **AT, "protocol": 1, "content": "0123"},
    {"event": "started", **CELL},
    {"event": "progress", **CELL, "phase": "check", "up_to_s": 60.0},
    {"event": "measured", **CELL, "facts": {"flags": []}, "timing": TIMED, "origin": ORIGIN, "telemetry": None},
    {"event": "judged", **CELL, "status": "passed", "owner": None, "metrics": {"y": {"rel_l2": float("nan")}}},
    {"event": "judged", **CELL, "status": "inaccurate", "owner": "kernel", "reason": "y", "worst_ratio": float("inf")},
    {"event": "judged", **CELL, "status": "infra_error", "owner": "infra", "reason": "late", "judged_by": "abc"},
    {"event": "ended", **CELL, "status": "crashed", "owner": "infra", "reason": "r", "origin": ORIGIN, "log": ""},
    {"event": "ended", **CELL, "status": "unsupported", "owner": "kernel", "reason": "r", "origin": ORIGIN},
    {"event": "calibrating", **AT, "step": "floors"},
    {"event": "calibrated", **AT, "reason": "r", "log": ""},
    {"event": "placed", **AT},
]


@pytest.mark.parametrize("event", HEALTHY, ids=lambda e: str(e["event"]))
def test_what_an_actor_says_passes(event: Event) -> None:
    assert taken("host/cuda:0", [event], 10.0) == (
        [{**{k: v for k, v in event.items() if k != "age_s"}, "device": "host/cuda:0", "at": 9.5}],
        True,
    )


def test_every_kind_has_a_healthy_event() -> None:
    assert {e["event"] for e in HEALTHY} == set(EVENTS)


BENT: tuple[Callable[[Event, random.Random], Any], ...] = (
    lambda e, dice: e.pop(
        dice.choice([k for k in e if k in ("cell", "attempt", "status", "target", "facts", "lease")])
    ),
    lambda e, dice: e.update(event=dice.choice(["haha", "", None, 3, ["ended"], "plan"])),
    lambda e, dice: e.update(cell=dice.choice([-1, True, "3", None, 2**70, [3]])),
    lambda e, dice: e.update(attempt=dice.choice([0, -1, True, 1.0, None])),
    lambda e, dice: e.update(age_s=dice.choice([-1, "x", None, float("nan"), float("inf")])),
    lambda e, dice: e.update(reason=dice.choice([3, None, b"x", "x" * (1 << 18)])),
    lambda e, dice: e.update(status=dice.choice(["haha", "lost", "built", "skipped", None, 3, ["passed"]])),
    lambda e, dice: e.update(
        owner=dice.choice(["nobody", 3, ["kernel"], "harness" if e["status"] == "passed" else "x"])
    ),
    lambda e, dice: e.update(
        target=dice.choice([None, 3, {}, {"haha": 1}, {**ORIGIN["target"], "power_limit_w": "x"}])
    ),
    lambda e, dice: e.update(facts=dice.choice([None, 7, {}, {"flags": "x"}, {"flags": [3]}])),
    lambda e, dice: e.update(timing=dice.choice([{}, {"method": "haha", "samples_us": []}, {**TIMED, "launches": 0}])),
    lambda e, dice: e.update(origin=dice.choice([None, {}, {**ORIGIN, "target": 3}, {**ORIGIN, "evidence": "haha"}])),
    lambda e, dice: e.update(metrics=dice.choice([3, {"y": 3}, {"y": {"rel_l2": "x"}}])),
    lambda e, dice: e.update(final=dice.choice([0, "x", None])),
)
FIELDS = (None, "event", "cell", "attempt", "age_s", "reason", "status", "owner", "target", "facts", "timing", "origin")


def test_no_malformed_event_passes_and_each_is_its_devices_fault() -> None:
    dice = random.Random(7)
    done = 0
    while done < 500:
        which = dice.randrange(len(BENT))
        event = copy.deepcopy(dice.choice(HEALTHY))
        field = (*FIELDS, "metrics", "final")[which]
        if field and field not in event:
            continue
        try:
            BENT[which](event, dice)
        except IndexError:  # it has no such field
            continue
        done += 1
        with pytest.raises(BadField):
            check(event)
        found, well = taken("d", [HEALTHY[3], event, HEALTHY[4]], 10.0)
        assert [(e["event"], e["device"]) for e in found] == [("lease_done", "d"), ("device_down", "d")] and not well
        assert id_of(found[1]["reason"]) == "event-malformed" and len(found[1]["reason"]) < 1000


@pytest.mark.parametrize("answer", [None, 3, "x", {}, [None], [3], [[]], [{}]])
def test_an_answer_that_is_none_is_the_devices_fault(answer: Any) -> None:
    ((down,), well) = taken("d", answer, 10.0)
    assert (down["event"], down["final"], well) == ("device_down", False, False)


def test_who_is_at_fault_is_of_the_farms_own_words() -> None:
    assert None in event_checks.OWNERS["judged"]["passed"] and "passed" not in event_checks.OWNERS["ended"]


@pytest.mark.parametrize("event", HEALTHY, ids=[str(e["event"]) for e in HEALTHY])
def test_what_is_refused_without_places_is_what_is_refused_with_them(event: Event) -> None:
    """`verify` checks without them first, and makes the sentence by checking once more."""
    draw, known = random.Random(event["event"]), EVENTS[event["event"]]

    def refused(wrong: Event, where: str | None) -> bool:
        try:
            known(wrong, where)
        except BadField:
            return True
        return False

    verdicts = set()
    for _ in range(200):
        wrong = copy.deepcopy(event)
        place: Any = wrong
        while True:
            name = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if isinstance(place[name], (dict, list)) and place[name] and draw.random() < 0.8:
                place = place[name]
                continue
            place[name] = draw.choice([None, True, -1, 2**70, 1.5, float("nan"), "x", "y" * 2_200_000, [], {}, [{}]])
            break
        verdicts.add(refused(wrong, None))
        assert refused(wrong, None) == refused(wrong, "event")
        if refused(wrong, None):
            with pytest.raises(BadField, match=r"^event|^a name in event"):
                verify(known, wrong, "event")
    assert True in verdicts
