"""The two arms of a run: which cells are pairs, what each round said, which round comes next, and the verdict.

Round 0 is the run itself: every cell of both arms, judged in full.  What passed in both arms with a time is then timed
in further rounds, as long as `farm.compare` asks for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm.cell import Cell
from farm.compare import decide
from farm.compare.course import Course, log_ratio
from farm.compare.reach import Reached
from farm.compare.summary import Summary
from farm.coordinator.request import RunArm, RunProgress, RunRequest
from farm.matrix.arms import mates
from farm.report import pair_rows
from farm.scheduler.events import Conclude, Submitted
from farm.store import RunWriter
from farm.store.journal import LineReader
from farm.store.pairs import PAIR_COLUMNS, ROUND_COLUMNS, comparable, round_row, time_of
from farm.store.recovery import Recovery
from farm.store.runs import Table

#: Pairs of peers that are timed as controls: more would cost time and say no more.
MAX_CONTROLS = 20
Row = Mapping[str, Any]


def whole(before: Recovery, arms: Sequence[RunArm]) -> Recovery:
    """An interrupted run without the results of pairs of which only one arm has one: both run again, on one device."""
    both = mates(before.cells, [a.arm for a in arms])
    half = {cell for pair in both.items() for cell in pair if not set(pair) <= before.rows.keys()}
    return replace(before, rows={i: row for i, row in before.rows.items() if i not in half})


class Rounds:
    """`before`: what an interrupted run had, `whole`."""

    def __init__(self, cells: Sequence[Cell], request: RunRequest, writer: RunWriter, before: Recovery):
        self._cells, self._arms, self._writer = cells, request.arms, writer
        self._changes, self._strict = request.kernels, request.strict_peers
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
        alike = [lead for lead in timed if self._same_code(lead)]
        self._controls = set(alike[:: max(1, math.ceil(len(alike) / MAX_CONTROLS))])
        timed = [lead for lead in timed if lead in self._controls or lead not in alike]
        self._course = Course(timed if self._controls != set(timed) else (), sorted(self._controls) if timed else ())
        for lead, number in self._known:
            self._course.told(lead, number, self._ratio(lead, number))

    def _is_timed(self, lead: int) -> bool:
        """Whether both arms passed round 0, and either was timed; one without a time that counts is asked for again."""
        both = self._known.get((lead, 0), ())
        return bool(both) and all(row["status"] == "passed" for row in both) and any(row["samples"] for row in both)

    def _same_code(self, lead: int) -> bool:
        """Whether both arms run the same code for this pair: a peer's, where the arms differ only in their files."""
        a, b = (one.arm for one in self._arms)
        cell = self._cells[lead]
        return (
            cell.role == "peer"
            and (a.environment, dict(a.variables)) == (b.environment, dict(b.variables))
            and cell.provider == self._cells[self.mates[lead]].provider
        )

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

    # the end

    def pairs(self, known: Collection[str] = ()) -> tuple[list[dict[str, Any]], Summary]:
        """The rows of pairs.parquet, and what they add up to.  `known`: cells whose failure is known."""
        if self._course is None:
            self._begin()
        assert self._course is not None
        outcomes = self._course.outcomes()
        rounds: dict[int, list[tuple[Row, Row]]] = {}
        for lead, number in sorted(self._known):
            rounds.setdefault(lead, []).append(self._known[lead, number])
        both = {**self.mates, **{c.index: None for c in self._cells if c.index not in self._leads}}
        out = []
        for lead, mate in sorted(both.items()):
            a, b = (lead, mate) if self._cells[lead].arm == self._arms[0].arm.name else (None, lead)
            out.append(
                pair_rows.pair_row(
                    self._rows.get(a) if a is not None else None,
                    self._rows.get(b) if b is not None else None,
                    rounds.get(lead, []),
                    outcomes.get(lead),
                    control=lead in self._controls,
                )
            )
        self._reached = pair_rows.reached(out, self._changes)
        pair_rows.name_kernels(out, self._reached)
        return out, pair_rows.summed(out, self._reached, strict_peers=self._strict, known=known)

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
