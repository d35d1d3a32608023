"""The CPU: Triton kernels in the interpreter, everything else as torch runs it here.  Proves numerics, never speed."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from farm.backends import HostDevice

NAME = "cpu"
ACCELERATOR = False
EVIDENCE = "interpreted"
DEFAULT_TIMING = "none"
RESOURCE = {"farm_cpu": 1}


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
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "cpu")


def open_session(device_id: str, options: dict[str, Any]) -> Any:
    """In the child: the interpreter, made right for bfloat16 and watched for out-of-bounds accesses."""
    del options
    from farm.child.session import TorchSession

    try:
        from farm.child import interpreter

        interpreter.install()
        triton_note = None
    except ImportError as error:
        triton_note = f"triton is not importable here ({error}); kernels of provider farm are unsupported"
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    session = TorchSession(
        backend=NAME,
        device=torch.device("cpu"),
        target={"backend": NAME, "model": f"cpu-{platform.machine()}"},
        device_name=f"{model()} #{device_id}",
        timing_methods=(),
    )
    if triton_note:
        session.fingerprint["note"] = triton_note
    return session
