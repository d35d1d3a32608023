"""msprof: `op_summary_*.csv`, a line per task, with ratios of the pipelines or bandwidths of device memory."""

from __future__ import annotations

import csv
from collections.abc import Mapping

from farm.profile.kernels import KernelProfile, number

_PIPES = {
    "vec_ratio": "vector unit",
    "mac_ratio": "cube unit",
    "mte2_ratio": "copies from device memory (MTE2)",
    "mte3_ratio": "copies to device memory (MTE3)",
    "scalar_ratio": "scalar unit",
}
_CORES = ("aiv_", "aic_", "")  # vector cores, cube cores, or both in one column on older devices


def parse(text: str) -> list[KernelProfile]:
    """The tasks of a table, in order; none for text that is no such table."""
    rows = csv.DictReader(text.lstrip("\ufeff").splitlines())
    return [_kernel(row) for row in rows if row.get("Op Name")]


def _kernel(row: Mapping[str, str]) -> KernelProfile:
    duration = number(row.get("Task Duration(us)"))
    busy: dict[str, float] = {}
    moved: dict[str, float] = {}
    for core in _CORES:
        for column, part in _PIPES.items():
            share = number(row.get(core + column))
            if share is not None:
                busy[part] = max(busy.get(part, 0.0), 100 * share)
        for way in ("read", "write"):
            rate = number(row.get(f"{core}main_mem_{way}_bw(GB/s)"))
            if rate is not None and duration is not None:
                moved[way] = moved.get(way, 0.0) + rate * duration * 1e3
    return KernelProfile(
        name=row["Op Name"],
        duration_us=duration,
        read_bytes=moved.get("read"),
        written_bytes=moved.get("write"),
        busy=busy,
        launch={"cores": row["Block Dim"]} if row.get("Block Dim") else {},
    )
