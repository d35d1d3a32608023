"""The tables of a run: Parquet files, written and read in row groups, and never read where they do not fit in memory.

A row in memory is a tuple beside column names that all rows share, and equal texts are one object: some 2 kB a cell
instead of 7.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Any

from farm.store.results import SCHEMA

#: Rows that are in memory while a table is written.
GROUP_ROWS = 4096
#: With so many cores they are loaded ahead.
LOAD_CORES = 4
#: What a table may unpack to: so many bytes for it and for each row, and in all.  A cell's row has some 3 kB, and its
#: samples rarely a megabyte; a file of 70 kB can declare gigabytes.
TABLE_BYTES, ROW_BYTES, MOST_BYTES = 32 << 20, 256 << 10, 2 << 30
#: Texts that differ from row to row: to look for equal ones would cost more than it saves.
_UNLIKE = frozenset(("cell_id", "cell_key", "metrics", "output_hash", "samples_us", "host_us", "telemetry"))


class Row(Mapping[str, Any]):
    """One row, read-only.  `at`: column -> its place in `values`."""

    __slots__ = ("_at", "_values")

    def __init__(self, at: Mapping[str, int], values: tuple[Any, ...]):
        self._at, self._values = at, values

    def __getitem__(self, name: str) -> Any:
        return self._values[self._at[name]]

    def get(self, name: str, default: Any = None) -> Any:
        place = self._at.get(name)
        return default if place is None else self._values[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, name: object) -> bool:
        return name in self._at

    def __repr__(self) -> str:
        return repr(dict(self))


def compact(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows in the form that takes little memory."""
    return list(compacted(rows))


def compacted(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """`compact`, as they come."""
    known: dict[tuple[str, ...], tuple[dict[str, int], list[bool]]] = {}
    for row in rows:
        names = tuple(row)
        if names not in known:
            known[names] = {intern(n): i for i, n in enumerate(names)}, [n not in _UNLIKE for n in names]
        at, shared = known[names]
        values = zip(row.values(), shared)
        yield Row(at, tuple([intern(v) if share and type(v) is str else v for v, share in values]))


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table.  ValueError for a file that would not fit in memory, or is no table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        refuse_bomb(path, file.metadata)
        texts = [f.name for f in file.schema_arrow if f.type in (pa.string(), pa.large_string())]
    # a text that many rows have is in the file once, and stays one object here: as a copy for each it would be a bomb
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(batch_size=GROUP_ROWS):
            names = batch.schema.names
            for values in zip(*(column_values(column) for column in batch.columns)):
                yield dict(zip(names, values))


def read_where(path: Path, column: str, value: str) -> list[dict[str, Any]]:
    """The rows of a table whose text in `column` is `value`; other columns are read only in row groups that have one.
    ValueError as `read_table`."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    with pq.ParquetFile(path) as file:
        refuse_bomb(path, file.metadata)
        for group in range(file.metadata.num_row_groups):
            mask = pc.equal(file.read_row_group(group, columns=[column]).column(column), value)
            if pc.any(mask).as_py():
                found += file.read_row_group(group).filter(mask).to_pylist()
    return found


def column_values(column: Any) -> list[Any]:
    """The values of an Arrow array; those of a dictionary share their objects."""
    if not hasattr(column, "dictionary"):
        found: list[Any] = column.to_pylist()
        return found
    known = column.dictionary.to_pylist()
    return [None if i is None else known[i] for i in column.indices.to_pylist()]


def refuse_bomb(path: Path, metadata: Any) -> None:
    """ValueError for a table that would not fit in memory."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    unpacked, most = (
        sum(g.total_byte_size for g in groups),
        min(MOST_BYTES, TABLE_BYTES + ROW_BYTES * metadata.num_rows),
    )
    if unpacked > most:
        raise ValueError(f"{path.name} unpacks to {unpacked:,} bytes for {metadata.num_rows:,} rows")


def load_ahead() -> None:
    """Begin to import what writes tables, beside other work: half a second, where pandas is installed, at the end of a
    run otherwise.  Not on a host without a core to spare."""
    if "pyarrow.parquet" not in sys.modules and (os.cpu_count() or 1) >= LOAD_CORES:
        threading.Thread(target=_load, name="tables").start()


def _load() -> None:
    with suppress(Exception):  # whoever writes a table meets it
        import pyarrow as pa
        import pyarrow.parquet

        pa.array([0])  # the first looks for pandas, and imports it


def write_table(path: Path, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Write a table in row groups, so that only the rows of one are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata={"schema": str(SCHEMA)})
    path.unlink(missing_ok=True)  # never write into a file that a stopped writer may still have open
    left = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(left, GROUP_ROWS)):
            writer.write_table(pa.table({name: [row.get(name) for row in group] for name in columns}, schema=schema))
