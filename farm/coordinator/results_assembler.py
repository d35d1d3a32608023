"""The cells of a run: the events of the current attempt of each, and its final row."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from farm import backends
from farm.accuracy import places
from farm.accuracy import tolerances as gating
from farm.cell import FARM_FAULTS, Cell, Owner, Status, Target
from farm.contracts.discovery import contract
from farm.coordinator.calibration_lookup import CalibrationLookup, beyond_the_curve
from farm.coordinator.colocation import Colocation
from farm.coordinator.journal import line
from farm.errors import FarmError, Message, describe
from farm.judge.digest import judging_digest
from farm.scheduler.events import Attempt, Conclude, Ended, Event, LeaseDone, MeasuredEvent, Probed, Progress, Started
from farm.store import RunWriter, results
from farm.store.recovery import Concluded, Recovery


class ResultsAssembler:
    """Turns what devices and judges report of cells into events; `conclude` makes the row.  `before`: the results of an
    interrupted run that is resumed.  `rows`: what is kept of concluded cells; the rest stands in the journal."""

    def __init__(
        self,
        cells: Sequence[Cell],
        writer: RunWriter,
        roofs: CalibrationLookup,
        neighbours: Colocation,
        before: Recovery,
    ):
        self._cells, self._writer, self._roofs, self._neighbours, self._before = (
            cells,
            writer,
            roofs,
            neighbours,
            before,
        )
        self.rows: dict[int, Concluded] = {}
        self._digest = judging_digest()
        self._known: dict[int, dict[str, Any]] = {}  # cell -> the events of its current attempt so far

    def started(self, said: dict[str, Any]) -> Event:
        self._known[said["cell"]] = {}
        self._neighbours.started(said["device"], said["cell"], said["at"])
        self._journal("started", said, "device", "cell", "attempt")
        return Started(said["at"], said["device"], said["cell"], said["attempt"], said.get("up_to_s"))

    def progress(self, said: dict[str, Any]) -> Event:
        """Not journaled: it only says that the device goes on."""
        return Progress(said["at"], said["device"], said["cell"], said["attempt"], said["phase"], said["up_to_s"])

    def measured(self, said: dict[str, Any]) -> Event:
        busy = self._neighbours.measured(said["device"], said["cell"], said["at"])
        said = {**said, "origin": {**said["origin"], "neighbours_busy": busy}}
        names = ("device", "cell", "attempt", "round", "revision", "facts", "timing", "origin", "telemetry")
        at = self._journal("measured", said, *names)
        known = {"measured": said, "measured_at": at, "origin": said["origin"], "printed": said.get("log", "")}
        self._known.setdefault(said["cell"], {}).update(known)
        return MeasuredEvent(said["at"], said["device"], said["cell"], said["attempt"])

    def judged(self, said: dict[str, Any]) -> Event:
        said = self._of_our_judge(said)
        known = self._known.setdefault(said["cell"], {})
        known["judged"] = said
        text = _judgement_text(said) if said["status"] != "passed" else ""
        self._keep_log(said, "\n\n".join(part for part in (text, known.get("printed", "")) if part))
        self._journal(
            "judged",
            said,
            "device",
            "cell",
            "attempt",
            "status",
            "reason",
            "metrics",
            "gates",
            "places",
            "worst_output",
            "worst_metric",
            "worst_ratio",
            "output_hash",
            "input_hash",
            "judged_by",
            "judged_as",
            "work",
        )
        return _as_ended(said)

    def _of_our_judge(self, said: dict[str, Any]) -> dict[str, Any]:
        """A verdict of other contracts or another judge than this process has is none."""
        there = said.get("judged_by") or "unknown"
        if Status(said["status"]) in FARM_FAULTS or there == self._digest:
            return said
        node = (self._known.get(said["cell"], {}).get("origin") or {}).get("node") or said["device"]
        text = f"it was judged by {there} on {node}, but this run judges by {self._digest}"
        kept = {name: said[name] for name in ("event", "device", "cell", "attempt", "at")}
        return {**kept, "status": "infra_error", "owner": "infra", "reason": Message(text, id="judged-by-another")}

    def ended(self, said: dict[str, Any]) -> Event:
        known = self._known.setdefault(said["cell"], {})
        known["origin"] = dict(said["origin"])
        text = said.get("log") or ("" if said["status"] == "unsupported" else said["reason"])
        self._keep_log(said, text)
        self._journal("ended", said, "device", "cell", "attempt", "status", "owner", "reason")
        return _as_ended(said)

    def failed(self, at: float, device: str, attempt: Attempt, reason: str, trace: str) -> Event:
        """The end of an attempt of which an event could not be handled."""
        said = {"at": at, "device": device, "cell": attempt.cell, "attempt": attempt.number, "reason": reason}
        said |= {"status": Status.INFRA_ERROR.value, "owner": Owner.HARNESS.value}
        known = self._known.setdefault(attempt.cell, {})
        if not isinstance(known.get("origin"), dict):
            known["origin"] = {}
        self._keep_log(said, trace)
        self._journal("ended", said, "device", "cell", "attempt", "status", "owner", "reason")
        return _as_ended(said)

    def probed(self, said: dict[str, Any]) -> Event:
        """The end of a probe.  It is in the journal, with a log if it failed, and in no table."""
        passed = said["status"] == "passed" and said.get("judged_by") == self._digest
        reason = said.get("reason") or ("" if passed else f"its judge is {said.get('judged_by') or 'unknown'}")
        kept = {**said, "passed": passed, "reason": reason}
        if not passed:
            name = f"probe-{said['device'].replace('/', '-')}-{said['probe']}"
            kept["log"] = self._writer.log(name, said.get("log") or reason)
        self._journal("probe", kept, "device", "probe", "cell_id", "passed", "status", "owner", "reason", "log")
        return Probed(said["at"], said["device"], said["probe"], passed, f"its probe failed: {reason}")

    def lease_done(self, said: dict[str, Any]) -> Event:
        self._neighbours.idle(said["device"], said["at"])
        self._writer.sync()
        return LeaseDone(said["at"], said["device"], said["lease"])

    def _keep_log(self, said: Mapping[str, Any], text: str) -> None:
        """Keep the log of an attempt and its path: every failed cell has a log, and every one that printed."""
        if text:
            cell = self._cells[said["cell"]]
            name = f"{cell.index:05d}-{cell.cell_id}-{said['attempt']}"
            self._known[said["cell"]].setdefault("origin", {})["log"] = self._writer.log(name, text)

    def _journal(self, event: str, said: Mapping[str, Any], *names: str) -> int:
        return self._writer.append(line(event, said, *names))

    # the end of a cell

    def conclude(self, action: Conclude) -> dict[str, Any] | None:
        """The cell's row, journaled; None if the journal already has it."""
        if action.cell in self._before.rows:
            self.rows[action.cell] = self._before.rows[action.cell]
            return None
        cell = self._cells[action.cell]
        known = self._known.pop(action.cell, {})
        try:
            row = self._row(cell, action, known)
            at = self._writer.append({"event": "result", "row": row})
        except FarmError:  # the store's
            raise
        except Exception as error:
            row = self._row_of_failure(cell, action, error)
            at = self._writer.append({"event": "result", "row": row})
        self.rows[action.cell] = Concluded(cell, row, at, known.get("measured_at"))
        return row

    def of_round(self, action: Conclude) -> dict[str, Any]:
        """All that is known of a cell in a further round, as `conclude` puts it together; not journaled."""
        cell = self._cells[action.cell]
        try:
            return self._row(cell, action, self._known.pop(action.cell, {}))
        except Exception as error:
            return self._row_of_failure(cell, action, error)

    def _row(self, cell: Cell, action: Conclude, known: Mapping[str, Any]) -> dict[str, Any]:
        """The row of cells.parquet."""
        # a result that was never judged has no time, because a wrong kernel may be fast
        measured = self._measurement(cell, known) if action.status not in FARM_FAULTS else None
        return results.finish_row(
            cell,
            status=action.status,
            reason=action.reason,
            owner=action.owner.value if action.owner else "",
            attempt=action.attempt,
            evidence=backends.get(cell.backend).EVIDENCE,
            origin=_with_target(known.get("origin"), cell.backend),
            measured=measured,
            judged=known.get("judged"),
        )

    def _row_of_failure(self, cell: Cell, action: Conclude, error: Exception) -> dict[str, Any]:
        """The row of a cell whose results could not be put together."""
        name = f"{cell.index:05d}-{cell.cell_id}-{action.attempt}"
        trace = "".join(traceback.format_exception(error))
        text = f"the farm failed on its result ({describe(error)}); please report it"
        return results.finish_row(
            cell,
            status=Status.INFRA_ERROR,
            reason=Message(text, id="result-failed"),
            owner=Owner.HARNESS.value,
            attempt=action.attempt,
            evidence=backends.get(cell.backend).EVIDENCE,
            origin={"log": self._writer.log(name, trace)},
        )

    def _measurement(self, cell: Cell, known: Mapping[str, Any]) -> dict[str, Any] | None:
        said = known.get("measured")
        if not said:
            return None
        target = (known.get("origin") or {}).get("target") or {}
        peaks = backends.get(cell.backend).peaks(target.get("model", ""))
        done = work_done(cell, known.get("judged") or {})
        roof = self._roofs.of_cell(said["device"], cell, said["timing"], done)
        return {
            "facts": beyond_the_curve(said["facts"], roof),
            "timing": said["timing"],
            "work": done,
            "peaks": peaks,
            "telemetry": said.get("telemetry"),
            "roof": roof,
        }


def work_done(cell: Cell, judged: Mapping[str, Any]) -> dict[str, Any]:
    """The least work of a cell: its judge's, where it depends on the inputs, which only the judge has."""
    return dict(judged["work"]) if judged.get("work") else contract(cell.op).work(cell).plain()


def _as_ended(said: Mapping[str, Any]) -> Event:
    owner = Owner(said["owner"]) if said.get("owner") else None
    return Ended(
        said["at"],
        said["device"],
        said["cell"],
        said["attempt"],
        Status(said["status"]),
        owner,
        said.get("reason", ""),
        judge_died=bool(said.get("judge_died")),
    )


def _judgement_text(said: Mapping[str, Any]) -> str:
    """A judgement as text: the reason, where each output is wrong, then every metric beside its tolerance."""
    lines = [said.get("reason", ""), ""]
    for output, found in (said.get("places") or {}).items():
        lines += [places.report(output, found), ""]
    for output, metrics in (said.get("metrics") or {}).items():
        gates = (said.get("gates") or {}).get(output, {})
        lines += [
            f"{output:12} {name:20} {gating.number_text(value, 6):<14}"
            + (f" tolerance {gates[name]:.6g}" if name in gates else "")
            for name, value in metrics.items()
        ]
    return "\n".join(lines)


def _with_target(origin: Mapping[str, Any] | None, backend: str) -> dict[str, Any] | None:
    if not origin:
        return None
    target = origin.get("target")
    return {**origin, "target": str(Target(**target)) if target else f"{backend}:unknown"}
