"""What pages across runs show, read from the index of a store.  Names the columns that each page needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from farm.dashboards.trends import Point
from farm.errors import StoreError
from farm.report import device_facts, night_series
from farm.report import nights as nightly
from farm.report.device_facts import Device
from farm.report.nights import Nights
from farm.report.queries import speed_counts
from farm.store import Store, index
from farm.store import known as known_failures
from farm.store.index import Index, Indexed

NIGHTS = 30
CELL_NIGHTS = 90
HISTORY: tuple[str, ...] = (
    "status",
    "target",
    "time_us_p20",
    "time_us_p50",
    "time_us_p80",
    "timing_quality",
    "timing_method",
    "node",
)
HISTORY += ("device", "fingerprint", "revision", "share_of_roof", "worst_ratio")


def checked(store: Any, seconds: float | None = None) -> Index:
    """The index of a store, which can be read: parts that are damaged are found here, and it is made anew.  `seconds`:
    as for `index.opened`."""
    real = Store(store.path)
    found = index.opened(real, seconds)
    try:
        found.table(["run"])
    except StoreError:
        index.remove(real)
        found = index.opened(real, seconds)
    return found


class Newest:
    """The newest night of a store with the nights before it."""

    def __init__(
        self,
        found: Index,
        runs: Sequence[Indexed],
        touched: nightly.Touched = lambda before, after, rows: None,
        known: Collection[str] | None = None,
    ):
        self.runs, self.index = tuple(runs), found
        newest = runs[-1]
        self.rows: list[dict[str, Any]] = found.rows([*night_series.OUTCOME, *nightly.NEWEST], [newest])
        columns = found.arrays([*night_series.OUTCOME, "fingerprint"], runs)
        names = [night_series.Night(r.id, r.created, r.revision, r.code, r.ops) for r in runs]
        tools = nightly.tools(night_series.distinct(columns, ("run", "backend", "fingerprint")))
        known = known_failures.covered(found.known(newest)) if known is None else known
        self.nights = Nights(names, columns, self.rows, tools, touched, known, found.confirmations())
        self._devices: dict[str, list[Device]] = {}

    @property
    def run(self) -> Indexed:
        return self.runs[-1]

    @property
    def simulated(self) -> bool:
        return any(r["evidence"] == "simulated" for r in self.rows)

    @cached_property
    def with_silent(self) -> list[dict[str, Any]]:
        """The rows of the newest night, and those of what did not report, of its last night."""
        out = list(self.rows)
        for name, night in self.nights.silent.items():
            run = next(r for r in self.runs if r.id == night.id)
            mine = {"target" if ":" in name else "backend": name}
            out += self.index.rows([*night_series.OUTCOME, *nightly.NEWEST], [run], mine)
        return out

    @cached_property
    def silent_targets(self) -> dict[str, Newest]:
        """Targets that did not report -> the last night in which they did."""
        out: dict[str, Newest] = {}
        for name, night in self.nights.silent.items():
            at = next(i for i, r in enumerate(self.runs) if r.id == night.id)
            then = Newest(self.index, self.runs[: at + 1])
            out |= {target: then for target in then.targets if name in (target, target.partition(":")[0])}
        return out

    def of_target(self, target: str) -> Newest | None:
        """The night that a target's page shows: this one, or the last in which it reported."""
        return self if target in self.targets else self.silent_targets.get(target)

    @cached_property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(str(r["target"]) for r in self.rows if r["evidence"] and r["evidence"] != "compiled"))

    def devices(self, target: str) -> list[Device]:
        """The devices of a target in the newest night, and those that usually ran."""
        if target not in self._devices:
            self._devices[target] = device_facts.devices(self.nights, self.rows, target, self.index.health)
        return self._devices[target]

    def roof(self, target: str) -> list[Point]:
        """Per night the speed (1e9 B/s) of which the cells' shares of the roof are shares: median over large cells."""
        names = ["run", "bandwidth_gbps", "share_of_roof", "bytes_moved", "timing_quality", "backend", "operations"]
        rows = self.index.rows(names, self.runs, {"target": target})
        by_run: dict[str, list[float]] = {}
        for r in rows:
            speed, share = r["bandwidth_gbps"], r["share_of_roof"]
            large = (r["bytes_moved"] or 0) >= 64 << 20 and (r["operations"] or 0) < 50 * (r["bytes_moved"] or 0)
            if speed and share and large:
                by_run.setdefault(r["run"], []).append(speed / share)
        backend = target.partition(":")[0]
        out = []
        before: Mapping[str, str] = {}
        for run in self.runs:
            tools = self.nights.tools.get(run.id, {}).get(backend, {})
            values = by_run.get(run.id)
            value = float(np.median(values)) if values else None
            out.append(Point(run.created, value, changed=_changed(before, tools)))
            before = tools or before
        return out

    def tool_changes(self, backend: str) -> list[tuple[str, str]]:
        """(night, what changed), newest first."""
        out = []
        before: Mapping[str, str] = {}
        for run in self.runs:
            tools = self.nights.tools.get(run.id, {}).get(backend, {})
            if text := _changed(before, tools):
                out.append((run.created, text))
            before = tools or before
        return out[::-1]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    names = sorted(before.keys() & after.keys())
    return ", ".join(f"{n} {before[n]} → {after[n]}" for n in names if before[n] != after[n])


def newest(found: Index, touched: nightly.Touched = lambda before, after, rows: None) -> Newest | None:
    """The newest night with those before it, NIGHTS in all; None for a store without complete runs.

    A run of a few cells, by which somebody looked into something, is no night: a night has at least half as many cells
    as the largest of the last NIGHTS runs.
    """
    last = found.last(NIGHTS)
    most = max((r.cells for r in last), default=0)
    night = next((r for r in reversed(last) if 2 * r.cells >= most), None)
    return Newest(found, [*found.last(NIGHTS - 1, like=night), night], touched) if night else None


def baseline(found: Index, run_id: str) -> Indexed | None:
    """The newest older run of the same plan, else of the same matrices."""
    mine = next((r for r in found.runs if r.id == run_id), None)
    before = found.last(1, like=mine) if mine else []
    return before[0] if before else None


def series(found: Index, key: str, columns: Sequence[str], named: str) -> list[dict[str, Any]]:
    """A cell in every run of one arm, oldest first: of a comparison both arms have the key, and neither is a night."""
    compared = {r.id for r in found.runs if r.kind in ("ab", "arm")}
    return [r for r in found.series(key, columns, named) if r["run"] not in compared]


def cell_history(found: Index, key: str, named: str, target: str) -> list[Point]:
    """A cell's time on one target, night by night."""
    rows = [r for r in series(found, key, HISTORY, named) if r["target"] in (target, "")][-CELL_NIGHTS:]
    out = []
    before: Mapping[str, str] = {}
    for r in rows:
        tools = nightly.tools([(r["run"], "", r["fingerprint"])]).get(r["run"], {}).get("", {})
        counts = speed_counts(r)
        p50, p20, p80 = (r[n] if counts else None for n in ("time_us_p50", "time_us_p20", "time_us_p80"))
        out.append(Point(r["created"], p50, p20, p80, str(r["status"]), _changed(before, tools)))
        before = tools or before
    return out
