"""Nsight Compute: `ncu --csv --page raw`, a line of names, a line of units, a line per launch; other lines begin with
`==PROF==`, `==WARNING==` or `==ERROR==`."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from farm.errors import Message
from farm.profile.kernels import BYTES, MICROSECONDS, KernelProfile, number

_BUSY = {
    "device memory (DRAM)": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput"),
    "compute (SM)": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "L1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
}
_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "the number of warps": "launch__occupancy_limit_warps",
    "the number of blocks": "launch__occupancy_limit_blocks",
}
_LAUNCH = {"grid": "launch__grid_size", "block": "launch__block_size", "registers": "launch__registers_per_thread"}
_ERROR = re.compile(r"^==ERROR==\s*(?P<text>\S.*)$", re.M)


def parse(text: str) -> list[KernelProfile]:
    """The launches of a log, in order; none for text that has no table."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(table))
    if len(rows) < 3 or "Kernel Name" not in rows[0]:
        return []
    names, units = rows[0], dict(zip(rows[0], rows[1]))
    return [_kernel(dict(zip(names, row)), units) for row in rows[2:] if len(row) == len(names)]


def _kernel(row: Mapping[str, str], units: Mapping[str, str]) -> KernelProfile:
    def value(name: str, scale: Mapping[str, float] | None = None) -> float | None:
        found = number(row.get(name))
        return found if found is None or scale is None else found * scale.get(units.get(name, ""), 1)

    limits = {word: n for word, name in _LIMITS.items() if (n := value(name)) is not None}
    least = min(limits.values(), default=None)
    possible = value("sm__maximum_warps_per_active_cycle_pct")
    by = [word for word, n in limits.items() if n == least] if possible is not None and possible < 99.5 else []
    busy = {}
    for part, candidates in _BUSY.items():
        share = next((n for name in candidates if (n := value(name)) is not None), None)
        if share is not None:
            busy[part] = share
    return KernelProfile(
        name=row["Kernel Name"],
        duration_us=value("gpu__time_duration.sum", MICROSECONDS),
        read_bytes=value("dram__bytes_read.sum", BYTES),
        written_bytes=value("dram__bytes_write.sum", BYTES),
        occupancy=value("sm__warps_active.avg.pct_of_peak_sustained_active"),
        possible=possible,
        limited_by=" and ".join(by),
        waves=value("launch__waves_per_multiprocessor"),
        busy=busy,
        load_use=_of_something(value("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct")),
        store_use=_of_something(value("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct")),
        launch={word: f"{n:,.0f}" for word, name in _LAUNCH.items() if (n := value(name)) is not None},
    )


def _of_something(share: float | None) -> float | None:
    """A share of no access at all is 0, and says nothing."""
    return share or None


def refusal(text: str) -> Message | None:
    """Why the tool measured nothing, in one sentence; None where its log does not say."""
    if "ERR_NVGPUCTRPERM" in text:
        return Message(
            "ncu may not read this GPU's performance counters (ERR_NVGPUCTRPERM): the driver lets only administrators; "
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or give the container CAP_SYS_ADMIN",
            id="profile-no-permission",
        )
    error = _ERROR.search(text)
    if error:
        return Message(f"ncu failed: {error['text'][:300]}; solve this, then profile again", id="profile-tool-failed")
    if "No kernels were profiled" in text:
        return Message("ncu saw no kernel in the call, so there is nothing to profile", id="profile-no-kernel")
    return None
