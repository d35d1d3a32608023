"""What a captured graph launches, asked of the driver that keeps it: CUDA and HIP have the same two calls for that."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

#: Kinds of graph node that are work on the device, by the driver's number, which is one for both.
WORK = {0: "kernel", 1: "memcpy", 2: "memset"}


def work(graph: Any, library: Callable[[], str], prefix: str) -> dict[str, int] | None:
    """How many kernels, copies and fills a captured torch.cuda.CUDAGraph launches in one replay; None where this torch
    keeps no graph that could be asked, or the driver does not answer.

    library: names the driver's file, or raises OSError.  prefix: of its calls, `cuGraph` or `hipGraph`.
    """
    try:
        raw, driver = int(graph.raw_cuda_graph()), ctypes.CDLL(library())
        get_nodes, get_kind = getattr(driver, f"{prefix}GetNodes"), getattr(driver, f"{prefix}NodeGetType")
        count = ctypes.c_size_t()
        if get_nodes(ctypes.c_void_p(raw), None, ctypes.byref(count)):
            return None
        nodes = (ctypes.c_void_p * count.value)()
        if count.value and get_nodes(ctypes.c_void_p(raw), nodes, ctypes.byref(count)):
            return None
        found: dict[str, int] = {}
        kind = ctypes.c_int()
        for node in nodes:
            if get_kind(ctypes.c_void_p(node), ctypes.byref(kind)):
                return None
            if kind.value in WORK:
                found[WORK[kind.value]] = found.get(WORK[kind.value], 0) + 1
        return found
    except (AttributeError, RuntimeError, OSError):
        return None
