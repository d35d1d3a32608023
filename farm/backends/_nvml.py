"""NVIDIA's management library by ctypes: the few calls that the telemetry needs, each with plain out-parameters.

Names, numbers and layouts are those of NVML's API reference (docs.nvidia.com/deploy/nvml-api, driver 580).  No Python
package is needed; a call that this driver lacks, or refuses, gives None.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from farm.backends.api import Counters, Process, Sample
from farm.process import host

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE, _TIMEOUT = 0, 7, 10
_CLOCK_SM, _CLOCK_MEM = 1, 2
_SENSOR_GPU = 0
_ECC_UNCORRECTED, _ECC_VOLATILE = 1, 0
_EVENT_XID = 0x8
_MAX_PROCESSES = 256
_ALL_INSTANCES = 0xFFFFFFFF
#: A driver that is loaded answers in milliseconds; one that has to be loaded first, in seconds.
DEADLINE_S = 20.0
#: nvmlReturn_t: the values that a user can do something about.
ERRORS = {
    4: "this user is not allowed to use the device: check the permissions of /dev/nvidia*",
    9: "the driver is not loaded: load the module nvidia, or start the container with the GPU devices",
    12: "a library of the driver is missing: install the user-space libraries of the same driver version",
    15: "the GPU has fallen off the bus: restart the host",
    16: "the GPU needs a reset",
    18: "the kernel driver and the NVML library have different versions: reload the driver, or restart the host or "
    "the container",
    999: "the driver failed for an unknown reason: read the Linux kernel's log (dmesg)",
}
#: Bits of the clocks event reasons.
REASONS = {
    0x1: "idle",
    0x2: "clocks_set",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "clocks_set",
}


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint32),
        ("memory", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
    ]


def reasons(bits: int) -> tuple[str, ...]:
    """Names of the set bits, each once; an unknown bit by its number."""
    names = [REASONS.get(1 << i, f"reason_{1 << i:#x}") for i in range(64) if bits >> i & 1]
    return tuple(dict.fromkeys(names))


def load(path: str = LIBRARY, *, deadline_s: float = DEADLINE_S) -> Any:
    """The library, initialised.  OSError if it is not there, does not start, or does not answer in time."""
    library = ctypes.CDLL(path)
    status = answered(library.nvmlInit_v2, deadline_s=deadline_s)
    if status != _SUCCESS:
        raise OSError(f"{path}: nvmlInit_v2 gave {status}{said(status)}")
    return library


def said(status: int) -> str:
    """What a status means and what to do, in brackets; "" for one that says nothing by itself."""
    return f" ({ERRORS[status]})" if status in ERRORS else ""


def answered(call: Callable[..., Any], *arguments: Any, deadline_s: float = DEADLINE_S) -> Any:
    """What a call into the driver gives.  TimeoutError (an OSError) where it does not come back in time: a driver that
    is stuck holds its caller for good, so the caller is a thread that can be left behind."""
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def ask() -> None:
        try:
            answers.put((True, call(*arguments)))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=ask, name="nvml", daemon=True).start()
    try:
        well, value = answers.get(timeout=deadline_s)
    except queue.Empty:
        what = f"NVIDIA's management library did not answer within {deadline_s:g} s"
        raise TimeoutError(
            f"{what}: the driver is stuck; search the Linux kernel's log (dmesg) for Xid or NVRM"
        ) from None
    if not well:
        raise value
    return value


def handle(library: Any, device_id: str) -> ctypes.c_void_p | None:
    """The device of an index (the bus's order) or of a UUID or a UUID's beginning; None if there is none."""
    found = ctypes.c_void_p()
    if device_id.isdigit():
        ok = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device_id)), ctypes.byref(found)) == _SUCCESS
        return found if ok else None
    if library.nvmlDeviceGetHandleByUUID(device_id.encode(), ctypes.byref(found)) == _SUCCESS:
        return found
    count = ctypes.c_uint()
    if not device_id or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
        return None
    for index in range(count.value):
        one = handle(library, str(index))
        if one is not None and (uuid(library, one) or "").startswith(device_id):
            return one
    return None


def uuid(library: Any, device: ctypes.c_void_p) -> str | None:
    """The device's UUID, as GPU-... or MIG-..."""
    text = ctypes.create_string_buffer(96)
    ok = library.nvmlDeviceGetUUID(device, text, ctypes.c_uint(96)) == _SUCCESS
    return text.value.decode("ascii", "replace") if ok else None


def call(library: Any, device: ctypes.c_void_p, name: str, *arguments: Any) -> int:
    """The status of a call on a device; -1 where this driver has no such call."""
    function: Callable[..., int] | None = getattr(library, name, None)
    return -1 if function is None else function(device, *arguments)


def number(library: Any, device: ctypes.c_void_p, name: str, kind: Any, *arguments: Any) -> int | None:
    """The one number that a call gives, or None."""
    value = kind()
    return int(value.value) if call(library, device, name, *arguments, ctypes.byref(value)) == _SUCCESS else None


def parent(library: Any, device: ctypes.c_void_p) -> ctypes.c_void_p | None:
    """The GPU that a MIG device is a part of; None for a GPU."""
    if not number(library, device, "nvmlDeviceIsMigDeviceHandle", ctypes.c_uint):
        return None
    whole = ctypes.c_void_p()
    name = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
    return whole if call(library, device, name, ctypes.byref(whole)) == _SUCCESS else None


def instance(library: Any, device: ctypes.c_void_p) -> int | None:
    """The number of a MIG device's GPU instance; None for a GPU."""
    if not number(library, device, "nvmlDeviceIsMigDeviceHandle", ctypes.c_uint):
        return None
    return number(library, device, "nvmlDeviceGetGpuInstanceId", ctypes.c_uint)


class NvmlReader:
    """One device; every reading is one call into the library, which gives up Python's lock while it runs.

    A MIG device has memory and processes of its own; clocks, temperature, power and errors are those of its GPU."""

    def __init__(self, library: Any, device: ctypes.c_void_p):
        self._lib, self._device = library, device
        self._gpu = parent(library, device) or device
        self._instance = instance(library, device)
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # new, old
        self._reasons = next((n for n in names if hasattr(library, n)), None)
        self._xids: list[int] = []
        self._events = self._listen()

    def sample(self) -> Sample:
        bits = self._number(self._reasons, ctypes.c_uint64) if self._reasons else None
        power = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return Sample(
            0.0,
            self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(_CLOCK_SM)),
            self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(_CLOCK_MEM)),
            self._number("nvmlDeviceGetTemperature", ctypes.c_uint, ctypes.c_uint(_SENSOR_GPU)),
            None if power is None else power / 1e3,
            None if bits is None else reasons(bits),
        )

    def counters(self) -> Counters:
        kinds = (ctypes.c_uint(_ECC_UNCORRECTED), ctypes.c_uint(_ECC_VOLATILE))
        ecc = self._number("nvmlDeviceGetTotalEccErrors", ctypes.c_uint64, *kinds)
        pids = self._pids()
        return Counters(
            ecc, self._xid(), None if pids is None else tuple(Process(p, host.process_name(p)) for p in pids)
        )

    def memory_used_mib(self) -> float | None:
        memory = _Memory()
        ok = call(self._lib, self._device, "nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) == _SUCCESS
        return memory.used / 2**20 if ok else None

    def close(self) -> None:
        if self._events is not None:
            self._lib.nvmlEventSetFree(self._events)
        self._lib.nvmlShutdown()

    def _number(self, name: str, kind: Any, *arguments: Any) -> int | None:
        return number(self._lib, self._gpu, name, kind, *arguments)

    def _pids(self) -> list[int] | None:
        count = ctypes.c_uint(_MAX_PROCESSES)
        found = (_Process * _MAX_PROCESSES)()
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        status = call(self._lib, self._device, name, ctypes.byref(count), found)
        if status not in (_SUCCESS, _INSUFFICIENT_SIZE):
            return None
        return [p.pid for p in found[: min(count.value, _MAX_PROCESSES)] if p.pid]

    def _listen(self) -> ctypes.c_void_p | None:
        """An event set that hears of Xids, or None where this driver or this user has none."""
        events = ctypes.c_void_p()
        with contextlib.suppress(AttributeError):
            if self._lib.nvmlEventSetCreate(ctypes.byref(events)) != _SUCCESS:
                return None
            if call(self._lib, self._gpu, "nvmlDeviceRegisterEvents", ctypes.c_uint64(_EVENT_XID), events) == _SUCCESS:
                return events
            self._lib.nvmlEventSetFree(events)
        return None

    def _xid(self) -> tuple[int, ...] | None:
        if self._events is None:
            return None
        for _ in range(64):  # each call gives one event
            event = _Event()
            try:
                status = self._lib.nvmlEventSetWait_v2(self._events, ctypes.byref(event), ctypes.c_uint(0))
            except AttributeError:
                return None
            if status == _TIMEOUT:
                break
            if status != _SUCCESS:
                return None
            if self._instance is None or event.gpu_instance in (self._instance, _ALL_INSTANCES):
                self._xids.append(int(event.data))
        return tuple(self._xids)


_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
    "{}.active",
    "ecc.errors.uncorrected.volatile.total",
    "memory.used",
)


#: What nvidia-smi said is good for so many seconds: to start it takes up to half of one.
_SMI_SECONDS = 5.0


class SmiReader:
    """The same by nvidia-smi, where the library cannot be loaded by its name: one reading in seconds, and no Xids."""

    def __init__(self, device_id: str, smi: Callable[..., str]):
        self._id, self._smi = device_id, smi
        self._name = "clocks_event_reasons"
        self._kept: dict[str, tuple[float, Any]] = {}

    def _lately(self, what: str, read: Callable[[], Any]) -> Any:
        at, value = self._kept.get(what, (-math.inf, None))
        if time.monotonic() - at > _SMI_SECONDS:
            value = read()
            self._kept[what] = (time.monotonic(), value)
        return value

    def _read(self) -> list[str]:
        for name in dict.fromkeys((self._name, "clocks_throttle_reasons")):  # the newer, then the older driver's word
            query = ",".join(_FIELDS).format(name)
            with contextlib.suppress(OSError):
                text = self._smi(f"--id={self._id}", f"--query-gpu={query}", "--format=csv,noheader,nounits")
                parts = [p.strip() for p in text.strip().split(",")]
                if len(parts) == len(_FIELDS):
                    self._name = name
                    return parts
        return [""] * len(_FIELDS)

    def sample(self) -> Sample:
        sm, mem, temperature, power, active, _, _ = self._lately("state", self._read)
        bits: int | None = None
        with contextlib.suppress(ValueError):
            bits = int(active, 16)
        told = None if bits is None else reasons(bits)
        return Sample(0.0, _float(sm), _float(mem), _float(temperature), _float(power), told)

    def counters(self) -> Counters:
        ecc = _float(self._lately("state", self._read)[5])
        pids = self._lately("pids", self._pids)
        return Counters(None if ecc is None else int(ecc), None, tuple(Process(p, host.process_name(p)) for p in pids))

    def _pids(self) -> list[int]:
        text = self._smi(f"--id={self._id}", "--query-compute-apps=pid", "--format=csv,noheader")
        return [int(line) for line in text.splitlines() if line.strip().isdigit()]

    def memory_used_mib(self) -> float | None:
        return _float(self._read()[6])

    def close(self) -> None:
        return


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
