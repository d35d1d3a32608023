"""The records of noise in a store: `<store>/noise/<run>.json`, one for each comparison that measured identical code."""

from __future__ import annotations

import json
from pathlib import Path

from farm import atomic_files
from farm.compare import records
from farm.compare.records import Record
from farm.errors import Message, StoreError
from farm.store.json_files import read_json
from farm.store.runs import Store

FOLDER = "noise"
#: The newest records that a comparison reads: a run's id, and so its file, begins with its time.
MOST_READ = 500


def folder(store: Store) -> Path:
    """Where they lie."""
    return store.path / FOLDER


def keep(store: Store, record: Record) -> None:
    """Write a record; a reader sees the complete file or none.  Nothing is written for no cell.  StoreError."""
    if not record.cells:
        return
    path = folder(store) / f"{record.run}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, json.dumps(record.to_dict(), indent=1), sync=True)
    except OSError as error:
        raise StoreError(
            f"{path}: this record of noise cannot be written ({error.strerror or error}); the comparison itself is "
            "complete; make the folder writable",
            id="store-noise-unwritable",
        ) from None


def read(store: Store, most: int | None = MOST_READ) -> tuple[list[Record], list[Message]]:
    """(the newest `most` records that can be read, a `Message` for every file that cannot).  None: all."""
    found, bad = [], []
    try:
        paths = sorted(folder(store).glob("*.json"))
    except OSError:
        paths = []
    for path in paths[-most:] if most else paths:
        try:
            found.append(records.parse(read_json(path)))
        except (OSError, ValueError) as error:  # BadRecord and JSON's own among them
            why = getattr(error, "strerror", None) or str(error)
            text = f"{path}: this record of noise is ignored ({why}); delete this file"
            bad.append(Message(text, id="store-noise-unreadable"))
    return found, bad
