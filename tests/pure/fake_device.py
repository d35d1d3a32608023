"""A pretend accelerator for the timing policies: a torch device module whose graphs really replay, on the CPU.

Time is made up: each operation of torch takes `us_per_op` on the device's clock, and `Event` reads that clock.  Streams
are names; what runs on another stream is in no graph, as on a real device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm as six kernels of torch."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


class FakeApi:
    """Stands for `torch.cuda`."""

    def __init__(self, us_per_op: float = 1.0, free_bytes: int = 1 << 40):
        self.us_per_op, self.free_bytes = us_per_op, free_bytes
        self.clock_us = 0.0
        self.here = "default"
        self.capturing: FakeGraph | None = None
        self.sleeps = 0
        api = self

        class Event:
            def __init__(self, enable_timing: bool = False):
                self.at = 0.0

            def record(self) -> None:
                self.at = api.clock_us

            def synchronize(self) -> None:
                return

            def elapsed_time(self, end: Any) -> float:
                return (end.at - self.at) / 1e3

        class CUDAGraph(FakeGraph):
            def __init__(self) -> None:
                super().__init__(api)

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def synchronize(self, device: Any = None) -> None:
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free_bytes, self.free_bytes

    def Stream(self, device: Any = None) -> FakeStream:  # noqa: N802 - as torch names it
        return FakeStream("side")

    def current_stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self.here)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.here = self.here, stream.name
        try:
            yield
        finally:
            self.here = before

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, stream: FakeStream) -> Iterator[None]:
        with self.stream(stream), _Recorded(self, graph):
            self.capturing = graph
            try:
                yield
            finally:
                self.capturing = None

    def _sleep(self, cycles: int) -> None:
        self.sleeps += 1
        self.clock_us += cycles / 2000


class FakeStream:
    def __init__(self, name: str):
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        return


class FakeGraph:
    """The operations that were captured, done again into the same outputs by `replay`."""

    def __init__(self, api: FakeApi):
        self.api = api
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.steps:
                fresh = func(*args, **kwargs)
                for old, new in zip(_flat(out), _flat(fresh)):
                    if old is not new and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
        self.api.clock_us += 2.0 + self.api.us_per_op * len(self.steps)


class _Recorded(TorchDispatchMode):
    def __init__(self, api: FakeApi, graph: FakeGraph):
        super().__init__()
        self.api, self.graph = api, graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.api.here == "side":  # the stream that captures; another one runs at once and is not in the graph
            self.graph.steps.append((func, args, kwargs or {}, out))
        return out


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    return [t for v in value for t in _flat(v)] if isinstance(value, (tuple, list)) else []
