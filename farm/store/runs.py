"""A store is a folder of run directories; only this module knows their paths and formats.

    <store>/runs/<run-id>/journal.jsonl    every event, appended; the first lines hold the plan (farm.store.journal)
                          journal.cut.jsonl    what `farm resume` cut off the journal's end, if anything
                          cells.parquet    one row per planned cell (farm.store.results.COLUMNS)
                          samples.parquet  raw samples
                          rounds.parquet, pairs.parquet    of a run that compares two arms (farm.store.pairs)
                          logs/            tails of failed attempts
                          plan.json        the complete plan, if the run is a part of one (farm.sites)
                          writer.lock      which process writes the run now; absent when none does (farm.store.lock)
                          run.json         last: its existence means the run is complete
    <store>/runs/.aside/                   folders of runs whose plan was not written completely, so that no cell began
    <store>/kits/<digest>.json             the manifests of the kits that were made here (farm.sites.kit)
    <store>/calibrations/<id>.json         a device's roof (farm.timing.roof); never rewritten
    <store>/noise/<run-id>.json            what a comparison measured of identical code (farm.store.noise_files)
    <store>/index/                         slim cells of all complete runs (farm.store.index_files); may be deleted
    <store>/pages/                         HTML, made from runs

Everything in a run directory is written once, except the journal, which is appended to.  A directory without run.json
is a run in progress or an interrupted run: its rows come from the journal, and cells without a result are `lost`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.cell import Cell
from farm.errors import InfraError, Message, StoreError, id_of
from farm.field_checks import shortened
from farm.shipping import files
from farm.store import journal as journals
from farm.store import lock as runlock
from farm.store import recovery
from farm.store.journal import Damage, Follower, Journal, LineReader, encoded
from farm.store.recovery import CellReader, Concluded
from farm.store.results import COLUMNS, IMPORTED, INTERRUPTED, PUBLISHED, SCHEMA, planned_row
from farm.store.tables import Row, compact, compacted, read_table, read_where, write_table
from farm.timing import roof
from farm.timing.roof import Calibration

PLAN = "plan.json"
CONTRACTS = "contracts.json"
#: What a run may be called: the name of a folder everywhere, and of a page.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Table = tuple[Iterable[Mapping[str, Any]], Mapping[str, str]]  # rows, and kinds of value by column
_LOG_LIMIT = 64 << 10  # characters
_LOG_BYTES = 4 * _LOG_LIMIT
_PLAN_LIMIT = 256 << 20
#: The most lines that `RunWriter.together` holds back, and for how long: what a kill may cost beyond one line.
HELD_LINES, HELD_SECONDS = 1000, 0.1
#: A larger run.json or calibration is refused.  That of a merged run of 100,000 cells has a few megabytes.
MAX_JSON = 64 << 20


def new_id(now: datetime) -> str:
    """`20261123T075004Z-c8d8`: the time to 15 microseconds, so that ids of one host are in the order of their runs, two
    that a watch made within one second too."""
    return f"{now:%Y%m%dT%H%M%SZ}-{(now.microsecond << 16) // 1_000_000:04x}"


class Store:
    """The runs under a folder."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    @property
    def pages(self) -> Path:
        """The folder of the HTML pages."""
        return self.path / "pages"

    def probe(self) -> None:
        """StoreError if a run could not be written later."""
        try:
            runs = self.path / "runs"
            runs.mkdir(parents=True, exist_ok=True)
            test = runs / f".probe-{os.getpid()}"
            test.write_text("probe")
            test.unlink()
        except OSError as error:
            raise self.unwritable(error) from None

    def unwritable(self, error: OSError) -> StoreError:
        """The refusal of a store that cannot be written."""
        return StoreError(
            f"{self.path}: the store cannot be written ({error.strerror or error}); "
            "name a writable folder with --out or FARM_STORE",
            id="store-unwritable",
        )

    def keep_calibration(self, record: Mapping[str, Any]) -> Path:
        """Write a calibration beside the older ones; a reader sees the complete file or none."""
        try:
            self.calibrations_folder.mkdir(parents=True, exist_ok=True)
            path = self.calibrations_folder / f"{record['id']}.json"
            number = 2
            while path.exists():  # two in the same second
                path = self.calibrations_folder / f"{record['id']}-{number}.json"
                number += 1
            write_atomic(path, json.dumps({**record, "id": path.stem}, indent=1))
        except OSError as error:
            raise self.unwritable(error) from None
        return path

    @property
    def calibrations_folder(self) -> Path:
        """The folder of the devices' roofs."""
        return self.path / "calibrations"

    def calibrations(self) -> tuple[list[Calibration], list[Message]]:
        """(every calibration that can be read, a `Message` for every file that cannot)."""
        found, bad = [], []
        try:
            paths = sorted(self.calibrations_folder.glob("*.json"))
        except OSError:
            paths = []
        for path in paths:
            try:
                found.append(roof.parse(read_json(path)))
            except (OSError, ValueError) as error:  # BadCalibration and JSON's own among them
                why = getattr(error, "strerror", None) or str(error)
                text = f"{path}: this calibration is ignored ({why}); delete this file, or calibrate again"
                bad.append(Message(text, id="store-calibration-unreadable"))
        return found, bad

    def create(self, run_id: str, writer: type[RunWriter] | None = None) -> RunWriter:
        """A new run directory, written by RunWriter or another `writer`.  StoreError if the store cannot be written, or
        the id is no name of a folder."""
        if not RUN_ID.fullmatch(run_id):
            raise StoreError(f"{run_id!r} is not a valid id of a run; choose another --run-id", id="store-run-id")
        folder = self.path / "runs" / run_id
        try:
            self._free(folder)
            folder.mkdir(parents=True)
            (folder / "logs").mkdir()
            return (writer or RunWriter)(folder)
        except FileExistsError:
            raise self._exists(run_id) from None
        except OSError as error:
            raise self.unwritable(error) from None

    def refuse_existing(self, run_id: str) -> None:
        """StoreError if the store already has a run of this id, other than one whose plan was not written."""
        if any(run.id == run_id and run.begun for run in self.runs()):
            raise self._exists(run_id)

    def _free(self, folder: Path) -> None:
        """Move the folder of a run aside if a kill or a full disk ended it before its plan was written."""
        if not (folder / journals.NAME).is_file() or Run(folder).begun:
            return
        try:
            held = runlock.acquire(folder)
        except (runlock.RunBusy, FileNotFoundError):
            return
        try:
            if not Run(folder).begun:  # nobody has written its plan in the meantime
                aside = folder.parent / ".aside"
                aside.mkdir(exist_ok=True)
                number = 1
                while (aside / f"{folder.name}-{number}").exists():
                    number += 1
                folder.rename(aside / f"{folder.name}-{number}")
        finally:
            held.release()

    def _exists(self, run_id: str) -> StoreError:
        folder = self.path / "runs" / run_id
        return StoreError(f"{folder}: this run already exists; choose another --run-id", id="store-run-exists")

    def reopen(
        self, run_id: str, waiting: Callable[[str], None] = lambda text: None, writer_of: type[RunWriter] | None = None
    ) -> RunWriter:
        """An interrupted run's directory, to continue in it: locked.  StoreError if another process writes it, or it is
        complete.  Nothing in it changes before the first line is appended; that cuts off what follows the journal's
        last whole line, and keeps it.  `waiting`: as `farm.store.lock.acquire` calls it."""
        run = self.run(run_id)
        try:
            writer = (writer_of or RunWriter)(run.dir, waiting, again=True)
        except OSError as error:
            raise self.unwritable(error) from None
        if run.complete:
            writer.close()
            raise StoreError(
                f"{run.dir}: the run is complete, and a complete run never changes", id="store-run-complete"
            )
        return writer

    def run(self, run_id: str) -> Run:
        """The run with this id, or with an id that begins so and is unique, or the `last` one; or the run of this store
        whose folder this is the path of."""
        if os.sep in run_id:
            run_id = self._id_of_path(run_id)
        found = [r for r in self.runs() if r.id == run_id] or [r for r in self.runs() if r.id.startswith(run_id)]
        if run_id == "last":
            found = list(self.runs())[-1:]
        if len(found) == 1:
            return found[0]
        have = ", ".join(r.id for r in list(self.runs())[-5:])
        if not have:
            raise StoreError(
                f'{self.path}: no run matches "{run_id}", because this store has no runs; start one with farm run, or '
                "name another store with --out",
                id="store-run-unknown",
            )
        what, name = ("several runs match", "ambiguous") if found else ("no run matches", "unknown")
        raise StoreError(f'{self.path}: {what} "{run_id}"; the newest: {have}', id=f"store-run-{name}")

    def _id_of_path(self, path: str) -> str:
        """The id of the run in this store whose folder `path` is.  StoreError for another path."""
        folder = Path(path).absolute()
        if folder.parent.resolve() == (self.path / "runs").resolve() and folder.name:
            return folder.name
        raise StoreError(
            f'"{path}" is a path, but not of a run in the store {self.path}; give the ID of a run in this store, or '
            "name the other store with --out",
            id="store-run-path",
        )

    def runs(self) -> list[Run]:
        """All runs, oldest first (a run id begins with its time)."""
        folder = self.path / "runs"
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:  # of a thousand runs, making paths would cost more than asking for files
            there = (e.name for e in entries if os.path.isfile(f"{e.path}/{journals.NAME}"))  # noqa: PTH113
            return [Run(folder / name) for name in sorted(there)]


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
            write_atomic(self.dir / PLAN, text)
        except OSError as error:
            raise self._lost(PLAN, error) from None

    def keep_contracts(self, text: str) -> None:
        """Keep the contracts from outside the farm that this run was planned with (farm.shipping.contracts)."""
        self._still_ours()
        try:
            write_atomic(self.dir / CONTRACTS, text)
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
            path.write_text(shortened(text, _LOG_LIMIT), encoding="utf-8", errors="replace")
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
                files.copy(file, self.dir / file.name, _PLAN_LIMIT, whole=True)
            if (source.dir / "logs").is_dir():
                for name in files.plain(source.dir / "logs"):
                    files.copy(source.dir / "logs" / name, self.dir / "logs" / name, _LOG_BYTES)
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
            (self.dir / "logs" / kept).write_text(text[-_LOG_LIMIT:], encoding="utf-8")
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
            write_atomic(self.dir / "run.json", json.dumps({"schema": SCHEMA, "run_id": self.id, **head}, indent=1))
        except OSError as error:
            raise self._lost("its tables", error) from None

    def close(self) -> None:
        """Idempotent.  A line that could not be written was reported then; an error here would hide that."""
        with suppress(OSError):
            self._journal.close()
        self._lock.release()


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


def write_atomic(path: Path, text: str) -> None:
    """Write a file that a reader sees complete or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # as in `write_table`
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
            return files.read(path, _LOG_BYTES).decode("utf-8", "replace")
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
            return files.read(file, _PLAN_LIMIT, whole=True).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{file}: the run's contracts cannot be read ({error}); copy the run again", id="store-contracts"
            ) from None

    def published(self) -> str:
        """What was imported, as it was published; "" for a run of another kind."""
        file = self.dir / PUBLISHED
        if self.head.get("kind") != IMPORTED:
            return ""
        return files.read(file, _PLAN_LIMIT, whole=True).decode("utf-8")

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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.  ValueError for anything else, whatever it is."""
    if path.stat().st_size > MAX_JSON:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {MAX_JSON:,}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found
