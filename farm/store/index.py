"""What pages ask of all runs of a store: the newest runs, one cell over all of them, two of them side by side.

Answers come from the index (`farm.store.index_files`), which is brought up to date first and may be deleted at any
time.  A caller names the columns that it needs; the others are not read.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import Message, StoreError
from farm.store import confirmations, device_health
from farm.store import index_files as files
from farm.store import known as known_failures
from farm.store.columns import Texts
from farm.store.index_files import COLUMNS, FOLDER, Stamp, mark
from farm.store.results import IMPORTED
from farm.store.run_reader import Run
from farm.store.runs import Store
from farm.store.tables import column_values

#: How long a writer of the index is waited for.
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Indexed:
    """A run in the index."""

    id: str
    created: str
    plan: str
    matrices: tuple[str, ...]
    kind: str  # run, compile, judged, merged, ab, imported; arm: one side of a stage 0
    revision: str
    #: Digest of the kernels' files, the subject's where there is one; "" where the run did not record it.
    code: str
    #: (op, digest of the op's own files), where the run recorded it: it counts more.
    ops: tuple[tuple[str, str], ...]
    verdict: str
    seconds: float | None
    cells: int


class Index:
    """The index of a store, as it was when it was opened.  Open it with `opened`."""

    def __init__(self, store: Store, stamp: Stamp, added: int = 0, removed: int = 0, lacks: int = 0):
        self._store, self._folder, self._stamp = store, store.path / FOLDER, stamp
        #: Runs added and taken out when it was opened, and those that the time given was too short for.
        self.added, self.removed, self.lacks = added, removed, lacks
        made = (_indexed(name, kept) for name, kept in stamp.runs.items())
        #: Oldest first.
        self.runs: tuple[Indexed, ...] = tuple(sorted(made, key=lambda r: (r.created, r.id)))

    @property
    def left_out(self) -> dict[str, str]:
        """Run -> why it is not in the index."""
        return {name: str(kept["why"]) for name, kept in self._stamp.left.items()}

    @cached_property
    def mark(self) -> int:
        """Changes when a run does, or a confirmation."""
        marks = [(name, *kept["mark"]) for name, kept in self._stamp.runs.items()]
        confirmed = [(str(r["id"]), str(r["verdict"])) for r in self.confirmations()]
        return hash((*sorted(marks), *confirmed))

    @property
    def parts(self) -> int:
        return len(self._stamp.parts)

    @property
    def cells(self) -> int:
        return sum(r.cells for r in self.runs)

    def last(self, n: int, like: Indexed | None = None) -> list[Indexed]:
        """The newest `n` runs that ran something, oldest first.  `like`: older ones of its plan; if there is none,
        those of its matrices that have at least half of its cells.

        What was imported stands beside what ran, never in one row with it: it counts where nothing ran, and for a
        `like` that was imported, which has no plan: then all that was imported from there is older.
        """
        ran = [r for r in self.runs if r.kind in ("run", "merged")]
        imported = [r for r in self.runs if r.kind == IMPORTED]
        found = ran or imported
        if like is not None:
            found = imported if like.kind == IMPORTED else ran
            before = [r for r in found if (r.created, r.id) < (like.created, like.id)]
            if like.kind == IMPORTED:
                return [r for r in before if r.matrices == like.matrices][-n:] if n else []
            wide = [r for r in before if r.matrices == like.matrices and 2 * r.cells >= like.cells]
            found = [r for r in before if r.plan == like.plan] or wide
        return found[-n:] if n else []

    def known(self, run: Indexed) -> list[dict[str, Any]]:
        """The known failures of a run, as run.json has them."""
        with suppress(OSError, ValueError, StoreError):
            return known_failures.sound(Run(self._store.path / "runs" / run.id).head.get("known"))
        return []

    def health(self, run: str) -> list[dict[str, Any]]:
        """What a run noted of its devices' health (`farm.store.device_health`); nothing for older runs."""
        with suppress(OSError, ValueError, StoreError):
            return device_health.sound(Run(self._store.path / "runs" / run).head.get("health"))
        return []

    def confirmations(self) -> list[dict[str, Any]]:
        """What was measured again of suspected steps; files that are damaged are left out."""
        return confirmations.read(self._store.path)[0]

    def table(
        self, columns: Sequence[str], runs: Sequence[Indexed] | None = None, where: Mapping[str, str] | None = None
    ) -> Any:
        """An Arrow table of the named columns, texts as dictionaries, rows in no order that counts.

        runs: only of these; where: column -> the text that it must have.  StoreError if the index is damaged.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = None if runs is None else {r.id for r in runs}
        names = list(dict.fromkeys([*columns, *([] if wanted is None else ["run"])]))
        tables = []
        for part, within in self._stamp.parts.items():
            if wanted is not None and not wanted & set(within):
                continue
            small = len(within) == 1  # all of it is read in less time than a filter needs to be made
            filters = [(name, "==", value) for name, value in (where or {}).items()] or None
            try:
                needed = dict.fromkeys([*names, *(where or {})]) if small else names
                table = files.read_part(self._folder / part, list(needed), None if small else filters)
            except (OSError, ValueError) as error:
                raise self._damaged(part, error) from error
            for name, value in (where or {}).items() if small else ():
                table = table.filter(pc.equal(table.column(name).cast(pa.string()), value))
            table = table.select(names)
            if wanted is not None and not set(within) <= wanted:
                table = table.filter(pc.is_in(table.column("run").cast(pa.string()), pa.array(sorted(wanted))))
            tables.append(table)
        if not tables:
            return pa.table({name: pa.array([], pa.string()) for name in columns})
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks().select(list(columns))

    def arrays(self, columns: Sequence[str], runs: Sequence[Indexed] | None = None) -> dict[str, Any]:
        """As `table`, as NumPy arrays: numbers with NaN where there is none, and `Texts` for texts."""
        found = self.table(columns, runs)
        return {name: _array(found.column(name)) for name in columns}

    def rows(
        self, columns: Sequence[str], runs: Sequence[Indexed] | None = None, where: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """As `table`, as dictionaries; equal texts are one object."""
        found = self.table(columns, runs, where)
        values = [column_values(chunk) for column in found.columns for chunk in (column.combine_chunks(),)]
        return [dict(zip(found.column_names, row)) for row in zip(*values)]

    def series(self, key: str, columns: Sequence[str], named: str | None = None) -> list[dict[str, Any]]:
        """One cell in every run that has it, oldest first.  `key`: its cell_key; `named`: of one named target."""
        where = {"cell_key": key} | ({} if named is None else {"named": named})
        rows = self.rows([*dict.fromkeys(["run", "created", *columns])], None, where)
        return sorted(rows, key=lambda r: (r["created"], r["run"]))

    def compare(self, a: Indexed, b: Indexed, columns: Sequence[str]) -> list[tuple[Any, Any]]:
        """The cells of two runs, (row of a, row of b), None where a run did not plan the cell."""
        found: dict[tuple[str, str], list[Any]] = {}
        for row in self.rows([*dict.fromkeys(["run", "cell_key", "named", *columns])], [a, b]):
            pair = found.setdefault((row["cell_key"], row["named"]), [None, None])
            for i, run in enumerate((a, b)):
                if row["run"] == run.id:
                    pair[i] = row
        return [(x, y) for x, y in found.values()]

    def _damaged(self, part: str, error: Exception) -> StoreError:
        text = f"{self._folder / part}: this part of the index cannot be read ({type(error).__name__})"
        return StoreError(f"{text}; delete {self._folder}, the farm makes it again", id="index-damaged")


def _array(column: Any) -> Any:
    import pyarrow as pa

    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    if pa.types.is_string(whole.type):
        whole = whole.dictionary_encode()
    if pa.types.is_dictionary(whole.type):
        return Texts(whole.dictionary.to_pylist(), whole.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    return whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _indexed(name: str, kept: Mapping[str, Any]) -> Indexed:
    return Indexed(
        name,
        str(kept["created"]),
        str(kept["plan"]),
        tuple(kept["matrices"]),
        str(kept["kind"]),
        str(kept["revision"]),
        str(kept["code"]),
        tuple(sorted(kept["ops"].items())),
        str(kept["verdict"]),
        kept["seconds"],
        int(kept["cells"]),
    )


def opened(store: Store, seconds: float | None = None) -> Index:
    """The index, brought up to date; as it is, where it cannot be written.  A damaged one is made anew.  `seconds`: how
    long it may take to add runs, newest first; what is left is added another time (`Index.lacks`).  StoreError if
    there is none and none can be written, or there is no store."""
    folder = store.path / FOLDER
    if not (store.path / "runs").is_dir():
        raise StoreError(f"no store exists at {store.path}; name a store with --out", id="index-no-store")
    try:
        folder.mkdir(exist_ok=True)
        with _alone(folder) as mine:
            stamp = None if mine else files.read_stamp(folder)
            if stamp is not None:  # another process has been writing for long: what it has not added yet is missing
                return Index(store, stamp)
            try:
                return Index(store, *files.update(store, seconds))
            except (KeyError, TypeError, ValueError, AttributeError):  # files that the farm did not write
                (folder / files.STAMP).unlink(missing_ok=True)
                return Index(store, *files.update(store, seconds))
    except OSError as error:
        if (stamp := files.read_stamp(folder)) is not None:  # a store that may only be read
            return Index(store, stamp)
        text = f"{folder}: the index cannot be written ({error.strerror or error}); make the store writable"
        raise StoreError(text, id="index-unwritable") from error


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other process or thread writes the index; waits for one for at most WAIT_SECONDS."""
    with (folder / ".lock").open("w") as file:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.02)
                continue
            except OSError:  # a file system without flock
                pass
            yield True  # the lock ends with the file
            return


def check(store: Store) -> list[Message]:
    """What is wrong with the index, without changing it: stale, damaged, none."""
    folder = store.path / FOLDER
    stamp = files.read_stamp(folder)
    if stamp is None:
        return [Message(f"{folder}: no index, or an incomplete one; farm index makes it", id="index-missing")]
    out = []
    runs = {run.id: run for run in store.runs()}
    stale = [
        n
        for n, run in runs.items()
        if run.complete and (stamp.runs.get(n) or stamp.left.get(n) or {}).get("mark") != mark(run)
    ]
    stale += [n for n in stamp.runs if n not in runs]
    if stale:
        text = (
            f"{folder}: {len(stale)} runs are new, changed or deleted, first {sorted(stale)[0]}; farm index updates it"
        )
        out.append(Message(text, id="index-stale"))
    for part, why in files.damage(folder, stamp).items():
        out.append(Message(f"{folder / part}: {why}; farm index --rebuild makes the index anew", id="index-damaged"))
    return out


def remove(store: Store) -> None:
    """Delete the index."""
    with suppress(OSError):
        shutil.rmtree(Path(store.path) / FOLDER)


__all__ = ["COLUMNS", "Index", "Indexed", "check", "opened", "remove"]
