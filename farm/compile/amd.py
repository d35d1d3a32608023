"""AMD: what a compiled kernel takes of a compute unit, from the assembly that LLVM wrote."""

from __future__ import annotations

import re
from typing import Any

from farm.compile import instructions
from farm.compile.offline import code, offline
from farm.compile.targets import TARGETS

__all__ = ["occupancy", "offline", "parse_metadata", "resources"]

#: Of one compute unit, CDNA 3 and CDNA 4 alike.
SIMDS, WAVES_PER_SIMD, VGPRS, VGPR_GRANULE, GROUPS = 4, 8, 512, 8, 16
#: LDS is handed out by so many bytes (LLVM, getLdsDwGranularity: 128 and 320 words).
LDS_GRANULE = {"gfx942": 512, "gfx950": 1280}
_FIELDS = (
    "vgpr_count",
    "agpr_count",
    "sgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "private_segment_fixed_size",
    "group_segment_fixed_size",
)


def resources(kernel: Any) -> dict[str, Any]:
    """Registers, spills, LDS, occupancy and instruction counts of one compiled kernel."""
    text: str = kernel.asm["amdgcn"]
    told = parse_metadata(text)
    arch, warps, dynamic = kernel.metadata.target.arch, int(kernel.metadata.num_warps), int(kernel.metadata.shared)
    lds = told["group_segment_fixed_size"] + dynamic
    counted = instructions.amdgcn(text)
    size, digest = code(kernel.asm["hsaco"])
    return {
        "registers": told["vgpr_count"],  # accumulation registers are in it: one file of 512 a lane
        "agprs": told["agpr_count"],
        "sgprs": told["sgpr_count"],
        "spilled_registers": told["vgpr_spill_count"],
        "spilled_sgprs": told["sgpr_spill_count"],
        "spill_store_bytes": instructions.local_bytes(counted, "local_stores"),
        "spill_load_bytes": instructions.local_bytes(counted, "local_loads"),
        "stack_bytes": told["private_segment_fixed_size"],
        "shared_bytes": lds,
        "shared_static_bytes": told["group_segment_fixed_size"],
        "shared_dynamic_bytes": dynamic,
        "warps": warps,
        **occupancy(arch, told["vgpr_count"], lds, warps),
        "compiler_occupancy": told["occupancy"],
        "binary_bytes": len(kernel.asm["hsaco"]),
        "code_bytes": size,
        "code_digest": digest,
        "instructions": counted,
    }


def occupancy(arch: str, registers: int, lds: int, warps: int) -> dict[str, Any]:
    """How many work-groups of `warps` waves a compute unit holds, the share of its waves that are then at work, and
    what stops the next group.  `registers` a lane, accumulation registers included; `lds` bytes a group."""
    held = max(-(-registers // VGPR_GRANULE) * VGPR_GRANULE, VGPR_GRANULE)
    granule = LDS_GRANULE[arch]
    most = SIMDS * WAVES_PER_SIMD
    limits = {
        "registers": SIMDS * (VGPRS // held) // warps,
        "LDS": TARGETS[arch].core_memory // (-(-lds // granule) * granule) if lds else most,
        "waves": most // warps,
        # A group of one wave needs no barrier, and so none of the 16 slots that a unit has for them.
        "groups": GROUPS if warps > 1 else most,
    }
    groups = min(limits.values())
    full = groups * warps == most
    return {
        "blocks_per_core": groups,
        "occupancy": groups * warps / most,
        "limiter": "" if full else min(limits, key=lambda name: limits[name]),
    }


def parse_metadata(text: str) -> dict[str, Any]:
    """The counts that LLVM writes behind a kernel, and its own occupancy (waves a SIMD), None where it says none."""
    found: dict[str, Any] = {}
    for name in _FIELDS:
        values = [int(v) for v in re.findall(rf"^[\s-]*\.{name}:\s*(\d+)", text, re.M)]
        if not values:
            raise ValueError(f"the assembly has no .{name}")
        found[name] = max(values)
    waves = re.findall(r"^; Occupancy: (\d+)", text, re.M)
    found["occupancy"] = int(waves[-1]) if waves else None
    return found
