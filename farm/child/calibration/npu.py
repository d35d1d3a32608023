"""The copies whose envelope is an NPU's roof: a grid of one program a vector core walks tiles of the Unified Buffer.

The configurations of `farm.calibration.copies` are for GPUs: on a vector core their 64-bit offsets become scalar loops,
and a roof made of them would accuse every honest kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.calibration.copies import Copy

#: Tiles of 8 to 64 KiB; twice that, double buffered, is at most two thirds of a vector core's 192 KiB.
COPIES = (Copy(2048, 1, per_core=1), Copy(4096, 1, per_core=1), Copy(8192, 1, per_core=1), Copy(16384, 1, per_core=1))


def copier(copy: Copy, cores: int, overlaps: bool) -> Callable[[Any], Any]:
    """source (int32, dense) -> a copy of it, by one kernel of this configuration; `cores`: vector cores."""
    del overlaps

    def function(source: Any) -> Any:
        import torch

        from farm.child.calibration.copy_kernels_npu import copy_tiles

        size = source.numel()
        tiles = -(-size // copy.block)
        target = torch.empty_like(source)
        copy_tiles[(min(tiles, copy.per_core * cores),)](source, target, size, tiles, copy.block)
        return target

    return function
