"""AMD's management library by its Python package `amdsmi`: what devices there are, what they are, how they do.

Function names, fields and units are those of the "AMD SMI Python API reference" (rocm.docs.amd.com/projects/amdsmi, as
of ROCm 6.4 to 7.14, read 2026-11-21); what partitions and guests can tell, and what throttling is, are its pages "GPU
partitioning" and "GPU violations".  A field that this release lacks, or refuses, is None.

The library is opened once per process and never shut down: its handles are the process's, and others (Ray) may use it
too.  A driver that hangs hangs whoever calls it (ROCm/rocm-systems#6462: in `amdsmi_init`), so everything that is asked
before a device's telemetry thread runs is asked in a thread that may be left behind.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from farm.backends import _amd
from farm.backends._amd import Found
from farm.backends.api import Counters, Identity, Process, Sample
from farm.errors import FarmSignal
from farm.process import host

T = TypeVar("T")
#: Seconds that a question may take.  With eight GPUs `amdsmi_init` is a matter of one.
DEADLINE_S = 20.0
_NOT_INITIALISED = 32  # AMDSMI_STATUS_NOT_INIT
#: The library answers what throttles by comparing two readings of the driver, 100 ms apart (its documented rate); an
#: answer older than this says nothing of now.
VIOLATION_AGE_S = 0.5
#: Field of `amdsmi_get_violation_status` after "active_" or "per_" -> reason of farm.guard.telemetry.
VIOLATIONS = {
    "prochot_thrm": "hw_thermal",
    "ppt_pwr": "sw_power_cap",
    "socket_thrm": "sw_thermal",
    "vr_thrm": "hw_thermal",
    "hbm_thrm": "hw_thermal",
}
#: Bits of `indep_throttle_status` (MI100, MI200): power, current, temperature.  At full load a part is at its power or
#: current limit as a rule; like a power limit, that counts only where it costs clock.
_THROTTLERS = ((0, 8, "sw_power_cap"), (16, 24, "sw_power_cap"), (32, 48, "hw_thermal"))
_opening = threading.Lock()
_trouble = ""


class Hung(FarmSignal):
    """The driver did not answer in time; this process asks it no more."""


_hung = False


def within(seconds: float, ask: Callable[[], T]) -> T:
    """`ask()`, in a thread that is left behind if it takes longer.  Hung then, and at once from then on."""
    global _hung
    if _hung:
        raise Hung("the driver did not answer an earlier query")
    box: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            box.append((True, ask()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=work, name="amdsmi", daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        _hung = True
        raise Hung(f"the driver did not answer within {seconds:g} s")
    well, answer = box[0]
    if not well:
        raise answer
    return answer


def load(seconds: float | None = None) -> Any:
    """The package, initialised; None where it is absent or does not start, and `trouble` says why."""
    global _trouble
    with _opening:
        try:
            library = importlib.import_module("amdsmi")
        except ModuleNotFoundError as error:
            _trouble = f"the Python package amdsmi is not installed ({error})"
            return None
        except BaseException as error:  # it loads a C library as it is imported, and fails in many ways
            if isinstance(error, KeyboardInterrupt):
                raise
            _trouble = f"the Python package amdsmi cannot be imported ({type(error).__name__}: {error})"
            return None
        try:
            within(DEADLINE_S if seconds is None else seconds, lambda: _start(library))
        except Hung as error:
            _trouble = f"amdsmi: {error}"
            return None
        except Exception as error:
            _trouble = f"amdsmi cannot be initialized ({type(error).__name__}: {error})"
            return None
        _trouble = ""
        return library


def trouble() -> str:
    """Why `load` gave None last, "" if it did not."""
    return _trouble


def _start(library: Any) -> None:
    """Initialise it, unless it answers already."""
    try:
        library.amdsmi_get_processor_handles()
    except Exception:
        library.amdsmi_init()


def told(library: Any, name: str, *arguments: Any) -> Any:
    """A function's answer; None where this release lacks it, or refuses."""
    try:
        return getattr(library, name)(*arguments)
    except Exception:
        return None


def _fields(library: Any, name: str, *arguments: Any) -> Mapping[str, Any]:
    found = told(library, name, *arguments)
    return found if isinstance(found, Mapping) else {}


def listing(library: Any) -> list[Found]:
    """The host's GPUs and partitions, in the order of ROCm's runtimes."""
    found: list[Found] = []
    hip: list[Any] = []
    for index, handle in enumerate(library.amdsmi_get_processor_handles()):
        asic = _fields(library, "amdsmi_get_gpu_asic_info", handle)
        enumerated = _fields(library, "amdsmi_get_gpu_enumeration_info", handle)
        place, function = _amd.located(told(library, "amdsmi_get_gpu_device_bdf", handle) or "")
        partition = _amd.integer(_fields(library, "amdsmi_get_gpu_kfd_info", handle).get("current_partition_id"))
        device = _amd.integer(asic.get("device_id"))
        uuids = (enumerated.get("hip_uuid"), told(library, "amdsmi_get_gpu_device_uuid", handle))
        function = function if partition is None else partition
        known = tuple(dict.fromkeys(u for u in map(_amd.text, uuids) if u))
        name = _amd.part(asic.get("market_name", ""), device)
        found.append(Found(str(index), name, place, function, known, device, str(index), handle))
        hip.append(enumerated.get("hip_id"))
    return _amd.numbered(found, hip)


def primary(device: Found, devices: list[Found]) -> Found:
    """The partition of its GPU that can tell of the whole: power, temperature and clocks are read there alone."""
    beside = [d for d in devices if d.place and d.place == device.place]
    return min(beside, key=lambda d: d.partition, default=device)


def identity(library: Any, device: Found, devices: list[Found]) -> Identity:
    """What the device is; what it cannot tell itself is asked of its GPU's first partition."""
    whole = primary(device, devices)
    both = list(dict.fromkeys((device.handle, whole.handle)))

    def first(read: Callable[[Any], Any]) -> Any:
        return next((v for v in map(read, both) if v), None)

    level = first(lambda h: _amd.text(_plain(told(library, "amdsmi_get_gpu_perf_level", h))))
    return Identity(
        device.name,
        device.uuids[0] if device.uuids else "",
        _amd.partition(
            _amd.text(told(library, "amdsmi_get_gpu_compute_partition", device.handle)),
            _amd.text(told(library, "amdsmi_get_gpu_memory_partition", device.handle)),
        ),
        first(lambda h: _amd.watts(_fields(library, "amdsmi_get_power_cap_info", h).get("power_cap"))),
        _amd.clocks(level, first(lambda h: _clock(library, h, "max_clk"))),
        _amd.text(_fields(library, "amdsmi_get_gpu_driver_info", device.handle).get("driver_version")),
        rocm_version(library),
        f"amd-{device.place}" if device.place else "",
    )


def _plain(level: Any) -> Any:
    return getattr(level, "name", level)


def _clock(library: Any, handle: Any, field: str) -> float | None:
    kinds = getattr(library, "AmdSmiClkType", None)
    if kinds is None:
        return None
    return _amd.number(_fields(library, "amdsmi_get_clock_info", handle, kinds.GFX).get(field))


def rocm_version(library: Any) -> str:
    """ROCm's version as the library knows it: ("7.1.1" or a pair whose last is that); "" where it does not."""
    found = told(library, "amdsmi_get_rocm_version")
    if isinstance(found, (tuple, list)) and found:
        found = found[-1] if found[0] else ""
    return _amd.text(found) if isinstance(found, str) else ""


class Reader:
    """One device's clocks, power, temperature, errors and processes.

    A sample is one reading of the driver's metrics table, which is for the whole GPU and lies with its first partition.
    What throttles is asked beside, in a thread, while samples are taken: the library's answer takes 100 ms.
    """

    def __init__(self, library: Any, device: Found, devices: list[Found], clocks: str = ""):
        self._lib, self._device, self._whole = library, device, primary(device, devices)
        self._clocks_set = ("clocks_set",) if clocks else ()
        self._shared = "MI300A" in device.name  # host and device share its memory: most of it counts as GTT
        self._violations = _Violations(self._throttling)

    def sample(self) -> Sample:
        metrics = self._ask("amdsmi_get_gpu_metrics_info", self._whole) or {}
        reasons = self._violations.lately()
        if reasons is None:
            reasons = _throttlers(metrics.get("indep_throttle_status"), metrics.get("throttle_status"))
        return Sample(
            0.0,
            _mean(metrics.get("current_gfxclks")) or _amd.number(metrics.get("current_gfxclk")) or self._clock("GFX"),
            _amd.number(metrics.get("current_uclk")) or self._clock("MEM"),
            _amd.celsius(metrics.get("temperature_hotspot")),
            _amd.number(metrics.get("current_socket_power")) or _amd.number(metrics.get("average_socket_power")),
            None if reasons is None else tuple(dict.fromkeys((*reasons, *self._clocks_set))),
        )

    def counters(self) -> Counters:
        ecc = self._ask("amdsmi_get_gpu_total_ecc_count", self._whole) or {}
        count = _amd.number(ecc.get("uncorrectable_count"))
        listed = self._ask("amdsmi_get_gpu_process_list", self._device)
        pids = None if not isinstance(listed, list) else [_amd.integer(_process(p).get("pid")) for p in listed]
        seen = None if pids is None else tuple(Process(p, host.process_name(p)) for p in pids if p)
        return Counters(None if count is None else int(count), None, seen)

    def memory_used_mib(self) -> float | None:
        used = _amd.number((self._ask("amdsmi_get_gpu_vram_usage", self._device) or {}).get("vram_used"))
        kinds = getattr(self._lib, "AmdSmiMemoryType", None)
        if self._shared and kinds is not None and used is not None:
            gtt = _amd.number(self._ask("amdsmi_get_gpu_memory_usage", self._device, kinds.GTT))
            used += (gtt or 0.0) / 2**20
        return used

    def close(self) -> None:
        self._violations.close()

    def _clock(self, kind: str) -> float | None:
        kinds = getattr(self._lib, "AmdSmiClkType", None)
        if kinds is None:
            return None
        return _amd.number((self._ask("amdsmi_get_clock_info", self._whole, getattr(kinds, kind)) or {}).get("clk"))

    def _throttling(self) -> tuple[str, ...] | None:
        return throttling(self._ask("amdsmi_get_violation_status", self._whole))

    def _ask(self, name: str, device: Found, *arguments: Any) -> Any:
        """`told`, once more where somebody in this process has shut the library down: handles are new then."""
        try:
            return getattr(self._lib, name)(device.handle, *arguments)
        except Exception as error:
            if getattr(error, "err_code", None) != _NOT_INITIALISED and "NOT_INIT" not in str(error):
                return None
        with contextlib.suppress(Exception):
            _start(self._lib)
            devices = listing(self._lib)
            again = {d.physical: d for d in devices if d.physical}
            self._device = again.get(self._device.physical, self._device)
            self._whole = primary(self._device, devices)
            return getattr(self._lib, name)(again.get(device.physical, device).handle, *arguments)
        return None


class _Violations:
    """Asks in a thread of its own, whenever samples are taken; `lately` gives what is not older than its age."""

    def __init__(self, ask: Callable[[], tuple[str, ...] | None]):
        self._ask, self._wanted, self._ended = ask, threading.Event(), False
        self._found: tuple[float, tuple[str, ...] | None] = (-1e9, None)
        self._thread: threading.Thread | None = None

    def lately(self) -> tuple[str, ...] | None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="amdsmi-violations", daemon=True)
            self._thread.start()
        self._wanted.set()
        at, reasons = self._found
        return reasons if time.monotonic() - at <= VIOLATION_AGE_S else None

    def close(self) -> None:
        self._ended = True
        self._wanted.set()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ended:
                return
            begun = time.monotonic()
            with contextlib.suppress(Exception):
                reasons = self._ask()
                self._found = (time.monotonic(), reasons)
            time.sleep(max(0.0, 0.1 - (time.monotonic() - begun)))  # newer answers than ten a second are none


def throttling(status: Any) -> tuple[str, ...] | None:
    """Reasons by `amdsmi_get_violation_status`; None where the part does not tell (before MI300) or nothing is read."""
    if not isinstance(status, Mapping):
        return None
    reasons: list[str] = []
    known = False
    for field, reason in VIOLATIONS.items():
        for prefix in ("active_", "per_"):
            value = status.get(prefix + field)
            found = _active(value)
            known = known or found is not None
            if found:
                reasons.append(reason)
    return tuple(dict.fromkeys(reasons)) if known else None


def _active(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().upper() in ("ACTIVE", "NOT ACTIVE"):
        return value.strip().upper() == "ACTIVE"
    if value == 0xFF:  # all ones in the 8 bits of a flag; no percentage is that high
        return None
    found = _amd.number(value)
    return None if found is None else found > 0


def _throttlers(bits: Any, any_bits: Any) -> tuple[str, ...] | None:
    """Reasons by the metrics table of parts before MI300; None where it has none."""
    found = _amd.number(bits)
    if found is not None:
        mask = int(found)
        return tuple(dict.fromkeys(r for low, high, r in _THROTTLERS if mask >> low & ((1 << (high - low)) - 1)))
    some = _amd.number(any_bits)
    return None if some is None else (("hw_slowdown",) if some else ())


def _mean(clocks: Any) -> float | None:
    """The mean of the dies' clocks, those that tell one."""
    if not isinstance(clocks, (list, tuple)):
        return None
    values = [v for v in map(_amd.number, clocks) if v]
    return sum(values) / len(values) if values else None


def _process(entry: Any) -> Mapping[str, Any]:
    return entry if isinstance(entry, Mapping) else {}
