"""What a choice knows of a GPU: its numbers and abilities, not its name.  Pure.

Nothing else here reads a target's name, but for the tables, which say where they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

KIB = 1024
#: Shared memory that all blocks of a multiprocessor have together, by compute capability (CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability"), less 1 KiB of each block's own.
_SHARED = {80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 103: 228, 110: 228, 120: 100, 121: 100}
_LEAST = 100  # of all of those: what a part that is not listed has at least
BLOCK_BYTES = KIB
MAX_PROGRAMS = 2**31 - 1  # of a grid's first dimension, on CUDA and HIP


@dataclass(frozen=True)
class Description:
    """`shared`: bytes of shared memory of a multiprocessor into which copies run beside the work; 0 where there are no
    such copies (NVIDIA before sm_80), or where rows were not fetched ahead (AMD, the interpreter).

    `lanes` of a warp, 0 where there are no warps.  `warps`: the most of a block, which holds 1,024 threads.  `threads`:
    a grid has fewer in its first dimension; 0 for no limit.  `ptx`: whether inline PTX, and a limit on registers, are
    to be had.  `dependent`: dependent launch.  `unaligned_stages`: how far unaligned.py fetches ahead.  `blackwell`:
    compiled code takes more registers than that of sm_90, whose table it uses (seen offline)."""

    shared: int = 0
    lanes: int = 0
    warps: int = 32
    threads: int = 0
    ptx: bool = False
    dependent: bool = False
    unaligned_stages: int = 3
    blackwell: bool = False

    def stages(self, most: int, stage_bytes: int, per_core: int) -> int:
        """The most stages up to `most` for which `per_core` programs, each with `stage_bytes` a stage, fit a
        multiprocessor together; 1 where not even two do."""
        fit = (self.shared // max(per_core, 1) - BLOCK_BYTES) // stage_bytes
        return min(most, fit) if fit > 1 else 1

    def programs(self, warps: int) -> int:
        """The largest grid of programs of so many warps, in its first dimension."""
        fit = (self.threads - 1) // (self.lanes * min(warps, self.warps)) if self.threads else MAX_PROGRAMS
        return min(MAX_PROGRAMS, fit)


@cache
def describe(target: str) -> Description:
    """The description of "cuda:86", "hip:gfx942" or "interpreter"."""
    vendor, _, arch = target.partition(":")
    if vendor == "hip":  # 16 waves a block: a launch with more is refused (HIP's kernel language, grid limits)
        return Description(lanes=64, warps=16, threads=2**32, unaligned_stages=1)
    if vendor != "cuda":
        return Description()
    shared = _SHARED.get(int(arch), _LEAST) * KIB if int(arch) >= 80 else 0
    return Description(shared, 32, ptx=True, dependent=int(arch) >= 90, blackwell=arch in ("100", "103"))
