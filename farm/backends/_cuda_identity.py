"""What an NVIDIA device is, by NVML, else by nvidia-smi's text: part, MIG profile, power limit, clocks, versions, and
whose neighbour it is.

NVML's calls are those of its API reference, `nvidia-smi`'s columns those of `nvidia-smi --help-query-gpu`, the listing
of MIG devices that of the MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farm.backends import _nvml
from farm.backends.api import HostDevice, Identity

_SUCCESS = 0
_CLOCK_SM = 1
_CLOCKS_SET = 0x2  # the event reason "applications clocks setting": what an operator has set holds the clock
_CPU_WORDS = 64
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
#: Grace and GPUs in one module: GH200, GB200, GB300.
_SUPERCHIP = re.compile(r"\bG[HB]\d{2,}\b")
_MIG_NAME = re.compile(r"\bMIG\s+(\S+)")


@dataclass(frozen=True)
class Gpu:
    """One GPU of the host.  `instances`: its MIG devices; None where it is not in MIG mode."""

    index: str
    uuid: str
    name: str
    instances: tuple[HostDevice, ...] | None = None

    @property
    def devices(self) -> tuple[HostDevice, ...]:
        """What a process can open of it: itself, or its MIG devices, of which there may be none."""
        return (HostDevice(self.index, self.name, self.uuid),) if self.instances is None else self.instances


def parse_smi(text: str) -> list[Gpu]:
    """`nvidia-smi --query-gpu=index,uuid,name[,mig.mode.current] --format=csv,noheader`.  A name may hold commas."""
    found = []
    for line in text.splitlines():
        index, *rest = [p.strip() for p in line.split(",", 2)]
        if len(rest) != 2 or not index.isdigit():
            continue
        name, _, mode = rest[1].rpartition(",")
        if mode.strip() not in ("Enabled", "Disabled", "[N/A]", "[Not Supported]", "N/A"):
            name, mode = rest[1], ""
        found.append(Gpu(index, rest[0], name.strip(), () if mode.strip() == "Enabled" else None))
    return found


_LISTED_GPU = re.compile(r"GPU (\d+): .*\(UUID: (\S+)\)")
_LISTED_MIG = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:\s+\(UUID:\s*(\S+)\)")


def with_instances(gpus: list[Gpu], listing: str) -> list[Gpu]:
    """The GPUs with the MIG devices that `nvidia-smi -L` lists under each."""
    instances: dict[str, list[HostDevice]] = {}
    names = {g.uuid: g.name for g in gpus}
    of = ""
    for line in listing.splitlines():
        if gpu := _LISTED_GPU.match(line):
            of = gpu[2]
        elif mig := _LISTED_MIG.match(line):
            device = HostDevice(mig[2], f"{names.get(of, '')} MIG {mig[1]}".strip(), mig[2])
            instances.setdefault(of, []).append(device)
    return [g if g.instances is None else Gpu(g.index, g.uuid, g.name, tuple(instances.get(g.uuid, ()))) for g in gpus]


def by_nvml(library: Any, device: ctypes.c_void_p) -> Identity:
    """What NVML says of one device; what it does not say is empty."""
    whole = _nvml.parent(library, device)
    gpu = whole or device
    model = _model(_text(library, gpu, "nvmlDeviceGetName"))
    milliwatts = _nvml.number(library, gpu, "nvmlDeviceGetPowerManagementLimit", ctypes.c_uint)
    return Identity(
        model=model,
        uuid=_nvml.uuid(library, device) or "",
        partition=partition(_text(library, device, "nvmlDeviceGetName")) if whole else "",
        power_limit_w=None if milliwatts is None else round(milliwatts / 1e3),
        clocks=_clocks(library, gpu),
        driver=_system_text(library, "nvmlSystemGetDriverVersion"),
        stack=_served(library),
        module=_module(library, gpu, model, divided=whole is not None),
    )


def by_smi(device_id: str, smi: Callable[..., str]) -> Identity | None:
    """The same from nvidia-smi, as far as its columns go; None where it says nothing.  For whole devices only: of a MIG
    device it prints none of them."""
    if device_id.startswith("MIG-"):
        return None
    columns = "name,uuid,power.limit,driver_version"
    text = smi(f"--id={device_id}", f"--query-gpu={columns}", "--format=csv,noheader,nounits")
    parts = [p.strip() for p in text.strip().rsplit(",", 3)]
    if len(parts) != 4:
        return None
    name, uuid, power, driver = parts
    served = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", smi("--version"))
    watts = round(float(power)) if re.fullmatch(r"\d+(\.\d+)?", power) else None
    return Identity(_model(name), uuid, "", watts, "", driver, served[1] if served else "")


def partition(name: str) -> str:
    """`mig-1g.18gb` of "NVIDIA H200 MIG 1g.18gb"; "" of a whole device's name."""
    found = _MIG_NAME.search(name)
    return f"mig-{found[1].lower()}" if found else ""


def _model(name: str) -> str:
    return name.split(" MIG ")[0].strip()


def _clocks(library: Any, gpu: ctypes.c_void_p) -> str:
    """`applications-1500mhz` where applications clocks differ from the default; `locked-1500mhz` where the driver says
    that a setting holds the clock.  NVML has no call for a lock that does not hold the clock at the moment."""
    kind = ctypes.c_uint(_CLOCK_SM)
    asked = _nvml.number(library, gpu, "nvmlDeviceGetApplicationsClock", ctypes.c_uint, kind)
    usual = _nvml.number(library, gpu, "nvmlDeviceGetDefaultApplicationsClock", ctypes.c_uint, kind)
    if asked and usual and asked != usual:
        return f"applications-{asked}mhz"
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    name = next((n for n in names if hasattr(library, n)), names[0])
    bits = _nvml.number(library, gpu, name, ctypes.c_uint64)
    now = _nvml.number(library, gpu, "nvmlDeviceGetClockInfo", ctypes.c_uint, kind)
    return f"locked-{now}mhz" if bits and bits & _CLOCKS_SET and now else ""


def _served(library: Any) -> str:
    """The newest CUDA that the driver serves: 13000 is 13.0."""
    value = ctypes.c_int()
    function = getattr(library, "nvmlSystemGetCudaDriverVersion_v2", None)
    if function is None or function(ctypes.byref(value)) != _SUCCESS or value.value <= 0:
        return ""
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _module(library: Any, gpu: ctypes.c_void_p, model: str, *, divided: bool) -> str:
    """What neighbours have in common.

    GPUs of one superchip hang on one Grace, so the same processors are near to them.  NVML's module numbers name the
    GPU, not what it shares.  A board of several GPUs has one board number.  MIG devices share their GPU.
    """
    if _SUPERCHIP.search(model):
        return f"superchip-of-cpus-{_near_cpus(library, gpu) or 'unknown'}"
    if _nvml.number(library, gpu, "nvmlDeviceGetMultiGpuBoard", ctypes.c_uint):
        board = _nvml.number(library, gpu, "nvmlDeviceGetBoardId", ctypes.c_uint)
        if board is not None:
            return f"board-{board:#x}"
    return (_nvml.uuid(library, gpu) or "") if divided else ""


def _near_cpus(library: Any, gpu: ctypes.c_void_p) -> str:
    """First and last of the processors that are near to the GPU; "" where NVML does not say."""
    words = (ctypes.c_ulong * _CPU_WORDS)()
    if _nvml.call(library, gpu, "nvmlDeviceGetCpuAffinity", ctypes.c_uint(_CPU_WORDS), words) != _SUCCESS:
        return ""
    near = [w * _WORD_BITS + b for w in range(_CPU_WORDS) for b in range(_WORD_BITS) if words[w] >> b & 1]
    return f"{near[0]}-{near[-1]}" if near else ""


def _text(library: Any, device: ctypes.c_void_p, name: str) -> str:
    text = ctypes.create_string_buffer(96)
    ok = _nvml.call(library, device, name, text, ctypes.c_uint(96)) == _SUCCESS
    return text.value.decode("ascii", "replace") if ok else ""


def _system_text(library: Any, name: str) -> str:
    text = ctypes.create_string_buffer(81)
    function = getattr(library, name, None)
    ok = function is not None and function(text, ctypes.c_uint(81)) == _SUCCESS
    return text.value.decode("ascii", "replace") if ok else ""


def complaints(library: Any) -> list[str]:
    """What is wrong with this host's GPUs as NVML sees them, a sentence each."""
    count = ctypes.c_uint()
    if (status := library.nvmlDeviceGetCount_v2(ctypes.byref(count))) != _SUCCESS:
        return [f"NVML cannot count the GPUs: nvmlDeviceGetCount_v2 returned {status}{_nvml.said(status)}"]
    out = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        status = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
        if status == _SUCCESS:
            text = ctypes.create_string_buffer(96)
            status = _nvml.call(library, device, "nvmlDeviceGetUUID", text, ctypes.c_uint(96))
        if status != _SUCCESS:
            out.append(f"GPU {index} cannot be read: NVML returned {status}{_nvml.said(status)}")
        elif _divided(library, device) and not _instances(library, device):
            name = _text(library, device, "nvmlDeviceGetName")
            out.append(
                f"GPU {index} ({name}) is in MIG mode but has no instances, so nothing can run on it: create instances "
                f"(nvidia-smi mig -i {index} -cgi PROFILE -C), or disable MIG (nvidia-smi -i {index} -mig 0)"
            )
    return out


def _divided(library: Any, device: ctypes.c_void_p) -> bool:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    got = _nvml.call(library, device, "nvmlDeviceGetMigMode", ctypes.byref(current), ctypes.byref(pending))
    return got == _SUCCESS and current.value == 1


def _instances(library: Any, device: ctypes.c_void_p) -> int:
    most = _nvml.number(library, device, "nvmlDeviceGetMaxMigDeviceCount", ctypes.c_uint) or 0
    one = ctypes.c_void_p()
    name = "nvmlDeviceGetMigDeviceHandleByIndex"
    found = (_nvml.call(library, device, name, ctypes.c_uint(i), ctypes.byref(one)) for i in range(most))
    return sum(status == _SUCCESS for status in found)
