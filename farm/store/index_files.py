"""The files of a store's index: what is in them, and how runs are added and taken out.

    <store>/index/stamp.json           version; every run in the index, and in which part; every run left out, and why
                  part-<name>.parquet  slim cells of some runs (COLUMNS), sorted by cell_key and run

All of it may be deleted.  A part is written once, under a name of its own; stamp.json is replaced last, so a reader
sees the old index or the new one.  One process at a time writes (`index.opened` holds a lock).  A run goes into the
index when it is complete, and complete runs never change.
Small parts are merged into larger ones as they become many, so that a run is written a few times in all, and a reader
opens a few dozen files.  The newest APART runs stay in parts of their own: the newest nights, which most pages are made
of, are read without the rows of others.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.store.results import SCHEMA
from farm.store.run_reader import Run
from farm.store.runs import Store
from farm.store.tables import refuse_bomb

FOLDER, STAMP = "index", "stamp.json"
#: Of these files.  An index of another version is made anew.
VERSION = 3
TEXTS = (
    *("run", "created", "cell_id", "cell_key", "named", "matrix", "tag", "backend", "target", "op", "provider", "role"),
    *("mode", "mode_resolved", "operation", "dtype", "shape", "dims", "params", "status", "reason", "evidence"),
    *("flags", "timing_method", "timing_quality", "device", "node", "fingerprint", "revision", "provider_version"),
)
FLOATS = (
    *("worst_ratio", "time_us_p20", "time_us_p50", "time_us_p80", "bandwidth_gbps", "tflops", "share_of_roof"),
    *("sm_clock_mhz", "temperature_c", "power_w", "started"),
)
INTS = ("index", "operations", "bytes_moved")
#: The columns of a part: those of cells.parquet, with `run`, `created` of the run, and `named`: the target that the
#: plan named, "" without.
COLUMNS = (*TEXTS, *FLOATS, *INTS)
#: Floats that need more than seven digits.
_WIDE = ("started",)
REASON_LIMIT = 200
GROUP_ROWS = 32_768
#: A part that is no longer used stays so long for those who read it.
KEPT_SECONDS = 600.0
#: How many parts of about one size there may be.
TIER = 8
#: So many of the newest runs are in no part with others.
APART = 32


@dataclass
class Stamp:
    """What stamp.json says.  runs: id -> {"part", "mark", "cells", ...of its head}; left: id -> {"mark", "why"};
    old: part that is no longer used -> since when, Unix time."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)
    old: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[str]]:
        """Part -> its runs."""
        out: dict[str, list[str]] = {}
        for run, kept in self.runs.items():
            out.setdefault(str(kept["part"]), []).append(run)
        return out


def read_stamp(folder: Path) -> Stamp | None:
    """None where there is no index, or none that this farm has written."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        if found["version"] == VERSION:
            stamp = Stamp(dict(found["runs"]), dict(found["left"]), dict(found["old"]))
            if all((folder / part).is_file() for part in stamp.parts):
                return stamp
    return None


def mark(run: Run) -> list[int]:
    """[size, time] of run.json, or of the journal of an unfinished run: changes when the run does."""
    for name in ("run.json", "journal.jsonl"):
        with suppress(OSError):
            stat = os.stat(f"{run.dir}/{name}")  # noqa: PTH116 - of a thousand runs, paths would cost most
            return [stat.st_size, stat.st_mtime_ns]
    return []


def update(store: Store, seconds: float | None = None) -> tuple[Stamp, int, int, int]:
    """Bring the index up to date: (its stamp, runs added, runs taken out, runs that it lacks).  `seconds`: after that
    time no further run is added; the newest come first.  OSError if it cannot be written."""
    folder = store.path / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    stamp = read_stamp(folder)
    known, fresh = stamp or Stamp(), stamp is None
    runs = {run.id: run for run in store.runs()}
    marks = {name: mark(run) for name, run in runs.items()}
    gone = {n for n, kept in known.runs.items() if n not in runs or kept["mark"] != marks[n]}
    left = {n: kept for n, kept in known.left.items() if n in runs and kept["mark"] == marks[n]}
    new = [n for n in runs if (n not in known.runs or n in gone) and n not in left]
    if not fresh and not gone and not new and left == known.left:
        return known, 0, 0, 0
    try:
        _take_out(folder, known, gone)
    except (OSError, ValueError):  # a damaged part: its runs are read again
        for name in [n for n, kept in known.runs.items() if not _sound(folder / str(kept["part"]))]:
            del known.runs[name]
            new += [name] if name in runs and name not in new else []
        _take_out(folder, known, gone & set(known.runs))
    known.left = left
    until = None if seconds is None else time.monotonic() + seconds
    added = _add(folder, known, [runs[n] for n in sorted(new, reverse=True)], marks, until)
    _merge(folder, known)
    _retire(folder, known, time.time())
    _write_stamp(folder, known)
    lacks = sum(n not in known.runs and n not in known.left for n in new)
    return known, added, len(gone - set(new)), lacks


def _add(
    folder: Path, known: Stamp, runs: Sequence[Run], marks: dict[str, list[int]], until: float | None = None
) -> int:
    """Read runs into new parts of at most 2^18 rows; those that cannot be are left out, with the reason.  None is begun
    after `until`, except the first."""
    tables: list[Any] = []
    names: list[str] = []
    added = 0

    def flush() -> None:
        if tables:
            part = _write_part(folder, tables)
            for name in names:
                known.runs[name]["part"] = part
            tables.clear()
            names.clear()

    for at, run in enumerate(runs):
        if at <= APART:
            flush()
        if until is not None and added and time.monotonic() > until:
            break
        try:
            if why := _why_not(run):
                known.left[run.id] = {"mark": marks[run.id], "why": why}
                continue
            table, kept = slim(run), about(run)
        except Exception as error:  # whatever a damaged folder raises, in pyarrow too
            text = f"it cannot be read ({type(error).__name__}: {error})"[:300]
            known.left[run.id] = {"mark": marks[run.id], "why": text}
            continue
        known.left.pop(run.id, None)
        known.runs[run.id] = {"part": "", "mark": marks[run.id], "cells": table.num_rows, **kept}
        tables.append(table)
        names.append(run.id)
        added += 1
        if sum(t.num_rows for t in tables) >= 1 << 18:
            flush()
    flush()
    return added


def _why_not(run: Run) -> str:
    if not run.complete:
        return "it is not complete: it is being written, or was interrupted"
    schema = run.head.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        return f"it has schema {schema}, and this farm knows schemas up to {SCHEMA}"
    return ""


def about(run: Run) -> dict[str, Any]:
    """What the stamp keeps of a run's head."""
    head = run.head
    revision, subject = head.get("revision") or {}, head.get("subject") or {}
    return {
        "created": str(head.get("created") or ""),
        "plan": str(head.get("plan_hash") or ""),
        "matrices": [str(m.get("path") or m.get("name")) for m in head.get("matrices") or ()],
        "kind": "ab" if head.get("arms") else str(head.get("kind") or _arm_or_run(head)),
        "revision": str(subject.get("revision") or "")  # where there is one, its kernels are tested, not the farm's
        or str(revision.get("commit") or revision.get("version") or "") + ("+" if revision.get("dirty") else ""),
        "code": str(subject.get("digest") or revision.get("kernels") or ""),
        "ops": {str(op): str(digest) for op, digest in dict(revision.get("ops") or {}).items()},
        "verdict": str(head.get("verdict") or ""),
        "seconds": head.get("seconds"),
    }


def _arm_or_run(head: Mapping[str, Any]) -> str:
    return "arm" if list(head.get("argv") or ())[:1] == ["ab"] else "run"


def slim(run: Run) -> Any:
    """A complete run's cells with COLUMNS, as an Arrow table.  Columns that older schemas lack are empty."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = run.dir / "cells.parquet"
    with pq.ParquetFile(path) as file:
        refuse_bomb(path, file.metadata)
        have = set(file.schema_arrow.names)
    found = pq.read_table(path, columns=[c for c in COLUMNS if c in have], use_threads=False)
    rows = found.num_rows
    columns = {}
    for name in COLUMNS:
        if name in found.column_names:
            columns[name] = found.column(name)
        else:
            columns[name] = pa.nulls(rows, pa.float64()) if name in FLOATS else pa.nulls(rows, pa.int64())
    columns["run"] = pa.array([run.id] * rows, pa.string())
    columns["created"] = pa.array([str(run.head.get("created") or "")] * rows, pa.string())
    columns["named"] = pc.replace_substring_regex(found.column("cell_id"), r"^[^@]*@?(.*)$", r"\1")
    columns["reason"] = pc.utf8_slice_codeunits(found.column("reason"), 0, REASON_LIMIT)
    out = []
    for name in COLUMNS:
        column = columns[name]
        if name in TEXTS:
            column = pc.fill_null(column.cast(pa.string()), "").dictionary_encode()
        else:
            column = column.cast(_kind(name), safe=False)
        out.append(column)
    return pa.table(out, names=list(COLUMNS))


def _kind(name: str) -> Any:
    import pyarrow as pa

    return pa.int64() if name in INTS else pa.float64() if name in _WIDE else pa.float32()


def read_part(path: Path, columns: Sequence[str], filters: Any = None) -> Any:
    """Columns of a part, texts as dictionaries.  OSError or ValueError for a damaged one."""
    import pyarrow.parquet as pq

    texts = [c for c in columns if c in TEXTS]
    if filters is None:  # without what a data set costs for every file
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            if missing := set(columns) - set(file.schema_arrow.names):
                raise ValueError(f"it has no column {min(missing)}")
            return file.read(columns=list(columns), use_threads=False)
    return pq.read_table(path, columns=list(columns), filters=filters, read_dictionary=texts, use_threads=False)


def _write_part(folder: Path, tables: Sequence[Any]) -> str:
    """One part of the rows of all these tables; returns its name."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    whole = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    keys = pa.table({name: whole.column(name).cast(pa.string()) for name in ("cell_key", "created", "run")})
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    name = f"part-{secrets.token_hex(8)}.parquet"
    temporary = folder / f".{name}.tmp"
    try:
        pq.write_table(whole.take(order), temporary, compression="zstd", row_group_size=GROUP_ROWS)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)
    return name


def _take_out(folder: Path, known: Stamp, gone: Iterable[str]) -> None:
    """Rewrite the parts that contain these runs, without them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = set(gone)
    for part, runs in known.parts.items():
        if not gone & set(runs):
            continue
        left = [r for r in runs if r not in gone]
        name = ""
        if left:
            table = read_part(folder / part, COLUMNS)
            name = _write_part(folder, [table.filter(pc.is_in(table.column("run").cast(pa.string()), pa.array(left)))])
        for run in left:
            known.runs[run]["part"] = name
        for run in gone & set(runs):
            del known.runs[run]


def _merge(folder: Path, known: Stamp) -> None:
    """Merge the parts of a size once there are TIER of them, but those of the newest runs."""
    while True:
        tiers: dict[int, list[str]] = {}
        newest = set(sorted(known.runs, key=lambda name: (known.runs[name]["created"], name))[-APART:])
        for part, runs in known.parts.items():
            if not newest.isdisjoint(runs):
                continue
            rows = sum(int(known.runs[r]["cells"]) for r in runs)
            tiers.setdefault(int(math.log(max(rows, 1), TIER)), []).append(part)
        full = next((parts for parts in tiers.values() if len(parts) >= TIER), None)
        if full is None:
            return
        of = known.parts
        try:
            name = _write_part(folder, [read_part(folder / part, COLUMNS) for part in full])
        except (OSError, ValueError):  # a damaged part: `farm index --check` says so, and reading falls back
            return
        for part in full:
            for run in of[part]:
                known.runs[run]["part"] = name


def _write_stamp(folder: Path, stamp: Stamp) -> None:
    temporary = folder / f".{STAMP}.{os.getpid()}.tmp"
    text = json.dumps({"version": VERSION, "runs": stamp.runs, "left": stamp.left, "old": stamp.old})
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / STAMP)


def _retire(folder: Path, stamp: Stamp, now: float) -> None:
    """Note which parts are no longer used, and delete those that nobody can still be reading."""
    unused = {path.name for path in folder.glob("part-*.parquet")} - set(stamp.parts)
    stamp.old = {part: min(stamp.old.get(part, now), now) for part in unused}
    for part in [p for p, since in stamp.old.items() if now - since > KEPT_SECONDS]:
        (folder / part).unlink(missing_ok=True)
        del stamp.old[part]


def _sound(path: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        return bool(set(COLUMNS) <= set(pq.read_schema(path).names))
    except (OSError, ValueError):
        return False


def damage(folder: Path, stamp: Stamp) -> dict[str, str]:
    """Part -> what is wrong with it, after reading all of it."""
    out = {}
    for part, runs in stamp.parts.items():
        want = sum(int(stamp.runs[r]["cells"]) for r in runs)
        try:
            rows = read_part(folder / part, COLUMNS).num_rows
        except (OSError, ValueError) as error:
            out[part] = f"it cannot be read ({type(error).__name__})"
        else:
            if rows != want:
                out[part] = f"it has {rows:,} cells instead of {want:,}"
    return out
