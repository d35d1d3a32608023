"""What CUDA's words mean: status, owner, and whether the process is of any more use."""

from __future__ import annotations

import pytest

from farm.backends import cuda

HINT = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"


@pytest.mark.parametrize(
    ("text", "status", "owner", "lost", "words"),
    [
        (
            "AcceleratorError: CUDA error: an illegal memory access was encountered" + HINT,
            "crashed",
            "kernel",
            True,
            "700",
        ),
        ("RuntimeError: CUDA error: misaligned address", "crashed", "kernel", True, "716"),
        ("RuntimeError: Triton Error [CUDA]: device-side assert triggered", "crashed", "kernel", True, "710"),
        ("CUDA error: the launch timed out and was terminated", "timed_out", "kernel", True, "702"),
        ("CUDA error: uncorrectable ECC error encountered", "infra_error", "device", True, "214"),
        ("AcceleratorError: CUDA error: unspecified launch failure", "crashed", "kernel", True, "719"),
        ("cudaErrorIllegalAddress", "crashed", "kernel", True, "700"),
        ("cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "compile_error", "kernel", False, "701"),
        ("failed with CUDA error code 700", "crashed", "kernel", True, "700"),
        ("CUDA driver error: 214", "infra_error", "device", True, "214"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "out_of_memory", "kernel", False, "2"),
        ("AcceleratorError: CUDA error: out of memory", "out_of_memory", "kernel", False, "2"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "out_of_memory", "kernel", False, "2"),
        ("RuntimeError: CUDA driver error: out of memory", "out_of_memory", "kernel", False, "2"),
        ("RuntimeError: Triton Error [CUDA]: unknown error", "infra_error", "device", True, "999"),
        ("CUDA error: no kernel image is available for execution on the device", "unsupported", "kernel", False, "209"),
        (
            "PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal",
            "compile_error",
            "kernel",
            False,
            "ptxas",
        ),
        (
            "OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 232448.",
            "compile_error",
            "kernel",
            False,
            "shared memory",
        ),
        (
            "OutOfResources: out of resource: tensor memory, Required: 1024, Hardware limit: 512. Reducing block sizes",
            "compile_error",
            "kernel",
            False,
            "more shared memory",
        ),  # Triton's words for sm_100, no error 721
        (
            "out of resource: shared memory, Required: 9, Hardware limit: 8\nCUDA error: misaligned address",
            "crashed",
            "kernel",
            True,
            "716",
        ),
        (
            "Error 803: system has unsupported display driver / cuda driver combination",
            "infra_error",
            "infra",
            True,
            "803",
        ),
        ("Error 804: forward compatibility was attempted on non supported HW", "infra_error", "infra", True, "804"),
        ("Failed to initialize NVML: Driver/library version mismatch", "infra_error", "infra", True, "803"),
        (
            "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "infra_error",
            "infra",
            True,
            "802",
        ),
        ("RuntimeError: No CUDA GPUs are available", "infra_error", "infra", True, "100"),
        (
            "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            "infra_error",
            "infra",
            False,
            "222",
        ),
        (
            "Unable to determine the device handle for GPU0: GPU is lost.  Reboot the system",
            "infra_error",
            "device",
            True,
            "lost",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.", "infra_error", "device", True, "lost"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 8, MMU Fault", "crashed", "kernel", True, "Xid 31"),
        (
            "NVRM: Xid (PCI:0000:3b:00): 48, pid=7\nCUDA error: an illegal memory access was encountered",
            "infra_error",
            "device",
            True,
            "Xid 48",
        ),
        ("Xid 119", "infra_error", "device", True, "GSP"),
    ],
)
def test_what_is_understood(text: str, status: str, owner: str, lost: bool, words: str) -> None:
    found = cuda.fault(text)
    assert found is not None
    assert (found.status, found.owner, found.lost) == (status, owner, lost)
    assert words in found.what


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RuntimeError: shapes do not match",
        "MemoryError: out of memory on the host",
        "700 rows were wrong",
        "ValueError: expected CUDA tensor",
        "Xid",
        "Xid 7777",
        "NPU function error: error code is 507035",
        "Memory access fault by GPU node-2",
        "step 700 of the CUDA test was slow",
        "AssertionError: CUDA result 100 != 3",
        "AssertionError: max CUDA error: 2.5",
        "cuda error 2e-3",
        "cuda err 35%",
        "error: tensor memory allocation does not dominate its use",
    ],
)
def test_what_is_none_of_its_words(text: str) -> None:
    assert cuda.fault(text) is None
    assert cuda.fault(text, -6) is None


def test_a_death_is_understood_by_the_words_before_it() -> None:
    log = (
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: an illegal "
        "memory access was encountered\nFatal Python error: Aborted"
    )
    found = cuda.fault(log, -6)
    assert found is not None and (found.status, found.owner) == ("crashed", "kernel")


def test_what_a_process_printed_of_xids_before_it_died_is_its_own_word() -> None:
    assert cuda.fault("Xid 48") is not None
    assert cuda.fault("Xid 48", -11) is None


def test_every_error_is_found_by_each_of_its_names() -> None:
    from farm.backends import _cuda_faults

    for error in _cuda_faults._ERRORS:
        for name in error.names:
            found = cuda.fault(f"something failed with {name} here")
            assert found is not None and f"error {error.number}:" in found.what, name
