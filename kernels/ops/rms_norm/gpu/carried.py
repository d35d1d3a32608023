"""A table of measured launches that is carried as a file: what `farm tune` writes, beside the one in `tuned.py`.

FARM_KERNELS_TABLE=FILE names it; it is read once, at the first choice.  It counts on the targets that it was measured
on, also on those that `tuned.py` does not know.

    {"schema": 1, "kind": "farm-kernels-table", "entries": [
      {"op": "rms_norm", "operation": "forward", "dtype": "bfloat16", "rows": 4096, "hidden": 4096,
       "target": "cuda:90", "cores": 132, "launch": "forward_rows+num_warps=8", ...}]}

What an entry says beyond these (times, device, versions, date) is for people and for `farm tune --merge`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import forced
from .options import BYTES

VARIABLE = "FARM_KERNELS_TABLE"
SCHEMA, KIND = 1, "farm-kernels-table"
MOST_BYTES, MOST_ENTRIES = 16 << 20, 50_000
OPERATIONS = ("forward", "no-grad-forward", "backward")
_TARGET = re.compile(r"(cuda:\d{2,4}|hip:gfx[0-9a-f]{3,6}|interpreter)", re.ASCII)
_LIMITS = {"rows": 2**31 - 1, "hidden": 2**24, "cores": 2**20}
Key = tuple[str, str, str]
Table = Mapping[Key, tuple[tuple[int, int, dict[str, Any]], ...]]
_NOTHING: Table = MappingProxyType({})
_given: list[Path | None] = []  # what `give` was told; the variable counts while it is empty


def entries(target: str, cores: int) -> Table:
    """What the table that is in use has for a target, as `tuned.TABLE`; of several parts of one target those with so
    many cores alone, where there are some.  ValueError in one sentence for a file that is no table."""
    path = _given[0] if _given else os.environ.get(VARIABLE)
    return _of(str(path), target, cores) if path else _NOTHING


def give(path: str | os.PathLike[str] | None) -> None:
    """Use the table of a file from now on, whatever the variable says; None: none.  ValueError for a file that is no
    table; then nothing changes."""
    if path is not None:
        read(path)
    _given[:] = [None if path is None else Path(path)]
    _of.cache_clear()


@lru_cache(maxsize=64)
def _of(path: str, target: str, cores: int) -> Table:
    mine = [e for e in read(path) if e["target"] == target]
    alike = [e for e in mine if e["cores"] == cores]
    found: dict[Key, list[tuple[int, int, dict[str, Any]]]] = {}
    for e in sorted(alike or mine, key=lambda e: str(e["operation"])):  # with grad before without
        config = forced.parse(e["launch"])
        config = {"mode": forced.mode_of(config, e["hidden"]), **config}
        key = (e["op"], forced.operation_of(config), e["dtype"])
        shapes = found.setdefault(key, [])
        if all(shape[:2] != (e["rows"], e["hidden"]) for shape in shapes):
            shapes.append((e["rows"], e["hidden"], config))
    return MappingProxyType({key: tuple(shapes) for key, shapes in found.items()})


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of a file.  ValueError in one sentence where it is no table, or cannot be read."""
    file = Path(path)
    try:
        if not file.is_file():
            raise ValueError(f"{file}: there is no such file; name a table of farm tune")
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{file}: has more than {MOST_BYTES >> 20} MiB; name a table of farm tune")
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); name a table of farm tune") from None
    return parse(data, str(file))


def parse(data: bytes, name: str) -> list[dict[str, Any]]:
    """The entries of a table's text, each checked; `name` stands before what is wrong."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = str(error).splitlines()[0][:100] if isinstance(error, ValueError) else "too deep"
        raise ValueError(f"{name}: is no JSON ({why}); name a table of farm tune") from None
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("entries"), list):
        raise ValueError(f'{name}: is no table of launches (it has no "kind": "{KIND}"); name a table of farm tune')
    if found.get("schema") != SCHEMA:
        raise ValueError(f"{name}: has schema {str(found.get('schema'))[:20]}, not {SCHEMA}; tune again with farm tune")
    if len(found["entries"]) > MOST_ENTRIES:
        raise ValueError(f"{name}: has more than {MOST_ENTRIES} entries; divide it")
    for number, entry in enumerate(found["entries"]):
        why = wrong(entry)
        if why:
            raise ValueError(f"{name}: entries[{number}] {why}; correct or remove this entry")
    return list(found["entries"])


def wrong(entry: Any) -> str:
    """What is wrong with an entry, or ""."""
    if not isinstance(entry, dict):
        return "is no mapping"
    known = {"op": forced.OPS, "operation": OPERATIONS, "dtype": tuple(BYTES)}
    for name, values in known.items():
        if entry.get(name) not in values:
            return f"has {name} {str(entry.get(name))[:40]!r}, not one of {', '.join(values)}"
    for name, most in _LIMITS.items():
        value = entry.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            return f"has {name} {str(value)[:40]!r}, not an integer from 1 to {most}"
    if not isinstance(entry.get("target"), str) or not _TARGET.fullmatch(entry["target"]):
        return f"has target {str(entry.get('target'))[:40]!r}, not one like cuda:90 or hip:gfx942"
    if entry.get("evidence", "executed") not in ("executed", "simulated"):
        return f"has evidence {str(entry['evidence'])[:40]!r}: no launch was timed for it"
    if not isinstance(entry.get("launch"), str):
        return "has no launch"
    try:
        config = forced.parse(entry["launch"])
    except ValueError as error:
        return f"has a launch that there is not: {error}"
    if forced.operation_of(config) != str(entry["operation"]).rpartition("-")[2]:
        return f"has the launch of a {forced.operation_of(config)} for operation {entry['operation']}"
    return forced.refusal(config, entry["rows"], entry["hidden"], entry["dtype"], entry["op"], entry["cores"]) or ""
