"""What can be compiled for without being here: names, what Triton calls them, and the limits of one core.  Pure.

Core counts steer persistent grids only.  Sources, read 2026-11: NVIDIA's CUDA C++ programming guide, table "technical
specifications per compute capability" (9.0 and 10.0 agree in every limit here); of 8.6, 8.9 and 12.0, of which there
are many parts, the count of the one that is named; AMD's CDNA 3 and CDNA 4 ISA guides and
LLVM's AMDGPU target (512 VGPRs a lane, allocated by 8; 8 waves a SIMD, 4 SIMDs a CU); Ascend 910B3: Huawei's CANN
documentation and the tables of its compiler.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farm.errors import UsageError


@dataclass(frozen=True)
class CompileTarget:
    """One target: which backend's cells are compiled for it, and what one of its cores has."""

    name: str  # as --target takes it
    backend: str  # whose cells: cuda, rocm, ascend
    triton: str  # Triton's name of the family: cuda, hip, npu
    arch: int | str  # Triton's name of the architecture
    warp: int  # lanes of a warp or wave; 0 where there are none
    cores: int  # multiprocessors, compute units, or vector cores of the part
    block_memory: int  # bytes of shared memory, LDS or Unified Buffer that one program may take
    core_memory: int  # bytes of it that a core has
    part: str  # which part the counts are of

    def grid_limit(self, grid: Sequence[int], threads: int) -> str | None:
        """Why no runtime launches `grid` in programs of `threads` threads, or None.

        CUDA: 2^31 - 1 by 65,535 by 65,535 blocks.  HIP: the same, and fewer than 2^32 threads in a dimension.  CANN:
        65,535 programs in all.
        """
        programs = 1
        for size in grid:
            programs *= size
        if self.backend == "ascend":
            return "65,535 programs" if programs > 65535 else None
        if any(size > most for size, most in zip(grid, (2**31 - 1, 65535, 65535))):
            return "2,147,483,647 x 65,535 x 65,535 blocks"
        if self.backend == "rocm" and grid and grid[0] * threads >= 2**32:
            return "4,294,967,295 threads in a dimension"
        return None

    @property
    def target(self) -> str:
        """The `target` column: `cuda:sm_90`."""
        return f"{self.backend}:{self.name}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_ALL = (
    CompileTarget("sm_80", "cuda", "cuda", 80, 32, 108, 166912, 167936, "A100"),
    CompileTarget("sm_86", "cuda", "cuda", 86, 32, 84, 101376, 102400, "A40, RTX A6000"),
    CompileTarget("sm_89", "cuda", "cuda", 89, 32, 142, 101376, 102400, "L40S"),
    CompileTarget("sm_90", "cuda", "cuda", 90, 32, 132, 232448, 233472, "H100 SXM, H200"),
    CompileTarget("sm_100", "cuda", "cuda", 100, 32, 152, 232448, 233472, "GB200"),
    CompileTarget("sm_103", "cuda", "cuda", 103, 32, 160, 232448, 233472, "GB300"),
    CompileTarget("sm_120", "cuda", "cuda", 120, 32, 188, 101376, 102400, "RTX PRO 6000 Blackwell"),
    CompileTarget("gfx942", "rocm", "hip", "gfx942", 64, 304, 65536, 65536, "MI300X"),
    CompileTarget("gfx950", "rocm", "hip", "gfx950", 64, 256, 163840, 163840, "MI355X"),
    CompileTarget("ascend910b", "ascend", "npu", "Ascend910B3", 0, 40, 196608, 196608, "Ascend 910B3"),
)
TARGETS: dict[str, CompileTarget] = {t.name: t for t in _ALL}


def parse(text: str) -> list[CompileTarget]:
    """The targets of `--target sm_90,gfx942`, each once, in order.  UsageError for an unknown one."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    if not names:
        raise UsageError(f"--target names no target; choose from {', '.join(TARGETS)}", id="compile-target-empty")
    return [_one(name) for name in dict.fromkeys(names)]


def _one(name: str) -> CompileTarget:
    if name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name, TARGETS, 1)
    hint = f'did you mean "{near[0]}"?' if near else f"available: {', '.join(TARGETS)}"
    raise UsageError(f'--target: "{name}" is not a target; {hint}', id="compile-target-unknown")


def backends(targets: Iterable[CompileTarget]) -> list[str]:
    """The backends whose cells these targets compile, each once."""
    return list(dict.fromkeys(t.backend for t in targets))
