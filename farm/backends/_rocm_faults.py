"""What ROCm's words mean: of an exception, or the last ones of a process that the runtime has ended.  Pure.

Names are those of "HIP error codes" (rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html), whose short
texts torch shows, and of the HSA runtime's `hsa_status_t`; the sentences of aborts are as users' reports show them
(ROCm/aiter#1913, ROCm/rocm-libraries#7992, vllm-project/vllm#20007, ROCm/legacy-rocm-build#4021).  Read 2026-11-21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.backends.api import Fault


@dataclass(frozen=True)
class _Rule:
    """`says`: found in the text, whatever its case.  `tells`: the clause for people; \\1 as in a substitution."""

    says: str
    status: str
    owner: str
    tells: str
    lost: bool = True


#: The first that fits decides: what names the device's own failure before what names a consequence.
_RULES = (
    # the device or its host
    _Rule(
        r"HW Exception by GPU node-(\d+).{0,80}?reason\s*:\s*ECC",
        "infra_error",
        "device",
        r"an uncorrectable memory error on GPU node-\1",
    ),
    _Rule(
        r"hipErrorECCNotCorrectable|uncorrectable ECC error",
        "infra_error",
        "device",
        "an uncorrectable memory error (hipErrorECCNotCorrectable, 214)",
    ),
    _Rule(
        r"device (?:has been |was |is )?lost from (?:the )?bus",
        "infra_error",
        "device",
        "the device was lost from the bus",
    ),
    _Rule(
        r"/dev/kfd[^\n]{0,60}(?:Permission denied|Operation not permitted)",
        "infra_error",
        "infra",
        "this user is not allowed to open /dev/kfd (add the user to the groups render and video)",
    ),
    _Rule(
        r"hipErrorNoDevice|no ROCm-capable device is detected|No HIP GPUs are available",
        "infra_error",
        "infra",
        "no device is visible (hipErrorNoDevice, 100)",
    ),
    _Rule(
        r"hipErrorInsufficientDriver|hipErrorDeinitialized|driver shutting down",
        "infra_error",
        "infra",
        "the driver does not support this ROCm, or is shutting down",
    ),
    # the code under test; the farm's lock leaves it alone on the device
    _Rule(
        r"Memory access fault by GPU node-\d+.{0,80}? on address (?:\(nil\)|(0x[0-9a-f]+|\S+?))\.? "
        r"Reason:\s*([^\n]*?)\.?\s*(?:\n|$)",
        "crashed",
        "kernel",
        r"memory access fault at \1 (\2)",
    ),
    _Rule(r"Memory access fault by GPU node", "crashed", "kernel", "memory access fault"),
    _Rule(
        r"HW Exception by GPU node-(\d+).{0,80}?reason\s*:\s*GPU Hang",
        "crashed",
        "kernel",
        r"GPU node-\1 hung and was reset while only this cell used this GPU",
    ),
    _Rule(
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "out_of_memory",
        "kernel",
        "the runtime ran out of resources, such as scratch memory (HSA_STATUS_ERROR_OUT_OF_RESOURCES, 0x1008)",
    ),
    _Rule(
        r"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
        "crashed",
        "kernel",
        "access outside every address range (HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION, 0x29)",
    ),
    _Rule(
        r"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
        "crashed",
        "kernel",
        "illegal instruction (HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION, 0x2a)",
    ),
    _Rule(
        r"HSA_STATUS_ERROR_EXCEPTION",
        "crashed",
        "kernel",
        "hardware exception in a kernel (HSA_STATUS_ERROR_EXCEPTION, 0x1016)",
    ),
    _Rule(
        r"HSA_STATUS_ERROR_(?:INVALID_ISA|INVALID_CODE_OBJECT|INCOMPATIBLE_ARGUMENTS)\w*",
        "unsupported",
        "kernel",
        "code that this GPU cannot run (HSA: invalid ISA or code object)",
    ),
    _Rule(r"(HSA_STATUS_ERROR_\w+)", "crashed", "kernel", r"the runtime aborted the cell's queue (\1)"),
    _Rule(r"HW Exception by GPU node-(\d+)", "crashed", "kernel", r"hardware exception on GPU node-\1"),
    # exceptions, in torch's words and in HIP's
    _Rule(
        r"hipErrorNoBinaryForGpu|no kernel image is available for execution",
        "unsupported",
        "kernel",
        "the kernel's binary has no code for this GPU (hipErrorNoBinaryForGpu, 209)",
        lost=False,
    ),
    _Rule(
        r"hipErrorInvalidDeviceFunction|invalid device function",
        "unsupported",
        "kernel",
        "the kernel's binary has no such function for this GPU (hipErrorInvalidDeviceFunction, 98)",
        lost=False,
    ),
    _Rule(
        r"hipErrorIllegalAddress|an illegal memory access was encountered",
        "crashed",
        "kernel",
        "illegal memory access (hipErrorIllegalAddress, 700)",
    ),
    _Rule(
        r"hipErrorLaunchTimeOut|the launch timed out",
        "timed_out",
        "kernel",
        "a kernel was ended by a time limit (hipErrorLaunchTimeOut, 702)",
    ),
    _Rule(r"hipErrorAssert|device-side assert", "crashed", "kernel", "device-side assert (hipErrorAssert, 710)"),
    _Rule(
        r"hipErrorLaunchFailure|unspecified launch failure",
        "crashed",
        "kernel",
        "a kernel failed (hipErrorLaunchFailure, 719)",
    ),
    # before anything ran
    _Rule(
        r"out of resource: ([\w ]+), Required: (\d+), Hardware limit: (\d+)",
        "compile_error",
        "kernel",
        r"the kernel needs \2 of \1, but the device has \3",
        lost=False,
    ),
    _Rule(
        r"local memory \((\d+)\) exceeds limit \((\d+)\)",
        "compile_error",
        "kernel",
        r"the kernel needs \1 bytes of LDS, but the device has \2",
        lost=False,
    ),
    _Rule(
        r"hipErrorLaunchOutOfResources|too many resources requested for launch",
        "compile_error",
        "kernel",
        "a launch needs more registers, LDS or threads than the device has (hipErrorLaunchOutOfResources, 701)",
        lost=False,
    ),
    _Rule(r"(?:^|\s)(?:ld\.)?lld: error: ([^\n]{0,200})", "compile_error", "kernel", r"lld: \1", lost=False),
    _Rule(r"LLVM ERROR: ([^\n]{0,200})", "compile_error", "kernel", r"LLVM: \1"),
    _Rule(
        r"error: Illegal instruction detected: ([^\n]{0,200})",
        "compile_error",
        "kernel",
        r"the compiler generated an illegal instruction: \1",
        lost=False,
    ),
    _Rule(
        r"(?:error: )?((?:ran out of registers|couldn't allocate)[^\n]{0,160})",
        "compile_error",
        "kernel",
        r"\1",
        lost=False,
    ),
    _Rule(
        r"(?:instruction|operand) not supported on this GPU|not a valid operand for (?:this )?subtarget",
        "compile_error",
        "kernel",
        "an instruction that this GPU does not have",
        lost=False,
    ),
    _Rule(
        r"HIP out of memory|hipErrorOutOfMemory|HIP error: out of memory",
        "out_of_memory",
        "kernel",
        "out of device memory (hipErrorOutOfMemory, 2)",
        lost=False,
    ),
)
_COMPILED = tuple((re.compile(rule.says, re.IGNORECASE | re.MULTILINE), rule) for rule in _RULES)
_MOST = 200
#: Of a process's whole output so much counts, in characters: what stands before may be of an earlier cell.
_LAST_WORDS = 4000


def understood(text: str, code: int | None) -> Fault | None:
    """See `farm.backends`: fault.  A process that has died has lost its device, whatever the rule says."""
    if code is not None:
        text = text[-_LAST_WORDS:]
    for pattern, rule in _COMPILED:
        match = pattern.search(text)
        if match is not None:
            what = " ".join(match.expand(rule.tells).split())
            return Fault(rule.status, rule.owner, what[:_MOST], rule.lost or code is not None)
    return None
