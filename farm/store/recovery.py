"""What the journal of an interrupted run contains, for the run that continues it.  Pure.

A result is kept unless only the farm failed (`lost`, `infra_error`, or a fault of the device or the infrastructure):
such cells run again.  The journal also has the samples, devices and calibrations
of the kept results, so the tables of a resumed run hold what those of an uninterrupted run would.

A run remembers of a concluded cell what its summary needs, and where its lines stand in the journal: the tables are
made from these lines.  The complete rows and samples of 100,000 cells would take a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from types import MappingProxyType
from typing import Any

from farm.cell import FARM_FAULTS, Cell, Owner, Status, Timing
from farm.store import device_health
from farm.store.results import planned_row, sample_row

Line = Mapping[str, Any]
LineAt = Callable[[int], Line]
_OF_THE_FARM = (Owner.DEVICE.value, Owner.INFRA.value)  # owners of failures that say nothing of a cell

_OF_CELL = frozenset(("cell_id", "cell_key", "index", "matrix", "tag", "backend", "op", "provider", "role", "mode"))
_KEPT = (
    *("status", "reason", "fault_owner", "evidence", "attempt", "timing_quality", "judged_by", "target"),
    *("device", "node", "neighbours_busy", "log"),
)


class CellReader:
    """Cells from their data.  Equal texts and mappings are one object, since 100,000 cells hold few different ones."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __call__(self, data: Mapping[str, Any]) -> Cell:
        """`Cell.from_dict`."""
        shared = {k: intern(v) if type(v) is str and k not in ("cell_id", "cell_key") else v for k, v in data.items()}
        for name in ("dtypes", "dims", "params"):
            shared[name] = self._shared(shared[name], lambda value: MappingProxyType(dict(value)))
        timing = self._shared(shared["timing"], lambda value: Timing(**value))
        return Cell(**{**shared, "timing": timing})

    def _shared(self, value: Any, make: Callable[[Any], Any]) -> Any:
        key = repr(value)  # 1, 1.0 and True are equal
        if key not in self._known:
            self._known[key] = make(value)
        return self._known[key]


class Concluded(Mapping[str, Any]):
    """The columns of a cell's row that a run keeps in memory.  `at`: where its `result` stands in the journal;
    `measured_at`: where the samples of the attempt stand that counts, or None."""

    __slots__ = ("_values", "at", "cell", "measured_at")

    def __init__(self, cell: Cell, row: Mapping[str, Any], at: int = -1, measured_at: int | None = None):
        self.cell, self.at = cell, at
        judged = Status(row["status"]) not in FARM_FAULTS  # a result that was never judged has no samples
        self.measured_at = measured_at if judged else None
        values = (row.get(name) for name in _KEPT)
        self._values = tuple(intern(v) if type(v) is str else v for v in values)  # few differ

    def __getitem__(self, name: str) -> Any:
        if name in _OF_CELL:
            return getattr(self.cell, name)
        if name in _KEPT:
            return self._values[_KEPT.index(name)]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from _OF_CELL
        yield from _KEPT

    def __len__(self) -> int:
        return len(_OF_CELL) + len(_KEPT)


def rows(cells: Sequence[Cell], known: Mapping[int, Concluded], line_at: LineAt) -> Iterator[Line]:
    """The rows of cells.parquet, in the plan's order; a cell without a result is `lost`."""
    for cell in cells:
        found = known.get(cell.index)
        yield line_at(found.at)["row"] if found else planned_row(cell)


def samples(known: Mapping[int, Concluded], line_at: LineAt) -> Iterator[dict[str, Any]]:
    """The rows of samples.parquet."""
    for index in sorted(known):
        found = known[index]
        if found.measured_at is not None:
            line = line_at(found.measured_at)
            raw = (line.get("telemetry") or {}).get("raw", [])
            row = sample_row(found.cell, found["attempt"], line["timing"], raw)
            if row:
                yield row


@dataclass(frozen=True)
class Recovery:
    """An interrupted run.  `head`: its first line; `rows`: cell's index -> the kept result; `attempts`: index -> the
    highest number of an attempt that began; `devices`: name -> its last `device_up`; `choices`: device -> the
    calibration that it used, and `calibrations` by id; `seconds`: the time worked so far; `resumed`: one {time, argv,
    revision} for every time that it was resumed; `contradicted`: cells whose result is not how the attempt ended."""

    head: Line = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    planned: bool = False  # the plan is complete
    rows: Mapping[int, Concluded] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)
    devices: Mapping[str, Line] = field(default_factory=dict)
    choices: Mapping[str, Line] = field(default_factory=dict)
    calibrations: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    resumed: tuple[Line, ...] = ()
    contradicted: tuple[int, ...] = ()
    health: tuple[Mapping[str, Any], ...] = ()  # entries of `device_health`, in order
    rounds: tuple[Line, ...] = ()  # lines of further rounds that both arms of a pair have ended

    @property
    def open(self) -> list[Cell]:
        """The cells that have no result."""
        return [c for c in self.cells if c.index not in self.rows]


def read(journal: Iterable[Line]) -> Recovery:
    """What is known after the events of a journal, in order; a line's place is its number."""
    return read_located(enumerate(journal))


def read_located(journal: Iterable[tuple[int, Line]]) -> Recovery:
    """What is known after the events of a journal, given as (place, event), in order."""
    head: Line = {}
    cell_of, cells = CellReader(), dict[int, Cell]()
    planned = False
    results = _Results(cells)
    attempts: dict[int, int] = {}
    devices: dict[str, Line] = {}
    choices: dict[str, Line] = {}
    calibrations: dict[str, Any] = {}
    resumed: list[Line] = []
    health: list[Line] = []
    rounds: list[Line] = []
    sessions: list[list[float]] = []  # first and last time of each
    for at, line in journal:
        event = line.get("event")
        if event == "run":
            head = {k: v for k, v in line.items() if k != "event"}
            sessions.append([_unix(line.get("created"))] * 2)
        elif event == "cell":
            cells[line["cell"]["index"]] = cell_of(line["cell"])
        elif event == "planned":
            planned = True
        elif event == "resumed":
            resumed.append({k: line[k] for k in ("time", "argv", "revision") if k in line})
            sessions.append([float(line["time"])] * 2)
        elif event == "started":
            attempts[line["cell"]] = max(attempts.get(line["cell"], 0), line["attempt"])
            results.begin(line["cell"])
        elif event == "measured":
            results.measured[line["cell"]] = at
        elif event in ("judged", "ended"):
            results.ends[line["cell"]] = (line["attempt"], line["status"])
        elif event == "round":
            rounds.append(line)
        elif event == "device_up":
            devices[line["device"]] = line
            choices.pop(line["device"], None)
        elif event == "roof":
            choices[line["device"]] = line["choice"]
            if "calibration" in line:
                calibrations[line["calibration"]["id"]] = line["calibration"]
        elif event == "result" and line["row"]["index"] in cells:
            results.conclude(line["row"], at)
            index, attempt = line["row"]["index"], line["row"].get("attempt") or 0
            if attempt > attempts.get(index, 0):  # the line of its start is damaged
                attempts[index] = attempt
        elif noted := device_health.of_line(line):
            health.append(noted)
        if sessions and "time" in line:
            sessions[-1][1] = max(sessions[-1][1], float(line["time"]))
    return Recovery(
        head,
        tuple(cells[i] for i in sorted(cells)),
        planned,
        results.rows,
        attempts,
        devices,
        choices,
        calibrations,
        round(sum(max(0.0, end - begin) for begin, end in sessions), 3),
        tuple(resumed),
        tuple(sorted(results.contradicted - results.rows.keys())),
        tuple(health),
        tuple(rounds),
    )


class _Results:
    """The results that count, while a journal is read."""

    def __init__(self, cells: Mapping[int, Cell]):
        self._cells = cells
        self.rows: dict[int, Concluded] = {}
        self.contradicted: set[int] = set()
        self.measured: dict[int, int] = {}  # cell -> where the measurement of its current attempt stands
        self.ends: dict[int, tuple[int, str]] = {}  # cell -> (attempt, status) that was reported last

    def begin(self, cell: int) -> None:
        """An attempt begins."""
        self.measured.pop(cell, None)
        self.ends.pop(cell, None)

    def conclude(self, row: Mapping[str, Any], at: int) -> None:
        index, status = row["index"], row["status"]
        measured, ended = self.measured.pop(index, None), self.ends.pop(index, None)
        if Status(status) in FARM_FAULTS or row.get("fault_owner") in _OF_THE_FARM:
            self.rows.pop(index, None)
        elif ended and ended[0] == row["attempt"] and ended[1] != status:
            self.contradicted.add(index)  # one of the two lines was changed: it accuses nobody, and proves nothing
            self.rows.pop(index, None)
        else:
            self.rows[index] = Concluded(self._cells[index], row, at, measured)


def _unix(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
