"""A stub of `mspti`, Ascend's profiling interface, whose kernels are the operators that torch runs on the CPU.

Written from the vendor's "MSPTI Python API reference" (hiascend.com, CANN 8.1 to 9.1): KernelMonitor with
start(callback) -> MsptiResult, stop(), flush_all() and set_buffer_size(MB), and KernelData with kind, start, end (both
in ns, both 0 where the time could not be read), device_id, stream_id, correlation_id, type and name.  As documented,
the callback gets records when a buffer is flushed, not when a kernel ends.

Each operator that computes is one kernel of NS nanoseconds, after a gap.  `LOSES`: every so-manieth record is lost
(0: none).  `BLIND`: times are 0.  `REFUSES`: the monitor does not start.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

NS, GAP_NS = 3000, 500
LOSES = 0
BLIND = False
REFUSES = False
#: How often a monitor was started in this process.
STARTS: list[int] = []
_VIEWS = (
    "view",
    "detach",
    "expand",
    "t.default",
    "transpose",
    "slice",
    "select",
    "alias",
    "reshape",
    "as_strided",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "permute",
    "empty",
    "is_",
    "_local_scalar_dense",
    "lift",
)


class MsptiResult(enum.Enum):
    MSPTI_SUCCESS = 0
    MSPTI_ERROR_INVALID_PARAMETER = 1
    MSPTI_ERROR_INNER = 999


class KernelMonitor:
    def __init__(self) -> None:
        self._callback: Callable[[Any], None] | None = None
        self._mode: _Seen | None = None
        self._clock = 1_000_000
        self._count = 0
        self._pending: list[Any] = []
        self.buffer_mb = 8

    def set_buffer_size(self, size: int) -> MsptiResult:
        self.buffer_mb = size
        return MsptiResult.MSPTI_SUCCESS

    def start(self, cb: Callable[[Any], None]) -> MsptiResult:
        if REFUSES:
            return MsptiResult.MSPTI_ERROR_INNER
        if not callable(cb):
            return MsptiResult.MSPTI_ERROR_INVALID_PARAMETER
        STARTS.append(1)
        self._callback, self._mode = cb, _Seen(self)
        self._mode.__enter__()
        return MsptiResult.MSPTI_SUCCESS

    def stop(self) -> MsptiResult:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
        self.flush_all()
        return MsptiResult.MSPTI_SUCCESS

    def flush_all(self) -> MsptiResult:
        pending, self._pending = self._pending, []
        for data in pending:
            if self._callback:
                self._callback(data)
        return MsptiResult.MSPTI_SUCCESS

    def ran(self, name: str) -> None:
        self._count += 1
        begin, self._clock = self._clock, self._clock + NS + GAP_NS
        if LOSES and self._count % LOSES == 0:
            return
        times = (0, 0) if BLIND else (begin, begin + NS)
        self._pending.append(
            SimpleNamespace(
                kind="MSPTI_ACTIVITY_KIND_KERNEL",
                start=times[0],
                end=times[1],
                device_id=0,
                stream_id=2,
                correlation_id=self._count,
                type="AI_VECTOR_CORE",
                name=name,
            )
        )


class _Seen(TorchDispatchMode):
    def __init__(self, monitor: KernelMonitor):
        super().__init__()
        self._monitor = monitor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if not name.startswith(_VIEWS):
            self._monitor.ran(f"aclnn_{name}")
        return func(*args, **(kwargs or {}))
