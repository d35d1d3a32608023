"""Writes the directory of one run (see `farm.store.runs`), under the run's lock."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from farm import atomic_files
from farm.cell import Cell
from farm.errors import InfraError, StoreError, id_of
from farm.field_checks import shortened
from farm.shipping import files
from farm.store import journal as journals
from farm.store import lock as runlock
from farm.store import recovery
from farm.store.journal import Journal, LineReader, encoded
from farm.store.recovery import Concluded
from farm.store.results import COLUMNS, SCHEMA
from farm.store.run_reader import CONTRACTS, LOG_BYTES, LOG_LIMIT, PLAN, PLAN_LIMIT, Run
from farm.store.tables import write_table

Table = tuple[Iterable[Mapping[str, Any]], Mapping[str, str]]  # rows, and kinds of value by column
#: The most lines that `RunWriter.together` holds back, and for how long: what a kill may cost beyond one line.
HELD_LINES, HELD_SECONDS = 1000, 0.1
#: samples.parquet: one row per timed cell; `samples_us` and `host_us` are JSON lists of microseconds,
#: `telemetry` is one of rows [seconds since timing began, *farm.guard.telemetry.KEPT[1:]].
SAMPLE_COLUMNS = {
    "cell_id": "text",
    "cell_key": "text",
    "attempt": "int",
    "method": "text",
    "samples_us": "text",
    "host_us": "text",
    "sets": "int",
    "launches": "int",
    "floor_us": "float",
    "telemetry": "text",
}


class RunWriter:
    """Writes one run: first the journal, event by event, then the tables, then run.json.  `again`: the journal has
    lines already."""

    def __init__(self, folder: Path, waiting: Callable[[str], None] = lambda text: None, *, again: bool = False):
        self.dir = folder
        self.id = folder.name
        self.journal = Journal(folder / journals.NAME)
        self._mended, self._planning = not again, False
        self._at = 0  # where the next line begins
        try:
            self._lock = runlock.acquire(folder, waiting=waiting)
        except runlock.RunBusy as error:
            raise StoreError(
                f"{folder}: {error} is writing this run; wait until that process ends, or end it", id="store-run-busy"
            ) from None
        try:
            if self._lock.inherited or journals.fencing(self.journal.path):
                journals.fence(self.journal.path)
            self._journal = self.journal.path.open("a", encoding="utf-8")
            self._held: list[str] | None = None  # lines of `together` that are not written yet
            self._held_since = 0.0
        except BaseException:
            self._lock.release()
            raise

    def plan(self, head: dict[str, Any], cells: Iterable[Cell]) -> None:
        """The first lines: the run's head and every planned cell; on disk before anything starts."""
        self._planning = True
        self.append({"event": "run", "schema": SCHEMA, "run_id": self.id, **head})
        with self.together():
            for cell in cells:
                self.append({"event": "cell", "cell": cell.to_dict()})
        self.append({"event": "planned"})
        self.sync()
        self._planning = False

    def keep_plan(self, text: str) -> None:
        """Keep the complete plan that this run is a part of, as in its file."""
        self._still_ours()
        try:
            atomic_files.write(self.dir / PLAN, text, sync=True)
        except OSError as error:
            raise self._lost(PLAN, error) from None

    def keep_contracts(self, text: str) -> None:
        """Keep the contracts from outside the farm that this run was planned with (farm.shipping.contracts)."""
        self._still_ours()
        try:
            atomic_files.write(self.dir / CONTRACTS, text, sync=True)
        except OSError as error:
            raise self._lost(CONTRACTS, error) from None

    def append(self, line: Mapping[str, Any]) -> int:
        """Append one event; returns the offset of its line in the journal.  Other processes of this machine see it at
        once (see `together`); it survives a power cut from the next `sync`.  InfraError if it cannot be written, or
        another process has taken over the run."""
        if not self._mended:
            self._mend()
        text, at = encoded(line), self._at
        self._at += len(text)  # ASCII
        if self._held is None:
            self._still_ours()
            self._write(text)
            return at
        if not self._held:
            self._held_since = time.monotonic()
        self._held.append(text)
        if len(self._held) >= HELD_LINES or time.monotonic() - self._held_since >= HELD_SECONDS:
            self.commit()
        return at

    def _mend(self) -> None:
        """Cut off, and keep, what stands behind the journal's last whole line, so that lines can follow."""
        self._still_ours()
        try:
            journals.cut(self.journal.path, self.journal.read_through().end)
            self._at = self.journal.path.stat().st_size
        except OSError as error:
            raise self._lost("the journal", error) from None
        self._mended = True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the lines that are appended in this context together, with one check of the lock: at the end (also
        after an exception), at a `sync` or `commit`, after HELD_LINES lines, or when the first is HELD_SECONDS old."""
        self._held = []
        try:
            yield
        finally:
            try:
                self.commit()
            finally:
                self._held = None

    def commit(self) -> None:
        """Write the lines that `together` holds back.  InfraError as for `append`."""
        if self._held:
            text, self._held = "".join(self._held), []
            self._still_ours()
            self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._journal.write(text)
            self._journal.flush()
        except OSError as error:
            raise self._lost("the journal", error) from None

    def sync(self) -> None:
        """Flush to disk: once per lease, not per line."""
        self.commit()
        try:
            os.fsync(self._journal.fileno())
        except OSError as error:
            raise self._lost("the journal", error) from None

    def _still_ours(self) -> None:
        """InfraError if another process assumed that this one is dead and writes the run: both would damage it."""
        try:
            self._lock.check()
        except runlock.RunLockLost as error:
            raise self._taken(error) from None
        except OSError as error:
            raise self._lost(runlock.NAME, error) from None

    def _taken(self, error: runlock.RunLockLost) -> InfraError:
        why = id_of(error.args[0])
        if not self.journal.path.exists():
            text = (
                f"{self.dir}: the run's folder or journal was removed during the run; what it contained is lost, and "
                "this process stops here; start a new run"
            )
            return InfraError(text, id="store-run-removed")
        if why == "store-lock-removed":
            text = (
                f"{self.dir}: {error}; this process stops here, because another process may have continued the run; "
                f"results so far are in the run's journal; run farm resume {self.id}, unless that has been done"
            )
            return InfraError(text, id=why)
        text = (
            f"{self.dir}: {error}, either because this process showed no sign of life for {runlock.WATCH_SECONDS:g} s, "
            f"or because {runlock.NAME} was removed by hand; this process stops here, and the other process continued "
            f"from the run's journal; nothing is lost (if the other process has ended, too, run farm resume {self.id})"
        )
        return InfraError(text, id=why)

    def _lost(self, what: str, error: OSError) -> InfraError:
        begin = f"{self.dir}: {what} cannot be written ({error.strerror or error}); "
        if self._planning:
            return InfraError(
                f"{begin}no cell had started; solve this problem, then start the run again (its ID stays free)",
                id="store-plan-not-written",
            )
        return InfraError(
            f"{begin}the run stops here, and finished results are in the run's journal; solve this problem, then run "
            f"farm resume {self.id}",
            id="store-write-failed",
        )

    def log(self, name: str, text: str) -> str:
        """Keep an attempt's log, which says so where it is shortened; returns its path in the run directory."""
        safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", name)[:150]
        path = self.dir / "logs" / f"{safe}.txt"
        self._still_ours()
        try:
            path.write_text(shortened(text, LOG_LIMIT), encoding="utf-8", errors="replace")
        except OSError as error:
            raise self._lost(f"logs/{path.name}", error) from None
        return f"logs/{path.name}"

    def take_logs(self, source: Run) -> None:
        """Copy the logs of another run, which the rows of this one name, its contracts, and the plan that it is a part
        of.  StoreError if something there is not a plain file, because that run may come from elsewhere."""
        try:
            kept = (source.dir / PLAN, source.dir / CONTRACTS)
            links = [p for p in (*kept, source.dir / "logs", *source.dir.glob("logs/**/*")) if p.is_symlink()]
            if links:  # the run may come from elsewhere, and they point to anything here
                raise OSError(f"{links[0]} is a link, and links are not followed")
            for file in (file for file in kept if file.is_file()):
                files.copy(file, self.dir / file.name, PLAN_LIMIT, whole=True)
            if (source.dir / "logs").is_dir():
                for name in files.plain(source.dir / "logs"):
                    files.copy(source.dir / "logs" / name, self.dir / "logs" / name, LOG_BYTES)
        except OSError as error:
            raise StoreError(
                f"{source.dir}: the logs of this run cannot be copied ({error}); make both folders accessible, and "
                "remove what is not a plain file",
                id="store-logs-not-copied",
            ) from None

    def take_log(self, source: Run, log: str, label: str) -> str:
        """Copy one log of another run under a name that begins with `label`; returns its path here.  StoreError for
        anything but a plain file in that run's logs, because the row that names it comes from elsewhere."""
        kept = re.sub(r"[^A-Za-z0-9._=-]+", "_", f"{label}--{log.partition('/')[2]}")[-200:]
        text = source.log_text(log)
        try:
            (self.dir / "logs" / kept).write_text(text[-LOG_LIMIT:], encoding="utf-8")
        except OSError as error:
            raise self._lost(f"logs/{kept}", error) from None
        return f"logs/{kept}"

    def conclude(
        self,
        cells: Sequence[Cell],
        known: Mapping[int, Concluded],
        head: dict[str, Any],
        more: Mapping[str, Table] | None = None,
    ) -> None:
        """`finish`, with the rows and samples that the journal has of the concluded cells."""
        with LineReader(self.journal.path) as line_at:
            self.finish(recovery.rows(cells, known, line_at), recovery.samples(known, line_at), head, more)

    def finish(
        self,
        rows: Iterable[Mapping[str, Any]],
        samples: Iterable[Mapping[str, Any]],
        head: dict[str, Any],
        more: Mapping[str, Table] | None = None,
    ) -> None:
        """Write the tables, and `more` of them by name, then run.json; after that the directory never changes."""
        self._still_ours()
        tables = {"cells": (rows, COLUMNS), "samples": (samples, SAMPLE_COLUMNS), **(more or {})}
        try:
            for name, (found, columns) in tables.items():
                write_table(self.dir / f"{name}.tmp", found, columns)
            self.sync()
            self._still_ours()  # large tables take long, and meanwhile another process may have completed the run
            for name in tables:
                (self.dir / f"{name}.tmp").replace(self.dir / f"{name}.parquet")
            atomic_files.write(
                self.dir / "run.json", json.dumps({"schema": SCHEMA, "run_id": self.id, **head}, indent=1), sync=True
            )
        except OSError as error:
            raise self._lost("its tables", error) from None

    def close(self) -> None:
        """Idempotent.  A line that could not be written was reported then; an error here would hide that."""
        with suppress(OSError):
            self._journal.close()
        self._lock.release()
