"""ROCm's words, understood.  Texts are written after AMD's list of HIP errors and what users' reports show."""

from __future__ import annotations

import pytest

from farm.backends import Fault, rocm
from farm.cell import Owner, Status

ABORT, SEGV = -6, -11
MEMORY_FAULT = (
    "Memory access fault by GPU node-2 (Agent handle: 0x55c77d07fd80) on address 0x7f0800018000. Reason: {why}.\n"
    "GPU core dump created: gpucore.554058\n"
)
QUEUE = (
    ":0:rocdevice.cpp :3020: 5875275709338d us: Callback: Queue 0x7f4580c00000 aborting with error : {status}: {what}"
)
TORCH = (
    "AcceleratorError: HIP error: {what}\nHIP kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3"
)


@pytest.mark.parametrize(
    ("text", "status", "owner", "words"),
    [
        (
            MEMORY_FAULT.format(why="Page not present or supervisor privilege"),
            "crashed",
            "kernel",
            "memory access fault at 0x7f0800018000 (Page not present or supervisor privilege)",
        ),
        (MEMORY_FAULT.format(why="Unknown"), "crashed", "kernel", "at 0x7f0800018000 (Unknown)"),
        (
            MEMORY_FAULT.format(why="Write access to a read-only page").partition(" Reason")[0],
            "crashed",
            "kernel",
            "memory access fault",
        ),
        (
            "Memory access fault by GPU node-1 (Agent handle: 0x5) on address (nil). Reason: Page not present",
            "crashed",
            "kernel",
            "(Page not present)",
        ),
        (
            QUEUE.format(
                status="HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
                what="The agent attempted to access memory beyond the largest legal address. code: 0x29",
            ),
            "crashed",
            "kernel",
            "0x29",
        ),
        (
            QUEUE.format(
                status="HSA_STATUS_ERROR_EXCEPTION",
                what="An HSAIL operation resulted in a hardware exception. code: 0x1016",
            ),
            "crashed",
            "kernel",
            "0x1016",
        ),
        (QUEUE.format(status="HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION", what="code: 0x2a"), "crashed", "kernel", "0x2a"),
        (QUEUE.format(status="HSA_STATUS_ERROR_INVALID_ISA", what="code: 0x100f"), "unsupported", "kernel", "ISA"),
        (
            QUEUE.format(status="HSA_STATUS_ERROR_OUT_OF_RESOURCES", what="code: 0x1008"),
            "out_of_memory",
            "kernel",
            "0x1008",
        ),
        (
            QUEUE.format(status="HSA_STATUS_ERROR_SOMETHING_NEW", what="code: 0x99"),
            "crashed",
            "kernel",
            "HSA_STATUS_ERROR_SOMETHING_NEW",
        ),
        (
            "HW Exception by GPU node-4 (Agent handle: 0x55dc6e221990) reason :GPU Hang",
            "crashed",
            "kernel",
            "GPU node-4 hung and was reset",
        ),
        (
            "HW Exception by GPU node-4 (Agent handle: 0x55dc6e221990) reason :ECC",
            "infra_error",
            "device",
            "memory error on GPU node-4",
        ),
        ("HW Exception by GPU node-4 (Agent handle: 0x55dc6e221990) reason :Unknown", "crashed", "kernel", "node-4"),
        ("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.mfma.f32", "compile_error", "kernel", "Cannot select"),
    ],
)
def test_last_words_of_a_process_that_the_runtime_ended(text: str, status: str, owner: str, words: str) -> None:
    found = rocm.fault(f"some output of its own\n{text}\n", ABORT)
    assert found is not None
    assert (found.status, found.owner) == (status, owner)
    assert words in found.what and "\n" not in found.what
    assert found.lost  # whatever it was: the process is gone


@pytest.mark.parametrize(
    ("text", "status", "owner", "lost"),
    [
        (TORCH.format(what="an illegal memory access was encountered"), "crashed", "kernel", True),
        ("RuntimeError: hipErrorIllegalAddress", "crashed", "kernel", True),
        (TORCH.format(what="unspecified launch failure"), "crashed", "kernel", True),
        (TORCH.format(what="device-side assert triggered"), "crashed", "kernel", True),
        (TORCH.format(what="the launch timed out and was terminated"), "timed_out", "kernel", True),
        (TORCH.format(what="no kernel image is available for execution on the device"), "unsupported", "kernel", False),
        (
            "RuntimeError: Triton Error [HIP]:  Code: 209, Messsage: hipErrorNoBinaryForGpu",
            "unsupported",
            "kernel",
            False,
        ),
        (TORCH.format(what="invalid device function"), "unsupported", "kernel", False),
        (
            "OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 191.98 GiB",
            "out_of_memory",
            "kernel",
            False,
        ),
        (TORCH.format(what="out of memory"), "out_of_memory", "kernel", False),
        (
            "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 65536. Reducing block",
            "compile_error",
            "kernel",
            False,
        ),
        (TORCH.format(what="too many resources requested for launch"), "compile_error", "kernel", False),
        (
            "RuntimeError: error: <unknown>:0:0: local memory (98304) exceeds limit (65536) in function 'k'",
            "compile_error",
            "kernel",
            False,
        ),
        ("RuntimeError: ld.lld: error: undefined symbol: __ockl_x", "compile_error", "kernel", False),
        (
            "RuntimeError: error: Illegal instruction detected: Operand has incorrect register class.",
            "compile_error",
            "kernel",
            False,
        ),
        ("RuntimeError: error: ran out of registers during register allocation", "compile_error", "kernel", False),
        ("RuntimeError: error: instruction not supported on this GPU", "compile_error", "kernel", False),
        (TORCH.format(what="uncorrectable ECC error encountered"), "infra_error", "device", True),
        ("RuntimeError: No HIP GPUs are available", "infra_error", "infra", True),
        ("RuntimeError: Unable to open /dev/kfd read-write: Permission denied", "infra_error", "infra", True),
        ("RuntimeError: the device was lost from the bus", "infra_error", "device", True),
    ],
)
def test_exceptions(text: str, status: str, owner: str, lost: bool) -> None:
    found = rocm.fault(text)
    assert found is not None
    assert (found.status, found.owner, found.lost) == (status, owner, lost), found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", ABORT),
        ("ValueError: shapes do not match", None),
        ("Segmentation fault (core dumped)", SEGV),
        ("Traceback (most recent call last):\nKeyError: 'x'", 1),
        ("compiled for gfx942", None),
    ],
)
def test_words_that_are_not_rocms_are_left_to_others(text: str, code: int | None) -> None:
    assert rocm.fault(text, code) is None


def test_the_devices_own_failure_is_not_laid_on_the_kernel_that_noticed_it() -> None:
    text = "HW Exception by GPU node-1 (Agent handle: 0x1) reason :ECC\n" + MEMORY_FAULT.format(why="Unknown")
    found = rocm.fault(text, ABORT)
    assert found is not None and found.owner == "device"


def test_of_a_long_output_the_end_counts() -> None:
    earlier = TORCH.format(what="out of memory") + "\n" + "x" * 4000 + "\n"
    assert rocm.fault(earlier, ABORT) is None
    found = rocm.fault(earlier + MEMORY_FAULT.format(why="Unknown"), ABORT)
    assert found is not None and found.status == "crashed"


def test_every_rule_says_a_status_and_an_owner_that_there_are() -> None:
    from farm.backends._rocm_faults import _RULES

    for rule in _RULES:
        assert Status(rule.status) and Owner(rule.owner)
        assert Fault(rule.status, rule.owner, rule.tells)
        assert rule.owner == "kernel" or rule.status == "infra_error"
