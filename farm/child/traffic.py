"""Bytes that a call's Triton kernels really move, counted while they are interpreted.

A load or store counts with the bytes of its unmasked lanes, as often as it happens: a kernel that reads its input twice
shows it without a device.  One thing is told apart, since every row asks for it and any cache holds it: a *whole* input
(one without the row dimension, a weight) counts once in each launch in `bytes_counted`, every time in
`bytes_requested`.  What torch itself computes is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Counter:
    """Counts accesses; `shared` are the extents (first byte, past the last) of the whole inputs."""

    def __init__(self, shared: Iterable[tuple[int, int]] = ()) -> None:
        self.requested = 0
        self.launches = 0
        self._plain = 0
        self._once = 0  # of whole inputs, in the launches that are over
        self._seen = {extent: np.zeros(extent[1] - extent[0], dtype=np.uint8) for extent in shared}

    def launch(self) -> None:
        """A launch begins: its loads of whole inputs count anew."""
        self.launches += 1
        for seen in self._seen.values():
            self._once += int(seen.sum(dtype=np.int64))
            seen[:] = 0

    def access(self, verb: str, addresses: np.ndarray, size: int) -> None:
        """One load or store of elements of `size` bytes at `addresses` (at least one)."""
        self.requested += addresses.size * size
        if verb == "load":
            first, last = int(addresses.min()), int(addresses.max()) + size
            for (begin, end), seen in self._seen.items():
                if begin <= first and last <= end:
                    seen[np.asarray(addresses).reshape(-1).astype(np.int64) - begin] = size
                    return
        self._plain += addresses.size * size

    @property
    def counted(self) -> int:
        """Bytes, a whole input once in each launch."""
        return self._plain + self._once + sum(int(seen.sum(dtype=np.int64)) for seen in self._seen.values())

    def facts(self) -> dict[str, int]:
        """`bytes_counted` and `bytes_requested`; nothing where no kernel was launched."""
        return {"bytes_counted": self.counted, "bytes_requested": self.requested} if self.launches else {}


@contextmanager
def counted(facts: dict[str, Any], tensors: Iterable[dict[str, Any]], inputs: Iterable[Any]) -> Iterator[None]:
    """Put into `facts` what the kernels that are launched within it move, where this process interprets them.

    `tensors` are the cell's as the child is told of them, `inputs` its input tensors in that order, None for an absent
    one.
    """
    interpreter = sys.modules.get("farm.child.interpreter")
    if interpreter is None or interpreter.interp is None:
        yield
        return
    plans = (t for t in tensors if t["role"] in ("input", "mutated"))
    whole = [t for plan, t in zip(plans, inputs) if t is not None and not plan.get("blocked", True)]
    counter = Counter(interpreter.extent(t) for t in whole)
    interpreter.watch(counter)
    try:
        yield
    finally:
        interpreter.watch(None)
    facts.update(counter.facts())
