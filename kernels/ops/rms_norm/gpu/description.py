"""What a rule may know of a GPU that no table knows: its numbers, not its name.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
#: Shared memory that all blocks of a multiprocessor have together, by compute capability (CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability"), less 1 KiB of each block's own.
_SHARED = {80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 103: 228, 110: 228, 120: 100, 121: 100}
_LEAST = 100  # of all of those: what a part that is not listed has at least
BLOCK_BYTES = KIB


@dataclass(frozen=True)
class Description:
    """`shared`: bytes of shared memory of a multiprocessor into which copies run beside the work; 0 where there are no
    such copies (NVIDIA before sm_80), or where rows were not fetched ahead (AMD, the interpreter)."""

    shared: int

    def stages(self, most: int, stage_bytes: int, per_core: int) -> int:
        """The most stages up to `most` for which `per_core` programs, each with `stage_bytes` a stage, fit a
        multiprocessor together; 1 where not even two do."""
        fit = (self.shared // max(per_core, 1) - BLOCK_BYTES) // stage_bytes
        return min(most, fit) if fit > 1 else 1


def describe(target: str) -> Description:
    """The description of "cuda:86", "hip:gfx942" or "interpreter"."""
    vendor, _, arch = target.partition(":")
    if vendor != "cuda" or int(arch) < 80:
        return Description(0)
    return Description(_SHARED.get(int(arch), _LEAST) * KIB)
