"""AMD.  Pure."""

from __future__ import annotations

from farm.doctor.check_python import titled
from farm.doctor.facts import BackendFacts, EnvironmentFacts, Facts
from farm.doctor.finding import Findings, note, warn

SECTION = "backend rocm"


def host(f: Facts, b: BackendFacts) -> Findings:
    yield from _amdsmi(f, b)
    v = f.variables
    if "ROCR_VISIBLE_DEVICES" in v and "HIP_VISIBLE_DEVICES" in v:
        what = f"ROCR_VISIBLE_DEVICES={v['ROCR_VISIBLE_DEVICES']} and HIP_VISIBLE_DEVICES={v['HIP_VISIBLE_DEVICES']}: "
        what += "HIP counts within the devices that ROCR leaves, so HIP numbers devices differently from amd-smi"
        yield warn("rocm-masks-both", SECTION, what, "unset ROCR_VISIBLE_DEVICES, and use only HIP_VISIBLE_DEVICES")
    if "CUDA_VISIBLE_DEVICES" in v:
        what = (
            f"CUDA_VISIBLE_DEVICES={v['CUDA_VISIBLE_DEVICES']} is set on an AMD host, and HIP obeys this variable, too"
        )
        yield warn("rocm-mask-cuda", SECTION, what, "unset CUDA_VISIBLE_DEVICES; use HIP_VISIBLE_DEVICES")
    if "HSA_OVERRIDE_GFX_VERSION" in v:
        what = f"HSA_OVERRIDE_GFX_VERSION={v['HSA_OVERRIDE_GFX_VERSION']} makes every GPU report another part: "
        what += "kernels are compiled for the wrong part"
        yield warn("rocm-gfx-override", SECTION, what, "unset HSA_OVERRIDE_GFX_VERSION")
    if f.system.numa_balancing == "1":
        what = "the Linux kernel moves memory between NUMA nodes (numa_balancing=1): copies to the device may stall"
        yield note("rocm-numa-balancing", SECTION, what, "echo 0 > /proc/sys/kernel/numa_balancing (AMD recommends it)")


def _amdsmi(f: Facts, b: BackendFacts) -> Findings:
    ours = f.trial("amdsmi")
    if ours.ok or not ours.tried:
        return
    install = f"pip install {b.stack_folder or '/opt/rocm'}/share/amd_smi, with {f.executable}"
    theirs = [e for e in f.environments if not e.own and e.trial("amdsmi").ok]
    if ours.ended != "missing":
        what = f"amdsmi fails in Ray's Python ({ours}), so Ray does not detect GPUs and telemetry does not use amdsmi"
        cure = "install the amdsmi that matches this driver; check that this user may open /dev/kfd"
        yield warn("rocm-amdsmi-broken", SECTION, what, cure)
    elif theirs:
        what = f"environment {theirs[0].name} can import amdsmi, but Ray's Python cannot ({ours}): "
        yield warn("rocm-amdsmi-only-child", SECTION, what + "Ray does not detect GPUs", install)
    else:
        what = f"Ray's Python cannot import amdsmi ({ours}): Ray silently detects no GPUs; "
        what += "devices are read with amd-smi, which is slower"
        yield warn("rocm-amdsmi-missing", SECTION, what, install)


#: With torch for an older ROCm, even small graphs crashed the process (pytorch/helion#3471, read 2026-11-21).
GRAPHS_SINCE = (7, 2)


def environment(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Findings:
    hip, installed = str(e.trial("torch").data.get("hip", "")), b.stack
    release = [int(n) for n in hip.split(".")[:2] if n.isdigit()]
    if len(release) == 2 and tuple(release) < GRAPHS_SINCE:
        what = (
            f"torch is built for ROCm {hip}, and graph captures with that version are known to crash the process: a "
            "call whose "
        )
        what += "capture trial fails is timed by events, which report a few us more than the kernel takes"
        newer = ".".join(map(str, GRAPHS_SINCE))
        cure = f"install torch for ROCm {newer} or newer, and a matching ROCm"
        yield note("rocm-graphs", titled(e, SECTION), what, cure)
    ours, theirs = hip.split(".")[:2], installed.split(".")[:2]
    if hip and installed and ours != theirs:
        what = f"torch is built for ROCm {hip}, but {b.stack_folder} is {installed}"
        section = titled(e, SECTION)
        if ours[0] == theirs[0]:
            yield note(
                "rocm-version",
                section,
                what,
                "no action is needed while this combination works; AMD supports it within a release",
            )
        else:
            yield warn("rocm-version", section, what, f"install the torch for ROCm {'.'.join(theirs)}")
