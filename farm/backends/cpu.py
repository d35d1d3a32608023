"""The CPU: Triton kernels in the interpreter, everything else as torch runs it here.  Proves numerics, never speed."""

from __future__ import annotations

import os
import platform
from typing import Any

from farm.backends import api
from farm.backends.api import HostDevice, Session
from farm.process import host

NAME = "cpu"
ACCELERATOR = False
EVIDENCE = "interpreted"
DEFAULT_TIMING = "none"
RESOURCE = {"farm_cpu": 1}
# A processor is locked and read by nobody, and captures nothing.
NOT_YET, TRIAL_CAPTURE, CAPTURE_MAY_KILL, granted = "", False, False, None
FALLBACK_TIMING, PAUSES, MEMORY_SECONDS = api.FALLBACK_TIMING, api.PAUSES, api.MEMORY_SECONDS
physical_id, telemetry, identity = api.nothing_to_lock, api.no_telemetry, api.no_identity
fault, unfit, complaints = api.no_fault, api.no_health_check, api.no_complaints
peaks, child_options = api.no_datasheet, api.no_options


def detect(count: int | None = None) -> list[HostDevice]:
    """`count` equal slots of this host's processor (2 unless asked for otherwise)."""
    name = f"cpu-{platform.machine()}"
    return [HostDevice(id=str(i), name=name) for i in range(count or 2)]


def child_env(device_id: str) -> dict[str, str]:
    """One thread per slot: slots share the host's cores, and small tensors gain nothing from more."""
    del device_id
    return {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def model() -> str:
    """The processor's name, for people; the target is only the architecture."""
    return host.processor()


def open_session(device_id: str, options: dict[str, Any]) -> Session:
    """In the child: the interpreter, made right for bfloat16 and watched for out-of-bounds accesses."""
    del options
    from farm.child.session import TorchSession

    programs = None
    try:
        from farm.child import interpreter

        interpreter.install()
        triton_note, programs = None, interpreter.programs
    except ImportError as error:
        triton_note = f"triton cannot be imported ({error}); kernels of provider farm are unsupported"
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    session = TorchSession(
        backend=NAME,
        device=torch.device("cpu"),
        target={"backend": NAME, "model": f"cpu-{platform.machine()}"},
        device_name=f"{model()} #{device_id}",
        timing_methods=(),
    )
    session.programs = programs
    if triton_note:
        session.fingerprint["note"] = triton_note
    return session
