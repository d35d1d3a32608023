"""The marks between which a profiler measures: of CUDA's own interface, or of roctx.

A child runs one plain call between them (`farm.actor.tools`).  Where a platform has no marks (Ascend), everything that
the process does is measured, and the reader picks the call's kernels by name.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

#: The library of roctx by its names: with rocprofv3, and before.
_ROCTX = ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "libroctx64.so")


@contextlib.contextmanager
def marked(device: torch.device) -> Iterator[None]:
    """What runs within it is what is to be measured."""
    if device.type != "cuda":
        yield
        return
    library = _roctx() if torch.version.hip else None
    begin, end = torch.cuda.profiler.start, torch.cuda.profiler.stop
    if torch.version.hip:
        begin = (lambda: library.roctxProfilerResume(0)) if library else (lambda: None)
        end = (lambda: library.roctxProfilerPause(0)) if library else (lambda: None)
    begin()
    try:
        yield
    finally:
        end()


def _roctx() -> ctypes.CDLL | None:
    for name in _ROCTX:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            for function in (library.roctxProfilerResume, library.roctxProfilerPause):
                function.argtypes = [ctypes.c_uint64]  # a thread; 0 for all
            return library
    return None
