"""Checks of devices that are the same for every vendor.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farm.doctor import check_ascend, check_cuda, check_rocm
from farm.doctor.check_python import titled
from farm.doctor.facts import BackendFacts, EnvironmentFacts, Facts
from farm.doctor.finding import Finding, Findings, Level, fail, note, ok, warn

VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "ascend": "Ascend"}
MASKS = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}
#: How to start a container with its devices.
CONTAINER = {
    "cuda": "docker run --gpus all (with the NVIDIA container toolkit)",
    "rocm": "docker run --device /dev/kfd --device /dev/dri --group-add video --group-add render",
    "ascend": "docker run --device /dev/davinci0 ... --device /dev/davinci_manager --device /dev/devmm_svm "
    "--device /dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
}
GROUPS = {"cuda": "", "rocm": "render and video", "ascend": "HwHiAiUser"}
LOAD = {
    "cuda": "install NVIDIA's driver, then modprobe nvidia (if it does not load, dmesg shows why)",
    "rocm": "install amdgpu-dkms, then modprobe amdgpu (if it does not load, dmesg shows why)",
    "ascend": "install the Ascend driver and firmware (Ascend-hdk-*-npu-driver), then reboot",
}
TORCH = {
    "cuda": "install the CUDA build of torch that matches this driver",
    "rocm": "install the ROCm build of torch (download.pytorch.org/whl/rocm...), or name its Python in the node's "
    "configuration",
    "ascend": "install torch for the CPU with the torch_npu of the same version",
}
VENDOR_CHECKS: Mapping[str, Callable[[Facts, BackendFacts], Findings]] = {
    "rocm": check_rocm.host,
    "ascend": check_ascend.host,
}
VENDOR_ENVIRONMENT: Mapping[str, Callable[[Facts, BackendFacts, EnvironmentFacts], Findings]] = {
    "cuda": check_cuda.environment,
    "rocm": check_rocm.environment,
    "ascend": check_ascend.environment,
}


def devices(f: Facts) -> Findings:
    several = [VENDORS[b.name] for b in f.backends if b.name in VENDORS and b.devices]
    if len(several) > 1:
        what = f"this host has devices of {' and '.join(several)}, but Ray counts devices of only one vendor per node"
        yield note("backends-several", "backends", what, "start one Ray node per backend (farm nodes join --backend B)")
    for b in f.backends:
        yield from _backend(f, b)


def _backend(f: Facts, b: BackendFacts) -> Findings:
    section = f"backend {b.name}"
    if b.not_yet:
        seen = f" (this host has {b.files[0].path})" if b.files else ""
        level = Level.FAIL if f.needs(b.name) else Level.NOTE
        what, cure = f"this version does not support it yet{seen}", "run another backend"
        yield Finding("backend-not-yet", section, level, what, cure)
        return
    if f.node.simulates and f.node.backend == b.name:
        return  # its devices are simulated; real ones do not matter
    if b.name not in VENDORS:
        if b.devices:
            yield ok(section, _names(b))
        return
    if b.devices:
        yield ok(section, _names(b))
    for complaint in b.complaints:
        yield fail(
            "device-unfit", section, complaint, f"follow the instructions in the message; {b.tool} and dmesg show more"
        )
    yield from _way_to_devices(f, b)
    yield from _mask(f, b)
    if b.devices or b.files or b.pci or b.tool_path or f.needs(b.name):
        yield from VENDOR_CHECKS[b.name](f, b) if b.name in VENDOR_CHECKS else ()
    if b.devices:
        yield from _in_use(b)
        for e in f.environments:
            if e.trial("python").ok:
                yield from _torch(f, b, e)
                yield from VENDOR_ENVIRONMENT[b.name](f, b, e)
        yield from _build(f, b)
    elif b.files or f.needs(b.name):
        for e in f.environments:
            if e.trial("python").ok and b.name == "ascend":  # it often explains why nothing is listed
                yield from VENDOR_ENVIRONMENT[b.name](f, b, e)


def _names(b: BackendFacts) -> str:
    return f"{len(b.devices)} x {', '.join(dict.fromkeys(d.name for d in b.devices))}"


def _way_to_devices(f: Facts, b: BackendFacts) -> Findings:
    """From the bus to the list of devices: only the first thing that is missing is reported."""
    section, lost = f"backend {b.name}", f"farm run does not use {b.name}"
    level = Level.FAIL if f.needs(b.name) else Level.WARN
    denied = [d for d in b.files if d.denied]
    if denied:
        groups = sorted({d.group for d in denied})
        what = f"this user is not allowed to use {', '.join(d.path for d in denied[:3])} (group {', '.join(groups)})"
        cure = f"usermod -aG {','.join(groups)} USER, then log in again; in a container --group-add {groups[0]}"
        if GROUPS[b.name]:
            cure += f" (usually {GROUPS[b.name]})"
        yield Finding("device-denied", section, Level.FAIL if b.devices else level, what, cure)
    if b.devices:
        return
    if b.pci and not b.driver and not b.files:
        what = f"no driver is loaded, but the bus has {VENDORS[b.name]} devices ({b.pci}): {lost}"
        yield Finding("device-driver", section, level, what, LOAD[b.name])
    elif b.driver and (b.missing_files or (not b.files and (b.pci or b.name != "rocm"))):
        gone = ", ".join(b.missing_files) if b.missing_files else "all device files of this driver"
        what = f"the driver is loaded ({b.driver}), but {gone} are missing on this host: {lost}"
        yield Finding(
            "device-files", section, level, what, f"start the container with access to the devices: {CONTAINER[b.name]}"
        )
    elif b.complaints or (b.tool_path and f.variables.get(MASKS[b.name]) is not None):
        pass  # complaints are reported above, a mask that hides everything below
    elif b.mig:
        yield check_cuda.no_instances(f"backend {b.name}")
    elif b.failure:
        what = f"the devices of this backend could not be listed ({b.failure}): {lost}"
        yield Finding("device-unasked", section, level, what, f"make {b.tool} work by hand first; check the driver")
    elif b.tool_path and b.tool_failure:
        mismatch = "version mismatch" in b.tool_failure
        code = "cuda-driver-mismatch" if mismatch else "device-tool-silent"
        cure = f"make {b.tool} work (is the driver loaded? was the container started with the devices?)"
        if mismatch:
            cure = "the driver was updated while the old kernel module was loaded: reboot, or reload the module"
        what = f"{b.tool_path} lists no device ({b.tool_failure or 'no output'}): {lost}"
        yield Finding(code, section, level, what, cure)
    elif (b.files or _sees(f, b.name)) and not b.tool_path:
        seen = b.files[0].path if b.files else "a device that torch sees"
        what = f"this host has {seen}, but {b.tool} is not on PATH: {lost}"
        yield Finding("device-tool-missing", section, level, what, f"put {b.tool} on PATH")
    elif not denied:
        what = f"no device found (checked: {b.tool} on PATH, the driver's files, the bus)"
        cure = "run another backend, or find out why the host does not show its devices"
        yield Finding("backend-none", section, Level.FAIL if f.needs(b.name) else Level.NOTE, what, cure)


def _sees(f: Facts, kind: str) -> bool:
    return any(e.trial("accelerator").data.get("kind") == kind for e in f.environments)


def _mask(f: Facts, b: BackendFacts) -> Findings:
    variable = MASKS[b.name]
    mask = f.variables.get(variable)
    if mask is None or not (b.devices or b.tool_path):
        return
    shown = len([v for v in mask.split(",") if v.strip() not in ("", "-1")])
    if shown > len(b.devices) or not b.devices:
        what = (
            f"{variable}={mask} does not match this host's devices: the variable names {shown}, but the host has "
            f"{len(b.devices)}"
        )
        level = Level.WARN if b.devices else Level.FAIL
        yield Finding("device-mask", f"backend {b.name}", level, what, f"correct or unset {variable}")


def _in_use(b: BackendFacts) -> Findings:
    section = f"backend {b.name}"
    for d in b.devices:
        if d.holder:
            what = f"device {d.id} is in use by another farm ({d.holder}): a run on this device waits"
            yield note("device-locked", section, what, "wait for that run, or end it; --wait sets how long a run waits")
        elif d.processes:
            who = ", ".join(f"{name or 'a process'} (pid {pid})" for pid, name in d.processes[:4])
            what = f"device {d.id} is used by {who}: cells measured meanwhile are marked as disturbed"
            yield warn("device-process", section, what, "end that process, or reserve the device for the farm")
        if d.unfit:
            yield fail(
                "device-unfit",
                section,
                d.unfit,
                f"follow the instructions in the message; {b.tool} and dmesg show more",
            )
        clocks = str((d.identity or {}).get("clocks") or "")
        if clocks:
            what = (
                f"an operator has set the clocks of device {d.id} ({clocks}); these clocks are part of the device's "
                "target"
            )
            yield note("device-clocks", section, what, "no action is needed if these clocks are intended")
    if b.lock_trouble:
        what = f"devices cannot be locked: {b.lock_trouble}; two farms could measure on one device"
        cure = "make the folder writable for all users, or set FARM_LOCKS to one writable folder for all users"
        yield fail("device-lock-folder", section, what, cure)


def _torch(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Findings:
    """Whether this environment's torch is the vendor's, opens what the tool lists, and has kernels for it."""
    section, torch, seen = titled(e, f"backend {b.name}"), e.trial("torch"), e.trial("accelerator")
    if not torch.ok:
        return
    built, listed, count = str(torch.data.get("built_for", "")), len(b.devices), int(seen.data.get("count", 0))
    wanted = {"cuda": "CUDA", "rocm": "ROCm", "ascend": "the CPU"}[b.name]
    if not built.startswith(wanted):
        what = f"torch {torch.text} is built for {built}, but the devices are {VENDORS[b.name]}: "
        what += f"every {b.name} cell would end as infra_error"
        yield fail("torch-other-vendor", section, what, TORCH[b.name])
        return
    if not seen.ok:
        what = f"torch could not list the devices ({seen})"
        cure = f"check {b.tool} and dmesg: the device or its driver has a problem"
        yield fail("torch-device-sick", section, what, cure)
        return
    if seen.data.get("kind") != b.name:
        why = check_cuda.why_blind(f, b, e) if b.name == "cuda" else None
        if why is None and b.name == "ascend" and not e.trial("torch_npu").ok:
            return  # torch_npu is missing or broken, which is reported there
        what = f"{b.tool} lists {listed}, but torch (built for {built}) sees none: "
        what += f"every {b.name} cell would end as infra_error"
        yield why or fail("torch-blind", section, what, TORCH[b.name])
        return
    if count != listed:
        what = f"{b.tool} lists {listed}, but torch sees {count}"
        yield warn("torch-fewer", section, what, f"compare {MASKS[b.name]}, partitions and the container's devices")
    part, knows = str(seen.data.get("architecture", "")), [str(a) for a in seen.data.get("architectures", ())]
    if part and knows and not _has_kernels(part, knows):
        what = f"torch {torch.text} has kernels for {', '.join(knows)}, but this part is {part}"
        yield fail("torch-arch", section, what, f"install a torch that was built for {part}")


def _has_kernels(part: str, knows: list[str]) -> bool:
    """An AMD part needs its own kernels.  An NVIDIA part runs kernels of its own generation that are not newer than
    itself, and intermediate code (compute_) of any part that is not newer."""
    if not part.startswith("sm_"):
        return any(k.split(":")[0] == part for k in knows)
    number = int(part.removeprefix("sm_"))
    for k in knows:
        kind, _, digits = k.partition("_")
        digits = "".join(c for c in digits if c.isdigit())
        if digits and k[-1].isalpha():
            if kind == "sm" and int(digits) == number:  # sm_90a runs on that part only
                return True
        elif digits and int(digits) <= number and (kind == "compute" or int(digits) // 10 == number // 10):
            return True
    return False


def _build(f: Facts, b: BackendFacts) -> Findings:
    """What Triton needs to build its launcher."""
    section = f"backend {b.name}"
    if not f.cc and any(e.own for e in f.environments):
        what = (
            "no C compiler is installed, so Triton cannot launch kernels on a device: cells of Triton kernels "
            "would fail"
        )
        yield fail("compiler-cc-missing", section, what, "install gcc, or name a compiler in CC")
    for e in f.environments:
        if e.trial("python").ok and not e.trial("python").data.get("header", True):
            what = (
                "Python.h is missing, so Triton cannot launch kernels on a device: cells of Triton kernels would fail"
            )
            cure = "install the headers of this Python (python3-dev)"
            yield fail("python-header-missing", titled(e, section), what, cure)
        yield from _launcher(f, b, e)


def _launcher(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Findings:
    driver, section = e.trial("driver"), titled(e, f"backend {b.name}")
    torch_is_well = e.trial("accelerator").data.get("kind") == b.name
    if driver.ok or not driver.tried or not e.trial("triton").ok or not torch_is_well:
        return
    if "active drivers" in driver.text:
        what = f"Triton reports: {driver.text}"
        cure = "keep one triton in this environment; TRITON_DEFAULT_BACKEND (nvidia, amd) selects one of the drivers"
        yield fail("triton-drivers", section, what, cure)
    elif "libcuda" in driver.text:
        what = "Triton does not find libcuda.so.1 (it uses ldconfig -p)"
        cure = "run ldconfig as root; in a container NVIDIA_DRIVER_CAPABILITIES=compute,utility; or TRITON_LIBCUDA_PATH"
        yield fail("cuda-libcuda", section, what, cure)
    elif f.cc and e.trial("python").data.get("header", True):  # otherwise it has been reported
        what = f"Triton cannot build its launcher ({driver})"
        yield fail("triton-launch", section, what, "run a small Triton kernel by hand in this environment")
