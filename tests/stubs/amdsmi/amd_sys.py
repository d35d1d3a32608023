"""Plants the files under /sys and /dev by which the kernel's driver shows the pretend host of amd_world.

Names and forms follow docs.kernel.org/gpu/amdgpu (hwmon, power_dpm_force_performance_level, current_compute_partition)
and the driver's topology (/sys/class/kfd); node 0 is the host's processor, and of a GPU in a container that is not ours
the properties are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import amd_world


def plant(root: Path, environment: Mapping[str, str], *, foreign: int = 0) -> tuple[Path, Path]:
    """(the folder for /sys, the one for /dev) with the world's devices, after `foreign` of other containers."""
    sys, dev = root / "sys", root / "dev"
    nodes = sys / "class/kfd/kfd/topology/nodes"
    _write(nodes / "0/properties", "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\ndevice_id 0\n")
    for n in range(foreign):
        _write(nodes / f"{n + 1}/properties", "")
    for gpu in amd_world.gpus(environment):
        minor = 128 + foreign + gpu.index
        location = gpu.bus << 8 | gpu.partition << 28
        _write(
            nodes / f"{1 + foreign + gpu.index}/properties",
            f"cpu_cores_count 0\nsimd_count {gpu.units * 4}\nvendor_id 4098\ndevice_id {gpu.device}\n"
            f"location_id {location}\ndomain 0\ndrm_render_minor {minor}\nunique_id {gpu.unique}\n"
            f"gfx_target_version {90402 if gpu.target == 'gfx942' else 90500 if gpu.target == 'gfx950' else 90010}\n",
        )
        card = sys / f"class/drm/renderD{minor}/device"
        _write(card / "current_compute_partition", gpu.compute + "\n")
        _write(card / "current_memory_partition", gpu.memory + "\n")
        if not gpu.partition:
            _write(card / "hwmon/hwmon7/power1_cap", f"{amd_world.cap_w(environment) * 1_000_000}\n")
            _write(card / "power_dpm_force_performance_level", amd_world.says(environment)["perf_level"].lower() + "\n")
    _write(sys / "module/amdgpu/version", amd_world.says(environment)["driver"] + "\n")
    _write(dev / "kfd", "")
    return sys, dev


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
