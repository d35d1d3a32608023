"""Facts about one backend's devices: its driver's files, its tool, the devices it lists, and who uses them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm import backends
from farm.doctor import runner
from farm.doctor.facts import BackendFacts, DeviceFacts, ProbeResult
from farm.doctor.host import HostReader
from farm.guard import locks
from farm.process import command
from farm.process.own_modules import own_variables

TOOL_SECONDS = 20.0
LIST_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Where a vendor's driver, tool and stack are.

    `driver`: files; if any of them exists, the driver is loaded.  `files`: (folder, regular expression) of the files
    that a process must be able to open; all are needed.
    """

    tool: str
    pci: str
    driver: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    stacks: tuple[str, ...] = ()  # folders of the stack
    versions: tuple[str, ...] = ()  # files in them that contain its version


#: NVIDIA: docs.nvidia.com, container toolkit and driver installation guides.  AMD: rocm.docs.amd.com, "Running ROCm
#: Docker containers".  Ascend: hiascend.com, "Starting a Container in Manual Mounting Mode" and Ascend Docker Runtime's
#: list of what it mounts.  Read 2026-11-21.
PLACES: Mapping[str, Place] = {
    "cuda": Place(
        "nvidia-smi",
        "0x10de",
        ("/proc/driver/nvidia/version", "/sys/module/nvidia"),
        (("/dev", r"nvidiactl"), ("/dev", r"nvidia\d+"), ("/dev", r"nvidia-uvm")),
    ),
    "rocm": Place(
        "amd-smi",
        "0x1002",
        ("/sys/module/amdgpu",),
        (("/dev", r"kfd"), ("/dev/dri", r"renderD\d+")),
        ("/opt/rocm",),
        (".info/version",),
    ),
    "ascend": Place(
        "npu-smi",
        "0x19e5",
        ("/usr/local/Ascend/driver/version.info", "/sys/module/drv_devmng_host"),
        (("/dev", r"davinci_manager"), ("/dev", r"davinci\d+"), ("/dev", r"devmm_svm"), ("/dev", r"hisi_hdc")),
        ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest"),
        ("version.cfg", "aarch64-linux/ascend_toolkit_install.info", "x86_64-linux/ascend_toolkit_install.info"),
    ),
}
_VERSION = re.compile(r"\d+\.\d+(?:\.\w+)*")


def backend_facts(name: str, host: HostReader, *, simulated: bool = False) -> BackendFacts:
    """What this host has of one backend; simulated devices are not checked."""
    module = backends.get(name)
    not_yet = getattr(module, "NOT_YET", "")
    accelerator = bool(module.ACCELERATOR)
    place = PLACES.get(name)
    if place is None:
        plain = tuple(DeviceFacts(d.id, d.name) for d in module.detect()) if not not_yet else ()
        return BackendFacts(name, accelerator, not_yet, devices=plain)
    files = {pattern: host.all(folder, pattern) for folder, pattern in place.files}
    found = [f for names in files.values() for f in names]
    missing = tuple(f"{folder}/{pattern}" for folder, pattern in place.files if not files[pattern])
    driver = next((d for d in place.driver if host.exists(d)), "")
    tool = shutil.which(place.tool) or ""
    pci = host.pci(place.pci)
    devices: tuple[DeviceFacts, ...] = ()
    failure, complaints = "", tuple[str, ...]()
    if not not_yet and not simulated and (tool or found or driver or pci):
        devices, failure, complaints = _listed(name)
    named = [os.environ[v] for v in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH") if name == "ascend" and v in os.environ]
    folder = next((s for s in (*named, *place.stacks) if host.exists(s)), "")
    known = next((str(d.identity.get("stack") or "") for d in devices if d.identity), "") if folder else ""
    return BackendFacts(
        name,
        accelerator,
        not_yet,
        place.tool,
        tool,
        _failure(tool) if tool and not devices and not not_yet and not simulated else "",
        pci,
        driver,
        tuple(host.device_file(f) for f in found),
        tuple(_plain(m) for m in missing) if found else (),
        devices,
        failure,
        complaints,
        _mig() if name == "cuda" and tool else "",
        folder,
        _stack_version(host, folder, place.versions) or known,
        _lock_trouble() if devices else "",
    )


def _plain(pattern: str) -> str:
    return pattern.replace(r"\d+", "*")


def _listed(name: str) -> tuple[tuple[DeviceFacts, ...], str, tuple[str, ...]]:
    """The backend's own list, from a separate process; why there is none; and the problems that its library reports."""
    step = f"devices {name}"
    trial: ProbeResult = runner.trials([step], step_s=LIST_SECONDS, total_s=LIST_SECONDS, variables=own_variables())[
        step
    ]
    if not trial.ok:
        return (), str(trial), ()
    out = []
    for d in trial.data["devices"]:
        processes = tuple((int(pid), str(who)) for pid, who in d.get("processes") or ())
        holder = _holder(str(d.get("lock") or ""))
        named = (str(d["id"]), str(d["name"]), str(d["uuid"]))
        out.append(DeviceFacts(*named, d.get("identity"), processes, holder, str(d.get("unfit") or "")))
    return tuple(out), "", tuple(map(str, trial.data.get("complaints") or ()))


def _holder(lock: str) -> str:
    """Which farm holds a device's lock, "" for none.  Tested with a shared lock that is released at once."""
    if not lock:
        return ""
    path = locks.folder() / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', lock)[:150]}.lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return _who(descriptor)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


def _who(descriptor: int) -> str:
    """The owner that a lock file names; anybody may have written it, so it is only reported."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        run = f", run {str(owner['run'])[:100]!r}" if owner.get("run") else ""
        return f"pid {int(owner['pid'])}, user {str(owner['user'])[:40]!r}{run}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "holder unknown: its lock file does not name it"


def _lock_trouble() -> str:
    """Why devices cannot be locked here, "" where they can."""
    folder = locks.folder()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written by this user"


def _failure(tool: str) -> str:
    """What a vendor's tool prints if it lists nothing."""
    try:
        done = command.run([tool], TOOL_SECONDS)
    except OSError as error:
        return error.strerror or str(error)
    if done.code is None:
        return f"no answer within {TOOL_SECONDS:g} s"
    lines = (done.err + done.out).strip().splitlines()
    return f"exit code {done.code}" + (f": {lines[0].strip()[:200]}" if lines else "")


def _mig() -> str:
    """`Enabled` if nvidia-smi reports it for any GPU."""
    smi: Any = getattr(backends.get("cuda"), "smi", None)
    said = smi("--query-gpu=mig.mode.current", "--format=csv,noheader") if smi else ""
    return "Enabled" if "Enabled" in said else ""


def _stack_version(host: HostReader, folder: str, files: tuple[str, ...]) -> str:
    for file in files if folder else ():
        found = _VERSION.search(host.read(f"{folder}/{file}"))
        if found:
            return found[0]
    return ""
