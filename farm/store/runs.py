"""A store is a folder of run directories.

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
`farm.store.run_writer` writes such a directory, `farm.store.run_reader` reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from farm import atomic_files
from farm.errors import Message, StoreError
from farm.store import journal as journals
from farm.store import lock as runlock
from farm.store.json_files import read_json
from farm.store.run_reader import Run
from farm.store.run_writer import RunWriter
from farm.timing import roof
from farm.timing.roof import Calibration

#: What a run may be called: the name of a folder everywhere, and of a page.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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
            atomic_files.write(path, json.dumps({**record, "id": path.stem}, indent=1), sync=True)
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
