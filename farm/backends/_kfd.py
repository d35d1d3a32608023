"""AMD GPUs by what the kernel's driver shows under /sys, where neither `amdsmi` nor `amd-smi` is there.

Files are those of "AMDGPU driver" (docs.kernel.org/gpu/amdgpu: thermal, partitions) and of the driver's topology
under /sys/class/kfd, whose `properties` are lines of a name and a number; read 2026-11-21.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from farm.backends import _amd
from farm.backends._amd import Found
from farm.backends.api import Identity


def listing(sys: Path, dev: Path) -> list[Found]:
    """The GPUs of the driver's topology, in its order, which is that of ROCm's runtimes; [] where this host or this
    container has no /dev/kfd.

    Inside a container nodes of other containers' GPUs are listed without properties, and are left out."""
    if not (dev / "kfd").exists():
        return []
    found: list[Found] = []
    for properties in _nodes(sys):
        device, render = properties.get("device_id"), properties.get("drm_render_minor", 0)
        location = properties.get("location_id", 0)
        place = f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
        partition = location >> 28 & 0xF or location & 0x7
        unique = properties.get("unique_id", 0)
        uuids = (f"GPU-{unique:016x}",) if unique else ()
        found.append(Found(str(len(found)), _amd.part("", device), place, partition, uuids, device, str(render)))
    return found


def _nodes(sys: Path) -> list[dict[str, int]]:
    """Properties of every GPU's node, in the nodes' order: those with vector units."""
    folder = sys / "class" / "kfd" / "kfd" / "topology" / "nodes"
    names = sorted(int(p.name) for p in _children(folder) if p.name.isdigit())
    read = [_properties(folder / str(n) / "properties") for n in names]
    return [p for p in read if p.get("simd_count") and p.get("vendor_id", _amd.VENDOR) == _amd.VENDOR]


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _properties(file: Path) -> dict[str, int]:
    out: dict[str, int] = {}
    for line in _text(file).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            out[name] = int(value)
    return out


def identity(device: Found, sys: Path) -> Identity:
    """What the device is; ROCm's version is not the driver's business."""
    card = sys / "class" / "drm" / f"renderD{device.tool}" / "device"
    caps = [_amd.watts(_text(p)) for p in sorted(card.glob("hwmon/hwmon*/power1_cap"))]
    return Identity(
        device.name,
        device.uuids[0] if device.uuids else "",
        _amd.partition(_text(card / "current_compute_partition"), _text(card / "current_memory_partition")),
        next((c for c in caps if c), None),
        _amd.clocks(_text(card / "power_dpm_force_performance_level"), None),
        _text(sys / "module" / "amdgpu" / "version"),
        module=f"amd-{device.place}" if device.place else "",
    )


def rocm_version(environment: Mapping[str, str] = os.environ, default: Path = Path("/opt/rocm")) -> str:
    """The version of the ROCm that is installed here, by its own file; "" where there is none."""
    return _text(Path(environment.get("ROCM_PATH") or default) / ".info" / "version").partition("-")[0]


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""
