"""NVIDIA GPUs through torch and Triton."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from farm.backends import HostDevice

NAME = "cuda"
ACCELERATOR = True
EVIDENCE = "executed"
DEFAULT_TIMING = "rotating_graph"
RESOURCE = {"num_gpus": 1}
_QUERY = "index,uuid,name"
#: By part, first match: datasheet memory bandwidth in 1e9 B/s, and the densest dense matrix rate (fp8 where there is
#: one, never the sparse number) in 1e12 op/s.  Vendor datasheets, read 2026-11; above either a number is impossible.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("H200", 4800.0, 1979.0),
    ("H100 NVL", 3938.0, 1671.0),
    ("H100 PCIe", 2039.0, 1513.0),
    ("H100", 3350.0, 1979.0),
    ("GH200", 4900.0, 1979.0),
    ("H20", 4000.0, 296.0),
    ("GB300", 8000.0, 5000.0),
    ("B300", 8000.0, 4500.0),
    ("GB200", 8000.0, 5000.0),
    ("B200", 8000.0, 4500.0),
    ("A100", 2039.0, 624.0),
    ("L40S", 864.0, 733.0),
)


def peaks(model: str) -> tuple[float, float] | None:
    """(bandwidth, matrix rate) of a part by the name that its driver gives, or None for one not in the table."""
    words = f" {model.replace('-', ' ')} "
    return next(((gbps, tflops) for part, gbps, tflops in PEAKS if f" {part} " in words), None)


def parse_smi(text: str) -> list[HostDevice]:
    """`nvidia-smi --query-gpu=index,uuid,name --format=csv,noheader` as devices."""
    devices = []
    for line in text.splitlines():
        parts = [p.strip() for p in line.split(",", 2)]
        if len(parts) == 3 and parts[0].isdigit():
            devices.append(HostDevice(id=parts[0], uuid=parts[1], name=parts[2]))
    return devices


def smi(*query: str, deadline_s: float = 20.0) -> str:
    """What nvidia-smi prints for a CSV query, or "" where there is none, it fails, or it does not answer in time."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([tool, *query], capture_output=True, text=True, timeout=deadline_s, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def detect(count: int | None = None) -> list[HostDevice]:
    """This host's NVIDIA GPUs as nvidia-smi lists them and CUDA_VISIBLE_DEVICES leaves them, at most `count`; none
    where the tool is absent."""
    devices = visible(parse_smi(smi(f"--query-gpu={_QUERY}", "--format=csv,noheader")), os.environ)
    return devices[:count] if count else devices


def visible(devices: list[HostDevice], environment: Mapping[str, str]) -> list[HostDevice]:
    """The devices that a mask of indexes or UUIDs (or beginnings of UUIDs) leaves, in the mask's order."""
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return devices
    out: list[HostDevice] = []
    for item in (m.strip() for m in mask.split(",")):
        match = next((d for d in devices if item and (d.id == item or d.uuid.startswith(item))), None)
        if match is None:  # CUDA itself ends the list at the first entry that names nothing
            break
        out.append(match)
    return out


def child_env(device_id: str) -> dict[str, str]:
    """Show the child one device, numbered as the bus (and so nvidia-smi) numbers them."""
    return {"CUDA_VISIBLE_DEVICES": device_id, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def physical_id(device_id: str, options: Mapping[str, Any]) -> str:
    """The UUID that the device's lock is named by, whatever a mask or an index calls it."""
    del options
    from farm.backends import _nvml

    with contextlib.suppress(OSError, AttributeError):
        library = _nvml.load()
        device = _nvml.handle(library, device_id)
        found = _nvml.uuid(library, device) if device is not None else None
        library.nvmlShutdown()
        if found:
            return found
    listed = visible(parse_smi(smi(f"--query-gpu={_QUERY}", "--format=csv,noheader")),
                     {"CUDA_VISIBLE_DEVICES": device_id})  # fmt: skip
    return listed[0].uuid if listed else f"cuda-{device_id}"


def telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> Any:
    """A reader of clocks, temperature, power and errors: by NVML, else by nvidia-smi, else None.  Opens no context."""
    del options, spool
    from farm.backends import _nvml

    with contextlib.suppress(OSError, AttributeError):
        library = _nvml.load()
        device = _nvml.handle(library, device_id)
        if device is not None:
            return _nvml.NvmlReader(library, device)
        library.nvmlShutdown()
    return _nvml.SmiReader(device_id, smi) if smi(f"--id={device_id}", "--query-gpu=uuid", "--format=csv") else None


def open_session(device_id: str, options: dict[str, Any]) -> Any:
    """In the child: opens the one visible device."""
    del options
    import torch

    from farm.child.session import EnvironmentUnusable, TorchSession

    if torch.version.hip is not None or not torch.cuda.is_available():
        what = f"torch {torch.__version__} sees no NVIDIA GPU (CUDA_VISIBLE_DEVICES={device_id})"
        raise EnvironmentUnusable(f"{what}; install the vendor's torch build in this environment", "infra")
    props = torch.cuda.get_device_properties(0)
    uuid = f"GPU-{props.uuid}" if getattr(props, "uuid", None) else ""
    power, driver = _power_and_driver(uuid)
    session = TorchSession(
        backend=NAME,
        device=torch.device("cuda", 0),
        target={"backend": NAME, "model": props.name, "power_limit_w": power},
        device_name=f"{props.name} {uuid}".strip(),
        timing_methods=("rotating_graph", "events", "profiler", "host"),
    )
    session.fingerprint.update(
        {
            "uuid": uuid,
            "sm": f"sm_{props.major}{props.minor}",
            "multiprocessors": props.multi_processor_count,
            "l2_mib": round(getattr(props, "L2_cache_size", 0) / 2**20, 1),
            "memory_gib": round(props.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "driver": driver,
        }
    )
    session.cache_bytes = int(getattr(props, "L2_cache_size", 0) or (64 << 20))
    session.graph_nodes = graph_nodes
    return session


#: Kinds of graph node that are work on the device, by the driver's number.
_WORK_NODES = {0: "kernel", 1: "memcpy", 2: "memset"}


def graph_nodes(graph: Any) -> dict[str, int] | None:
    """How many kernels, copies and fills a captured torch.cuda.CUDAGraph launches in one replay; None where this torch
    keeps no graph that could be asked, or the driver does not answer."""
    import ctypes

    try:
        raw, driver = int(graph.raw_cuda_graph()), ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_size_t()
        if driver.cuGraphGetNodes(ctypes.c_void_p(raw), None, ctypes.byref(count)):
            return None
        nodes = (ctypes.c_void_p * count.value)()
        if count.value and driver.cuGraphGetNodes(ctypes.c_void_p(raw), nodes, ctypes.byref(count)):
            return None
        found: dict[str, int] = {}
        kind = ctypes.c_int()
        for node in nodes:
            if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)):
                return None
            if kind.value in _WORK_NODES:
                found[_WORK_NODES[kind.value]] = found.get(_WORK_NODES[kind.value], 0) + 1
        return found
    except (AttributeError, RuntimeError, OSError):
        return None


def _power_and_driver(uuid: str) -> tuple[int | None, str]:
    args = ["--query-gpu=power.limit,driver_version", "--format=csv,noheader,nounits"]
    text = smi(*([f"--id={uuid}"] if uuid else []), *args, deadline_s=10.0)
    first = text.splitlines()[0].split(",") if text.strip() else []
    power: int | None = None
    with contextlib.suppress(ValueError, IndexError):
        power = round(float(first[0]))
    return power, first[1].strip() if len(first) > 1 else ""
