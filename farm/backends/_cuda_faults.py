"""What CUDA's, ptxas's and the NVIDIA driver's words mean for a cell.  Pure.

Numbers and names are those of the CUDA driver API's `CUresult` and the runtime API's `cudaError_t`
(docs.nvidia.com/cuda, 13.0), which agree on the numbers used here; Xid numbers those of NVIDIA's "Xid Errors" document
(docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.backends.api import Fault

_KERNEL, _DEVICE, _INFRA = "kernel", "device", "infra"


@dataclass(frozen=True)
class _Error:
    number: int
    names: tuple[str, ...]  # of the driver's and of the runtime's interface
    words: tuple[str, ...]  # beginnings of the text that both print, lower case
    status: str
    owner: str
    lost: bool = True


#: The first that fits is meant: the device's own faults before the kernel's, which they resemble.
_ERRORS = (
    _Error(
        214,
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable"),
        ("uncorrectable ecc error",),
        "infra_error",
        _DEVICE,
    ),
    _Error(
        220,
        ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "cudaErrorNvlinkUncorrectable"),
        ("uncorrectable nvlink error",),
        "infra_error",
        _DEVICE,
    ),
    _Error(
        226,
        ("CUDA_ERROR_CONTAINED", "cudaErrorContained"),
        ("invalid access of peer gpu memory over nvlink", "contained error"),
        "infra_error",
        _DEVICE,
    ),
    _Error(
        700,
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress"),
        ("an illegal memory access was encountered",),
        "crashed",
        _KERNEL,
    ),
    _Error(
        716,
        ("CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress"),
        ("misaligned address",),
        "crashed",
        _KERNEL,
    ),
    _Error(710, ("CUDA_ERROR_ASSERT", "cudaErrorAssert"), ("device-side assert triggered",), "crashed", _KERNEL),
    _Error(
        715,
        ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction"),
        ("an illegal instruction was encountered",),
        "crashed",
        _KERNEL,
    ),
    _Error(
        714,
        ("CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError"),
        ("hardware stack error",),
        "crashed",
        _KERNEL,
    ),
    _Error(
        717,
        ("CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace"),
        ("operation not supported on global/shared address space",),
        "crashed",
        _KERNEL,
    ),
    _Error(718, ("CUDA_ERROR_INVALID_PC", "cudaErrorInvalidPc"), ("invalid program counter",), "crashed", _KERNEL),
    _Error(
        719, ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure"), ("unspecified launch failure",), "crashed", _KERNEL
    ),
    _Error(
        721,
        ("CUDA_ERROR_TENSOR_MEMORY_LEAK", "cudaErrorTensorMemoryLeak"),
        ("tensor memory leak", "tensor memory was not completely deallocated"),
        "crashed",
        _KERNEL,
    ),
    _Error(
        702,
        ("CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout"),
        ("the launch timed out and was terminated",),
        "timed_out",
        _KERNEL,
    ),
    _Error(
        701,
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cudaErrorLaunchOutOfResources"),
        ("too many resources requested for launch",),
        "compile_error",
        _KERNEL,
        lost=False,
    ),  # as Triton calls it
    _Error(
        2,
        ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"),
        (
            "cuda out of memory",
            "cuda error: out of memory",
            "cuda driver error: out of memory",
            "[cuda]: out of memory",
        ),
        "out_of_memory",
        _KERNEL,
        lost=False,
    ),
    _Error(
        209,
        ("CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice"),
        ("no kernel image is available",),
        "unsupported",
        _KERNEL,
        lost=False,
    ),
    _Error(
        222,
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion"),
        ("the provided ptx was compiled with an unsupported toolchain",),
        "infra_error",
        _INFRA,
        lost=False,
    ),
    _Error(
        218,
        ("CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx"),
        ("a ptx jit compilation failed",),
        "compile_error",
        _KERNEL,
        lost=False,
    ),
    _Error(
        803,
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch"),
        ("unsupported display driver / cuda driver combination", "driver/library version mismatch"),
        "infra_error",
        _INFRA,
    ),
    _Error(
        804,
        ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice"),
        ("forward compatibility was attempted on non supported hw",),
        "infra_error",
        _INFRA,
    ),
    _Error(
        802,
        ("CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady"),
        ("system not yet initialized",),
        "infra_error",
        _INFRA,
    ),
    _Error(
        35,
        ("cudaErrorInsufficientDriver",),
        ("cuda driver version is insufficient", "the nvidia driver on your system is too old"),
        "infra_error",
        _INFRA,
    ),
    _Error(
        46,
        ("CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable"),
        ("cuda-capable device(s) is/are busy or unavailable",),
        "infra_error",
        _INFRA,
    ),
    _Error(
        100,
        ("CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice"),
        ("no cuda-capable device is detected", "no cuda gpus are available"),
        "infra_error",
        _INFRA,
    ),
    _Error(
        999,
        ("CUDA_ERROR_UNKNOWN", "cudaErrorUnknown"),
        ("cuda error: unknown error", "[cuda]: unknown error"),
        "infra_error",
        _DEVICE,
    ),
)

_XID = re.compile(r"\bXid\b(?:\s*\([^)]*\))?[:\s]+(\d+)")
#: Xids that a program can cause; `_XIDS_OF_THE_DEVICE` are those that mean hardware, firmware or the driver.
_XIDS_OF_THE_KERNEL = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup",
    109: "context switch timeout",
}
_XIDS_OF_THE_DEVICE = {
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high single-bit ECC rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP did not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "GPU recovery action changed",
}
_NUMBER = re.compile(r"\b(?:CUDA|cuda)[\w ]*?\b(?:error|err|code|status)\b[ :=(]*(\d{1,3})\b(?!\.\d|e[-+]?\d|%)")
_LOST = ("gpu is lost", "fallen off the bus")
_PTXAS = re.compile(r"ptxas (?:fatal|error|info.*\berror)|`ptxas` (?:failed|raised|error)|PTXASError|PTX codegen error")
_RESOURCES = re.compile(r"OutOfResources|out of resource: ")
#: What a part has too little of, in Triton's words: "tensor memory" there is no error of CUDA's.
_TRITONS = re.compile(r"out of resource: [^,\n]*")


def fault(text: str, code: int | None = None) -> Fault | None:
    """The CUDA fault in the text of an exception, or in the last output of a process that died; None if none."""
    lower = text.lower()
    if any(words in lower for words in _LOST):
        return Fault("infra_error", _DEVICE, "the GPU is lost: examine the host", lost=True)
    # Xids appear in the kernel's log and in exceptions that quote it.  In the output of a process they are only text,
    # and no reason to suspect the device.
    xid = _xid(text) if code is None else None
    if xid is not None and xid.owner == _DEVICE:
        return xid
    found = _named(text, _TRITONS.sub("", lower))
    if found:
        return Fault(found.status, found.owner, f"CUDA error {found.number}: {found.words[0]}", found.lost)
    if _PTXAS.search(text):
        return Fault("compile_error", _KERNEL, "ptxas rejected the code")
    if _RESOURCES.search(text):
        return Fault("compile_error", _KERNEL, "needs more shared memory, registers or threads than this GPU has")
    return xid


def _named(text: str, lower: str) -> _Error | None:
    for error in _ERRORS:
        if any(re.search(rf"\b{n}\b", text) for n in error.names) or any(words in lower for words in error.words):
            return error
    number = _NUMBER.search(text)
    return next((e for e in _ERRORS if number and e.number == int(number[1])), None)


def _xid(text: str) -> Fault | None:
    numbers = [int(n) for n in _XID.findall(text)]
    for known, owner, status in (
        (_XIDS_OF_THE_DEVICE, _DEVICE, "infra_error"),
        (_XIDS_OF_THE_KERNEL, _KERNEL, "crashed"),
    ):
        for number in numbers:
            if number in known:
                return Fault(status, owner, f"Xid {number}: {known[number]}", lost=True)
    return None
