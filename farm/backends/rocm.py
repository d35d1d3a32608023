"""AMD GPUs through torch's HIP build and Triton.

What the host has is asked of the Python package `amdsmi`, else of the command `amd-smi`, else read under /sys.  Tested
against stubs of the first two that are written after their documentation; nothing here has run on an AMD GPU.

A device's id is its place in the order in which ROCm's runtimes count the host's devices when no mask is set,
partitions (DPX, QPX, CPX) one by one.  Masks: `_amd.masked`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.backends import _amd, _amd_tool, _amdsmi, _graphs, _kfd, _rocm_faults, api
from farm.backends._amd import Found
from farm.backends._amd import granted as granted  # what Ray gave an actor
from farm.backends.api import Fault, HostDevice, Identity, Session, TelemetryReader
from farm.errors import EnvironmentUnusable

NAME = "rocm"
ACCELERATOR = True
EVIDENCE = "executed"
DEFAULT_TIMING = "rotating_graph"
#: What a cell is timed by where no graph holds it.
FALLBACK_TIMING = "events"
RESOURCE = {"num_gpus": 1}
NOT_YET, PAUSES, MEMORY_SECONDS = "", api.PAUSES, api.MEMORY_SECONDS
unfit, complaints, child_options = api.no_health_check, api.no_complaints, api.no_options
#: HIP graphs end the process now and then instead of failing (MI350X: segmentation faults while a graph was captured or
#: replayed, meta-pytorch/tritonbench#1034, #1044, #1248; small ones too with ROCm 7.1, pytorch/helion#3471).  So each
#: call is captured in a child of its own first, and a death in spite of that is forgiven once.
TRIAL_CAPTURE = CAPTURE_MAY_KILL = True
#: Calls that one HIP graph may hold.  tritonbench capped its own at 1,000 after 60,000 had ended in segmentation
#: faults; helion, which still saw failures, at 256 (pytorch/helion#3628, MI350X, ROCm 7.2).  As many calls of a
#: microsecond are longer than a replay has to be (150), so the lower bound costs nothing.
MAX_GRAPH_LAUNCHES = 256
#: By part, first match: memory bandwidth in 1e9 B/s, and the densest dense matrix rate at 8 bits (fp8; int8 or 16 bits
#: on parts without it) in 1e12 op/s, of what HIP counts as one device: an MI250 or MI250X is two.  AMD's product pages
#: and data sheets of 2021 to 2025 as other documents cite them, 2026-11-21; rates are compute units x operations per
#: clock x the highest clock (MI300X: 304 x 4096 x 2.1 GHz, MI355X: 256 x 8192 x 2.4 GHz, MI350X: 2.2 GHz), bandwidth of
#: the MI300 parts is 8192 bits at 5.2 GT/s ("MAX_BANDWIDTH: 5325 GB/s" in the guide to amd-smi).  Of the MI308X no data
#: sheet was found: the numbers of the MI300X, of which it is a smaller cut, bound it.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("MI355X", 8000.0, 5033.2),
    ("MI350X", 8000.0, 4613.7),
    ("MI325X", 6000.0, 2614.9),
    ("MI308X", 5325.0, 2614.9),
    ("MI300X", 5325.0, 2614.9),
    ("MI300A", 5325.0, 1961.2),
    ("MI250X", 1638.4, 191.5),
    ("MI250", 1638.4, 181.1),
    ("MI210", 1638.4, 181.0),
)
#: Where the kernel shows its devices; a test has folders of its own.
SYS, DEV = Path("/sys"), Path("/dev")
#: What amd-smi listed is good for so many seconds: it takes some to start, and a device's start asks several times.
LISTED_SECONDS = 30.0
_LISTED: dict[str, tuple[float, list[Found]]] = {}


def peaks(model: str) -> tuple[float, float] | None:
    """(bandwidth, matrix rate) of a part by the name that its tool gives, or None for one not in the table."""
    words = f" {model.replace('-', ' ').replace('_', ' ')} "
    return next(((gbps, tflops) for part, gbps, tflops in PEAKS if f" {part} " in words), None)


def last_level_bytes(architecture: str) -> int:
    """The last cache before memory of "gfx942:sramecc+:xnack-"; 256 MiB, the largest known, of one not in the table.
    Not what HIP calls `L2_cache_size`: that is the L2 of one die (4 MiB on MI300 and MI350)."""
    return _amd.LAST_LEVEL.get(architecture.partition(":")[0], 256 << 20)


def fault(text: str, code: int | None = None) -> Fault | None:
    """What ROCm's words mean (`_rocm_faults`).  It ends a process on a bad access: there is no exception then."""
    return _rocm_faults.understood(text, code)


# the host's side


def detect(count: int | None = None) -> list[HostDevice]:
    """This host's AMD GPUs and partitions as the mask variables leave them, at most `count`; none where there is
    neither AMD's tools nor its driver."""
    found, _ = _host()
    devices = [_host_device(d) for d in visible(found, os.environ)]
    return devices[:count] if count else devices


def visible(devices: list[Found], environment: Mapping[str, str]) -> list[Found]:
    """The devices that the masks leave, in their order; the first entry that names none ends it, as in the runtimes."""
    entries = _amd.masked(environment)
    if entries is None:
        return devices
    out: list[Found] = []
    for entry in entries:
        match = next((d for d in devices if _amd.matches(d, entry)), None)
        if match is None:
            break
        out.append(match)
    return out


def child_env(device_id: str) -> dict[str, str]:
    """Show the child one device, whatever its supervisor was masked to.

    A child inherits its supervisor's variables, so each mask is set, none is left as it was: a ROCR_VISIBLE_DEVICES (as
    Slurm sets it) would renumber what HIP's mask counts, and an empty one hides every device.  ROCm's lower runtime
    takes the host's index (or a UUID); of the one device that it leaves HIP counts 0.
    """
    rest = dict.fromkeys(("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"), "0")
    return {"ROCR_VISIBLE_DEVICES": device_id, **rest}


def physical_id(device_id: str, options: Mapping[str, Any]) -> str:
    """What the device's lock is named by: its place on the bus and its partition, whatever a mask or an index says."""
    del options
    device, _, _ = _find(device_id)
    return (device.physical if device else "") or f"rocm-{device_id}"


def identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    """What the device is, by the first of AMD's tools that knows it; None where none does."""
    del options
    device, devices, how = _find(device_id)
    if device is None:
        return None
    try:
        if how == "amdsmi":
            library = _amdsmi.load()
            said = _amdsmi.within(_amdsmi.DEADLINE_S, lambda: _amdsmi.identity(library, device, devices))
        elif how == "amd-smi":
            said = _amd_tool.identity(_amd_tool.smi, device)
        else:
            said = _kfd.identity(device, SYS)
    except Exception:  # a library that breaks in the middle: what was listed is known all the same
        said = Identity(device.name, device.uuids[0] if device.uuids else "", module=f"amd-{device.place}")
    named = said.model if any(c.isdigit() for c in said.model) else ""  # a family's name tells no part
    return replace(said, model=named, stack=said.stack or _kfd.rocm_version())


def telemetry(device_id: str, options: Mapping[str, Any], spool: str) -> TelemetryReader | None:
    """A reader of clocks, power, temperature and errors: by amdsmi, else by amd-smi, else None.  Opens no context."""
    del options, spool
    device, devices, how = _find(device_id)
    if device is None or how == "kfd":
        return None
    if how == "amd-smi":
        return _amd_tool.ToolReader(device, _amdsmi.primary(device, devices), _amd_tool.smi)
    known = identity(device_id, {})
    return _amdsmi.Reader(_amdsmi.load(), device, devices, known.clocks if known else "")


def trouble() -> str:
    """Why amdsmi cannot be used here, in a clause; "" where it can.  For `farm doctor`."""
    return "" if _amdsmi.load() is not None else _amdsmi.trouble()


def _host() -> tuple[list[Found], str]:
    """Every device of this host, no mask obeyed, and how that is known: "amdsmi", "amd-smi", "kfd", or "" for none."""
    library = _amdsmi.load()
    if library is not None:
        try:
            found = _amdsmi.within(_amdsmi.DEADLINE_S, lambda: _amdsmi.listing(library))
        except Exception:  # it answers no list: another tool may
            found = []
        if found:
            return found, "amdsmi"
    at, found = _LISTED.get("amd-smi", (-math.inf, []))
    if time.monotonic() - at > LISTED_SECONDS:
        found = _amd_tool.listing(_amd_tool.smi)
        _LISTED["amd-smi"] = (time.monotonic(), found)
    if found:
        return found, "amd-smi"
    found = _kfd.listing(SYS, DEV)
    return found, "kfd" if found else ""


def _find(device_id: str) -> tuple[Found | None, list[Found], str]:
    devices, how = _host()
    return next((d for d in devices if _amd.matches(d, device_id)), None), devices, how


def _host_device(device: Found) -> HostDevice:
    return HostDevice(device.id, device.name or "AMD GPU", device.uuids[0] if device.uuids else device.physical)


# the child's side


def open_session(device_id: str, options: dict[str, Any]) -> Session:
    """In the child: opens the one visible device."""
    del options
    import torch

    from farm.child.session import TorchSession

    if torch.version.hip is None:
        kind = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
        raise EnvironmentUnusable(
            f"torch {torch.__version__} of this environment is built {kind}, not for ROCm; install a ROCm build of "
            "torch from AMD's or PyTorch's index",
            "infra",
        )
    if not torch.cuda.is_available():
        raise EnvironmentUnusable(
            f"torch {torch.__version__} (ROCm {torch.version.hip}) sees no AMD GPU (ROCR_VISIBLE_DEVICES={device_id}): "
            f"{_why_unseen(DEV)}",
            "infra",
        )
    props = torch.cuda.get_device_properties(0)
    architecture = str(getattr(props, "gcnArchName", ""))
    # Here by the driver's own files alone: no library of the supervising side's in a process that others' code runs in.
    device = next((d for d in _kfd.listing(SYS, DEV) if _amd.matches(d, device_id)), None)
    elsewhere = _elsewhere(device, props)
    if elsewhere:
        raise EnvironmentUnusable(elsewhere, "infra")
    said = Identity() if device is None else _kfd.identity(device, SYS)
    model = _model(str(props.name), said.model)
    uuid = _uuid(getattr(props, "uuid", None)) or said.uuid
    session = TorchSession(
        backend=NAME,
        device=torch.device("cuda", 0),
        target={
            "backend": NAME,
            "model": model,
            "partition": said.partition,
            "power_limit_w": said.power_limit_w,
            "clocks": said.clocks,
        },
        device_name=f"{model} {uuid}".strip(),
        timing_methods=("rotating_graph", "events", "profiler", "host"),
        fault=fault,
    )
    session.fingerprint.update(
        {
            "uuid": uuid,
            "arch": architecture,
            "compute_units": props.multi_processor_count,
            "warp_size": getattr(props, "warp_size", 64),
            "l2_mib": round(getattr(props, "L2_cache_size", 0) / 2**20, 1),
            "last_level_mib": round(last_level_bytes(architecture) / 2**20, 1),
            "memory_gib": round(props.total_memory / 2**30, 1),
            "hip": torch.version.hip,
            "rocm": _kfd.rocm_version(),
            "driver": said.driver,
        }
    )
    session.cache_bytes = last_level_bytes(architecture)
    session.graph_nodes = graph_nodes
    session.max_graph_launches = MAX_GRAPH_LAUNCHES
    return session


def _uuid(told: Any) -> str:
    """HIP's UUID as AMD's tools write it: its 16 bytes are the letters of 16 hexadecimal digits, which torch shows as
    bytes once more; one whose bytes are no such letters stays as torch shows it."""
    plain = str(told or "")
    with contextlib.suppress(ValueError):
        letters = bytes.fromhex(plain.replace("-", ""))
        if len(letters) == 16 and all(chr(b) in "0123456789abcdefABCDEF" for b in letters):
            plain = letters.decode("ascii")
    return f"GPU-{plain}" if plain else ""


def _why_unseen(dev: Path) -> str:
    """The most likely reason, with its cure."""
    kfd = dev / "kfd"
    if not kfd.exists():
        container = "start the container with --device=/dev/kfd --device=/dev/dri"
        return f"/dev/kfd does not exist: load the amdgpu driver, or {container}"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return "this user is not allowed to open /dev/kfd: add the user to the groups render and video"
    return "compare ROCm's version with the driver's, and run rocminfo in this environment"


def _elsewhere(device: Found | None, props: Any) -> str:
    """What to say where HIP opened another device than the one that is locked and read; "" where it is the same, or
    this torch does not tell where it is."""
    bus, slot = getattr(props, "pci_bus_id", None), getattr(props, "pci_device_id", None)
    if device is None or not device.place or not isinstance(bus, int) or not isinstance(slot, int):
        return ""
    domain = int(getattr(props, "pci_domain_id", 0) or 0)
    opened = f"{domain:04x}:{bus:02x}:{slot:02x}"
    if opened.partition(":")[2] == device.place.partition(":")[2]:
        return ""
    return (
        f"the driver lists device {device.id} at {device.place}, but HIP opened the device at {opened}: a mask, or an "
        "incomplete /dev/dri, hides devices in this environment; give it all of /dev/dri and no mask variable"
    )


def _model(opened: str, host: str) -> str:
    """The part: by HIP, else by the driver.  A ROCm that lacks a part's name calls it "AMD Radeon Graphics"
    (helion#1214 shows an MI355X so); that stays where nobody knows better here, and the supervising side completes it.
    """
    return next((n for n in (opened, host) if any(c.isdigit() for c in n)), opened or "AMD GPU")


def graph_nodes(graph: Any) -> dict[str, int] | None:
    """What one replay of a captured graph launches (farm.backends._graphs)."""
    return _graphs.work(graph, lambda: _hip_library(Path("/proc/self/maps").read_text()), "hipGraph")


def _hip_library(maps: str) -> str:
    """The file of the HIP runtime that this process has loaded (torch's wheel brings its own).  OSError if none."""
    for line in maps.splitlines():
        path = line.rpartition(" ")[2]
        if "/libamdhip64.so" in path:
            return path
    raise OSError("no HIP runtime is loaded")
