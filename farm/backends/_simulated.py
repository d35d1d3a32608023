"""A fake that plays a vendor's device: who it says it is, and how it fails.

`options` is `simulate` of the node's configuration with `as`, the backend that is played:

    as, model            backend and part, as the target says them
    opens                the part that the child finds, where it is not the one that the host reads (a wrong mask)
    partition, power_limit_w, clocks, driver, stack      as the identity and the target say them
    module, per_module   a name that all devices of the node share, or how many in a row are of one module
    torch, triton, ...   versions, for the child's fingerprint
    host                 the node's name, where $FARM_SIM_HOST and $FARM_NODE do not tell it from its neighbours

The texts of `FAULTS` are written after what the vendors' documentation and bug reports show of each failure; they exist
to be read by the real backend's `fault`, and are nobody's source.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.backends.api import Fault, Identity

#: Options that say what the device is and does; all others with one word each are versions.
SETTINGS = (
    "model",
    "opens",
    "partition",
    "power_limit_w",
    "clocks",
    "module",
    "per_module",
    "devices",
    "host",
    "start_s",
    "refuse",
)
_ASCEND_ERROR = (
    "NPU function error: c10_npu::acl::AclrtSynchronizeStreamWithTimeout(), error code is {code}\n"
    "[ERROR] {when} [Error]: {what}\n        Rectify the fault based on the error information in the ascend log."
)


@dataclass(frozen=True)
class Behaviour:
    """How a vendor's device fails.  `signal`: the process ends by it, after `text` on standard error, and no exception
    is seen; else an exception of that text.  `graph_only`: where a graph is captured, and there only, in a trial too.
    `differs`: the capture is made, and a trial finds its replays wrong."""

    text: str
    phase: str = "check"
    signal: int | None = None
    hangs: bool = False
    error: str = "RuntimeError"
    graph_only: bool = False
    differs: bool = False


def _ascend(code: int, what: str) -> Behaviour:
    return Behaviour(_ASCEND_ERROR.format(code=code, what=what, when="2026-11-21-12:00:00"))


_CUDA_HINT = "CUDA kernel errors might be asynchronously reported at some other API call"
#: (backend, script's `fault`) -> what happens.
FAULTS: dict[tuple[str, str], Behaviour] = {
    ("cuda", "illegal_access"): Behaviour(
        f"CUDA error: an illegal memory access was encountered\n{_CUDA_HINT}", error="AcceleratorError"
    ),
    ("cuda", "aicore"): Behaviour(f"CUDA error: unspecified launch failure\n{_CUDA_HINT}", error="AcceleratorError"),
    ("cuda", "abort"): Behaviour(f"CUDA error: device-side assert triggered\n{_CUDA_HINT}", error="AcceleratorError"),
    ("cuda", "ub_overflow"): Behaviour(
        "out of resource: shared memory, Required: 262144, Hardware limit: 232448. Reducing block sizes or "
        "`num_stages` may help.",
        "compile",
        error="OutOfResources",
    ),
    ("cuda", "capture"): Behaviour(
        "CUDA error: operation not permitted when stream is capturing",
        "timing",
        error="AcceleratorError",
        graph_only=True,
    ),
    ("rocm", "illegal_access"): Behaviour(
        "Memory access fault by GPU node-2 (Agent handle: 0x55d0c8) on address 0x7f3a00000000. "
        "Reason: Page not present or supervisor privilege.",
        signal=6,
    ),
    ("rocm", "hang"): Behaviour("HW Exception by GPU node-2 (Agent handle: 0x55d0c8) reason :GPU Hang", signal=6),
    ("rocm", "abort"): Behaviour(
        ":0:rocdevice.cpp: Callback: Queue 0x7f3a aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation "
        "resulted in a hardware exception. code: 0x1016",
        signal=6,
    ),
    ("rocm", "ub_overflow"): Behaviour(
        "out of resource: shared memory, Required: 131072, Hardware limit: 65536. Reducing block sizes or `num_stages` "
        "may help.",
        "compile",
        error="OutOfResources",
    ),
    ("rocm", "capture"): Behaviour("", "timing", signal=11, graph_only=True),
    ("ascend", "illegal_access"): _ascend(507035, "The vector core execution is abnormal."),
    ("ascend", "aicore"): _ascend(507015, "The aicore execution is abnormal."),
    ("ascend", "abort"): Behaviour(
        "Command '['bishengir-compile', 'kernel.ttadapter.mlir', '--target=Ascend910B3', '-o', 'kernel']' died with "
        "<Signals.SIGABRT: 6>.",
        "compile",
        error="MLIRCompilationError",
    ),
    ("ascend", "ub_overflow"): Behaviour(
        "[ConvertLinalgRToBinary] error: ub overflow, requires 2621696 bits while 1572864 bits available! (possible "
        "reason: tiling basic block is too large or block number is more than what user expect due to multi-buffer "
        "feature is enabled and some ops need extra local buffer.)",
        "compile",
        error="MLIRCompilationError",
    ),
    ("ascend", "capture"): Behaviour(
        "NPU function error: c10_npu::acl::AclmdlRICaptureEnd, error code is 107025", "timing", graph_only=True
    ),
}
FAULTS[("rocm", "aicore")] = FAULTS[("rocm", "abort")]
FAULTS[("rocm", "capture_refused")] = Behaviour(
    "HIP error: operation not permitted when stream is capturing", "timing", error="AcceleratorError", graph_only=True
)
FAULTS[("rocm", "capture_hang")] = Behaviour("", "timing", hangs=True, graph_only=True)
FAULTS[("rocm", "capture_differs")] = Behaviour(
    "replays gave different outputs than the call", "timing", graph_only=True, differs=True
)
HANG = Behaviour("", hangs=True)


def behaviour(backend: str, kind: str) -> Behaviour:
    """How a device of that backend shows the fault; ValueError for a kind of fault that its devices do not have."""
    found = HANG if kind == "hang" and (backend, kind) not in FAULTS else FAULTS.get((backend, kind))
    if found is None:
        known = sorted({k for b, k in FAULTS if b == backend} | {"hang"})
        raise ValueError(f'sim: a device of {backend} has no fault "{kind}"; available: {", ".join(known)}')
    return found


def played(options: Mapping[str, Any]) -> str:
    """The backend that a simulated device imitates; "" for none."""
    return str(options.get("as") or "")


def host(options: Mapping[str, Any]) -> str:
    """The name of the simulated host, among several that this machine simulates; "" for a device of one run."""
    named = os.environ.get("FARM_SIM_HOST", "")
    if not played(options):
        return named
    if options.get("host"):
        return str(options["host"])
    node = os.environ.get("FARM_NODE", "")
    return "-".join(w for w in (named, hashlib.sha256(node.encode()).hexdigest()[:8] if node else "") if w)


def place(options: Mapping[str, Any]) -> str:
    """The same with the backend that is played, for names of files and devices; may be ""."""
    return "-".join(w for w in (played(options), host(options)) if w)


def identity(device_id: str, options: Mapping[str, Any]) -> Identity | None:
    """What the vendor's tool would say of the device, by the options alone; None for a fake that plays nothing."""
    if not played(options):
        return None
    power = options.get("power_limit_w")
    return Identity(
        model=str(options.get("model", "")),
        uuid=uuid(device_id, options),
        partition=str(options.get("partition") or ""),
        power_limit_w=int(power) if power else None,
        clocks=str(options.get("clocks") or ""),
        driver=str(options.get("driver", "")),
        stack=str(options.get("stack", "")),
        module=module(device_id, options),
    )


def uuid(device_id: str, options: Mapping[str, Any]) -> str:
    return f"simulated-{place(options)}-{device_id}"


def module(device_id: str, options: Mapping[str, Any]) -> str:
    """The name that neighbours share; "" where the device has none."""
    several = int(options.get("per_module") or 0)
    if several and device_id.isdigit():
        return f"{place(options)}-module-{int(device_id) // several}"
    return str(options.get("module") or "")


def target(options: Mapping[str, Any]) -> dict[str, Any]:
    """The target that the fake's child says."""
    opened = str(options.get("opens") or options.get("model") or "")
    out: dict[str, Any] = {"backend": played(options), "model": opened}
    out.update({k: options[k] for k in ("partition", "power_limit_w", "clocks") if options.get(k)})
    return out


def versions(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the fake's child adds to its fingerprint: every option that describes its software."""
    return {k: v for k, v in options.items() if k not in ("as", *SETTINGS) and isinstance(v, (str, int, float))}


def classified(backend: str, text: str) -> Fault:
    """An exception's text as the real backend understands it, else as any exception of the code under test."""
    from farm import backends

    return backends.get(backend).fault(text) or Fault("crashed", "kernel", "", lost=True)


def state_file(spool: str | Path, device_id: str, options: Mapping[str, Any]) -> Path:
    """One file a fake: several hosts that this machine pretends to be may share a spool."""
    return Path(spool, "-".join(w for w in ("sim-device", place(options), device_id) if w) + ".json")
