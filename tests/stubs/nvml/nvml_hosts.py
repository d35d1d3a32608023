"""NVML as a Python object: the calls of the API reference (docs.nvidia.com/deploy/nvml-api, R580 and R590) that the
farm makes, by name, out-parameters filled as documented, so that it stands where ctypes.CDLL would.

Hosts that it plays: two H200; four GB200 on two modules, each two near to the 72 processors of one Grace; an H200 in
MIG mode with two 1g.18gb and one 3g.71gb device, as the MIG user guide names and lists them.  Breakages: a driver and a
library of two versions (nvmlInit_v2 gives 18), a driver that never answers, a lost GPU (15), MIG mode without
instances, a driver without some call.  Status numbers are nvmlReturn_t's.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

_OK, _INVALID, _UNSUPPORTED, _NOT_FOUND, _LOST, _MISMATCH = 0, 2, 3, 6, 15, 18


@dataclass
class Device:
    """One handle: a GPU, or a MIG device of `parent`."""

    name: str
    uuid: str
    power_mw: int = 700_000
    sm_mhz: int = 1980
    applications_mhz: int | None = 1980
    default_mhz: int | None = 1980
    reasons: int = 1  # idle
    near_cpus: tuple[int, int] = (0, 95)
    multi_gpu_board: int = 0
    board_id: int = 0x900
    mig: int = 0
    lost: bool = False
    parent: Device | None = None
    instance: int = 0
    children: list[Device] = field(default_factory=list)


def mig_device(gpu: Device, profile: str, instance: int) -> None:
    uuid = f"MIG-{gpu.uuid[4:12]}-0000-5000-8000-{instance:012d}"
    gpu.children.append(Device(f"{gpu.name} MIG {profile}", uuid, parent=gpu, instance=instance))


def h200(count: int = 2) -> list[Device]:
    return [Device("NVIDIA H200", f"GPU-2{i}c0ffee-1111-2222-3333-444455556666") for i in range(count)]


def gb200() -> list[Device]:
    """Two modules of two GPUs in the order of the bus."""
    return [
        Device(
            "NVIDIA GB200",
            f"GPU-b{i}ac0ffe-1111-2222-3333-444455556666",
            1_200_000,
            2062,
            None,
            None,
            near_cpus=(72 * (i // 2), 72 * (i // 2) + 71),
            board_id=0x800 + i,
        )
        for i in range(4)
    ]


def h200_mig(*, instances: bool = True) -> list[Device]:
    """A whole H200 and one in MIG mode."""
    gpus = h200()
    gpus[1].mig = 1
    for i, profile in enumerate(("1g.18gb", "1g.18gb", "3g.71gb") if instances else ()):
        mig_device(gpus[1], profile, 9 + i)
    return gpus


class Nvml:
    """The library.  `lacks`: calls that this driver does not have; `init`: what nvmlInit_v2 gives; `hangs`: the call
    that never comes back."""

    def __init__(
        self,
        gpus: list[Device],
        *,
        init: int = _OK,
        hangs: str = "",
        lacks: tuple[str, ...] = (),
        driver: str = "580.95.05",
        cuda: int = 13000,
    ):
        self.gpus, self.init, self.hangs, self.lacks = gpus, init, hangs, lacks
        self.driver, self.cuda = driver, cuda
        self.devices = [d for gpu in gpus for d in (gpu, *gpu.children)]
        self.events: list[tuple[int, int]] = []  # (Xid, GPU instance), oldest first
        self.shut = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in object.__getattribute__(self, "lacks"):
                raise AttributeError(f"undefined symbol: {name}")
            if name == object.__getattribute__(self, "hangs"):
                return lambda *_: threading.Event().wait()
        return object.__getattribute__(self, name)

    def _of(self, handle: Any) -> Device:
        return self.devices[(handle.value or 0) - 1]

    def _give(self, handle: Any, device: Device) -> int:
        handle._obj.value = self.devices.index(device) + 1
        return _LOST if device.lost else _OK

    def nvmlInit_v2(self) -> int:  # noqa: N802 - all as NVML names them
        return self.init

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.shut += 1
        return _OK

    def nvmlSystemGetDriverVersion(self, text: Any, length: Any) -> int:  # noqa: N802
        text.value = self.driver.encode()
        return _OK

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.cuda
        return _OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return _OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return self._give(handle, self.gpus[index.value]) if index.value < len(self.gpus) else _INVALID

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        found = [d for d in self.devices if d.uuid == uuid.decode()]
        return self._give(handle, found[0]) if found else _NOT_FOUND

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, length: Any) -> int:  # noqa: N802
        text.value = self._of(handle).uuid.encode()
        return _LOST if self._of(handle).lost else _OK

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:  # noqa: N802
        text.value = self._of(handle).name.encode()
        return _LOST if self._of(handle).lost else _OK

    def _whole(self, handle: Any, value: Any, answer: int | None) -> int:
        """What only a GPU's handle can be asked."""
        if self._of(handle).parent is not None or answer is None:
            return _UNSUPPORTED
        value._obj.value = answer
        return _OK

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).power_mw)

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, 123_456)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).sm_mhz if kind.value == 1 else 3201)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, 41)

    def nvmlDeviceGetApplicationsClock(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).applications_mhz)

    def nvmlDeviceGetDefaultApplicationsClock(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).default_mhz)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).reasons)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, 2)

    def nvmlDeviceGetMultiGpuBoard(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).multi_gpu_board)

    def nvmlDeviceGetBoardId(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, self._of(handle).board_id)

    def nvmlDeviceGetCpuAffinity(self, handle: Any, words: Any, mask: Any) -> int:  # noqa: N802
        width = 8 * ctypes.sizeof(ctypes.c_ulong)
        first, last = self._of(handle).near_cpus
        for cpu in range(first, last + 1):
            mask[cpu // width] |= 1 << cpu % width
        return _OK

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.used = (1 if self._of(handle).parent else 3) << 30
        return _OK

    # MIG

    def nvmlDeviceIsMigDeviceHandle(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = int(self._of(handle).parent is not None)
        return _OK

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, gpu: Any) -> int:  # noqa: N802
        parent = self._of(handle).parent
        return self._give(gpu, parent) if parent else _INVALID

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = self._of(handle).instance
        return _OK

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        current._obj.value = pending._obj.value = self._of(handle).mig
        return _OK

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, value: Any) -> int:  # noqa: N802
        return self._whole(handle, value, 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, found: Any) -> int:  # noqa: N802
        children = self._of(handle).children
        return self._give(found, children[index.value]) if index.value < len(children) else _NOT_FOUND

    # events

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        events._obj.value = 1
        return _OK

    def nvmlEventSetFree(self, events: Any) -> int:  # noqa: N802
        return _OK

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        return _UNSUPPORTED if self._of(handle).parent else _OK

    def nvmlEventSetWait_v2(self, events: Any, event: Any, milliseconds: Any) -> int:  # noqa: N802
        if not self.events:
            return 10
        event._obj.data, event._obj.gpu_instance = self.events.pop(0)
        return _OK


def smi_text(gpus: list[Device], *query: str) -> str:
    """What nvidia-smi prints of the same host for the farm's questions (`-L`, CSV queries, `--version`)."""
    words = " ".join(query)
    if "-L" in query:
        lines = []
        for i, gpu in enumerate(gpus):
            lines.append(f"GPU {i}: {gpu.name} (UUID: {gpu.uuid})\n")
            for j, c in enumerate(gpu.children):
                lines.append(f"  MIG {c.name.split()[-1]:<11} Device {j:>2}: (UUID: {c.uuid})\n")
        return "".join(lines)
    if "--version" in query:
        return "NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\nCUDA Version        : 13.0\n"
    ids = [q[5:] for q in query if q.startswith("--id=")]
    chosen = [g for i, g in enumerate(gpus) if not ids or ids[0] in (str(i), g.uuid)]
    if "mig.mode.current" in words:
        return "".join(f"{gpus.index(g)}, {g.uuid}, {g.name}, {'Enabled' if g.mig else 'Disabled'}\n" for g in chosen)
    if "name,uuid,power.limit" in words:
        return "".join(f"{g.name}, {g.uuid}, {g.power_mw / 1e3:.2f}, 580.95.05\n" for g in chosen)
    if "index,uuid,name" in words:
        return "".join(f"{gpus.index(g)}, {g.uuid}, {g.name}\n" for g in chosen)
    return ""
