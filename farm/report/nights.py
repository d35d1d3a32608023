"""The nights of a matrix: what is new, fixed, still failing, slower and faster since when, per backend.  Pure.

A night is a complete run; all of them have the same plan, or at least the same matrices.  What is known of a cell is
two series over the nights: its status, and its time where that counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farm.compare import trend
from farm.compare.attribution import NODE, Attribution, Side, attribute
from farm.report.drifting import Drift, drifts
from farm.report.findings import where
from farm.report.format import FARM_FAULTS
from farm.report.night_series import Night, Series
from farm.report.pairs import change
from farm.report.queries import extrapolated, is_subject, parse, races, same_cell, speed_counts
from farm.store.confirmations import CONFIRMED, NOT_CONFIRMED

Row = Mapping[str, Any]
#: Columns that are needed of the newest night besides OUTCOME.
NEWEST: tuple[str, ...] = (
    "cell_id",
    "matrix",
    "mode",
    "mode_resolved",
    "operation",
    "dtype",
    "shape",
    "dims",
    "params",
)
NEWEST += ("index", "reason", "worst_ratio", "time_us_p20", "time_us_p80", "share_of_roof", "flags")
NEWEST += ("sm_clock_mhz", "temperature_c", "power_w", "bandwidth_gbps", "tflops", "operations", "bytes_moved")
SHOWN = 40
#: A target that reported in a smaller share of its backend's nights, up to its last one, takes turns with others.
REGULAR = 0.75
#: Two nights and the rows that changed between them -> the kernels of their op that differ between the two revisions;
#: None where that is not known.
Touched = Callable[["Night", "Night", Sequence[Row]], Sequence[str] | None]


@dataclass(frozen=True)
class News:
    """Cells of one backend, op, provider and mode for which the same holds since the same night.

    kind: new, fixed, failing, slower, faster; since: the first night of it (of fixed: the newest night); before: the
    night before that in which the cell had a result; sure: of times, whether two nights show it; by: the median ratio.
    """

    kind: str
    backend: str
    target: str
    op: str
    provider: str
    mode: str
    status: str
    rows: tuple[Row, ...]  # of the newest night
    of: int
    where: tuple[str, ...]
    since: Night
    before: Night | None
    by: float | None = None
    sure: bool = True
    with_it: tuple[str, ...] = ()  # what changed between the two nights and may be it: `driver 575 -> 580`
    cause: str = ""  # of times: `code`, `code or driver`, `tool chain or host, no commit`
    commits: tuple[str, str] | None = None  # the revisions before and after, where a commit may be it
    kernels: tuple[str, ...] = ()  # those that are known to differ between them
    confirmed: str = ""  # of times, what rounds in turn have shown: `confirmed`, `not confirmed`; "" if not measured

    @property
    def word(self) -> str:
        """`regression`, `suspected slower`, ..."""
        if self.kind in ("slower", "faster"):
            step = "regression" if self.kind == "slower" else "improvement"
            if self.confirmed == CONFIRMED:
                return f"confirmed {step}"
            word = step if self.sure else f"suspected {self.kind}"
            return word + (", not confirmed" if self.confirmed else "")
        return {"new": "new failure", "failing": "still failing", "fixed": "fixed", "known": "known failure"}[self.kind]

    @property
    def simulated(self) -> bool:
        return any(r.get("evidence") == "simulated" for r in self.rows)

    def to_dict(self) -> dict[str, Any]:
        names = ("kind", "word", "backend", "target", "op", "provider", "mode", "status", "of", "by", "sure")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        cells = [str(r.get("cell_id")) for r in self.rows]
        return out | {
            "cells": cells[:SHOWN],
            "count": len(cells),
            "where": list(self.where),
            "since": self.since.id,
            "since_created": self.since.created,
            "range": list(self.commits or ()),
            "cause": self.cause,
            "kernels": list(self.kernels),
            "confirmed": self.confirmed,
            "changed_with_it": list(self.with_it),
            "simulated": self.simulated,
        }


class _Told(NamedTuple):
    """What is to be told of one cell, by numbers of nights; `before` is -1 without an earlier result."""

    kind: str
    status: str
    since: int
    before: int
    sure: bool = True


@dataclass(frozen=True)
class Shift:
    """A step that the cells of a device share: it accuses no kernel.  `all`: whether every device of the target has
    it."""

    target: str
    devices: tuple[str, ...]
    all: bool
    by: float  # ratio
    since: Night
    before: Night
    sure: bool
    found: Attribution

    @property
    def text(self) -> str:
        """`all devices of cuda:... +5.0 % since 2026-10-03 (driver): driver 575 → 580`"""
        who = f"all devices of {self.target}" if self.all else f"{', '.join(self.devices)} of {self.target}"
        word = "" if self.sure else "suspected: "
        with_it = f": {'; '.join(self.found.changed)}" if self.found.changed else ""
        return f"{word}{who} {change(self.by)} since {self.since.created[:10]} ({self.found.text}){with_it}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "devices": list(self.devices),
            "all": self.all,
            "by": self.by,
            "since": self.since.id,
            "before": self.before.id,
            "sure": self.sure,
            "cause": self.found.text,
            "changed_with_it": list(self.found.changed),
            "range": list(self.found.commits or ()),
            "text": self.text,
        }


class Nights(Series):
    """What became of every cell over some nights.

    tools: night -> backend -> name -> versions; touched: as `Touched`; known: the cells whose failure in the newest
    night is known, by id; confirmations: records of farm.store.confirmations.
    """

    def __init__(
        self,
        nights: Sequence[Night],
        columns: Mapping[str, Any],
        newest: Sequence[Row],
        tools: Mapping[str, Mapping[str, Mapping[str, str]]] = {},
        touched: Touched = lambda before, after, rows: None,
        known: Collection[str] = (),
        confirmations: Sequence[Mapping[str, Any]] = (),
    ):
        super().__init__(nights, columns, newest)
        self.tools, self._touched, self._known = tools, touched, frozenset(known)
        #: (cell's key, named target, run since which) -> what the newest confirmation of its step says
        self._confirmed = {
            (c["cell_key"], c["named"], r["since"]): str(r["verdict"])
            for r in confirmations
            if r["verdict"] in (CONFIRMED, NOT_CONFIRMED)
            for c in r["cells"]
        }

    @cached_property
    def silent(self) -> dict[str, Night]:
        """Backends, and targets of backends that do report, that had results in an earlier night and have none in the
        newest one -> their last night."""
        backends = {b: self._nights_of(b) for b in dict.fromkeys(map(str, self.backend))}
        out = {b: int(nights[-1]) for b, nights in backends.items() if len(nights) and nights[-1] < self.last}
        targets = {t: self._nights_of(t) for t in dict.fromkeys(map(str, self.target)) if t}
        for target, nights in targets.items():
            backend = target.partition(":")[0]
            if not len(nights) or nights[-1] == self.last or backend not in backends or backend in out:
                continue
            others = [n[0] for t, n in targets.items() if t != target and t.partition(":")[0] == backend and len(n)]
            met = backends[backend][(backends[backend] >= nights[0]) & (backends[backend] <= nights[-1])]
            # not where it takes turns with others, nor where another has come since: a device under a new name
            if len(nights) >= 2 and len(nights) >= REGULAR * len(met) and not any(n > nights[-1] for n in others):
                out[target] = int(nights[-1])
        return {name: self.nights[night] for name, night in out.items()}

    def _nights_of(self, name: str) -> NDArray[np.int64]:
        """The nights in which a backend or a target had results, oldest first."""
        return np.flatnonzero((self.bad | self.good)[self._mine(name)].any(axis=0))

    def _mine(self, name: str) -> NDArray[np.bool_]:
        """Which cells are of a backend, or of a target."""
        found: NDArray[np.bool_] = (self.target if ":" in name else self.backend) == name
        return found

    @cached_property
    def news(self) -> list[News]:
        """New first, then slower, still failing, known, faster, fixed; of subjects alone."""
        groups: dict[tuple[_Told, tuple[str, ...]], list[int]] = defaultdict(list)
        places = [
            tuple(str(r.get(n) or "") for n in ("backend", "target", "op", "provider", "mode")) for r in self.rows
        ]
        some = (self.bad | self.good)[:, self.last] & ~self.control if self.nights else np.zeros(0, dtype=bool)
        some &= self.bad.any(axis=1) | (self.steps.at >= 0)
        for at in map(int, np.flatnonzero(some)):
            if told := self._of_cell(at):
                groups[told, places[at]].append(at)
        wanted = {place for _, place in groups}
        alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for place, row in zip(places, self.rows):
            if place in wanted:
                alike[place].append(row)
        found = [self._news(told, place, members, alike[place]) for (told, place), members in groups.items()]
        order = ("new", "slower", "failing", "known", "faster", "fixed")
        return sorted(found, key=lambda n: (order.index(n.kind), n.simulated, _reverse(n.since.created), -len(n.rows)))

    def _news(self, told: _Told, place: tuple[str, ...], members: list[int], alike: Sequence[Row]) -> News:
        rows = tuple(self.rows[at] for at in members)
        timed = told.kind in ("slower", "faster")
        cause = Attribution()
        if told.before >= 0 and told.kind not in ("fixed", "known"):
            peers = timed and self._peers_too(place[0], place[2], told.since, told.kind == "slower")
            cause = self._attributed(rows, members, told.since, told.before, peers)
        since = self.nights[told.since]
        said = [self._confirmed.get((r["cell_key"], r["named"], since.id), "") for r in rows] if timed else []
        confirmed = CONFIRMED if CONFIRMED in said else NOT_CONFIRMED if NOT_CONFIRMED in said else ""
        if confirmed == NOT_CONFIRMED:  # both revisions are alike where they are measured in turn
            cause = cause.without_code()
        return News(
            kind=told.kind,
            backend=place[0],
            target=place[1],
            op=place[2],
            provider=place[3],
            mode=place[4],
            status=told.status,
            rows=rows,
            of=len(alike),
            where=where(rows, alike),
            since=since,
            before=self.nights[told.before] if told.before >= 0 else None,
            by=math.exp(float(np.median(self.steps.size[members]))) if timed else None,
            sure=told.sure,
            with_it=cause.changed,
            cause=cause.text if timed else "",
            commits=cause.commits,
            kernels=cause.kernels,
            confirmed=confirmed,
        )

    def _of_cell(self, at: int) -> _Told | None:
        """What is to be told of a cell in the newest night; None if it is nothing."""
        result = np.flatnonzero(self.bad[at] | self.good[at])
        if self.bad[at, self.last]:
            streak = len(result) - 1
            while streak and self.bad[at, result[streak - 1]]:
                streak -= 1
            since, before = int(result[streak]), int(result[streak - 1]) if streak else -1
            kind = "new" if since == self.last else "failing"
            if self.rows[at].get("cell_id") in self._known:
                kind = "known"
            return _Told(kind, str(self.status[at, self.last]), since, before)
        if len(result) > 1 and self.bad[at, result[-2]]:
            return _Told("fixed", str(self.status[at, result[-2]]), self.last, int(result[-2]))
        step = int(self.steps.at[at])
        if step < 0:
            return None
        earlier = np.flatnonzero(np.isfinite(self.x[at, :step]))
        kind = "slower" if self.steps.size[at] > 0 else "faster"
        return _Told(kind, "", step, int(earlier[-1]), bool(self.steps.sure[at]))

    def _peers_too(self, backend: str, op: str, night: int, slower: bool) -> bool:
        """Whether most of the peers' cells of an op that have a time stepped in that night in that direction."""
        mine = np.array([r["backend"] == backend and r["op"] == op for r in self.rows], dtype=bool) & self.control
        timed = mine & np.isfinite(self.x[:, night])
        same = timed & (np.abs(self.steps.at - night) <= 1) & ((self.steps.size > 0) == slower) & (self.steps.at >= 0)
        return bool(same.sum() >= 2 and 2 * same.sum() >= timed.sum())

    def _attributed(
        self, rows: Sequence[Row], members: Sequence[int], since: int, before: int, peers_too: bool
    ) -> Attribution:
        """What may be the cause of what changed between two nights."""
        a, b = self.nights[before], self.nights[since]
        backend, op = str(rows[0]["backend"]), str(rows[0]["op"])
        sides = [
            Side(night.revision, night.code_of(op), self._tools(night, backend), *self._places(members, part))
            for night, part in ((a, slice(0, since)), (b, slice(since, None)))
        ]
        touched = self._touched(a, b, rows) if a.revision != b.revision else ()
        return attribute(sides[0], sides[1], touched, peers_too)

    def _tools(self, night: Night, backend: str) -> Mapping[str, str]:
        return self.tools.get(night.id, {}).get(backend, {})

    def _places(self, members: Sequence[int], nights: slice) -> tuple[frozenset[str], frozenset[str]]:
        """The devices and nodes that some cells ran on in some nights; none where that is one night of a few cells: a
        cell that another device happened to take is no news."""
        numbers = np.unique(self.device[list(members), nights])
        numbers = numbers[numbers >= 0]
        ran = int((self.device[list(members), nights] >= 0).any(axis=0).sum())
        names = {number: name for (_, name), number in self.devices.items()}
        devices = frozenset(names[n] for n in numbers) if ran >= 2 else frozenset()
        return devices, frozenset(self.node_of[n] for n in numbers)

    @cached_property
    def moved(self) -> list[Shift]:
        """The devices whose cells all became slower or faster, and since when; those of a target together where all of
        them did."""
        found = trend.steps(self.shifts)
        targets: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for (target, name), number in self.devices.items():
            if number < len(self.shifts) and np.isfinite(self.shifts[number]).any():
                targets[target].append((name, number))
        out = []
        for target, devices in targets.items():
            together: dict[tuple[int, bool], list[tuple[str, int]]] = defaultdict(list)
            for name, number in devices:
                if found.at[number] >= 0:
                    together[int(found.at[number]), bool(found.size[number] > 0)].append((name, number))
            for (night, _), those in together.items():
                out.append(self._shift(target, night, those, len(those) == len(devices), found))
        return sorted(out, key=lambda s: (_reverse(s.since.created), -abs(math.log(s.by))))

    def _shift(
        self, target: str, night: int, those: Sequence[tuple[str, int]], everywhere: bool, found: trend.Steps
    ) -> Shift:
        numbers = [number for _, number in those]
        earlier = np.flatnonzero(np.isfinite(self.shifts[numbers, :night]).any(axis=0))
        before = int(earlier[-1])
        a, b = self.nights[before], self.nights[night]
        backend = target.partition(":")[0]
        had, has = (self.tools.get(n.id, {}).get(backend, {}) for n in (a, b))
        peers = self.control & np.array([r["target"] == target for r in self.rows], dtype=bool)
        cause = attribute(
            Side(a.revision, a.code, had),
            Side(b.revision, b.code, has),
            None,
            int(peers.sum()) >= trend.FEWEST_CONTROLS,
        )
        if not everywhere:  # what all devices share is not it
            cause = Attribution((NODE,))
        size = math.exp(float(np.median(found.size[numbers])))
        names = tuple(name for name, _ in those)
        return Shift(target, names, everywhere, size, b, self.nights[before], bool(found.sure[numbers].all()), cause)

    @cached_property
    def drifting(self) -> list[Drift]:
        """What became slower or faster little by little."""
        return drifts(self)

    def failing(self, backend: str) -> list[int]:
        """Failing cells of a backend's subjects, or a target's, per night; -1 where it has no result."""
        mine = self._mine(backend)
        some = set(self._nights_of(backend).tolist())
        bad = (self.bad & (mine & ~self.control)[:, None]).sum(axis=0)
        return [int(n) if night in some else -1 for night, n in enumerate(bad)]

    def faulty(self, backend: str) -> list[int]:
        """Cells of a backend, of whomever, per night, that have no result for the infrastructure's fault."""
        return [int(n) for n in (self.unjudged & (self.backend == backend)[:, None]).sum(axis=0)]

    def pace(self, backend: str) -> list[float | None]:
        """Per night: the median, over a backend's subjects, of their time relative to their own median."""
        mine = (self.backend == backend) & ~self.control
        away = self.x[mine] - trend.median(self.x[mine])[:, None]
        found = trend.median(away.T) if mine.any() else np.full(len(self.nights), np.nan)
        return [math.exp(v) if math.isfinite(v) else None for v in found]


def _reverse(text: str) -> tuple[int, ...]:
    return tuple(-ord(c) for c in text)


@dataclass(frozen=True)
class Standing:
    """A backend in the newest night: what is new, how near to the roof and to the best peer its `auto` cells are."""

    backend: str
    targets: tuple[str, ...]
    counts: dict[str, int]  # kind of news -> cells
    share: float | None
    ratio: float | None  # geometric mean of our time / the best peer's
    wins: int
    races: int
    failing: tuple[int, ...]
    pace: tuple[float | None, ...]
    simulated: bool
    faulty: tuple[int, ...]  # per night: cells without a result, for the infrastructure's fault
    faults: int  # those of the newest night
    throttled: int

    @property
    def bad(self) -> bool:
        return bool(self.counts.get("new") or self.counts.get("slower") or self.faults)


def standings(found: Nights) -> list[Standing]:
    """Every backend that has results in the newest night."""
    out = []
    last = [r for at, r in enumerate(found.rows) if found.status[at, found.last]]
    for backend in dict.fromkeys(str(r["backend"]) for r in last):
        rows = [r for r in last if r["backend"] == backend and r["run"] == found.nights[-1].id]
        told: Counter[str] = Counter()
        for news in found.news:
            told[news.kind] += len(news.rows) if news.backend == backend else 0
        ratios = [ratio for _, ratio in against_peers(rows)]
        shares = [float(r["share_of_roof"]) for r in rows if is_subject(r) and races(r) and _share(r)]
        out.append(
            Standing(
                backend,
                tuple(dict.fromkeys(str(r["target"]) for r in rows if r["evidence"])),
                {kind: n for kind, n in told.items() if n},
                float(np.median(shares)) if shares else None,
                geometric_mean(ratios) if ratios else None,
                sum(r < 1 for r in ratios),
                len(ratios),
                tuple(found.failing(backend)),
                tuple(found.pace(backend)),
                any(r["evidence"] == "simulated" for r in rows),
                tuple(found.faulty(backend)),
                sum(r["status"] in FARM_FAULTS for r in rows),
                sum(r["timing_quality"] == "throttled" for r in rows),
            )
        )
    return out


def _share(row: Row) -> bool:
    value = row.get("share_of_roof")
    return value is not None and not math.isnan(value) and not extrapolated(row)


def against_peers(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """(subject's row, its time / the best peer's) for each cell where the subject races and a peer has a speed, in
    whichever of its modes."""
    best: dict[tuple[str, ...], float] = {}
    for r in rows:
        if not is_subject(r) and speed_counts(r) and float(r["time_us_p50"]) > 0:
            cell = same_cell(r)
            best[cell] = min(best.get(cell, math.inf), float(r["time_us_p50"]))
    mine = [(r, same_cell(r)) for r in rows if is_subject(r) and races(r)]
    return [(r, float(r["time_us_p50"]) / best[cell]) for r, cell in mine if cell in best]


def line(news: News) -> str:
    """`regression +16 % since 2026-10-10: rms_norm farm/auto; operation backward; 8 of 32 cells`."""
    name = f"{news.op} {news.provider}" + (f"/{news.mode}" if news.mode else "")
    by = f" {change(news.by)}" if news.by is not None else ""
    cause = (f"cause: {news.cause}",) if news.cause else ()
    parts = [name, *news.where, f"{len(news.rows)} of {news.of} cells", *cause, *news.with_it]
    return f"{news.word}{by}: {'; '.join(parts)}"


def tools(fingerprints: Sequence[Sequence[str]]) -> dict[str, dict[str, dict[str, str]]]:
    """(run, backend, fingerprint's JSON) -> run -> backend -> name -> its versions, without what names one device."""
    found: dict[str, dict[str, dict[str, dict[str, None]]]] = {}
    for run, backend, text in fingerprints:
        for name, value in parse(text).items():
            if isinstance(value, str | int | float) and name not in ("uuid", "node", "pid", "pci"):
                names = found.setdefault(run, {}).setdefault(backend, {})
                names.setdefault(str(name), {})[str(value)] = None
    return {
        run: {b: {n: ", ".join(sorted(v)) for n, v in names.items()} for b, names in of.items()}
        for run, of in found.items()
    }
