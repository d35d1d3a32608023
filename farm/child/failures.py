"""What an exception of a cell means: its status, whose fault it is, and whether the device's context survives it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import torch

from farm import backends
from farm.backends import Fault
from farm.child import calling


class InputsUnreadable(Exception):
    """The judge's files cannot be read: nobody's kernel is at fault."""


class CaptureFailed(Exception):
    """The call cannot be captured; the process is spent."""


@dataclass(frozen=True)
class Verdict:
    """How the attempt ended.  `traced`: where it was raised helps whoever reads it.  `fatal`: the context is lost."""

    status: str
    owner: str
    reason: str
    traced: bool = True
    fatal: bool = False


def verdict(
    error: Exception, *, backend: str, device: torch.device, phase: str, squeezed: Callable[[], str]
) -> Verdict:
    """Status and owner of an exception that the code under test let out in `phase`.

    `squeezed()`: asked where memory is out, why that is the farm's doing or the cell's size; "" where it is neither.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, CaptureFailed):
        return Verdict("capture_failed", "harness", str(error), fatal=True)
    if isinstance(error, calling.WrongAnswer):
        return Verdict("inaccurate", "kernel", str(error), traced=False)
    if isinstance(error, NotImplementedError):
        return Verdict("unsupported", "kernel", str(error) or "NotImplementedError", traced=False)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Verdict("infra_error", "infra", f"the outputs could not be written: {error}")
    if isinstance(error, InputsUnreadable):
        return Verdict("infra_error", "infra", str(error))
    fault = vendors(backend, error)
    if memory_is_out(error, fault):
        why = squeezed()
        if why:
            return Verdict("unsupported", "harness", f"{why} ({text})", traced=False)
        return Verdict("out_of_memory", "kernel", text)
    if fault is not None:
        told = f"{fault.what}; " if fault.what else ""
        lost = fault.lost or device_is_lost(error, device)
        return Verdict(fault.status, fault.owner, f"{told}{text} (in phase {phase})", fatal=lost)
    module = type(error).__module__
    if module.startswith("triton.compiler") or type(error).__name__ in ("OutOfResources", "PTXASError"):
        return Verdict("compile_error", "kernel", text)
    return Verdict("crashed", "kernel", f"{text} (in phase {phase})", fatal=device_is_lost(error, device))


def vendors(backend: str, error: BaseException) -> Fault | None:
    """What the vendor's words in an exception, or in what it was raised from, mean; None where they are not the
    vendor's."""
    read = getattr(backends.get(backend), "fault", None)
    if read is None:
        return None
    found: Fault | None = read("\n".join(f"{type(e).__name__}: {e}" for e in (error, error.__cause__) if e))
    return found


def memory_is_out(error: Exception, fault: Fault | None) -> bool:
    """Whether torch or the vendor says so; torch's allocator for the CPU has no exception of its own."""
    full = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    told = fault is not None and fault.status == "out_of_memory"
    return full or told or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def device_is_lost(error: Exception, device: torch.device) -> bool:
    """Whether the context must be given up: an error that the accelerator raised, or one that it raises from now on."""
    if device.type == "cpu":
        return False
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    try:
        torch.get_device_module(device.type).synchronize(device)
        torch.zeros(1, device=device).add_(1).item()
    except Exception:
        return True
    return False
