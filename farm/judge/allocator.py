"""How a judge's process treats the memory that its arrays leave.

By default glibc gives arrays of megabytes back to the kernel as soon as they are freed, and the next one of that size
costs a page fault for every 4 KiB: half of a reference's CPU time on one thread, and more on several, which wait for
each other in these faults.
"""

from __future__ import annotations

import contextlib
import ctypes

#: glibc's numbers of its parameters (malloc.h), and what they are set to: above which size an array is a map of its
#: own (more than 32 MiB glibc does not take), and how many bytes of freed memory stay at the end of each heap.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 256 << 20, _TOP_PAD: 16 << 20}


def keep_freed_memory() -> bool:
    """Have this process keep freed arrays for the next ones; whether its C library can.  For a process that is a
    judge's alone: it stays as large as its largest call has made it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(parameter, value) for parameter, value in _SETTINGS.items())
    return False
