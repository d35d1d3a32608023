"""Kits and their runs in a store: the manifests of those made here; the journal alone where a kit runs, since that
Python need not have pyarrow; the tables where it is merged, made from that journal."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from farm import atomic_files
from farm.shipping import files
from farm.store import journal as journals
from farm.store import recovery
from farm.store.journal import Journal
from farm.store.json_files import MAX_JSON
from farm.store.results import COLUMNS, SCHEMA
from farm.store.run_reader import Run, fold
from farm.store.run_writer import SAMPLE_COLUMNS, RunWriter, Table
from farm.store.runs import Store
from farm.store.tables import write_table


class KitRunWriter(RunWriter):
    """Writes a run as any other does, but for its tables."""

    def finish(
        self,
        rows: Iterable[Mapping[str, Any]],
        samples: Iterable[Mapping[str, Any]],
        head: dict[str, Any],
        more: Mapping[str, Table] | None = None,
    ) -> None:
        """Write run.json; what the tables would hold is in the journal."""
        self._still_ours()
        self.sync()
        try:
            atomic_files.write(
                self.dir / "run.json", json.dumps({"schema": SCHEMA, "run_id": self.id, **head}, indent=1), sync=True
            )
        except OSError as error:
            raise self._lost("run.json", error) from None


def write_more_tables(folder: Path, more: Mapping[str, Table]) -> None:
    """The tables of a comparison, beside the other ones."""
    for name, (found, columns) in more.items():
        write_table(folder / f"{name}.parquet", found, columns)


def write_tables(folder: Path) -> None:
    """The tables of a complete run in `folder` that has none yet.  ValueError, OSError for a run that is damaged."""
    journal = Journal(folder / journals.NAME)
    lines = list(journal)
    if journal.damage:
        raise ValueError(f"line {journal.damage.first} of its journal is damaged")
    known = recovery.read(lines)
    write_table(folder / "cells.parquet", fold(lines), COLUMNS)
    write_table(folder / "samples.parquet", recovery.samples(known.rows, lines.__getitem__), SAMPLE_COLUMNS)


def keep_kit(store: Store, digest: str, manifest: str) -> None:
    """Remember a kit that was made here, so that its results are known when they come back."""
    try:
        (store.path / "kits").mkdir(parents=True, exist_ok=True)
        atomic_files.write(store.path / "kits" / f"{digest}.json", manifest, sync=True)
    except OSError as error:
        raise store.unwritable(error) from None


def kept_kit(store: Store, digest: str) -> str:
    """The manifest of a kit that was made here; "" if none of this digest was."""
    with suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[0-9a-f]{64}", digest):
            return files.read(store.path / "kits" / f"{digest}.json", MAX_JSON, whole=True).decode("utf-8")
    return ""


def adopt(store: Store, folder: Path) -> Run:
    """Take a complete run that was made elsewhere, by its name; all its files were written by this process.  StoreError
    if there is one of that name, or the store cannot be written."""
    store.probe()
    store.refuse_existing(folder.name)
    beside = store.path / "runs" / f".arriving-{os.getpid()}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(folder, beside)
        beside.rename(store.path / "runs" / folder.name)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise store.unwritable(error) from None
    return Run(store.path / "runs" / folder.name)
