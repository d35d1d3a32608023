"""rocprofv3: `*_counter_collection.csv`, a line per dispatch and counter."""

from __future__ import annotations

import csv
from collections.abc import Mapping

from farm.profile.kernels import KernelProfile, number

_BUSY = {"VALUBusy": "vector units (VALU)", "MemUnitBusy": "memory units"}


def parse(text: str) -> list[KernelProfile]:
    """The dispatches of a table, in order; none for text that is no such table."""
    rows: dict[str, dict[str, str]] = {}
    counters: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        at, value = row.get("Dispatch_Id") or "", number(row.get("Counter_Value"))
        if at and row.get("Kernel_Name") and value is not None:
            rows[at] = row
            counters.setdefault(at, {})[str(row.get("Counter_Name"))] = value
    return [_kernel(rows[at], counters[at]) for at in sorted(rows, key=lambda at: number(at) or 0)]


def _kernel(row: Mapping[str, str], counters: Mapping[str, float]) -> KernelProfile:
    begin, end = number(row.get("Start_Timestamp")), number(row.get("End_Timestamp"))

    def kib(name: str) -> float | None:
        return None if name not in counters else counters[name] * 1024

    words = {"block": "Workgroup_Size", "registers": "VGPR_Count", "LDS": "LDS_Block_Size", "scratch": "Scratch_Size"}
    return KernelProfile(
        name=row["Kernel_Name"].removesuffix(".kd"),
        duration_us=None if begin is None or end is None else (end - begin) / 1e3,
        read_bytes=kib("FETCH_SIZE"),
        written_bytes=kib("WRITE_SIZE"),
        occupancy=counters.get("OccupancyPercent"),
        busy={part: counters[name] for name, part in _BUSY.items() if name in counters},
        launch={word: row[name] for word, name in words.items() if row.get(name)},
    )
