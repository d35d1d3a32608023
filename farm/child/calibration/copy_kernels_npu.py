"""A copy kernel for Ascend's vector cores: what this device can move at best, with nothing to compute."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_tiles(source, target, size, tiles, BLOCK: tl.constexpr):
    """`size` int32 elements in `tiles` tiles of BLOCK, walked by a fixed grid.

    A tile's place is a 64-bit scalar, its mask one of 32-bit integers: of these the compiler makes the extent of a
    copy, where a vector of 64-bit offsets would be compared element by element.  Such loops get double buffers.
    """
    lane = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * BLOCK
        mask = lane < tl.minimum(size - first, BLOCK).to(tl.int32)
        tl.store(target + first + lane, tl.load(source + first + lane, mask=mask), mask=mask)
