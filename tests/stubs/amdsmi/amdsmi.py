"""Stands for AMD's Python package `amdsmi`: the documented functions that the farm, or Ray, calls.

Functions, fields, units and exceptions follow the "AMD SMI Python API reference" of ROCm 6.4 to 7.14
(rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html); what the secondary partitions of a GPU and a
guest cannot tell follows its pages "GPU partitioning" and "GPU violations".  Written for these tests; see amd_world.

FARM_STUB_AMD_BREAK: import (its C library is missing), init (the driver is not loaded), init_hangs, list_hangs, guest
(a virtual machine: what is "not supported on virtual machine guest" is not), queries (every query fails), old (before
ROCm 6.4: no violations, no partition ids, no HIP ids), container (HIP ids of a host of which a part is seen), reversed
(the library's order is not HIP's), no_hip_ids, unnamed, unknown_part, shared_uuid, slow (violations take 100 ms).
"""

from __future__ import annotations

import enum
import os
import time
from typing import Any

import amd_world

if "import" in amd_world.broken():
    raise OSError("libamd_smi.so: cannot open shared object file: No such file or directory")

#: Functions that were called, for tests.
calls: list[str] = []
_open = False


class AmdSmiException(Exception):
    """Base of the package's exceptions."""


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int, name: str):
        super().__init__(f"Error code: {err_code} | {name}")
        self.err_code, self.err_info = err_code, name

    def get_error_code(self) -> int:
        return self.err_code


class AmdSmiParameterException(AmdSmiException):
    pass


class AmdSmiInitFlags(enum.IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(enum.IntEnum):
    SYS = 0
    GFX = 1
    MEM = 4


class AmdSmiMemoryType(enum.IntEnum):
    VRAM = 0
    VIS_VRAM = 1
    GTT = 2


class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 2


class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0


class Handle:
    """An opaque handle; one of an earlier initialisation is void."""

    def __init__(self, gpu: amd_world.Gpu):
        self.gpu, self.of = gpu, _opened


_opened = 0


def _not_supported() -> AmdSmiLibraryException:
    return AmdSmiLibraryException(2, "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")


def _asked(name: str, handle: Handle, *, bare_metal: bool = False, whole: bool = False) -> amd_world.Gpu:
    """The device of a handle.  bare_metal: a guest is refused; whole: a GPU's first partition alone tells."""
    calls.append(name)
    if not isinstance(handle, Handle):
        raise AmdSmiParameterException(name)
    if not _open or handle.of != _opened:
        raise AmdSmiLibraryException(32, "AMDSMI_STATUS_NOT_INIT - Device not initialized")
    wrong = amd_world.broken()
    if "queries" in wrong or (bare_metal and "guest" in wrong) or (whole and handle.gpu.partition):
        raise _not_supported()
    return handle.gpu


def amdsmi_init(flag: Any = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    global _open, _opened
    calls.append("amdsmi_init")
    if "init_hangs" in amd_world.broken():
        time.sleep(float(os.environ.get("FARM_STUB_AMD_HANGS_S", "3600")))
    if "init" in amd_world.broken():
        raise AmdSmiLibraryException(34, "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")
    _open, _opened = True, _opened + 1


def amdsmi_shut_down() -> None:
    global _open
    _open = False


def amdsmi_get_processor_handles() -> list[Handle]:
    calls.append("amdsmi_get_processor_handles")
    if not _open:
        raise AmdSmiLibraryException(32, "AMDSMI_STATUS_NOT_INIT - Device not initialized")
    if "list_hangs" in amd_world.broken():
        time.sleep(float(os.environ.get("FARM_STUB_AMD_HANGS_S", "3600")))
    found = [Handle(gpu) for gpu in amd_world.gpus()]
    return found[::-1] if "reversed" in amd_world.broken() else found


def amdsmi_get_gpu_device_bdf(handle: Handle) -> str:
    return _asked("bdf", handle).bdf


def amdsmi_get_gpu_device_uuid(handle: Handle) -> str:
    return _asked("uuid", handle).uuid


def amdsmi_get_gpu_id(handle: Handle) -> int:
    return _asked("id", handle).device


def amdsmi_get_gpu_enumeration_info(handle: Handle) -> dict[str, Any]:
    gpu = _asked("enumeration", handle)
    wrong = amd_world.broken()
    if "old" in wrong:
        raise _not_supported()
    hip = gpu.index + 8 if "container" in wrong else "N/A" if "no_hip_ids" in wrong else gpu.index
    return {
        "drm_render": 128 + gpu.index,
        "drm_card": gpu.index,
        "hsa_id": gpu.index + 2,
        "hip_id": hip,
        "hip_uuid": gpu.hip_uuid,
        "oam_id": gpu.card,
    }


def amdsmi_get_gpu_asic_info(handle: Handle) -> dict[str, Any]:
    gpu = _asked("asic", handle)
    return {
        "market_name": gpu.name,
        "vendor_id": "0x1002",
        "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
        "device_id": hex(gpu.device),
        "rev_id": "0x00",
        "asic_serial": f"0x{gpu.card:016x}",
        "oam_id": gpu.card,
        "num_compute_units": gpu.units,
        "target_graphics_version": gpu.target,
    }


def amdsmi_get_gpu_kfd_info(handle: Handle) -> dict[str, Any]:
    gpu = _asked("kfd", handle)
    known = {} if "old" in amd_world.broken() else {"current_partition_id": gpu.partition}
    return {"kfd_id": 10000 + gpu.index, "node_id": gpu.index + 2, **known}


def amdsmi_get_gpu_driver_info(handle: Handle) -> dict[str, str]:
    _asked("driver", handle)
    return {"driver_name": "amdgpu", "driver_version": amd_world.says()["driver"], "driver_date": "2015/01/01 00:00"}


def amdsmi_get_gpu_compute_partition(handle: Handle) -> str:
    return _asked("compute partition", handle, bare_metal=True).compute


def amdsmi_get_gpu_memory_partition(handle: Handle) -> str:
    return _asked("memory partition", handle, bare_metal=True).memory


def amdsmi_get_power_cap_info(handle: Handle) -> dict[str, Any]:
    _asked("power cap", handle, bare_metal=True, whole=True)
    cap = amd_world.cap_w() * 1_000_000
    return {"power_cap": cap, "default_power_cap": cap, "dpm_cap": 0, "min_power_cap": 0, "max_power_cap": cap}


def amdsmi_get_gpu_perf_level(handle: Handle) -> str:
    _asked("perf level", handle, bare_metal=True, whole=True)
    return f"AMDSMI_DEV_PERF_LEVEL_{amd_world.says()['perf_level']}"


def amdsmi_get_clock_info(handle: Handle, kind: AmdSmiClkType) -> dict[str, Any]:
    _asked("clock", handle, bare_metal=True, whole=True)
    said = amd_world.says()
    clock = said["mem_mhz"] if kind == AmdSmiClkType.MEM else said["sm_mhz"]
    return {"clk": clock, "min_clk": 132, "max_clk": said["max_mhz"], "clk_locked": "N/A", "clk_deep_sleep": 0}


def amdsmi_get_gpu_metrics_info(handle: Handle) -> dict[str, Any]:
    gpu = _asked("metrics", handle, bare_metal=True, whole=True)
    said = amd_world.says()
    if gpu.target == "gfx90a":  # the table of MI100 and MI200
        bits = sum(1 << {"ppt_pwr": 0, "socket_thrm": 37}[v] for v in said["violation"])
        return {
            "current_gfxclk": said["sm_mhz"],
            "current_uclk": said["mem_mhz"],
            "temperature_hotspot": 61,
            "average_socket_power": said["power_w"],
            "current_socket_power": "N/A",
            "current_gfxclks": ["N/A"] * 8,
            "throttle_status": int(bool(bits)),
            "indep_throttle_status": bits,
        }
    dies = 8
    return {
        "current_gfxclk": said["sm_mhz"],
        "current_gfxclks": [said["sm_mhz"]] * (dies - 1) + [65535],
        "current_uclk": said["mem_mhz"],
        "temperature_hotspot": said["hotspot_c"],
        "current_socket_power": said["power_w"],
        "average_socket_power": "N/A",
        "throttle_status": "N/A",
        "indep_throttle_status": "N/A",
    }


def amdsmi_get_violation_status(handle: Handle) -> dict[str, Any]:
    gpu = _asked("violations", handle, bare_metal=True, whole=True)
    wrong = amd_world.broken()
    if "slow" in wrong:
        time.sleep(0.1)
    if "old" in wrong or gpu.target == "gfx90a":
        raise _not_supported()
    fields = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
    active = amd_world.says()["violation"]
    out: dict[str, Any] = {"acc_counter": 1}
    for field in fields:
        out[f"acc_{field}"] = 0
        out[f"per_{field}"] = 12 if field in active else "N/A" if field == "vr_thrm" else 0
        out[f"active_{field}"] = field in active
    return out


def amdsmi_get_gpu_total_ecc_count(handle: Handle) -> dict[str, int]:
    _asked("ecc", handle, bare_metal=True, whole=True)
    return {"correctable_count": 7, "uncorrectable_count": amd_world.says()["uncorrectable"], "deferred_count": 0}


def amdsmi_get_gpu_process_list(handle: Handle) -> list[dict[str, Any]]:
    _asked("processes", handle)
    memory = {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 1 << 30}
    return [
        {
            "name": "N/A",
            "pid": pid,
            "mem": 1 << 30,
            "engine_usage": {"gfx": 0, "enc": 0},
            "memory_usage": memory,
            "cu_occupancy": 0,
        }
        for pid in amd_world.says()["pids"]
    ]


def amdsmi_get_gpu_vram_usage(handle: Handle) -> dict[str, int]:
    gpu = _asked("vram", handle)
    return {"vram_total": gpu.vram_mib, "vram_used": amd_world.says()["used_mib"]}


def amdsmi_get_gpu_memory_usage(handle: Handle, kind: AmdSmiMemoryType) -> int:
    _asked("memory", handle)
    return 64 << 20 if kind == AmdSmiMemoryType.GTT else int(amd_world.says()["used_mib"]) << 20


def amdsmi_get_rocm_version() -> tuple[bool, str]:
    version = str(amd_world.says()["rocm"])
    return bool(version), version
