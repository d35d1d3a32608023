"""The run of a kit: the journal alone where it runs, since that Python need not have pyarrow; the tables where it is
merged, made from that journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farm.store import journal as journals
from farm.store import recovery
from farm.store.journal import Journal
from farm.store.results import COLUMNS, SCHEMA
from farm.store.runs import SAMPLE_COLUMNS, RunWriter, Table, fold, write_atomic
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
            write_atomic(self.dir / "run.json", json.dumps({"schema": SCHEMA, "run_id": self.id, **head}, indent=1))
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
