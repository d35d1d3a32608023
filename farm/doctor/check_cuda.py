"""NVIDIA.  Pure."""

from __future__ import annotations

from farm.doctor.check_python import titled
from farm.doctor.facts import BackendFacts, Environment, Facts
from farm.doctor.finding import Finding, Findings, fail, warn


def environment(f: Facts, b: BackendFacts, e: Environment) -> Findings:
    section, ptxas = titled(e, "backend cuda"), e.trial("ptxas")
    if not ptxas.tried:
        return
    if not ptxas.ok:
        what = f"Triton has no ptxas that runs ({ptxas}): no Triton kernel can be compiled"
        cure = "install triton again, or set TRITON_PTXAS_PATH (TRITON_PTXAS_BLACKWELL_PATH from sm_100) to CUDA's"
        yield fail("ptxas-missing", section, what, cure)
        return
    for named in ptxas.data.get("useless", ()):
        what = f"{named} is no ptxas that runs: Triton quietly takes {ptxas.data.get('path')} ({ptxas.text}) instead"
        yield warn("ptxas-variable", section, what, f"correct or unset {named.partition('=')[0]}")
    part, knows = str(ptxas.data.get("architecture", "")), ptxas.data.get("knows", ())
    if part and knows and part not in knows:
        what = f"ptxas {ptxas.text} ({ptxas.data.get('path')}) does not know {part}: no Triton kernel can be compiled"
        cure = "unset TRITON_PTXAS_PATH, or install a newer triton (sm_100 needs ptxas 12.8, sm_103 12.9)"
        yield fail("ptxas-old", section, what, cure)


def why_blind(f: Facts, b: BackendFacts, e: Environment) -> Finding | None:
    """The reason, where it can be told, that torch sees none of the GPUs that nvidia-smi lists."""
    section, torch = titled(e, "backend cuda"), e.trial("torch")
    said = " ".join(map(str, e.trial("accelerator").data.get("warnings", ())))
    if "not yet initialized" in said or "Error 802" in said:
        what = "CUDA says that the system is not yet initialised: the NVLink fabric of this host is not started"
        cure = "systemctl start nvidia-fabricmanager (of the driver's exact version); on GB200 look at nvidia-imex too"
        return fail("cuda-fabric", section, what, cure)
    if "Error 803" in said or "Error 804" in said or "driver combination" in said:
        what = f"driver and CUDA libraries do not belong together ({said[:160]})"
        cure = "take cuda-compat off LD_LIBRARY_PATH; reboot if the driver was updated"
        return fail("cuda-driver-mismatch", section, what, cure)
    serves = next((str((d.identity or {}).get("stack") or "") for d in b.devices), "")
    built = str(torch.data.get("cuda", ""))
    if (_major(built) and _major(serves) and _major(built) > _major(serves)) or (
        "driver" in said and "too old" in said
    ):
        known = f"serves CUDA {serves}" if serves else "is too old for it"
        what = f"torch is built for CUDA {built}, the driver {known}: torch sees no GPU"
        cure = f"update the driver, or install a torch built for CUDA {serves or 'of this driver'}"
        return fail("cuda-driver-old", section, what, cure)
    if b.mig and not any("MIG" in d.name or d.uuid.startswith("MIG") for d in b.devices):
        return no_instances(section)
    return None


def no_instances(section: str) -> Finding:
    what = "MIG is enabled, and there are no instances: nothing can be opened"
    cure = "make instances (nvidia-smi mig -cgi PROFILE -C), or nvidia-smi -mig 0"
    return fail("cuda-mig-empty", section, what, cure)


def _major(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0
