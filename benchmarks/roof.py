"""The roof: what copy kernels reach at best over as many bytes as a case moves, on this device, by the same policy.

Not the datasheet, and not `copy_` in a graph: that becomes a memcpy node, which an H200 runs at 2.7 TB/s where a kernel
reaches 4.2.  The envelope is the best median of a handful of configurations, so it is the roof of whoever launches
well; it depends on the bytes alone, and is measured once per (rounded) number of them.

A copy writes as much as it reads.  A backward reads two bytes for each that it writes, which memory takes a little
easier, so its roof is a yardstick and no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Leading bits of a byte count that are kept: roofs within 0.2 % of each other's bytes are one.
BITS = 9
#: A copy moves whole multiples of this: every load is 16 bytes wide, read and written alike.
GRAIN = 4096


@dataclass(frozen=True)
class Copy:
    """One configuration: `block` int32 elements of a program, `warps`, a cache hint ("stream": gone first, "last": kept
    longest), for a persistent grid how many programs a multiprocessor gets (0: a program a block), and whether it is
    launched while the kernel before it drains (programmatic dependent launch), as our kernels are."""

    block: int
    warps: int
    hint: str = ""
    per_core: int = 0
    pdl: bool = False

    @property
    def name(self) -> str:
        grid = f"persistent{self.per_core}" if self.per_core else "once"
        return f"{grid}-{self.block}x{self.warps}{'-' + self.hint if self.hint else ''}{'-pdl' if self.pdl else ''}"


#: From 16 to 64 bytes in flight a thread.  Persistent grids fill a multiprocessor's 64 warps.
COPIES = (
    Copy(512, 4),
    Copy(1024, 8),
    Copy(1024, 4, "stream"),
    Copy(2048, 4),
    Copy(4096, 8, "stream"),
    Copy(4096, 8, "stream", per_core=8),
    Copy(1024, 8, pdl=True),
    Copy(512, 4, "stream", pdl=True),
    Copy(1024, 8, "stream", pdl=True),
    Copy(512, 4, "last", pdl=True),
    Copy(1024, 8, "last", pdl=True),
    Copy(2048, 8, "last", pdl=True),
)


@dataclass(frozen=True)
class Roof:
    """The envelope over `nbytes` (read and written together), in 1e9 B/s, and what each configuration reached."""

    nbytes: int
    gbps: float
    best: str
    us: float
    all_gbps: dict[str, float]


def bucket(nbytes: int) -> int:
    """The byte count whose roof stands for that of `nbytes`: its leading bits, in whole grains, at least one."""
    step = max(GRAIN, 1 << max(0, nbytes.bit_length() - BITS))
    return max(step, round(nbytes / step) * step)


def envelope(
    nbytes: int,
    measure: Callable[[Callable[[Any], Any], int, int], float],
    cores: int,
    copies: tuple[Copy, ...] = COPIES,
) -> Roof:
    """The roof of `bucket(nbytes)`.  `measure(function, size, nbytes)` gives the median microseconds of
    function(source) -> target for a source of `size` int32 elements.  ValueError for a time that is none."""
    moved = bucket(nbytes)
    size = moved // 8  # int32 elements, each read once and written once
    times = {}
    for config in copies:
        us = measure(copier(config, cores), size, moved)
        if not us > 0:
            raise ValueError(f"copy {config.name} of {moved} bytes took {us} us")
        times[config.name] = us
    best = min(times, key=lambda n: times[n])
    return Roof(moved, moved / times[best] / 1e3, best, times[best], {n: moved / t / 1e3 for n, t in times.items()})


def copier(config: Copy, cores: int) -> Callable[[Any], Any]:
    """source (int32, dense) -> a copy of it, by one kernel of this configuration."""

    def copy(source: Any) -> Any:
        import torch

        from benchmarks.copy_kernels import copy_once, copy_strided

        size = source.numel()
        blocks = -(-size // config.block)
        target = torch.empty_like(source)
        extra = {"launch_pdl": True} if config.pdl and _overlaps() else {}
        common = (config.block, config.hint, bool(extra))
        if config.per_core:
            grid = (min(blocks, config.per_core * cores),)
            copy_strided[grid](source, target, size, blocks, *common, num_warps=config.warps, **extra)
        else:
            copy_once[(blocks,)](source, target, size, *common, num_warps=config.warps, **extra)
        return target

    return copy


def _overlaps() -> bool:
    """Whether this device knows programmatic dependent launch: NVIDIA's, from sm_90 on."""
    from kernels.ops.rms_norm import dispatch

    backend, _, arch = dispatch.machine()[0].partition(":")
    return backend == "cuda" and int(arch) >= 90
