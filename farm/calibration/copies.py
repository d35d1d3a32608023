"""The configurations of copy kernels whose envelope is the roof.  Pure.

Not the datasheet, and not `copy_` in a graph: that becomes a memcpy node, which an H200 runs at 2.7 TB/s where a kernel
reaches 4.2.  The envelope is the best median of a handful of configurations, so it is the roof of whoever launches
well.

A copy writes as much as it reads.  A backward reads two bytes for each that it writes, which memory takes a little
easier, so its roof is a yardstick and no bound.
"""

from __future__ import annotations

from dataclasses import dataclass


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
