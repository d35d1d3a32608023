"""A pretend host with AMD GPUs, told by environment variables; the stubs beside it show it each in its own form.

    FARM_STUB_AMD        the part: MI300X (the default), MI325X, MI355X, MI300A, MI250X
    FARM_STUB_AMD_GPUS   how many (2)
    FARM_STUB_AMD_MODE   partitions: spx-nps1 (the default), dpx-nps2, qpx-nps4, cpx-nps4, ...
    FARM_STUB_AMD_BREAK  what is broken, by commas; each stub says which words it knows
    FARM_STUB_AMD_SAYS   JSON that changes what every device says of itself: power_cap_w, perf_level, max_mhz, violation
                         (the fields that are active), uncorrectable, pids, rocm, driver, used_mib

Written for these tests after AMD's documentation (the sources that farm/backends/_amd.py, _amdsmi.py and _amd_tool.py
name); nothing of it is AMD's own text.  Serial numbers and UUIDs are made up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: name -> (market name, PCI device id, target, compute units, dies, HBM in MiB, power cap in W)
PARTS: dict[str, tuple[str, int, str, int, int, int, int]] = {
    "MI300X": ("AMD Instinct MI300X", 0x74A1, "gfx942", 304, 8, 196592, 750),
    "MI325X": ("AMD Instinct MI325X", 0x74A5, "gfx942", 304, 8, 262128, 1000),
    "MI355X": ("AMD Instinct MI355X", 0x75A3, "gfx950", 256, 8, 294896, 1400),
    "MI300A": ("AMD Instinct MI300A", 0x74A0, "gfx942", 228, 6, 96432, 550),
    "MI250X": ("AMD Instinct MI250X", 0x740C, "gfx90a", 110, 1, 65520, 560),
}
SAYS: dict[str, Any] = {
    "power_cap_w": None,
    "perf_level": "AUTO",
    "max_mhz": 2100,
    "violation": [],
    "uncorrectable": 0,
    "pids": [],
    "rocm": "7.1.1",
    "driver": "6.14.14",
    "used_mib": 300,
    "sm_mhz": 1987,
    "mem_mhz": 1300,
    "hotspot_c": 61,
    "power_w": 412,
}
DOCUMENTED_MODES = ("spx", "dpx", "tpx", "qpx", "cpx")


@dataclass(frozen=True)
class Gpu:
    """One device as the runtimes count it: a GPU, or a partition of one.  `bus`: of the GPU."""

    index: int
    card: int
    partition: int
    bus: int
    name: str
    device: int
    target: str
    units: int
    vram_mib: int
    compute: str
    memory: str
    unique: int

    @property
    def bdf(self) -> str:
        return f"0000:{self.bus:02x}:00.{self.partition}"

    @property
    def hip_uuid(self) -> str:
        return f"GPU-{self.unique:016x}"

    @property
    def uuid(self) -> str:
        return f"{self.unique & 0xFF:02x}ff{self.device:04x}-0000-1000-80{self.partition:02x}-{self.unique >> 8:012x}"


def broken(environment: Mapping[str, str] = os.environ) -> set[str]:
    return {w for w in environment.get("FARM_STUB_AMD_BREAK", "").split(",") if w}


def says(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    return {**SAYS, **json.loads(environment.get("FARM_STUB_AMD_SAYS", "{}"))}


def cap_w(environment: Mapping[str, str] = os.environ) -> int:
    return int(says(environment)["power_cap_w"] or PARTS[environment.get("FARM_STUB_AMD", "MI300X")][6])


def gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Every device of the host, in the runtimes' order."""
    name, device, target, units, dies, vram, _ = PARTS[environment.get("FARM_STUB_AMD", "MI300X")]
    compute, memory = environment.get("FARM_STUB_AMD_MODE", "spx-nps1").split("-")
    parts = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": dies}[compute]
    wrong = broken(environment)
    if "unknown_part" in wrong:
        device = 0x9999
    if {"unknown_part", "unnamed"} & wrong:
        name = "AMD Radeon Graphics"
    out: list[Gpu] = []
    for card in range(int(environment.get("FARM_STUB_AMD_GPUS", "2"))):
        for partition in range(parts):
            unique = 0xA1B2C30000000000 + (card << 8) + (0 if "shared_uuid" in wrong else partition)
            out.append(
                Gpu(
                    len(out),
                    card,
                    partition,
                    0x0C + 0x11 * card,
                    name,
                    device,
                    target,
                    units // parts,
                    vram // parts,
                    compute.upper(),
                    memory.upper(),
                    unique,
                )
            )
    return out
