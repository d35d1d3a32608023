"""MSPTI's kernel monitor: the durations of an NPU's kernels, in this process and without a file.

`mspti` comes with CANN's toolkit; its Python interface (KernelMonitor, KernelData, MsptiResult) is as the vendor's
MSPTI reference describes it (hiascend.com, CANN 8.1 to 9.1).  One monitor serves the whole process; it works only where
libmspti.so was loaded before everything else (LD_PRELOAD) and beside no other profiler.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from farm.timing.kernels import Record

#: So long may a record take to arrive after its kernel has ended; between two looks, so long a pause.
ARRIVAL_S, PAUSE_S = 3.0, 0.002
#: The monitor's buffer; its default of 8 MB holds some ten thousand kernels.
BUFFER_MB = 64


class Recorder:
    """The kernels that ran since the last `drain`, in nanoseconds of the device's clock."""

    def __init__(self, module: Any):
        self._monitor = module.KernelMonitor()
        self._said: list[Record] = []
        size = getattr(self._monitor, "set_buffer_size", None)
        if size is not None:
            size(BUFFER_MB)  # refused by a version that cannot: it keeps its default
        begun = self._monitor.start(self._take)
        good = getattr(getattr(module, "MsptiResult", None), "MSPTI_SUCCESS", 0)
        if begun is not None and begun != good:
            raise NotImplementedError(f"MSPTI's kernel monitor does not start in this process ({begun})")

    def _take(self, data: Any) -> None:
        """Called by the monitor, on a thread of its own."""
        if data.start or data.end:  # both are 0 where the device's clock could not be read
            self._said.append(Record(str(data.name), int(data.start), int(data.end), int(data.stream_id)))

    def drain(self, enough: Callable[[list[Record]], bool] = bool) -> list[Record]:
        """The kernels since the last call, once they are `enough`; those that came, where that does not happen."""
        end = time.monotonic() + ARRIVAL_S
        while True:
            self._monitor.flush_all()
            said = list(self._said)
            if enough(said) or time.monotonic() > end:
                del self._said[: len(said)]
                return said
            time.sleep(PAUSE_S)


_RECORDER: list[Recorder] = []


def recorder() -> Recorder:
    """This process's recorder, started at the first call.  NotImplementedError says why there is none."""
    if not _RECORDER:
        try:
            module = importlib.import_module("mspti")
        except (ImportError, OSError) as error:
            raise NotImplementedError(f"MSPTI cannot be loaded in this process ({error})") from error
        try:
            _RECORDER.append(Recorder(module))
        except (AttributeError, RuntimeError) as error:
            raise NotImplementedError(f"MSPTI's kernel monitor does not start in this process ({error})") from error
    return _RECORDER[0]
