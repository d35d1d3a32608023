"""The cells of a run: what the current attempt of each has said so far, and the row that it ends as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm import backends, results
from farm.cell import FARM_FAULTS, Cell, Owner, Status, Target
from farm.coordinator.journal import line
from farm.coordinator.neighbours import Neighbours
from farm.coordinator.roofs import Roofs, beyond_the_curve
from farm.ops import contract
from farm.scheduler.events import Conclude, Ended, Event, LeaseDone, MeasuredEvent, Started
from farm.store import RunWriter
from farm.store.before import Before


class Reports:
    """Turns what devices and judges say of cells into events; `conclude` makes the row.  `before`: an interrupted run
    that goes on, whose results stand."""

    def __init__(self, cells: Sequence[Cell], writer: RunWriter, roofs: Roofs, neighbours: Neighbours, before: Before):
        self._cells, self._writer, self._roofs, self._neighbours, self._before = (
            cells, writer, roofs, neighbours, before,
        )  # fmt: skip
        self.rows: dict[int, dict[str, Any]] = {}
        self.samples: list[dict[str, Any]] = list(before.samples)
        self._known: dict[int, dict[str, Any]] = {}  # cell -> what its current attempt has said so far

    def started(self, said: dict[str, Any]) -> Event:
        self._known[said["cell"]] = {}
        self._neighbours.started(said["device"], said["cell"], said["at"])
        self._journal("started", said, "device", "cell", "attempt")
        return Started(said["at"], said["device"], said["cell"], said["attempt"])

    def measured(self, said: dict[str, Any]) -> Event:
        busy = self._neighbours.measured(said["device"], said["cell"], said["at"])
        said = {**said, "origin": {**said["origin"], "neighbours_busy": busy}}
        self._known.setdefault(said["cell"], {}).update(measured=said, origin=said["origin"])
        self._journal("measured", said, "device", "cell", "attempt", "round", "revision", "facts", "timing", "origin",
                      "telemetry")  # fmt: skip
        return MeasuredEvent(said["at"], said["device"], said["cell"], said["attempt"])

    def judged(self, said: dict[str, Any]) -> Event:
        self._known.setdefault(said["cell"], {})["judged"] = said
        if said["status"] != "passed":
            self._keep_log(said, _judgement_text(said))
        self._journal("judged", said, "device", "cell", "attempt", "status", "reason", "metrics", "gates",
                      "worst_output", "worst_metric", "worst_ratio", "output_hash", "input_hash")  # fmt: skip
        return _as_ended(said)

    def ended(self, said: dict[str, Any]) -> Event:
        known = self._known.setdefault(said["cell"], {})
        known["origin"] = dict(said["origin"])
        text = said.get("log") or ("" if said["status"] == "unsupported" else said["reason"])
        self._keep_log(said, text)
        self._journal("ended", said, "device", "cell", "attempt", "status", "owner", "reason")
        return _as_ended(said)

    def lease_done(self, said: dict[str, Any]) -> Event:
        self._neighbours.idle(said["device"], said["at"])
        self._writer.sync()
        return LeaseDone(said["at"], said["device"], said["lease"])

    def _keep_log(self, said: Mapping[str, Any], text: str) -> None:
        """Keep what an attempt left behind, and where: every failed cell has a log."""
        if text:
            cell = self._cells[said["cell"]]
            name = f"{cell.index:05d}-{cell.cell_id}-{said['attempt']}"
            self._known[said["cell"]].setdefault("origin", {})["log"] = self._writer.log(name, text)

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> None:
        self._writer.append(line(event, said, *names))

    # the end of a cell

    def conclude(self, action: Conclude) -> dict[str, Any] | None:
        """The cell's row, journaled; None where the journal has it from before."""
        if action.cell in self._before.rows:
            self.rows[action.cell] = self._before.rows[action.cell]
            return None
        cell = self._cells[action.cell]
        known = self._known.pop(action.cell, {})
        # what no judge has seen has no time: a device may be fast at nonsense
        measured = self._measurement(cell, known) if action.status not in FARM_FAULTS else None
        row = results.finish_row(
            cell,
            status=action.status,
            reason=action.reason,
            owner=action.owner.value if action.owner else "",
            attempt=action.attempt,
            evidence=getattr(backends.get(cell.backend), "EVIDENCE", ""),
            origin=_with_target(known.get("origin"), cell.backend),
            measured=measured,
            judged=known.get("judged"),
        )
        self.rows[action.cell] = row
        self._writer.append({"event": "result", "row": row})
        raw = ((measured or {}).get("telemetry") or {}).get("raw", [])
        sample = results.sample_row(cell, action.attempt, measured["timing"] if measured else {}, raw)
        if sample:
            self.samples.append(sample)
        return row

    def _measurement(self, cell: Cell, known: Mapping[str, Any]) -> dict[str, Any] | None:
        said = known.get("measured")
        if not said:
            return None
        work = contract(cell.op).work(cell)
        target = (known.get("origin") or {}).get("target") or {}
        peaks = getattr(backends.get(cell.backend), "peaks", lambda model: None)(target.get("model", ""))
        done = {
            "bytes_read": work.bytes_read, "bytes_written": work.bytes_written, "operations": dict(work.operations)
        }  # fmt: skip
        roof = self._roofs.of_cell(said["device"], cell, said["timing"], done)
        return {
            "facts": beyond_the_curve(said["facts"], roof),
            "timing": said["timing"],
            "work": done,
            "peaks": peaks,
            "telemetry": said.get("telemetry"),
            "roof": roof,
        }


def _as_ended(said: Mapping[str, Any]) -> Event:
    owner = Owner(said["owner"]) if said.get("owner") else None
    return Ended(
        said["at"], said["device"], said["cell"], said["attempt"], Status(said["status"]), owner,
        said.get("reason", ""),
    )  # fmt: skip


def _judgement_text(said: Mapping[str, Any]) -> str:
    """A judgement for people: the reason, then every metric beside its gate."""
    lines = [said.get("reason", ""), ""]
    for output, metrics in (said.get("metrics") or {}).items():
        gates = (said.get("gates") or {}).get(output, {})
        lines += [
            f"{output:12} {name:20} {value:<14.6g}" + (f" gate {gates[name]:.6g}" if name in gates else "")
            for name, value in metrics.items()
        ]
    return "\n".join(lines)


def _with_target(origin: Mapping[str, Any] | None, backend: str) -> dict[str, Any] | None:
    if not origin:
        return None
    target = origin.get("target")
    return {**origin, "target": str(Target(**target)) if target else f"{backend}:unknown"}
