"""Every cell over some nights: its status, its time where that counts, its device, as arrays.  Pure.

A night is a complete run; all of them have the same plan, or at least the same matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.compare import drift, trend
from farm.report.format import FARM_FAULTS, HARM
from farm.store.columns import Texts

Row = Mapping[str, Any]
#: Columns that are needed of every night.
OUTCOME: tuple[str, ...] = ("run", "cell_key", "named", "backend", "target", "op", "provider", "role", "status")
OUTCOME += ("evidence", "time_us_p50", "timing_method", "timing_quality", "device", "node")
QUIET = ("ok", "launch_bound")
GOOD = ("passed", "built")


@dataclass(frozen=True)
class Night:
    """A run: its id, when it was made, its revision, the digest of the kernels' files, "" where not recorded, and those
    of single ops."""

    id: str
    created: str
    revision: str
    code: str = ""
    ops: tuple[tuple[str, str], ...] = ()

    def code_of(self, op: str) -> str:
        """The digest of what an op is made of; "" where not recorded."""
        return dict(self.ops).get(op, self.code)


class Series:
    """Series of every cell over some nights.

    nights: oldest first; rows: every cell's newest row; status: (cells, nights) texts, "" without a row; x: (cells,
    nights) ln of the time in microseconds, NaN where none counts; device: (cells, nights) numbers, -1 without;
    devices: (target, name) -> number; control: (cells,), those of peers, whose code did not change with ours.
    """

    def __init__(self, nights: Sequence[Night], columns: Mapping[str, Any], newest: Sequence[Row]):
        """columns: OUTCOME of all nights, as `Texts` and arrays; newest: the rows of the newest night."""
        self.nights = tuple(nights)
        runs = {n.id: i for i, n in enumerate(nights)}
        night = np.array([runs.get(r, -1) for r in columns["run"].values] or [-1])[columns["run"].codes]
        kept = np.flatnonzero(night >= 0)
        kept = kept[np.argsort(night[kept], kind="stable")]  # of a cell that a night has twice, the last row counts
        night = night[kept]
        of: dict[str, Any] = {}
        for name, column in columns.items():
            of[name] = Texts(column.values, column.codes[kept]) if isinstance(column, Texts) else column[kept]
        ran = ~of["evidence"].where([""])
        cell, first = _numbered(of["cell_key"].codes, of["named"].codes, np.where(ran, of["target"].codes, -1))
        count = len(first)
        last = np.zeros(count, dtype=np.int64)
        last[cell] = np.arange(len(cell))  # the newest row of each cell
        shape = (count, len(nights))
        self._codes = np.full(shape, -1)
        self._codes[cell, night] = of["status"].codes
        self._statuses = [*of["status"].values, ""]
        self.devices: dict[tuple[str, str], int] = {}
        self.node_of: dict[int, str] = {}
        self.device = np.full(shape, -1)
        self.device[cell[ran], night[ran]] = self._numbers(of, ran)
        self.x = np.full(shape, np.nan)
        time = of["time_us_p50"]
        with np.errstate(invalid="ignore"):
            counts = of["status"].where(["passed"]) & of["timing_quality"].where(QUIET) & (time > 0)
        counts &= of["timing_method"].codes == of["timing_method"].codes[last][cell]
        self.x[cell[counts], night[counts]] = np.log(time[counts])
        self.rows = self._rows(of, ran, last, newest)

    def _numbers(self, of: Mapping[str, Any], ran: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The device's number for each row that ran; the devices and their nodes are known from now on."""
        targets, names, nodes = (of[n] for n in ("target", "device", "node"))
        number, first = _numbered(targets.codes[ran], names.codes[ran])
        for i, at in enumerate(np.flatnonzero(ran)[first]):
            self.devices[targets.values[targets.codes[at]], names.values[names.codes[at]]] = i
            self.node_of[i] = nodes.values[nodes.codes[at]]
        return number

    def _rows(
        self, of: Mapping[str, Any], ran: NDArray[np.bool_], last: NDArray[np.int64], newest: Sequence[Row]
    ) -> list[Row]:
        known = {_key(r): r for r in newest}
        out: list[Row] = []
        columns = {n: c.values if isinstance(c, Texts) else None for n, c in of.items()}
        plain = {n: (c.codes if isinstance(c, Texts) else c)[last].tolist() for n, c in of.items()}
        for i in range(len(last)):
            row = {n: plain[n][i] if values is None else values[plain[n][i]] for n, values in columns.items()}
            out.append(known.get(_key(row), row))
        return out

    @property
    def last(self) -> int:
        return len(self.nights) - 1

    @cached_property
    def status(self) -> NDArray[Any]:
        found: NDArray[Any] = np.array(self._statuses, dtype=object)[self._codes]
        return found

    def _of(self, statuses: Sequence[str]) -> NDArray[np.bool_]:
        some: NDArray[np.bool_] = np.array([s in statuses for s in self._statuses])[self._codes]
        return some

    @cached_property
    def bad(self) -> NDArray[np.bool_]:
        return self._of(HARM)

    @cached_property
    def unjudged(self) -> NDArray[np.bool_]:
        """Without a result for the infrastructure's fault."""
        return self._of(FARM_FAULTS)

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        return self._of(GOOD)

    @cached_property
    def control(self) -> NDArray[np.bool_]:
        return np.array([r["role"] != "subject" for r in self.rows], dtype=bool)

    @cached_property
    def backend(self) -> NDArray[Any]:
        return np.array([r["backend"] for r in self.rows], dtype=object)

    @cached_property
    def target(self) -> NDArray[Any]:
        """Where each cell ran, "" where it did not."""
        ran = [r["evidence"] not in ("", "compiled") for r in self.rows]
        return np.array([str(r["target"] or "") if some else "" for r, some in zip(self.rows, ran)], dtype=object)

    @cached_property
    def shifts(self) -> NDArray[np.float64]:
        """How far the cells of each device are from their medians, (devices, nights)."""
        return trend.device_shifts(self.x, self.device, self.control)

    @cached_property
    def shared(self) -> NDArray[np.float64]:
        """What the cells of a device share, (cells, nights)."""
        return trend.environment(self.x, self.device, self.control)

    @cached_property
    def _any_steps(self) -> trend.Steps:
        places = [tuple(str(r.get(n) or "") for n in ("backend", "target", "op", "provider")) for r in self.rows]
        codes = {place: i for i, place in enumerate(dict.fromkeys(places))}
        return trend.steps(self.x - self.shared, np.array([codes[place] for place in places], dtype=np.int64))

    @cached_property
    def drifts(self) -> drift.Drifts:
        """What became slower or faster little by little, beyond what the cells of a device share."""
        return drift.drifts(self.x - self.shared, self._any_steps)

    @cached_property
    def steps(self) -> trend.Steps:
        """Steps of the cells that do not drift."""
        return drift.without(self._any_steps, self.drifts)


def _key(row: Row) -> tuple[str, str, str]:
    return row["cell_key"], row["named"], row["target"] if row["evidence"] else ""


def _numbered(*codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(a number for each row, the first row of each number), of rows that have equal codes."""
    place = np.zeros(len(codes[0]), dtype=np.int64)
    for code in codes:
        place = place * (int(code.max(initial=-1)) + 2) + code + 1
    _, first, number = np.unique(place, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def distinct(columns: Mapping[str, Texts], names: Sequence[str]) -> list[tuple[str, ...]]:
    """The distinct combinations of some columns of texts."""
    some = [columns[n] for n in names]
    _, first = _numbered(*(c.codes for c in some))
    return [tuple(c.values[c.codes[at]] for c in some) for at in first]


def of_rows(rows: Sequence[Row], columns: Sequence[str] = OUTCOME) -> dict[str, Any]:
    """The columns of rows, as `Series` takes them."""
    out: dict[str, Any] = {}
    for name in columns:
        values = [r.get(name) for r in rows]
        if name == "time_us_p50":
            out[name] = np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)
        else:
            known = {v: i for i, v in enumerate(dict.fromkeys(str(v or "") for v in values))}
            out[name] = Texts(list(known), np.array([known[str(v or "")] for v in values], dtype=np.int64))
    return out
