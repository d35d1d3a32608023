"""What an exception of a cell means: its status, whose fault it is, and whether the device's context survives it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import torch

from farm.backends.api import Fault
from farm.errors import CaptureFailed, FarmSignal, WrongAnswer


class InputsUnreadable(FarmSignal):
    """The judge's files cannot be read: nobody's kernel is at fault."""


@dataclass(frozen=True)
class FailureVerdict:
    """How the attempt ended.  `traced`: where it was raised helps whoever reads it.  `fatal`: the context is lost."""

    status: str
    owner: str
    reason: str
    traced: bool = True
    fatal: bool = False


def verdict(
    error: Exception,
    *,
    fault_of: Callable[[str], Fault | None],
    device: torch.device,
    phase: str,
    squeezed: Callable[[], str],
) -> FailureVerdict:
    """Status and owner of an exception that the code under test let out in `phase`.

    `fault_of`: the backend's reading of its vendor's words.  `squeezed()`: asked where memory is out, why that is the
    farm's doing or the cell's size; "" where it is neither.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, CaptureFailed):
        return FailureVerdict("capture_failed", "harness", str(error), fatal=True)
    if isinstance(error, WrongAnswer):
        return FailureVerdict("inaccurate", "kernel", str(error), traced=False)
    if isinstance(error, NotImplementedError):
        return FailureVerdict("unsupported", "kernel", str(error) or "NotImplementedError", traced=False)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FailureVerdict("infra_error", "infra", f"the outputs could not be written: {error}")
    if isinstance(error, InputsUnreadable):
        return FailureVerdict("infra_error", "infra", str(error))
    fault = vendors(fault_of, error)
    if memory_is_out(error, fault):
        why = squeezed()
        if why:
            return FailureVerdict("unsupported", "harness", f"{why} ({text})", traced=False)
        return FailureVerdict("out_of_memory", "kernel", text)
    if fault is not None:
        told = f"{fault.what}; " if fault.what else ""
        lost = fault.lost or device_is_lost(error, device)
        return FailureVerdict(fault.status, fault.owner, f"{told}{text} (in phase {phase})", fatal=lost)
    module = type(error).__module__
    if module.startswith("triton.compiler") or type(error).__name__ in ("OutOfResources", "PTXASError"):
        return FailureVerdict("compile_error", "kernel", text)
    return FailureVerdict("crashed", "kernel", f"{text} (in phase {phase})", fatal=device_is_lost(error, device))


def vendors(fault_of: Callable[[str], Fault | None], error: BaseException) -> Fault | None:
    """What the vendor's words in an exception, or in what it was raised from, mean; None where they are not the
    vendor's."""
    return fault_of("\n".join(f"{type(e).__name__}: {e}" for e in (error, error.__cause__) if e))


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
