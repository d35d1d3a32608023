"""The two arms of a run: which cells are pairs, what each round said, which round comes next, and the verdict.

Round 0 is the run itself: every cell of both arms, judged in full.  What passed in both arms with a time is then timed
in further rounds, as long as `farm.compare` asks for them.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm.cell import VERSIONS, Cell
from farm.compare import decide, equal_code, records
from farm.compare.arms import differences
from farm.compare.course import Course, log_ratio
from farm.compare.decide import Outcome, Verdict
from farm.compare.equal_code import Side
from farm.compare.noise import Known
from farm.compare.reach import Reached
from farm.compare.records import CellNoise, Kind, Record
from farm.compare.summary import Summary
from farm.coordinator.request import RunArm, RunProgress, RunRequest
from farm.matrix.arms import mates
from farm.report import pair_rows
from farm.report.evidence import tool_chain
from farm.scheduler.events import Conclude, Submitted
from farm.store import RunWriter
from farm.store.journal import LineReader
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS, comparable, round_row, time_of, without_arm
from farm.store.recovery import Recovery
from farm.store.run_writer import Table

#: Pairs of peers that are timed as controls: more would cost time and say no more.
MAX_CONTROLS = 20
Row = Mapping[str, Any]


def whole(before: Recovery, arms: Sequence[RunArm]) -> Recovery:
    """An interrupted run without the results of pairs of which only one arm has one: both run again, on one device."""
    both = mates(before.cells, [a.arm for a in arms])
    half = {cell for pair in both.items() for cell in pair if not set(pair) <= before.rows.keys()}
    return replace(before, rows={i: row for i, row in before.rows.items() if i not in half})


def identical(arms: Sequence[RunArm]) -> bool:
    """Whether an arm is compared with itself."""
    a, b = arms
    return not differences(a.arm, b.arm) and a.digest == b.digest


class Rounds:
    """`before`: what an interrupted run had, `whole`.  `begun`: when the run began (ISO 8601 in UTC): records of noise
    made since then do not count, so that a run that is resumed asks for the rounds that it would have asked for."""

    def __init__(self, cells: Sequence[Cell], request: RunRequest, writer: RunWriter, before: Recovery, begun: str):
        self._cells, self._arms, self._writer = cells, request.arms, writer
        self._noise, self._begun_at = request.noise, begun
        self.identical = identical(request.arms)
        self._known_noise: Known | None = None
        self._only_kernels = request.only_kernels
        self._alike: dict[int, str] = {}  # pairs with a time that are known to be the same code, and why
        self._changes, self._strict, self._named = request.kernels, request.strict_peers, request.named_cells
        self._reached: list[Reached] = []
        self.mates = mates(cells, [a.arm for a in request.arms])
        self._leads = {cell: pair[0] for pair in self.mates.items() for cell in pair}
        self._rows: dict[int, Row] = {}  # by cell: its result
        self._half: dict[int, Row] = {}  # by cell: in the present round, until its mate has ended too
        self._known: dict[tuple[int, int], tuple[Row, Row]] = {}  # (pair, round) -> of both arms, as in rounds.parquet
        self._controls: set[int] = set()
        self._course: Course | None = None
        with LineReader(writer.journal.path) as line_at:
            for index, kept in before.rows.items():
                self._rows[index] = line_at(kept.at)["row"]
        of = {cell.cell_id: cell.index for cell in cells}
        for line in before.rounds:
            a, b = line["rows"]
            if a.get("cell_id") in of:
                self._known[of[a["cell_id"]], line["round"]] = (a, b)

    def keep(self, row: Row) -> None:
        """The result of a cell."""
        self._rows[row["index"]] = row

    def output_hash(self, cell: int) -> str:
        """What a cell's outputs were in round 0, which was judged in full; "" where that is not known."""
        row = self._rows.get(cell) or {}
        return str(row.get("output_hash") or "") if row.get("status") == "passed" else ""

    def ended(self, action: Conclude, row: Row) -> None:
        """An arm has ended a further round of a cell; journaled once both have."""
        lead = self._leads[action.cell]
        self._half[action.cell] = row
        mate = self.mates[lead]
        if lead in self._half and mate in self._half:
            self._note(lead, action.round, self._half.pop(lead), self._half.pop(mate))

    def next(self, progress: RunProgress) -> Submitted:
        """What follows once all cells of a round have ended; without cells where nothing does."""
        if self._course is None:
            self._begin()
        assert self._course is not None
        due = self._course.due()
        if due is None:
            return Submitted(time.monotonic(), ())
        progress.device(pair_rows.describe(due, len(due.pairs)))
        return Submitted(time.monotonic(), due.pairs, due.number)

    def _begin(self) -> None:
        """After round 0: what it says, and what is to be timed further."""
        for lead, mate in self.mates.items():
            a, b = self._rows.get(lead), self._rows.get(mate)
            if a is not None and b is not None and (lead, 0) not in self._known:
                self._known[lead, 0] = (round_row(a, 0, 0), round_row(b, 0, 1))
        timed = [lead for lead in self.mates if self._is_timed(lead)]
        self._alike = self._same_code(timed)
        alike = [lead for lead in timed if lead in self._alike]
        self._controls = set(alike[:: max(1, math.ceil(len(alike) / MAX_CONTROLS))])
        if not self.identical:  # of identical code all is timed: it is what the comparison is made for
            timed = [lead for lead in timed if lead in self._controls or lead not in alike]
            timed = timed if self._controls != set(timed) else []
        self._known_noise = records.known(self._noise, [self._kinds(lead) for lead in timed], before=self._begun_at)
        self._course = Course(timed, sorted(self._controls) if timed else (), self._known_noise)
        for lead, number in self._known:
            self._course.told(lead, number, self._ratio(lead, number))

    def _is_timed(self, lead: int) -> bool:
        """Whether both arms passed round 0, and either was timed; one without a time that counts is asked for again."""
        both = self._known.get((lead, 0), ())
        return bool(both) and all(row["status"] == "passed" for row in both) and any(row["samples"] for row in both)

    def _same_code(self, timed: Sequence[int]) -> dict[int, str]:
        """Those of the pairs that are known to run the same code in both arms, and why."""
        a, b = (one.arm for one in self._arms)
        if self.identical:
            return dict.fromkeys(timed, equal_code.IDENTICAL)
        if (a.environment, dict(a.variables)) != (b.environment, dict(b.variables)):
            return {}
        changed, unseen = self._launching_changed(timed)
        known = {one.name.rpartition(".")[2] for one in self._changes}
        out = {}
        for lead in timed:
            cell, mate = self._cells[lead], self._cells[self.mates[lead]]
            if cell.provider != mate.provider:
                continue
            left, right = self._side(lead), self._side(self.mates[lead])
            if cell.role == "peer":
                out[lead] = equal_code.PEER
            elif equal_code.machine_code(left, right):
                out[lead] = equal_code.MACHINE_CODE
            elif cell.mode == mate.mode and equal_code.unchanged(
                left,
                right,
                only_kernels=self._only_kernels,
                launches_changed=lead in changed,
                unseen=unseen,
                known=known,
            ):
                out[lead] = equal_code.UNCHANGED
        return out

    def _launching_changed(self, timed: Sequence[int]) -> tuple[set[int], bool]:
        """(the pairs that launch a kernel that differs between the arms, whether one differs that none was seen to
        launch)."""
        rows = [
            {
                "cell": str(lead),
                "evidence": self._rows[lead].get("evidence"),
                "launch_a": self._rows[lead].get("launch"),
                "launch_b": self._rows[self.mates[lead]].get("launch"),
            }
            for lead in timed
        ]
        found = pair_rows.reached(rows, self._changes)
        return {int(cell) for one in found for cell in one.all_cells}, any(one.state != "reached" for one in found)

    def _side(self, index: int) -> Side:
        row = self._rows[index]
        launch = json.loads(row.get("launch") or "{}")
        return Side(launch, row.get("kernels_per_call"), str(row.get("timing_method") or ""))

    def _note(self, lead: int, number: int, a: Row, b: Row) -> None:
        first = decide.order(number)[0]
        rows = round_row(a, number, int(first != "a")), round_row(b, number, int(first != "b"))
        self._known[lead, number] = rows
        self._writer.append({"event": "round", "time": round(time.time(), 3), "round": number, "rows": list(rows)})
        if self._course is not None:
            self._course.told(lead, number, self._ratio(lead, number))

    def _ratio(self, lead: int, number: int) -> float:
        """ln(time of b / time of a); NaN where the round says nothing of the code."""
        a, b = self._known.get((lead, number), (None, None))
        if a is None or b is None or not comparable(a, b):
            return math.nan
        first = self._known.get((lead, 0), (a, b))[0]
        return log_ratio(time_of(a), time_of(b)) if a.get("target") == first.get("target") else math.nan

    def _kinds(self, lead: int) -> tuple[Kind, Kind]:
        """What a pair's noise is known by, of both arms."""
        return self._kind(lead), self._kind(self.mates[lead])

    def _kind(self, index: int) -> Kind:
        row, planned = self._rows[index], self._cells[index].timing
        method = str(row.get("timing_method") or planned.method)
        version = planned.version if method == planned.method else VERSIONS.get(method, 0)
        return Kind(
            str(row.get("evidence") or ""),
            str(row.get("target") or ""),
            tool_chain(str(row.get("fingerprint") or "")),
            f"{method}/{version}",
            self._cells[index].cell_key,
        )

    # the end

    def record(self, made: str) -> Record:
        """What was measured of identical code: the controls, or all where an arm was compared with itself."""
        shown = self._course.shown() if self._course is not None else {}
        of = [lead for lead in sorted(shown) if self.identical or lead in self._controls]
        cells = tuple(
            CellNoise(
                self._kind(lead),
                without_arm(self._cells[lead].cell_id),
                shown[lead].rounds,
                shown[lead].sd,
                shown[lead].freedom,
                shown[lead].called.value,
            )
            for lead in of
        )
        return Record(self._writer.id, made, self.identical, cells)

    def pairs(self, known: Collection[str] = ()) -> tuple[list[dict[str, Any]], Summary]:
        """The rows of pairs.parquet, and what they add up to.  `known`: cells whose failure is known."""
        if self._course is None:
            self._begin()
        assert self._course is not None
        outcomes = self._outcomes()
        rounds: dict[int, list[tuple[Row, Row]]] = {}
        for lead, number in sorted(self._known):
            rounds.setdefault(lead, []).append(self._known[lead, number])
        both = {**self.mates, **{c.index: None for c in self._cells if c.index not in self._leads}}
        out = []
        for lead, mate in sorted(both.items()):
            a, b = (lead, mate) if self._cells[lead].arm == self._arms[0].arm.name else (None, lead)
            row_a, row_b = (None if i is None else self._rows.get(i) for i in (a, b))
            if row_a is None and row_b is None:  # the run was interrupted before either arm had a result
                continue
            out.append(
                pair_rows.pair_row(
                    row_a,
                    row_b,
                    rounds.get(lead, []),
                    outcomes.get(lead),
                    control=lead in self._controls and not self.identical,
                )
            )
        self._reached = pair_rows.reached(out, self._changes)
        pair_rows.name_kernels(out, self._reached)
        summary = pair_rows.summed(
            out, self._reached, strict_peers=self._strict, identical=self.identical, named=self._named, known=known
        )
        return out, summary

    def _outcomes(self) -> dict[int, Outcome]:
        """Pair -> what its rounds say.  Of identical code what the rule makes of it, whichever cells were controls."""
        assert self._course is not None
        outcomes = self._course.outcomes()
        if not self.identical:
            return outcomes
        return {lead: replace(outcomes[lead], verdict=shown.called) for lead, shown in self._course.shown().items()}

    def told(self) -> dict[str, Any]:
        """What run.json has of identical code; after `pairs`: `same` where an arm was compared with itself, how many
        controls the rule would have called changed, of how many pairs earlier records said how noisy they are, and how
        many run the same code, by why that is known."""
        shown = self._course.shown() if self._course is not None else {}
        changed = (Verdict.REGRESSED, Verdict.IMPROVED)
        called = [lead for lead in shown if lead in self._controls and shown[lead].called in changed]
        known = int((self._known_noise.freedom > 0).sum()) if self._known_noise else 0
        out: dict[str, Any] = {"same": True} if self.identical else {"controls_changed": len(called)}
        whys = Counter(self._alike.values())
        alike = {why: whys[why] for why in equal_code.WHYS if whys[why] and not self.identical}
        return {**out, "with_records": known, "same_code": alike}

    def kernels(self) -> list[dict[str, Any]]:
        """The kernels that differ between the arms, with the cells that launched them; after `pairs`."""
        return [one.to_dict() for one in self._reached]

    def tables(self, rows: Sequence[Row]) -> dict[str, Table]:
        """What is written beside the tables of any run; `rows`: of pairs.parquet."""
        assert self._course is not None
        stage = self._course.stage
        timed = [
            {**row, "stage": stage(number) if lead in self._course.outcomes() else ""}
            for (lead, number), both in sorted(self._known.items(), key=lambda known: known[0][::-1])
            for row in sorted(both, key=lambda row: row["place"])
        ]
        return {"rounds": (timed, ROUND_COLUMNS), "pairs": (rows, PAIR_COLUMNS)}
