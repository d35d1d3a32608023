"""What measuring both sides of a suspected step in turn has shown: <store>/confirmations/<id>.json, never rewritten.

A record is {"schema", "id", "created", "run": the comparison, "before", "since": runs of the step, "kind": slower or
faster, "arms": what both were, "range": the revisions, empty where no revision was compared, "verdict": one of
VERDICTS, "cells": [{"cell_id", "cell_key", "named", "verdict", "ratio", "low", "high"}]}.  The index is made from runs
and may be deleted; these may not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm import atomic_files
from farm.errors import Message, StoreError

FOLDER = "confirmations"
SCHEMA = 1
CONFIRMED, NOT_CONFIRMED, UNDECIDED = VERDICTS = ("confirmed", "not confirmed", "undecided")
MAX_BYTES = 16 << 20


def keep(store: Path, record: Mapping[str, Any]) -> Path:
    """Write a record; a reader sees all of it or none.  StoreError."""
    folder = store / FOLDER
    path = folder / f"{record['id']}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, json.dumps({"schema": SCHEMA, **record}, indent=1))
    except OSError as error:
        text = f"{path}: cannot be written ({error.strerror or error}); make the store writable, then confirm again"
        raise StoreError(text, id="confirmation-unwritable") from None
    return path


def read(store: Path) -> tuple[list[dict[str, Any]], list[Message]]:
    """(every record, oldest first; a `Message` for each file that is none)."""
    found, bad = [], []
    for path in sorted((store / FOLDER).glob("*.json")):
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            found.append(_checked(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            text = f"{path}: this confirmation is ignored ({why}); delete it, or confirm again"
            bad.append(Message(text, id="confirmation-unreadable"))
    return sorted(found, key=lambda r: (r["created"], r["id"])), bad


def _checked(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or record["schema"] != SCHEMA or record["verdict"] not in VERDICTS:
        raise ValueError("it is no record that this farm knows")
    texts: Sequence[Any] = [record[n] for n in ("id", "created", "run", "before", "since", "kind")]
    for cell in record["cells"]:
        texts = [*texts, cell["cell_id"], cell["cell_key"], cell["named"], cell["verdict"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a field of it is not text")
    return record
