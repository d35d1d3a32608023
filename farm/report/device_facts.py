"""The devices of a target over the nights: each against its siblings, where it has gaps, and why.  Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.compare import trend
from farm.report.format import FARM_FAULTS, cells, clip, count, label
from farm.report.night_series import Series
from farm.report.pairs import change
from farm.report.queries import parse

Row = Mapping[str, Any]
#: A run's id -> what it noted of its devices' health, in order (`farm.store.device_health`).
Health = Callable[[str], Sequence[Mapping[str, Any]]]
#: Clock (MHz), temperature (°C), power (W).
Vitals = tuple[float | None, float | None, float | None]
FINE = ("passed", "built", "skipped", "unsupported")
#: How far a device is from its siblings before it is marked.
ODD = 0.02
#: A device that is absent in the newest night is shown if it ran in so large a share of the nights since its first.
USUAL = 0.5
#: So many absent devices are shown, of a farm whose nodes have a new name every night.
ABSENT = 24
#: A vital of an odd device is named where it is so far from its siblings': a ratio, or degrees.
CLOCK, POWER, DEGREES = 0.02, 0.1, 8.0
CLIP = 200


@dataclass(frozen=True)
class Gap:
    """Nights, one after the other, in which a device has no value: the first, the last, how many, and why."""

    first: str
    last: str
    nights: int
    why: str

    @property
    def text(self) -> str:
        """`2026-10-05 to 2026-10-07 (3 nights): no result of cuda`"""
        span = self.first[:10] + (f" to {self.last[:10]} ({self.nights} nights)" if self.nights > 1 else "")
        return f"{span}: {self.why}"


@dataclass(frozen=True)
class Device:
    """A device among its siblings.

    cells, throttled, failed: numbers of cells in the newest night; faults: how many of the failed ones are the
    infrastructure's; nights: its time over its siblings' per night, None
    where it has too few times; clock, temperature, power: medians of the newest night; last: the night in which it ran
    last, "" if that is the newest; state: as the newest night left it, `quarantined`, `gone`, `suspect`, `drained`, ""
    if nothing is noted or it is ready again; why: what is behind each value that is out of the ordinary; gaps: of the
    nights since its first.
    """

    name: str
    node: str
    cells: int
    nights: tuple[float | None, ...]
    clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    throttled: int = 0
    failed: int = 0
    faults: int = 0
    last: str = ""
    state: str = ""
    why: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def by(self) -> float | None:
        """Its time over its siblings' in the newest night."""
        return self.nights[-1]

    @property
    def odd(self) -> bool:
        return self.by is not None and abs(self.by - 1) > ODD

    @property
    def absent(self) -> bool:
        return bool(self.last)

    @property
    def sick(self) -> str:
        """`cuda:3 +2.7 % against its siblings`, `rocm:1 quarantined, no cell since 2026-10-13`; "" for a sound one."""
        if self.absent:
            return f"{self.name} {self.state + ', ' if self.state else ''}no cell since {self.last[:10]}"
        if self.odd:
            return f"{self.name} {change(self.by or 1.0)} against its siblings"
        return f"{self.name} {self.state}" if self.state else ""


def devices(found: Series, rows: Sequence[Row], target: str, health: Health = lambda run: ()) -> list[Device]:
    """The devices that ran cells of a target in the newest night, and those that usually do.  `rows`: of that night."""
    by_number = siblings(found, target)
    names = {number: name for (of, name), number in found.devices.items() if of == target and name}
    newest: dict[str, list[Row]] = {name: [] for name in names.values()}
    for r in rows:
        if r["target"] == target and str(r["device"]) in newest:
            newest[str(r["device"])].append(r)
    noted = _Noted(found, health)
    there = {name: _vitals(of) for name, of in newest.items() if of}
    presence = _presence(found)
    reported = [int(n) for n in np.flatnonzero(presence[list(names)].any(axis=0))]
    out: list[Device] = []
    absent: list[Device] = []
    for number, name in sorted(names.items(), key=lambda item: _natural(item[1])):
        nights, mine = by_number.get(number, (None,) * len(found.nights)), newest[name]
        ran = [int(n) for n in np.flatnonzero(presence[number])]
        if not mine and (not ran or len(ran) < USUAL * sum(n >= ran[0] for n in reported)):
            continue
        gaps = _gaps(found, nights, (target, name), ran, reported, number, noted)
        state, reason = noted.left(name)
        device = Device(
            name,
            str(mine[0]["node"]) if mine else found.node_of[number],
            len(mine),
            nights,
            *_vitals(mine),
            throttled=sum(r["timing_quality"] == "throttled" for r in mine),
            failed=sum(r["status"] not in FINE for r in mine),
            faults=sum(r["status"] in FARM_FAULTS for r in mine),
            last="" if mine else found.nights[ran[-1]].created,
            state=state,
            gaps=gaps,
        )
        why = tuple(_why(device, mine, [v for n, v in there.items() if n != name], state, reason, found))
        (out if mine else absent).append(Device(**{**vars(device), "why": why}))
    return [*out, *absent[:ABSENT]]


def _natural(name: str) -> tuple[Any, ...]:
    """`cuda:10` after `cuda:9`."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _parts(name))


def _parts(name: str) -> list[str]:
    return ["".join(group) for _, group in groupby(name, str.isdecimal)]


class _Noted:
    """What the nights noted of devices, read once a night, and only of nights that are asked for."""

    def __init__(self, found: Series, health: Health):
        self._found, self._health = found, health
        self._known: dict[int, Mapping[str, tuple[str, str]]] = {}

    def of(self, night: int, device: str) -> tuple[str, str]:
        """(state, reason) that a night left a device in; ("", "") if nothing is noted, or it was ready again."""
        if night not in self._known:
            entries = self._health(self._found.nights[night].id)
            self._known[night] = {str(e["device"]): (str(e["state"]), str(e["reason"])) for e in entries}
        state, reason = self._known[night].get(device, ("", ""))
        return ("", "") if state == "ready" else (state, reason)

    def left(self, device: str) -> tuple[str, str]:
        """As `of` in the newest night."""
        return self.of(self._found.last, device)


def siblings(found: Series, target: str) -> dict[int, tuple[float | None, ...]]:
    """Device -> per night its cells' times over what they are on all devices of the target (median of each cell)."""
    mine = np.array([r["target"] == target for r in found.rows], dtype=bool)
    x = found.x[mine]
    device = found.device[mine]
    away = x - trend.median(x)[:, None]
    whole = trend.median(away.T)
    out: dict[int, tuple[float | None, ...]] = {}
    for number in np.unique(device[device >= 0]):
        line: list[float | None] = []
        for night in range(x.shape[1]):
            values = away[(device[:, night] == number) & np.isfinite(away[:, night]), night]
            enough = len(values) >= trend.FEWEST_CONTROLS
            line.append(math.exp(float(np.median(values)) - whole[night]) if enough else None)
        out[int(number)] = tuple(line)
    return out


def _presence(found: Series) -> NDArray[np.bool_]:
    """(devices, nights): whether a device ran a cell in a night."""
    out = np.zeros((max(found.devices.values(), default=-1) + 1, len(found.nights)), dtype=bool)
    cell, night = np.nonzero(found.device >= 0)
    out[found.device[cell, night], night] = True
    return out


def _gaps(
    found: Series,
    nights: Sequence[float | None],
    place: tuple[str, str],
    ran: Sequence[int],
    reported: Sequence[int],
    number: int,
    noted: _Noted,
) -> tuple[Gap, ...]:
    """Gaps since a device's first night.  place: its target and name; ran, reported: nights in which it ran cells, in
    which its target did."""
    target, name = place
    kinds = [
        (night, "few" if night in ran else "absent" if night in reported else "silent")
        for night in range(ran[0] if ran else len(nights), len(nights))
        if nights[night] is None
    ]
    out = []
    for (_, kind), group in groupby(enumerate(kinds), key=lambda item: (item[0] - item[1][0], item[1][1])):
        of = [night for _, (night, _) in group]
        if kind == "silent":
            why = f"no result of {target.partition(':')[0]} at all"
        else:
            why = _few(found, number, of[-1]) if kind == "few" else _absent(of, name, noted)
        out.append(Gap(found.nights[of[0]].created, found.nights[of[-1]].created, len(of), why))
    return tuple(out)


def _absent(nights: Sequence[int], name: str, noted: _Noted) -> str:
    for night in reversed(nights):
        state, reason = noted.of(night, name)
        if state:
            return f"ran no cell; {state}{f' ({clip(reason, CLIP)})' if reason else ''}"
    return "ran no cell, and the run noted no reason"


def _few(found: Series, number: int, night: int) -> str:
    """Why a device has too few times in a night in which it ran."""
    mine = np.flatnonzero(found.device[:, night] == number)
    statuses = Counter(str(s) for s in found.status[mine, night])
    timed = int(np.isfinite(found.x[mine, night]).sum())
    bad = [f"{count(n)} {label(s)}" for s, n in statuses.most_common() if s not in FINE]
    passed = statuses["passed"] - timed
    bad += [f"{count(passed)} passed without a time that counts"] if passed > 0 else []
    told = f": {', '.join(bad)}" if bad else ""
    return f"{count(timed)} of {cells(len(mine))} with a time that counts, {trend.FEWEST_CONTROLS} needed{told}"


def _vitals(rows: Sequence[Row]) -> tuple[float | None, float | None, float | None]:
    """Medians of clock, temperature and power."""
    return _median(rows, "sm_clock_mhz"), _median(rows, "temperature_c"), _median(rows, "power_w")


def _median(rows: Sequence[Row], name: str) -> float | None:
    values = [v for r in rows if (v := r[name]) is not None and not math.isnan(v)]
    return float(np.median(values)) if values else None


def _why(
    device: Device, rows: Sequence[Row], others: Sequence[Vitals], state: str, reason: str, found: Series
) -> list[str]:
    """What is behind each value of the newest night that is out of the ordinary.  `others`: its siblings' vitals."""
    out = []
    if state:
        out.append(f"{state} in the newest night{f': {clip(reason, CLIP)}' if reason else ''}")
    if device.absent and not state:
        out.append(device.gaps[-1].text if device.gaps else f"last ran on {device.last[:10]}")
    if device.odd:
        since = odd_since(device.nights, [n.created for n in found.nights])
        out.append(f"{change(device.by or 1.0)} since {since[:10]}: {_vitals_apart(device, others)}")
    if device.throttled:
        flags = Counter(f for r in rows if r["timing_quality"] == "throttled" for f in _flags(r) if "throttl" in f)
        told = f" ({clip(flags.most_common(1)[0][0], CLIP)})" if flags else ""
        out.append(f"{cells(device.throttled)} throttled{told}: their times do not count")
    for status, n in Counter(str(r["status"]) for r in rows if r["status"] not in FINE).most_common():
        reasons = Counter(str(r["reason"] or "no reason noted") for r in rows if r["status"] == status)
        told = clip(reasons.most_common(1)[0][0], CLIP)
        others_too = f", and {count(len(reasons) - 1)} more reasons" if len(reasons) > 1 else ""
        out.append(f"{count(n)} {label(status)}: {told}{others_too}")
    return out


def _vitals_apart(device: Device, others: Sequence[Vitals]) -> str:
    """`clock 1610 MHz, its siblings 1755; 83 °C, its siblings 52`"""
    out = []
    mine = (device.clock, device.temperature, device.power)
    for at, (words, unit) in enumerate((("clock ", "MHz"), ("", "°C"), ("", "W"))):
        value, known = mine[at], [v for o in others if (v := o[at]) is not None]
        if value is None or not known:
            continue
        theirs = float(np.median(known))
        bound = (CLOCK * theirs, DEGREES, POWER * theirs)[at]
        if abs(value - theirs) > bound:
            out.append(f"{words}{value:.0f} {unit}, its siblings {theirs:.0f}")
    if out:
        return "; ".join(out)
    return "clock, temperature and power are like its siblings’" if device.clock is not None else "no telemetry"


def odd_since(nights: Sequence[float | None], created: Sequence[str]) -> str:
    """The first night since which a device was off its siblings in each night that has a value; the newest one is."""
    since = created[-1]
    for by, date in zip(reversed(nights), reversed(created)):
        if by is not None and abs(by - 1) <= ODD:
            break
        since = date if by is not None else since
    return since


def _flags(row: Row) -> list[str]:
    found = parse(row.get("flags"))
    return [str(f) for f in found] if isinstance(found, list) else []
