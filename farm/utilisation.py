"""Where the seconds of a run's devices went, by cause.  Pure.

A device's actor does one thing at a time and books its seconds to it (`farm.actor.spent`); its events bring the sums so
far.  The coordinator knows when an actor was started and when it ended, so that every second from the command's start
to the run's end has one cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Cause -> what it means.  In the order of a device's life.
CAUSES: Mapping[str, str] = {
    "command": "before the run: imports, the plan, packing, starting or joining Ray",
    "place": "until the device's actor began: its process starts and imports the farm",
    "held": "another run used the device",
    "start": "the actor's set-up and the first child: it imports torch and opens the device",
    "work": "waiting for work",
    "inputs": "waiting for a judge to make inputs",
    "judge": "waiting until judges caught up with outputs",
    "child": "ending children, and starting further ones",
    "trial": "trials of captures",
    "load": "importing providers",
    "compile": "first calls, which compile",
    "check": "checked calls",
    "outputs": "writing outputs for the judge",
    "timing": "timing",
    "pause": "waiting for a throttled or disturbed device to recover",
    "messages": "the rest of the actor's work: messages, folders, telemetry",
    "died": "since the last event of an actor that died",
    "away": "without an actor, after it died or was retired",
    "tail": "nothing was left for this device, while others or judges still worked",
    "end": "the run's end: pairs, verdict, tables",
}
#: What only an actor can book.
BOOKED = frozenset(CAUSES) - {"command", "place", "died", "away", "tail", "end"}
#: What lies before a device's first cell and after its last.
OUTSIDE = ("command", "place", "held", "start", "tail", "end")


@dataclass
class _Device:
    """`at`: until when its time is booked; `life`: since when its present actor is being started, None without one."""

    at: float
    life: float | None = None
    told: dict[str, float] = field(default_factory=dict)  # of the present actor, so far
    heard: float = 0.0  # when
    parts: dict[str, float] = field(default_factory=dict)
    waiting: int = 0  # outputs that are with judges
    since: float = 0.0
    counted: float = 0.0  # until when `judged_s` counts
    judged_s: float = 0.0

    def count(self, until: float) -> None:
        """Up to now the judges had something."""
        self.judged_s += max(0.0, until - self.since)
        self.counted = max(self.counted, until)

    def book(self, cause: str, until: float) -> None:
        """The time up to `until` has this cause."""
        if until > self.at:
            self.parts[cause] = self.parts.get(cause, 0.0) + until - self.at
            self.at = until

    def settle(self) -> None:
        """Book what the present actor has told: what it does not account for passed before it began.  Where clocks
        or the way of an event make it account for more than there was, its parts are shortened alike."""
        span, named = max(0.0, self.heard - self.at), sum(self.told.values())
        if not self.told or span == 0.0:
            return
        share = min(1.0, span / named) if named else 1.0
        for cause, seconds in self.told.items():
            self.parts[cause] = self.parts.get(cause, 0.0) + seconds * share
        self.parts["place"] = self.parts.get("place", 0.0) + max(0.0, span - named)
        self.at = self.heard


class DeviceTimes:
    """`began`: when the command began, `run`: when its run did; seconds on one clock, as every `at`."""

    def __init__(self, began: float, run: float):
        self._began, self._run = min(began, run), run
        self._devices: dict[str, _Device] = {}

    def starts(self, device: str, at: float) -> None:
        """An actor for the device is being started."""
        one = self._devices.get(device)
        if one is None:
            one = self._devices[device] = _Device(self._began, counted=self._began)
            one.book("command", self._run)
        self.stopped(device, at)
        one.book("away" if one.told or one.life is not None else "place", at)
        one.life, one.told, one.heard = at, {}, at

    def told(self, device: str, at: float, spent: Mapping[str, Any] | None) -> None:
        """An event of the device's actor brought what it has booked so far.  Causes that are not known here (another
        revision's) count as its messages."""
        one = self._devices.get(device)
        if one is None or one.life is None or not spent:
            return
        found: dict[str, float] = {}
        for cause, seconds in spent.items():
            name = cause if cause in BOOKED else "messages"
            found[name] = found.get(name, 0.0) + max(0.0, float(seconds))
        one.told, one.heard = found, max(one.heard, at)

    def stopped(self, device: str, at: float) -> None:
        """The device's actor is no more."""
        one = self._devices.get(device)
        if one is None or one.life is None:
            return
        one.settle()
        one.book("died" if one.told else "place", at)
        one.life = None
        if one.waiting:  # nobody will hear of their judgement
            one.waiting = 0
            one.count(at)

    def heard(self, said: Mapping[str, Any]) -> None:
        """An event of a device's actor."""
        device, at = said.get("device"), said.get("at")
        if not isinstance(device, str) or not isinstance(at, (int, float)):
            return
        self.told(device, at, said.get("spent"))
        if said["event"] == "measured":
            self.measured(device, at)
        elif said["event"] == "judged":
            self.judged(device, at)

    def measured(self, device: str, at: float) -> None:
        """Outputs of the device are with a judge."""
        one = self._devices.get(device)
        if one is not None:
            one.since = one.since if one.waiting else max(at, one.counted)
            one.waiting += 1

    def judged(self, device: str, at: float) -> None:
        one = self._devices.get(device)
        if one is not None and one.waiting:
            one.waiting -= 1
            if one.waiting == 0:
                one.count(at)

    def summed(self, ended: float, closed: float) -> dict[str, Any]:
        """{"seconds": from the command's start until now, "devices": {name: {"parts": {cause: s}, "beside": {...}}}}.
        The parts of each device add up to the seconds.  `ended`: when the last cell had; `closed`: now.  After this
        nothing more may be told.

        `beside`: what happened while the device did other things, and is in none of its parts."""
        closed = max(closed, self._began)
        total = round(1000 * (closed - self._began))
        return {
            "seconds": total / 1000,
            "devices": {name: self._summed(one, min(ended, closed), closed, total) for name, one in self.sorted()},
        }

    def sorted(self) -> list[tuple[str, _Device]]:
        return sorted(self._devices.items())

    def _summed(self, one: _Device, ended: float, closed: float, total: int) -> dict[str, Any]:
        if one.life is not None:
            one.settle()
            one.book("tail" if one.told else "place", ended)
        one.book("end" if one.life is not None else "away", closed)
        if one.waiting:
            one.count(closed)
        beside = one.judged_s
        parts = whole(one.parts, total)
        return {"parts": {c: parts.get(c, 0) / 1000 for c in CAUSES}, "beside": {"judging": round(beside, 3)}}


def whole(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Parts in whole milliseconds that add up to `total`.  None is negative; the largest takes what rounding leaves."""
    out = {cause: round(1000 * max(0.0, seconds)) for cause, seconds in parts.items()}
    rest = total - sum(out.values())
    for cause in sorted(out, key=lambda c: -out[c]):
        new = max(0, out[cause] + rest)
        rest -= new - out[cause]
        out[cause] = new
    return out if out or not total else {"place": total}


def read(head: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json has of it; {} where that is nothing, or not as it is written here."""
    found = head.get("utilisation")
    try:
        devices = {
            str(name): {
                "parts": {cause: _seconds(one["parts"][cause]) for cause in CAUSES if cause in one["parts"]},
                "beside": {"judging": _seconds(one["beside"]["judging"])},
            }
            for name, one in found["devices"].items()  # type: ignore[index]
        }
        return {"seconds": _seconds(found["seconds"]), "devices": devices} if devices else {}  # type: ignore[index]
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError
    return float(value)


def shares(time: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(cause, seconds of all devices, share of the whole), the largest first."""
    sums: dict[str, float] = {}
    for device in (time.get("devices") or {}).values():
        for cause, seconds in device["parts"].items():
            sums[cause] = sums.get(cause, 0.0) + seconds
    total = sum(sums.values())
    return sorted(((c, s, s / total) for c, s in sums.items() if s > 0), key=lambda part: -part[1])


def line(time: Mapping[str, Any], most: int = 5) -> str:
    """`utilisation, 4 x 33.3 s: start 24 %, timing 20 %, ...`; "" where there is none."""
    devices, found = time.get("devices") or {}, shares(time)
    if not devices or not found:
        return ""
    many = f"{len(devices)} x " if len(devices) > 1 else ""
    rest = sum(share for _, _, share in found[most:])
    parts = [f"{cause} {share:.0%}" for cause, _, share in found[:most]] + [f"others {rest:.0%}"] * (rest >= 0.005)
    return f"utilisation, {many}{time['seconds']:.1f} s: {', '.join(parts)}".replace("%", " %")
