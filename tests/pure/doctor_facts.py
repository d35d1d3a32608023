"""Hosts as `farm doctor` would see them, each sound; a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farm.doctor import (
    BackendFacts,
    EnvironmentFacts,
    Facts,
    NodeFacts,
    ProbeResult,
    SpaceFacts,
    SystemFacts,
    TokenFacts,
)
from farm.doctor.facts import DeviceFacts, DeviceFile

GIB = 1 << 30
VERSIONS = {"numpy": "2.0", "torch": "2.11.0", "triton": "3.6.0"}


def python(version: str = "3.11.7", **distributions: str) -> ProbeResult:
    return ProbeResult(
        "ok", version, {"header": True, "executable": "/v/python", "distributions": distributions or VERSIONS}
    )


COMMON = {
    "python": python(),
    "numpy": ProbeResult("ok", "2.0"),
    "torch": ProbeResult("ok", "2.11.0", {"built_for": "the CPU", "cuda": "", "hip": ""}),
    "triton": ProbeResult("ok", "3.6.0"),
    "accelerator": ProbeResult("ok", "none", {"kind": "", "count": 0}),
    "kernels": ProbeResult("ok", "/farm/kernels"),
    "provider torch": ProbeResult("ok", "torch 2.11.0"),
    "provider liger": ProbeResult("ok", "liger-kernel 0.8.5"),
}
OWN = EnvironmentFacts("default", command="/usr/bin/python3", trials=COMMON)
NONE = {
    n: BackendFacts(n, True, tool=t) for n, t in (("ascend", "npu-smi"), ("cuda", "nvidia-smi"), ("rocm", "amd-smi"))
}
CPU = BackendFacts("cpu", devices=(DeviceFacts("0", "cpu-x86_64"),) * 2)
SYSTEM = SystemFacts(
    open_files=65536,
    processes=65536,
    locked_memory=None,
    memory_limit=None,
    memory_available=100 * GIB,
    hostname="n1",
    addresses=("10.0.0.7",),
    clock_synchronised=True,
    governor="performance",
    numa_balancing="0",
)
SOUND = Facts(
    python=(3, 11, 7),
    executable="/usr/bin/python3",
    farm="0.1.0",
    packages={"numpy": "2.0", "pyarrow": "15.0"},
    trials={"ray": ProbeResult("ok", "2.60.0")},
    environments=(OWN,),
    peers={"torch": "", "liger": "liger-kernel"},
    backends=(NONE["ascend"], CPU, NONE["cuda"], NONE["rocm"]),
    our_kernels="/farm/kernels",
    foreign_kernels=None,
    memory=SpaceFacts("/dev/shm", 8 * GIB, 16 * GIB),
    store=SpaceFacts("farm-results", 80 * GIB, 100 * GIB),
    scratch=SpaceFacts("/tmp", 80 * GIB, 100 * GIB),
    cache=SpaceFacts("/home/x/.cache", 80 * GIB, 100 * GIB),
    cxx="/usr/bin/g++",
    cc="/usr/bin/gcc",
    variables={},
    ray_address_silent="",
    ray_written="",
    ray_file="/tmp/ray/ray_current_cluster",
    ray_silent=None,
    token=TokenFacts(),
    head=None,
    node=NodeFacts(),
    system=SYSTEM,
    now=1_800_000_000.0,
    newest_source=1_790_000_000.0,
)


def trials(facts: Facts, **how: ProbeResult) -> Facts:
    """Other trials in the environment of children; `_` in a name means a space where it follows `provider`."""
    first = facts.environments[0]
    named = {k.replace("provider_", "provider "): v for k, v in how.items()}
    return replace(facts, environments=(replace(first, trials={**first.trials, **named}), *facts.environments[1:]))


def supervisors(facts: Facts, **how: ProbeResult) -> Facts:
    """Other trials in the supervisor's Python."""
    return replace(facts, trials={**facts.trials, **how})


def other(facts: Facts, name: str, **change: Any) -> Facts:
    """One thing of a backend changed."""
    return replace(facts, backends=tuple(replace(b, **change) if b.name == name else b for b in facts.backends))


def system(facts: Facts = SOUND, **change: Any) -> Facts:
    return replace(facts, system=replace(facts.system, **change))


def node(facts: Facts, **change: Any) -> Facts:
    return replace(facts, node=replace(facts.node, file="/etc/farm/node.yaml", **change))


def _devices(count: int, name: str, **identity: Any) -> tuple[DeviceFacts, ...]:
    said = {"model": name, "uuid": "", "driver": "", "stack": "", "partition": "", "clocks": "", **identity}
    return tuple(DeviceFacts(str(i), name, f"U-{i}", said) for i in range(count))


def _with(vendor: str, **of: Any) -> Facts:
    return other(SOUND, vendor, **of)


CUDA = trials(
    _with(
        "cuda",
        tool_path="/usr/bin/nvidia-smi",
        driver="/proc/driver/nvidia/version",
        pci=2,
        files=(DeviceFile("/dev/nvidiactl"), DeviceFile("/dev/nvidia0"), DeviceFile("/dev/nvidia-uvm")),
        devices=_devices(2, "NVIDIA GB200", driver="580.65", stack="13.0"),
    ),
    torch=ProbeResult("ok", "2.11.0", {"built_for": "CUDA 13.0", "cuda": "13.0", "hip": ""}),
    accelerator=ProbeResult(
        "ok",
        "cuda",
        {
            "kind": "cuda",
            "count": 2,
            "warnings": [],
            "architecture": "sm_100",
            "architectures": ["sm_80", "sm_90", "sm_100", "sm_120"],
        },
    ),
    driver=ProbeResult("ok", "cuda:100"),
    ptxas=ProbeResult(
        "ok",
        "13.1",
        {"path": "/t/ptxas-blackwell", "useless": [], "architecture": "sm_100", "knows": ["sm_90", "sm_100", "sm_120"]},
    ),
)
ROCM = supervisors(
    trials(
        _with(
            "rocm",
            tool_path="/opt/rocm/bin/amd-smi",
            driver="/sys/module/amdgpu",
            pci=8,
            files=(DeviceFile("/dev/kfd"), DeviceFile("/dev/dri/renderD128")),
            stack_folder="/opt/rocm",
            stack="7.2.1",
            devices=_devices(8, "AMD Instinct MI300X", driver="6.14.14", stack="7.2.1"),
        ),
        torch=ProbeResult("ok", "2.11.0+rocm7.2", {"built_for": "ROCm 7.2.2", "cuda": "", "hip": "7.2.2"}),
        accelerator=ProbeResult(
            "ok",
            "rocm",
            {
                "kind": "rocm",
                "count": 8,
                "warnings": [],
                "architecture": "gfx942",
                "architectures": ["gfx90a", "gfx942", "gfx950"],
            },
        ),
        driver=ProbeResult("ok", "hip:gfx942"),
        amdsmi=ProbeResult("ok", "26.2", {"count": 8}),
    ),
    amdsmi=ProbeResult("ok", "26.2", {"count": 8}),
)
ASCEND = supervisors(
    trials(
        replace(
            _with(
                "ascend",
                tool_path="/usr/local/bin/npu-smi",
                driver="/usr/local/Ascend/driver/version.info",
                pci=8,
                files=(DeviceFile("/dev/davinci_manager"), DeviceFile("/dev/davinci0")),
                stack="8.5.0",
                stack_folder="/usr/local/Ascend/ascend-toolkit/latest",
                devices=_devices(8, "Ascend910B3", stack="8.5.0"),
            ),
            variables={"ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/ascend-toolkit/latest"},
        ),
        python=python("3.11.7", **{"torch": "2.9.0", "torch-npu": "2.9.0", "triton-ascend": "3.2.0", "numpy": "2.0"}),
        torch=ProbeResult("ok", "2.9.0", {"built_for": "the CPU", "cuda": "", "hip": ""}),
        torch_npu=ProbeResult("ok", "2.9.0"),
        acl=ProbeResult("ok", "8", {"count": 8, "code": 0}),
        accelerator=ProbeResult("ok", "ascend", {"kind": "ascend", "count": 8, "warnings": []}),
        driver=ProbeResult("ok", "npu:Ascend910B3"),
    ),
    acl=ProbeResult("ok", "8", {"count": 8, "code": 0}),
)
