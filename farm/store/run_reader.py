"""Reads the directory of one run (see `farm.store.runs`): a complete one from its tables, another from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.cell import Cell
from farm.errors import StoreError
from farm.shipping import files
from farm.store import journal as journals
from farm.store import lock as runlock
from farm.store import recovery
from farm.store.journal import Damage, Follower, Journal, LineReader
from farm.store.json_files import read_json
from farm.store.recovery import CellReader
from farm.store.results import IMPORTED, INTERRUPTED, PUBLISHED, planned_row
from farm.store.tables import Row, compact, compacted, read_table, read_where

PLAN = "plan.json"
CONTRACTS = "contracts.json"
LOG_LIMIT = 64 << 10  # characters
LOG_BYTES = 4 * LOG_LIMIT
PLAN_LIMIT = 256 << 20


@dataclass
class Run:
    """A run on disk, read on demand."""

    dir: Path

    @property
    def id(self) -> str:
        return self.dir.name

    @property
    def writer(self) -> str:
        """Which process writes the run now (`process 7 on host`); "" if the run is complete, or none does."""
        return "" if self.complete else runlock.holder(self.dir)

    @property
    def complete(self) -> bool:
        """Whether run.json exists."""
        return (self.dir / "run.json").is_file()

    @property
    def begun(self) -> bool:
        """Whether its plan was written, so that cells could start.  True for a damaged journal, which may hold more
        than can be read."""
        journal = self.journal()
        if self.complete or any(line["event"] not in ("run", "cell") for line in journal):
            return True
        return bool(journal.damage)

    @cached_property
    def damage(self) -> Damage:
        """The damaged lines of an unfinished run's journal.  A complete run is read from its tables."""
        return Damage() if self.complete else self._read.read_through().damage

    @cached_property
    def _read(self) -> Journal:
        """The journal as it was read last."""
        return Journal(self.dir / journals.NAME)

    @cached_property
    def head(self) -> dict[str, Any]:
        """run.json; for an unfinished run the first line of the journal, and `complete: false`."""
        if self.complete:
            return {**read_json(self.dir / "run.json"), "complete": True}
        journal = self.journal()
        first = next(iter(journal), {})
        if (first or journal.damage) and first.get("event") != "run":
            raise StoreError(
                f"{journal.path}: the first line of this journal is damaged, and no plan can be read without it; copy "
                "the run again, or start a new run",
                id="run-unreadable",
            )
        return {**{k: v for k, v in first.items() if k != "event"}, "complete": False}

    @cached_property
    def rows(self) -> list[Row]:
        """One row per planned cell."""
        return compact(read_table(self.dir / "cells.parquet")) if self.complete else fold(self._read)

    def rows_of(self, key: str) -> list[Row]:
        """The rows whose `cell_key` is `key` (one per named target), without those of the other cells in memory."""
        if self.complete:
            return compact(read_where(self.dir / "cells.parquet", "cell_key", key))
        return [row for row in self.rows if row["cell_key"] == key]

    def samples_of(self, key: str) -> list[dict[str, Any]]:
        """The rows of samples.parquet of one cell; from the journal for a run without run.json."""
        if self.complete:
            return read_where(self.dir / "samples.parquet", "cell_key", key)
        found = recovery.read_located(self._read.located())
        kept = {index: row for index, row in found.rows.items() if row["cell_key"] == key}
        with LineReader(self._read.path) as line_at:
            return list(recovery.samples(kept, line_at))

    def devices(self) -> list[dict[str, Any]]:
        """The devices that the run has used: {"backend", "name", "device", "node", ...}."""
        if self.complete:
            used = self.head.get("backends") or {}
            return [{**d, "backend": backend} for backend, of in used.items() for d in of.get("devices") or ()]
        return list({line["device"]: dict(line) for line in self.journal() if line["event"] == "device_up"}.values())

    def log_text(self, log: str) -> str:
        """The text of a log that a row names (`logs/...`).  StoreError for anything but a plain file in this run's
        logs, because the run may come from elsewhere."""
        folder, _, name = log.partition("/")
        path = self.dir / "logs" / name
        try:
            if folder != "logs" or len(files.inside(name).parts) > 1 or path.parent.is_symlink():
                raise files.NotInside
            return files.read(path, LOG_BYTES).decode("utf-8", "replace")
        except (OSError, files.NotInside):
            raise StoreError(
                f"{self.dir}: the log {log!r}, named by one of the run's cells, is not a readable file of this run; "
                "the run is damaged; copy the run again",
                id="store-log-missing",
            ) from None

    def cells(self) -> list[Cell]:
        """The plan."""
        cell_of = CellReader()
        return [cell_of(line["cell"]) for line in self.journal() if line.get("event") == "cell"]

    def contracts(self) -> str:
        """The contracts from outside the farm that the run was planned with, as they were kept; "" if there are none.
        StoreError if they cannot be read."""
        file = self.dir / CONTRACTS
        if not file.is_symlink() and not file.exists():
            return ""
        try:
            return files.read(file, PLAN_LIMIT, whole=True).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{file}: the run's contracts cannot be read ({error}); copy the run again", id="store-contracts"
            ) from None

    def published(self) -> str:
        """What was imported, as it was published; "" for a run of another kind."""
        file = self.dir / PUBLISHED
        if self.head.get("kind") != IMPORTED:
            return ""
        return files.read(file, PLAN_LIMIT, whole=True).decode("utf-8")

    def samples(self) -> list[dict[str, Any]]:
        """The raw samples, one row per timed cell; none for a run without run.json."""
        return list(read_table(self.dir / "samples.parquet")) if self.complete else []

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of `rounds` or `pairs`, which a complete run of two arms has."""
        return list(read_table(self.dir / f"{name}.parquet"))

    def follow(self) -> Follower:
        """Reads the events as another process writes them."""
        return Follower(self.dir / journals.NAME)

    def journal(self) -> Journal:
        """The events, without damaged lines."""
        return Journal(self.dir / journals.NAME)


def fold(journal: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows from events: the planned cells, each with its result, or `lost`."""
    cell_of, planned = CellReader(), dict[int, Cell]()
    rows: dict[int, Row] = {}
    why = ""  # how the run ended; nobody knows of one that was killed

    def results() -> Iterator[Mapping[str, Any]]:
        nonlocal why
        for line in journal:
            if line.get("event") == "cell":
                planned[line["cell"]["index"]] = cell_of(line["cell"])
            elif line.get("event") == "result":
                yield line["row"]
            elif line.get("event") == "interrupted":
                why = str(line.get("reason") or INTERRUPTED)
            elif line.get("event") == "resumed":  # what was lost is run again
                why = ""
                for index in [i for i, row in rows.items() if row["status"] == "lost"]:
                    del rows[index]

    for row in compacted(results()):
        rows[row["index"]] = row
    for row in compacted(planned_row(cell, why) for index, cell in planned.items() if index not in rows):
        rows[row["index"]] = row
    return [rows[i] for i in sorted(rows)]
