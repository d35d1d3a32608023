"""NVIDIA GPUs through torch and Triton."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from typing import Any

from farm.backends import _cuda_faults, _cuda_identity, _graphs, api
from farm.backends._cuda_identity import Gpu
from farm.backends.api import HostDevice, Identity, Session, TelemetryReader
from farm.errors import EnvironmentUnusable
from farm.process import command

NAME = "cuda"
ACCELERATOR = True
EVIDENCE = "executed"
DEFAULT_TIMING = "rotating_graph"
RESOURCE = {"num_gpus": 1}
NOT_YET, TRIAL_CAPTURE, CAPTURE_MAY_KILL, granted = "", False, False, None
FALLBACK_TIMING, PAUSES, MEMORY_SECONDS = api.FALLBACK_TIMING, api.PAUSES, api.MEMORY_SECONDS
unfit, child_options = api.no_health_check, api.no_options
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


#: What CUDA's words mean; pure.
fault = _cuda_faults.fault


def parse_smi(text: str) -> list[HostDevice]:
    """`nvidia-smi --query-gpu=index,uuid,name --format=csv,noheader` as devices."""
    return [d for gpu in _cuda_identity.parse_smi(text) for d in gpu.devices]


def smi(*query: str, deadline_s: float = 20.0) -> str:
    """What nvidia-smi prints for a CSV query, or "" where there is none, it fails, or it does not answer in time."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return ""
    with contextlib.suppress(OSError):
        done = command.run([tool, *query], deadline_s)
        return done.out if done.code == 0 else ""
    return ""


def gpus() -> list[Gpu]:
    """This host's GPUs as nvidia-smi lists them, with their MIG devices; none where the tool is absent."""
    found = _cuda_identity.parse_smi(smi(f"--query-gpu={_QUERY},mig.mode.current", "--format=csv,noheader"))
    if not found:  # a driver that knows no MIG
        found = _cuda_identity.parse_smi(smi(f"--query-gpu={_QUERY}", "--format=csv,noheader"))
    return _cuda_identity.with_instances(found, smi("-L")) if any(g.instances is not None for g in found) else found


def detect(count: int | None = None) -> list[HostDevice]:
    """This host's NVIDIA GPUs and MIG devices that CUDA_VISIBLE_DEVICES leaves, at most `count`.  A GPU in MIG mode
    counts as its MIG devices, since CUDA opens nothing else of it."""
    devices = visible_of(gpus(), os.environ)
    return devices[:count] if count else devices


def complaints(deadline_s: float = 20.0) -> list[str]:
    """What is wrong with this host's driver and GPUs, a sentence each with what to do; none where there is no NVML."""
    from farm.backends import _nvml

    try:
        library = _nvml.load(deadline_s=deadline_s)
    except OSError as error:
        started = "nvmlInit" in str(error) or isinstance(error, TimeoutError)
        return [str(error)] if started else []
    try:
        found: list[str] = _nvml.answered(_cuda_identity.complaints, library, deadline_s=deadline_s)
    except OSError as error:
        return [str(error)]
    library.nvmlShutdown()
    return found


def visible(devices: list[HostDevice], environment: Mapping[str, str]) -> list[HostDevice]:
    """The devices that a mask of indexes or UUIDs (or beginnings of UUIDs) leaves, in the mask's order."""
    return visible_of([Gpu(d.id, d.uuid, d.name) for d in devices], environment)


def visible_of(found: list[Gpu], environment: Mapping[str, str]) -> list[HostDevice]:
    """The same with MIG devices: one is named by its UUID; the index or UUID of a GPU in MIG mode names its first."""
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return [d for gpu in found for d in gpu.devices]
    out: list[HostDevice] = []
    for item in (m.strip() for m in mask.split(",")):
        match = _masked(found, item)
        if match is None:  # CUDA itself ends the list at the first entry that names nothing
            break
        out.append(match)
    return out


def _masked(found: list[Gpu], item: str) -> HostDevice | None:
    if not item:
        return None
    for gpu in found:
        if gpu.index == item or gpu.uuid.startswith(item):
            return next(iter(gpu.devices), None)
    return next((d for gpu in found for d in gpu.instances or () if d.uuid.startswith(item)), None)


def child_env(device_id: str) -> dict[str, str]:
    """Show the child one device, numbered as the bus (and so nvidia-smi) numbers them."""
    return {"CUDA_VISIBLE_DEVICES": device_id, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def physical_id(device_id: str, options: Mapping[str, Any]) -> str:
    """The UUID that the device's lock is named by, whatever a mask or an index calls it."""
    del options
    from farm.backends import _nvml

    with contextlib.suppress(OSError, AttributeError):
        library = _nvml.load()
        device = _nvml.answered(_nvml.handle, library, device_id)
        found = _nvml.answered(_nvml.uuid, library, device) if device is not None else None
        library.nvmlShutdown()
        if found:
            return found
    listed = visible(
        parse_smi(smi(f"--query-gpu={_QUERY}", "--format=csv,noheader")), {"CUDA_VISIBLE_DEVICES": device_id}
    )
    return listed[0].uuid if listed else f"cuda-{device_id}"


def identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    """What the device is, by NVML, else by nvidia-smi; None where neither answers in time.  Opens no context."""
    del options
    from farm.backends import _nvml

    with contextlib.suppress(OSError, AttributeError):
        library = _nvml.load()
        device = _nvml.answered(_nvml.handle, library, device_id)
        found: Identity | None = None
        if device is not None:
            found = _nvml.answered(_cuda_identity.by_nvml, library, device)
        library.nvmlShutdown()
        if found is not None and found.model:
            return found
    return _cuda_identity.by_smi(device_id, smi)


def telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> TelemetryReader | None:
    """A reader of clocks, temperature, power and errors: by NVML, else by nvidia-smi, else None.  Opens no context."""
    del options, spool
    from farm.backends import _nvml

    with contextlib.suppress(OSError, AttributeError):
        library = _nvml.load()
        device = _nvml.answered(_nvml.handle, library, device_id)
        if device is not None:
            return _nvml.answered(_nvml.NvmlReader, library, device)
        library.nvmlShutdown()
    return _nvml.SmiReader(device_id, smi) if smi(f"--id={device_id}", "--query-gpu=uuid", "--format=csv") else None


def open_session(device_id: str, options: dict[str, Any]) -> Session:
    """In the child: opens the one visible device."""
    del options
    import torch

    from farm.child.session import TorchSession

    if torch.version.hip is not None or not torch.cuda.is_available():
        what = f"torch {torch.__version__} sees no NVIDIA GPU (CUDA_VISIBLE_DEVICES={device_id})"
        raise EnvironmentUnusable(f"{what}; install the vendor's torch build in this environment", "infra")
    props = torch.cuda.get_device_properties(0)
    uuid = f"GPU-{props.uuid}" if getattr(props, "uuid", None) else ""
    if device_id.startswith("MIG-"):
        uuid = device_id
    power, driver = _power_and_driver(uuid)
    model = props.name.split(" MIG ")[0]
    # Said here too: where the supervising side can read nothing, a slice must not pass for the whole device.
    profile = _cuda_identity.partition(props.name)
    session = TorchSession(
        backend=NAME,
        device=torch.device("cuda", 0),
        target={"backend": NAME, "model": model, "power_limit_w": power, **({"partition": profile} if profile else {})},
        device_name=f"{props.name} {uuid}".strip(),
        timing_methods=("rotating_graph", "events", "profiler", "host"),
        fault=fault,
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


def graph_nodes(graph: Any) -> dict[str, int] | None:
    """What one replay of a captured graph launches (farm.backends._graphs)."""
    return _graphs.work(graph, lambda: "libcuda.so.1", "cuGraph")


def _power_and_driver(uuid: str) -> tuple[int | None, str]:
    args = ["--query-gpu=power.limit,driver_version", "--format=csv,noheader,nounits"]
    divided = uuid.startswith("MIG-")  # of which nvidia-smi prints neither: the driver's version is every GPU's
    text = smi(*([f"--id={uuid}"] if uuid and not divided else []), *args, deadline_s=10.0)
    first = text.splitlines()[0].split(",") if text.strip() else []
    power: int | None = None
    with contextlib.suppress(ValueError, IndexError):
        power = None if divided else round(float(first[0]))
    return power, first[1].strip() if len(first) > 1 else ""
