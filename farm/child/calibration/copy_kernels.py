"""Copy kernels: what this device can move at best, with nothing to compute."""

from __future__ import annotations

import inspect

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_wait

    KNOWS_PDL = "_semantic" in inspect.signature(gdc_wait).parameters  # 3.4 has a name that does not work
except ImportError:
    KNOWS_PDL = False

if not KNOWS_PDL:  # then it is never asked for, and its branch never compiled

    @triton.jit
    def gdc_wait():
        """Only named."""


@triton.jit
def _copy_block(source, target, size, block, BLOCK: tl.constexpr, HINT: tl.constexpr):
    """`BLOCK` elements; HINT is "", "stream" (evicted first) or "last" (evicted last)."""
    offsets = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    if HINT == "stream":
        value = tl.load(source + offsets, mask=mask, eviction_policy="evict_first")
        tl.store(target + offsets, value, mask=mask, eviction_policy="evict_first")
    elif HINT == "last":
        tl.store(target + offsets, tl.load(source + offsets, mask=mask, eviction_policy="evict_last"), mask=mask)
    else:
        tl.store(target + offsets, tl.load(source + offsets, mask=mask), mask=mask)


@triton.jit
def copy_once(source, target, size, BLOCK: tl.constexpr, HINT: tl.constexpr, PDL: tl.constexpr):
    """A program a block of `size` int32 elements."""
    if PDL:
        gdc_wait()
    _copy_block(source, target, size, tl.program_id(0), BLOCK, HINT)


@triton.jit
def copy_strided(source, target, size, blocks, BLOCK: tl.constexpr, HINT: tl.constexpr, PDL: tl.constexpr):
    """A fixed grid whose programs walk over `blocks` blocks."""
    if PDL:
        gdc_wait()
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        _copy_block(source, target, size, block, BLOCK, HINT)
