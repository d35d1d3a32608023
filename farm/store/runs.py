"""A store is a folder of run directories; only this module knows their paths and formats.

    <store>/runs/<run-id>/journal.jsonl    every event, appended; the first lines hold the plan
                          cells.parquet    one row per planned cell (farm.store.results.COLUMNS)
                          samples.parquet  raw samples
                          logs/            tails of failed attempts
                          plan.json        the complete plan, if the run is a part of one (farm.sites)
                          writer.lock      which process writes the run now; absent when none does (farm.store.lock)
                          run.json         last: its existence means the run is complete
    <store>/calibrations/<id>.json         a device's roof (farm.timing.roof); never rewritten
    <store>/pages/                         HTML, made from runs

Everything in a run directory is written once, except the journal, which is appended to.  A directory without run.json
is a run in progress or an interrupted run: its rows come from the journal, and cells without a result are `lost`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.cell import Cell
from farm.errors import InfraError, Message, StoreError, id_of
from farm.shipping import files
from farm.store import lock as runlock
from farm.store.journal_repair import fence, fencing, mend
from farm.store.results import COLUMNS, SCHEMA, planned_row
from farm.timing import roof
from farm.timing.roof import Calibration

PLAN = "plan.json"
#: What a run may be called: the name of a folder everywhere, and of a page.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOG_LIMIT = 64 << 10  # characters
_LOG_BYTES = 4 * _LOG_LIMIT
_PLAN_LIMIT = 256 << 20
#: The most lines that `RunWriter.together` holds back, and for how long: what a kill may cost beyond one line.
HELD_LINES, HELD_SECONDS = 1000, 0.1
_as_json = json.JSONEncoder(separators=(",", ":")).encode


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
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> StoreError:
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
            _write_atomic(path, json.dumps({**record, "id": path.stem}, indent=1))
        except OSError as error:
            raise self._unwritable(error) from None
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
                found.append(roof.parse(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError) as error:  # BadCalibration and JSON's own among them
                why = getattr(error, "strerror", None) or str(error)
                text = f"{path}: this calibration is ignored ({why}); delete this file, or calibrate again"
                bad.append(Message(text, id="store-calibration-unreadable"))
        return found, bad

    def create(self, run_id: str) -> RunWriter:
        """A new run directory.  StoreError if the store cannot be written, or the id is no name of a folder."""
        if not RUN_ID.fullmatch(run_id):
            raise StoreError(f"{run_id!r} is not a valid id of a run; choose another --run-id", id="store-run-id")
        folder = self.path / "runs" / run_id
        try:
            folder.mkdir(parents=True)
            (folder / "logs").mkdir()
            return RunWriter(folder)
        except FileExistsError:
            raise self._exists(run_id) from None
        except OSError as error:
            raise self._unwritable(error) from None

    def refuse_existing(self, run_id: str) -> None:
        """StoreError if the store already has a run of this id."""
        if any(run.id == run_id for run in self.runs()):
            raise self._exists(run_id)

    def _exists(self, run_id: str) -> StoreError:
        folder = self.path / "runs" / run_id
        return StoreError(f"{folder}: this run already exists; choose another --run-id", id="store-run-exists")

    def reopen(self, run_id: str, waiting: Callable[[str], None] = lambda text: None) -> RunWriter:
        """An interrupted run's directory, to continue in it: locked, and without a last line that a kill cut short.
        StoreError if another process writes it, it is complete, or its journal is damaged before its last line.
        `waiting`: as `farm.store.lock.acquire` calls it."""
        run = self.run(run_id)
        try:
            writer = RunWriter(run.dir, waiting)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if run.complete:
                raise StoreError(
                    f"{run.dir}: the run is complete, and a complete run never changes", id="store-run-complete"
                )
            mend(run.dir / "journal.jsonl")
        except OSError as error:
            writer.close()
            raise self._unwritable(error) from None
        except StoreError:
            writer.close()
            raise
        return writer

    def run(self, run_id: str) -> Run:
        """The run with this id, or with an id that begins so and is unique, or the `last` one."""
        found = [r for r in self.runs() if r.id == run_id] or [r for r in self.runs() if r.id.startswith(run_id)]
        if run_id == "last":
            found = list(self.runs())[-1:]
        if len(found) == 1:
            return found[0]
        have = ", ".join(r.id for r in list(self.runs())[-5:]) or "none"
        what, name = ("several runs match", "ambiguous") if found else ("no run matches", "unknown")
        raise StoreError(f'{self.path}: {what} "{run_id}"; the newest: {have}', id=f"store-run-{name}")

    def runs(self) -> list[Run]:
        """All runs, oldest first (a run id begins with its time)."""
        folder = self.path / "runs"
        if not folder.is_dir():
            return []
        return [Run(p) for p in sorted(folder.iterdir()) if (p / "journal.jsonl").is_file()]


class RunWriter:
    """Writes one run: first the journal, event by event, then the tables, then run.json."""

    def __init__(self, folder: Path, waiting: Callable[[str], None] = lambda text: None):
        self.dir = folder
        self.id = folder.name
        try:
            self._lock = runlock.acquire(folder, waiting=waiting)
        except runlock.RunBusy as error:
            raise StoreError(
                f"{folder}: {error} is writing this run; wait until that process ends, or end it", id="store-run-busy"
            ) from None
        try:
            if self._lock.inherited or fencing(folder / "journal.jsonl"):
                fence(folder / "journal.jsonl")
            self._journal = (folder / "journal.jsonl").open("a", encoding="utf-8")
            self._held: list[str] | None = None  # lines of `together` that are not written yet
            self._held_since = 0.0
        except BaseException:
            self._lock.release()
            raise

    def plan(self, head: dict[str, Any], cells: Iterable[Cell]) -> None:
        """The first lines: the run's head and every planned cell; on disk before anything starts."""
        self.append({"event": "run", "schema": SCHEMA, "run_id": self.id, **head})
        with self.together():
            for cell in cells:
                self.append({"event": "cell", "cell": cell.to_dict()})
        self.append({"event": "planned"})
        self.sync()

    def keep_plan(self, text: str) -> None:
        """Keep the complete plan that this run is a part of, as in its file."""
        self._still_ours()
        try:
            _write_atomic(self.dir / PLAN, text)
        except OSError as error:
            raise self._lost(PLAN, error) from None

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one event.  Other processes of this machine see it at once (see `together`); it survives a power cut
        from the next `sync`.  InfraError if it cannot be written, or another process has taken over the run."""
        text = _as_json(line) + "\n"
        if self._held is None:
            self._still_ours()
            self._write(text)
            return
        if not self._held:
            self._held_since = time.monotonic()
        self._held.append(text)
        if len(self._held) >= HELD_LINES or time.monotonic() - self._held_since >= HELD_SECONDS:
            self.commit()

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
            raise InfraError(
                f"{self.dir}: {error}, because this process showed no sign of life for {runlock.WATCH_SECONDS:g} s; "
                "this process stops here, and the other process continued from the run's journal; nothing is lost "
                f"(if the other process has ended, too, run farm resume {self.id})",
                id=id_of(error.args[0]),
            ) from None
        except OSError as error:
            raise self._lost(runlock.NAME, error) from None

    def _lost(self, what: str, error: OSError) -> InfraError:
        return InfraError(
            f"{self.dir}: {what} cannot be written ({error.strerror or error}); the run stops here, and finished "
            f"results are in the run's journal; solve this problem, then run farm resume {self.id}",
            id="store-write-failed",
        )

    def log(self, name: str, text: str) -> str:
        """Keep the tail of a failed attempt's log; returns its path in the run directory."""
        safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", name)[:150]
        path = self.dir / "logs" / f"{safe}.txt"
        self._still_ours()
        try:
            path.write_text(text[-_LOG_LIMIT:], encoding="utf-8", errors="replace")
        except OSError as error:
            raise self._lost(f"logs/{path.name}", error) from None
        return f"logs/{path.name}"

    def take_logs(self, source: Run) -> None:
        """Copy the logs of another run, which the rows of this one name, and the plan that it is a part of.  StoreError
        if something there is not a plain file, because that run may come from elsewhere."""
        try:
            if (source.dir / PLAN).is_file():
                files.copy(source.dir / PLAN, self.dir / PLAN, _PLAN_LIMIT, whole=True)
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
        folder, _, name = log.partition("/")
        path = source.dir / "logs" / name
        kept = re.sub(r"[^A-Za-z0-9._=-]+", "_", f"{label}--{name}")[-200:]
        try:
            if folder != "logs" or len(files.inside(name).parts) > 1 or path.parent.is_symlink():
                raise files.NotInside
            text = files.read(path, _LOG_BYTES).decode("utf-8", "replace")
        except (OSError, files.NotInside):
            raise StoreError(
                f"{source.dir}: the log {log!r}, named by one of the run's cells, is not a readable file of this run; "
                "the run is damaged; copy the run again",
                id="store-log-missing",
            ) from None
        try:
            (self.dir / "logs" / kept).write_text(text[-_LOG_LIMIT:], encoding="utf-8")
        except OSError as error:
            raise self._lost(f"logs/{kept}", error) from None
        return f"logs/{kept}"

    def finish(self, rows: list[dict[str, Any]], samples: list[dict[str, Any]], head: dict[str, Any]) -> None:
        """Write the tables, then run.json; after that the directory never changes."""
        self._still_ours()
        try:
            _write_table(self.dir / "cells.tmp", rows, COLUMNS)
            _write_table(self.dir / "samples.tmp", samples, SAMPLE_COLUMNS)
            self.sync()
            self._still_ours()  # large tables take long, and meanwhile another process may have completed the run
            for name in ("cells", "samples"):
                (self.dir / f"{name}.tmp").replace(self.dir / f"{name}.parquet")
            _write_atomic(self.dir / "run.json", json.dumps({"schema": SCHEMA, "run_id": self.id, **head}, indent=1))
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


def _write_table(path: Path, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata={"schema": str(SCHEMA)})
    table = pa.table({name: [row.get(name) for row in rows] for name in columns}, schema=schema)
    path.unlink(missing_ok=True)  # never write into a file that a stopped writer may still have open
    pq.write_table(table, path, compression="zstd")


def _write_atomic(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # as in `_write_table`
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

    @cached_property
    def head(self) -> dict[str, Any]:
        """run.json; for an unfinished run the first line of the journal, and `complete: false`."""
        if self.complete:
            head: dict[str, Any] = json.loads((self.dir / "run.json").read_text(encoding="utf-8"))
            return {**head, "complete": True}
        first = next(self.journal(), {})
        return {**{k: v for k, v in first.items() if k != "event"}, "complete": False}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per planned cell."""
        if self.complete:
            import pyarrow.parquet as pq

            table: list[dict[str, Any]] = pq.read_table(self.dir / "cells.parquet").to_pylist()
            return table
        return fold(self.journal())

    def cells(self) -> list[Cell]:
        """The plan."""
        return [Cell.from_dict(line["cell"]) for line in self.journal() if line.get("event") == "cell"]

    def samples(self) -> list[dict[str, Any]]:
        """The raw samples, one row per timed cell; none for a run without run.json."""
        if not self.complete:
            return []
        import pyarrow.parquet as pq

        table: list[dict[str, Any]] = pq.read_table(self.dir / "samples.parquet").to_pylist()
        return table

    def journal(self) -> Iterator[dict[str, Any]]:
        """The events, without a last line that a kill cut short."""
        with (self.dir / "journal.jsonl").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    return


def fold(journal: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows from events: the planned cells, each with its result, or `lost`."""
    planned: dict[int, dict[str, Any]] = {}
    rows: dict[int, dict[str, Any]] = {}
    for line in journal:
        if line.get("event") == "cell":
            planned[line["cell"]["index"]] = line["cell"]
        elif line.get("event") == "result":
            rows[line["row"]["index"]] = line["row"]
    return [rows.get(i) or planned_row(Cell.from_dict(planned[i])) for i in sorted(planned.keys() | rows.keys())]
