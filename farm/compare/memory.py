"""When two peaks of device memory differ by enough to be reported.  Pure.

The peak is what one plain call allocates at most beyond what was there, its outputs and what it saves for backward
included.  Nothing about it is measured, so that one comparison decides: the same code asks for the same bytes.  But an
allocator that keeps freed blocks gives a tensor a block up to 1 MiB larger than it asked for (PyTorch's does not split
the rest off), and which block depends on what ran before.  A call with four such tensors is off by at most LEAST.
"""

from __future__ import annotations

MIB = 1 << 20
LEAST = 4 * MIB  # bytes
SHARE = 0.02  # of the smaller peak


def differ(a: float, b: float) -> bool:
    """Whether two peaks, in bytes, differ by more than an allocator's own rounding may explain."""
    return abs(b - a) > max(LEAST, SHARE * min(a, b))
