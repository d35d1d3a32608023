"""The table of a search: an entry for each task, as a file that can be carried, merged and shipped.  Pure.

What the kernels need of an entry, and what they refuse, is theirs: `kernels/ops/rms_norm/gpu/carried.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farm.tuning.search import Winner

SCHEMA, KIND = 1, "farm-kernels-table"
#: What makes two entries speak of the same.
SAME = ("op", "operation", "dtype", "rows", "hidden", "target", "cores", "device")
Entry = dict[str, Any]


def entry(found: Winner, where: Mapping[str, Any], counts: Mapping[str, int]) -> Entry:
    """The entry of one task.  `where`: target, cores, device, tools, revision, run; `counts`: launches tried and
    refused."""
    row = found.best.row
    timed = ("time_us_p20", "time_us_p50", "time_us_p80", "samples", "share_of_roof", "timing_method", "timing_quality")
    return {
        "op": found.task.op,
        "operation": found.task.operation,
        "dtype": found.task.dtype,
        "rows": found.task.rows,
        "hidden": found.task.hidden,
        "launch": found.best.launch,
        **{name: _rounded(row.get(name)) for name in timed},
        "auto_us_p50": _rounded(found.auto.us),
        "auto_mode": str(found.auto.row.get("mode_resolved") or ""),
        "faster_than_auto": _rounded(found.auto.us / found.best.us) if found.auto.us and found.best.us else None,
        "evidence": str(row.get("evidence") or ""),
        **counts,
        **where,
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def merged(tables: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[list[Entry], int]:
    """(the entries of all tables, how many were replaced): of two of the same task and device the newer counts, of two
    of one time the faster."""
    kept: dict[tuple[str, ...], Entry] = {}
    replaced = 0
    for one in (dict(e) for table in tables for e in table):
        key = tuple(str(one.get(name)) for name in SAME)
        other = kept.get(key)
        if other is not None and other != one:
            replaced += 1
        if other is None or _rank(one) > _rank(other):
            kept[key] = one
    return sorted(kept.values(), key=lambda e: tuple(str(e.get(n)).rjust(12, "0") for n in SAME)), replaced


def _rank(one: Mapping[str, Any]) -> tuple[str, float]:
    us = one.get("time_us_p50")
    return str(one.get("date") or ""), -float(us) if isinstance(us, (int, float)) else 0.0


def text(entries: Sequence[Mapping[str, Any]]) -> str:
    """The file: one entry a line, so that a reader and a diff see what changed."""
    lines = ",\n".join(f"  {json.dumps(dict(e), allow_nan=False)}" for e in entries)
    return f'{{"schema": {SCHEMA}, "kind": "{KIND}", "entries": [\n{lines}\n]}}\n'


def line(one: Mapping[str, Any]) -> str:
    """One entry for a reader."""
    auto, us = one.get("auto_us_p50"), one.get("time_us_p50")
    ratio, share = one.get("faster_than_auto"), one.get("share_of_roof")
    beside = f"auto {auto:.2f} us, {ratio:.3f} of it" if isinstance(auto, float) and ratio else "auto was refused"
    roof = f", {share:.2f} of the roof" if isinstance(share, float) else ""
    name = f"{one['op']} {one['operation']} {one['rows']}x{one['hidden']} {one['dtype']}"
    return f"{name}: {us:.2f} us{roof} ({beside}) {one['launch']}"
