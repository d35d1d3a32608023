"""What the journal of an interrupted run contains, for the run that continues it.  Pure.

A result is kept unless only the farm failed (`lost`, `infra_error`, or a fault of the device or the infrastructure):
such cells run again.  The journal also has the samples, devices and calibrations
of the kept results, so the tables of a resumed run hold what those of an uninterrupted run would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from farm.cell import FARM_FAULTS, Cell, Owner, Status
from farm.store.results import sample_row

Line = Mapping[str, Any]
_OF_THE_FARM = (Owner.DEVICE.value, Owner.INFRA.value)  # owners of failures that say nothing of a cell


@dataclass(frozen=True)
class Recovery:
    """An interrupted run.  `head`: its first line; `rows`: cell's index -> the kept result; `samples`: rows of
    samples.parquet; `attempts`: index -> the highest number of an attempt that began; `devices`: name -> its last
    `device_up`; `choices`: device -> the calibration that it used, and `calibrations` by id; `seconds`: the time worked
    so far; `resumed`: one {time, argv, revision} for every time that it was resumed."""

    head: Line = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    planned: bool = False  # the plan is complete
    rows: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    samples: tuple[dict[str, Any], ...] = ()
    attempts: Mapping[int, int] = field(default_factory=dict)
    devices: Mapping[str, Line] = field(default_factory=dict)
    choices: Mapping[str, Line] = field(default_factory=dict)
    calibrations: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    resumed: tuple[Line, ...] = ()

    @property
    def open(self) -> list[Cell]:
        """The cells that have no result."""
        return [c for c in self.cells if c.index not in self.rows]


def read(journal: Iterable[Line]) -> Recovery:
    """What is known after the events of a journal, in order."""
    head: Line = {}
    cells: dict[int, Cell] = {}
    planned = False
    rows: dict[int, dict[str, Any]] = {}
    samples: dict[int, dict[str, Any]] = {}
    attempts: dict[int, int] = {}
    devices: dict[str, Line] = {}
    choices: dict[str, Line] = {}
    calibrations: dict[str, Any] = {}
    resumed: list[Line] = []
    measured: dict[int, Line] = {}  # cell -> what its current attempt measured
    sessions: list[list[float]] = []  # first and last time of each
    for line in journal:
        event = line.get("event")
        if event == "run":
            head = {k: v for k, v in line.items() if k != "event"}
            sessions.append([_unix(line.get("created"))] * 2)
        elif event == "cell":
            cells[line["cell"]["index"]] = Cell.from_dict(line["cell"])
        elif event == "planned":
            planned = True
        elif event == "resumed":
            resumed.append({k: line[k] for k in ("time", "argv", "revision") if k in line})
            sessions.append([float(line["time"])] * 2)
        elif event == "started":
            attempts[line["cell"]] = max(attempts.get(line["cell"], 0), line["attempt"])
            measured.pop(line["cell"], None)
        elif event == "measured":
            measured[line["cell"]] = line
        elif event == "device_up":
            devices[line["device"]] = line
            choices.pop(line["device"], None)
        elif event == "roof":
            choices[line["device"]] = line["choice"]
            if "calibration" in line:
                calibrations[line["calibration"]["id"]] = line["calibration"]
        elif event == "result":
            _conclude(line["row"], cells, measured, rows, samples)
        if sessions and "time" in line:
            sessions[-1][1] = max(sessions[-1][1], float(line["time"]))
    return Recovery(
        head,
        tuple(cells[i] for i in sorted(cells)),
        planned,
        rows,
        tuple(samples[i] for i in sorted(samples)),
        attempts,
        devices,
        choices,
        calibrations,
        round(sum(max(0.0, end - begin) for begin, end in sessions), 3),
        tuple(resumed),
    )


def _conclude(
    row: dict[str, Any],
    cells: Mapping[int, Cell],
    measured: dict[int, Line],
    rows: dict[int, dict[str, Any]],
    samples: dict[int, dict[str, Any]],
) -> None:
    index, said = row["index"], measured.pop(row["index"], None)
    samples.pop(index, None)
    if Status(row["status"]) in FARM_FAULTS or row.get("fault_owner") in _OF_THE_FARM:
        rows.pop(index, None)
        return
    rows[index] = row
    if said:
        raw = (said.get("telemetry") or {}).get("raw", [])
        sample = sample_row(cells[index], row["attempt"], said["timing"], raw)
        if sample:
            samples[index] = sample


def _unix(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
