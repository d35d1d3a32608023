"""NVIDIA.  Pure."""

from __future__ import annotations

from farm.doctor.check_python import titled
from farm.doctor.facts import BackendFacts, EnvironmentFacts, Facts
from farm.doctor.finding import Finding, Findings, fail, warn


def environment(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Findings:
    section, ptxas = titled(e, "backend cuda"), e.trial("ptxas")
    if not ptxas.tried:
        return
    if not ptxas.ok:
        what = f"Triton has no working ptxas ({ptxas}): no Triton kernel can be compiled"
        cure = "reinstall triton, or set TRITON_PTXAS_PATH (TRITON_PTXAS_BLACKWELL_PATH from sm_100) to CUDA's ptxas"
        yield fail("ptxas-missing", section, what, cure)
        return
    for named in ptxas.data.get("useless", ()):
        what = (
            f"{named} is not a working ptxas; without a warning, Triton uses {ptxas.data.get('path')} "
            f"({ptxas.text}) instead"
        )
        yield warn("ptxas-variable", section, what, f"correct or unset {named.partition('=')[0]}")
    part, knows = str(ptxas.data.get("architecture", "")), ptxas.data.get("knows", ())
    if part and knows and part not in knows:
        what = (
            f"ptxas {ptxas.text} ({ptxas.data.get('path')}) does not support {part}: no Triton kernel can be compiled"
        )
        cure = "unset TRITON_PTXAS_PATH, or install a newer triton (sm_100 needs ptxas 12.8, sm_103 12.9)"
        yield fail("ptxas-old", section, what, cure)


def why_blind(f: Facts, b: BackendFacts, e: EnvironmentFacts) -> Finding | None:
    """Why torch sees none of the GPUs that nvidia-smi lists; None where the reason is unknown."""
    section, torch = titled(e, "backend cuda"), e.trial("torch")
    said = " ".join(map(str, e.trial("accelerator").data.get("warnings", ())))
    if "not yet initialized" in said or "Error 802" in said:
        what = (
            "CUDA reports that the system is not yet initialized: the NVLink fabric of this host has not been started"
        )
        cure = (
            "systemctl start nvidia-fabricmanager (the manager and the driver must have the same version); on "
            "GB200, check nvidia-imex, too"
        )
        return fail("cuda-fabric", section, what, cure)
    if "Error 803" in said or "Error 804" in said or "driver combination" in said:
        what = f"the versions of driver and CUDA libraries do not match ({said[:160]})"
        cure = "remove cuda-compat from LD_LIBRARY_PATH; reboot if the driver was updated"
        return fail("cuda-driver-mismatch", section, what, cure)
    serves = next((str((d.identity or {}).get("stack") or "") for d in b.devices), "")
    built = str(torch.data.get("cuda", ""))
    if (_major(built) and _major(serves) and _major(built) > _major(serves)) or (
        "driver" in said and "too old" in said
    ):
        known = f"supports CUDA {serves}" if serves else "is too old for that version"
        what = f"torch is built for CUDA {built}, but the driver {known}: torch sees no GPU"
        cure = f"update the driver, or install a torch built for {'CUDA ' + serves if serves else 'an older CUDA'}"
        return fail("cuda-driver-old", section, what, cure)
    if b.mig and not any("MIG" in d.name or d.uuid.startswith("MIG") for d in b.devices):
        return no_instances(section)
    return None


def no_instances(section: str) -> Finding:
    what = "MIG is enabled, but no instances exist, so no device can be opened"
    cure = "create instances (nvidia-smi mig -cgi PROFILE -C), or disable MIG (nvidia-smi -mig 0)"
    return fail("cuda-mig-empty", section, what, cure)


def _major(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0
