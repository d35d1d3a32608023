"""Ascend.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from farm.doctor.check_python import titled
from farm.doctor.facts import BackendFacts, EnvironmentFacts, Facts, ProbeResult
from farm.doctor.finding import Finding, Findings, Level, fail, warn

SECTION = "backend ascend"
SOURCE = "source /usr/local/Ascend/ascend-toolkit/set_env.sh in the service or shell that starts Ray"
DRIVER = (
    "mount /usr/local/Ascend/driver into the container, and add its lib64/driver and lib64/common to LD_LIBRARY_PATH"
)
#: torch_npu -> CANN, from the version table in the README of Ascend Extension for PyTorch (read 2026-11-21).
PAIRS: Mapping[str, str] = {
    "2.10.0": "9.0.0",
    "2.9.0.post2": "9.0.0",
    "2.8.0.post4": "9.0.0",
    "2.7.1.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.8.0.post2": "8.5.0",
    "2.7.1.post2": "8.5.0",
    "2.6.0.post5": "8.5.0",
    "2.8.0": "8.3",
    "2.7.1": "8.3",
}


def host(f: Facts, b: BackendFacts) -> Findings:
    sourced = {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"} & set(f.variables)
    if not b.stack_folder and not sourced:
        what = "CANN is not installed (/usr/local/Ascend has no toolkit, and ASCEND_TOOLKIT_HOME names none)"
        yield fail("ascend-cann-missing", SECTION, what, "install the CANN toolkit and kernels for this part")
    elif not sourced:
        what = (
            f"CANN is in {b.stack_folder}, but CANN's set_env.sh has not been sourced, so acl and torch_npu do not "
            "find CANN"
        )
        yield fail("ascend-set-env", SECTION, what, SOURCE)
    ours = f.trial("acl")
    if ours.tried and not ours.ok:
        yield _acl(SECTION, ours, "Ray's Python", Level.WARN, bool(sourced))


def _acl(section: str, trial: ProbeResult, whose: str, level: Level, sourced: bool) -> Finding:
    after = (
        "Ray does not report the device type" if level is Level.WARN else "no deadline can be set for a hanging kernel"
    )
    if "libascend_hal" in trial.text:
        what = f"acl does not find the driver's libraries in {whose} ({trial})"
        return Finding("ascend-driver-library", section, level, what, DRIVER)
    if trial.ended == "missing":
        what = f"{whose} cannot import acl ({trial}): {after}"
        cure = "install CANN's Python packages for this Python" if sourced else SOURCE
        return Finding("ascend-acl-missing", section, level, what, cure)
    what = f"acl fails in {whose} ({trial}): {after}"
    return Finding(
        "ascend-acl-broken", section, level, what, "make npu-smi work first; check that the driver matches this CANN"
    )


def environment(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Findings:
    section = titled(e, SECTION)
    acl = e.trial("acl")
    if acl.tried and not acl.ok:
        yield _acl(section, acl, f"environment {e.name}", Level.FAIL, "ASCEND_TOOLKIT_HOME" in f.variables)
    yield from _torch_npu(f, e)
    installed: Mapping[str, str] = e.trial("python").data.get("distributions", {})
    if "triton" in installed and "triton-ascend" not in installed:
        what = f"triton {installed['triton']} is the upstream build, which has no NPU driver: Triton cells would fail"
        cure = "pip uninstall triton, then pip install triton-ascend, in a separate environment"
        yield fail("ascend-triton-upstream", section, what, cure)
    npu, torch = installed.get("torch-npu", ""), installed.get("torch", "")
    if npu and torch and not _same_torch(npu, torch):
        what = f"torch_npu {npu} is built for torch {'.'.join(npu.split('.')[:3])}, but torch is {torch}"
        bad = npu.split(".")[:2] != torch.split(".")[:2]
        cure = f"pip install torch=={'.'.join(npu.split('.')[:3])} (the CPU build)"
        yield Finding("ascend-torch-pairing", section, Level.FAIL if bad else Level.WARN, what, cure)
    wanted = PAIRS.get(npu.split("+")[0], "")
    if wanted and b.stack and b.stack.split(".")[:2] != wanted.split(".")[:2]:
        what = f"torch_npu {npu} is built for CANN {wanted}, but CANN here is {b.stack}"
        yield warn("ascend-cann-pairing", section, what, f"install CANN {wanted}, or the torch_npu for CANN {b.stack}")


def _torch_npu(f: Facts, e: EnvironmentFacts) -> Findings:
    section, torch, npu = titled(e, SECTION), e.trial("torch"), e.trial("torch_npu")
    if not torch.ok and e.trial("torch alone").ok:
        what = f"torch_npu makes import torch fail ({torch}); with TORCH_DEVICE_BACKEND_AUTOLOAD=0 the import works"
        cure = _why(torch) or "install the torch_npu that matches this torch and CANN"
        yield fail("ascend-torch-npu-breaks-torch", section, what, cure)
        return
    if not torch.ok or npu.ok or not npu.tried:
        return
    if npu.ended == "missing" and "torch_npu'" in npu.text:
        what = f"torch_npu is not installed ({npu}): every ascend cell would end as infra_error"
        yield fail("ascend-torch-npu-missing", section, what, f"pip install torch-npu for torch {torch.text}")
    elif "libascend_hal" in npu.text:
        what = f"torch_npu does not find the driver's libraries ({npu})"
        yield fail("ascend-driver-library", section, what, DRIVER)
    else:
        what = f"torch_npu cannot be imported ({npu}): every ascend cell would end as infra_error"
        cure = _why(npu) or "install the torch_npu that matches this torch and CANN"
        yield fail("ascend-torch-npu-broken", section, what, cure)


def _why(trial: ProbeResult) -> str:
    """The cure that an error of the loader suggests."""
    if "libascend_hal" in trial.text:
        return DRIVER
    if "libhccl" in trial.text or "libascendcl" in trial.text or "cannot open shared object" in trial.text:
        return SOURCE
    return ""


def _same_torch(npu: str, torch: str) -> bool:
    return npu.split("+")[0].split(".")[:3] == torch.split("+")[0].split(".")[:3]
