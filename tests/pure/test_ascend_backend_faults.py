"""What Ascend's words mean: of an exception, of a compiler, of the last output of a process that died."""

from __future__ import annotations

import pytest

from farm.backends import ascend
from farm.cell import Owner, Status

ABORT = -6
#: Laid out as the vendor's troubleshooting guide shows an AI core error; numbers made up.
AICORE = (
    "RuntimeError: ACL stream synchronize failed, error code:507035\n"
    "EZ9999: Inner Error!\nEZ9999: The error from device(chipId:0, dieId:0), serial number is 7, there is an "
    "exception of aivec error, core id is 3, error code = 0x10, dump info: pc start: 0x12\n"
    "        The extend info: errcode:(0x10, 0, 0) errorStr: The write address of the MTE instruction is out of range, "
    "fixp_error0 info: 0, fsmId:0[FUNC:ProcessStarsCoreErrorInfo]\n"
)


@pytest.mark.parametrize(
    ("text", "status", "owner", "what", "lost"),
    [
        (
            AICORE,
            "crashed",
            "kernel",
            "a vector core raised an exception (507035): The write address of the MTE instruction is out of range",
            True,
        ),
        (
            "ACL stream synchronize failed, error code:507015",
            "crashed",
            "kernel",
            "an AI core raised an exception (507015)",
            True,
        ),
        ("error code is 507014", "timed_out", "kernel", "an AI core did not finish in time (507014)", True),
        (
            "NPU warning, error code is 507034[Error]: Vector core execution timed out.",
            "timed_out",
            "kernel",
            "a vector core did not finish in time (507034)",
            True,
        ),
        ("runtime result = 507046.", "timed_out", "kernel", "a stream did not finish in time (507046)", True),
        ("error code is 507018", "infra_error", "device", "the AI CPU raised an exception (507018)", True),
        (
            "rtMalloc failed, error code is 207001",
            "out_of_memory",
            "kernel",
            "the device does not have that much memory left (207001)",
            False,
        ),
        ("EL0004: Failed to allocate memory.", "out_of_memory", "kernel", "the device is out of memory", False),
        (
            "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB",
            "out_of_memory",
            "kernel",
            "the device is out of memory",
            False,
        ),
        (
            "EZ9999: there is an aicore error exception, core id is 4",
            "crashed",
            "kernel",
            "an AI core raised an exception (EZ9999)",
            True,
        ),
        ("EZ9999: Inner Error!\nTilingParse failed", "crashed", "kernel", "an operator failed inside (EZ9999)", True),
        ("EI0006: Getting socket times out.", "infra_error", "infra", "collective communication failed (EI0006)", True),
        ("E39999: Inner Error, aicpu kernel failed", "infra_error", "device", "the AI CPU failed (E39999)", True),
        (
            'loc("k.mlir":2:3): error: ub overflow, requires 3072000 bits while 1572864 bits available! (possible',
            "compile_error",
            "kernel",
            "needs 384,000 bytes of Unified Buffer, but only 196,608 are available",
            False,
        ),
        (
            "error: cbuf overflow, requires 8388608 bits while 4194304 bits available!",
            "compile_error",
            "kernel",
            "needs 1,048,576 bytes of L1 buffer, but only 524,288 are available",
            False,
        ),
        (
            "triton.compiler.errors.MLIRCompilationError: ///------------------[ERROR][Triton][BEG]",
            "compile_error",
            "kernel",
            "the kernel's compiler failed (MLIRCompilationError)",
            False,
        ),
        (
            "RuntimeError: grid should be less than 65536! You can try ...",
            "crashed",
            "kernel",
            "a grid exceeds the limit of 65,535 programs per launch",
            False,
        ),
        (
            "coreDim=13824000 can't be greater than UINT16_MAX",
            "crashed",
            "kernel",
            "a grid of 13824000 exceeds the limit of 65,535 programs per launch",
            False,
        ),
    ],
)
def test_an_exceptions_words(text: str, status: str, owner: str, what: str, lost: bool) -> None:
    found = ascend.fault(text)
    assert found is not None
    assert (found.status, found.owner, found.what, found.lost) == (status, owner, what, lost)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: x must be contiguous",
        "shape (507035, 1280350350)",
        "assert 3 == 4",
        "CUDA error: 700",
        "AssertionError: bishengir is mentioned",
        "error 1507035 bytes",
    ],
)
def test_words_of_others_mean_nothing(text: str) -> None:
    assert ascend.fault(text) is None


@pytest.mark.parametrize(
    "tail",
    [
        "bishengir-compile: Assertion `x' failed.\nAborted (core dumped)",
        "Stack dump:\n0. hivmc -x",
        "triton-adapter-opt: LLVM ERROR: out of memory",
        "[MLIRCompilationError] the compiler said no",
    ],
)
def test_a_compiler_that_takes_the_process_with_it_is_a_compile_error(tail: str) -> None:
    found = ascend.fault(tail, ABORT)
    assert found is not None and (found.status, found.owner) == ("compile_error", "kernel")


def test_a_death_without_such_words_is_told_by_nobody() -> None:
    assert ascend.fault("Fatal Python error: Aborted", ABORT) is None
    assert ascend.fault("bishengir-compile: compiled", ABORT) is None  # named, but it is not what died
    assert ascend.fault("bishengir-compile: Assertion `x' failed.") is None  # an exception that only quotes it


def test_the_cores_own_error_counts_before_what_failed_after_it() -> None:
    text = "error code is 507899\nerror code is 507018\nerror code is 507035"
    found = ascend.fault(text)
    assert found is not None and "507035" in found.what and found.owner == "kernel"


def test_every_code_has_a_status_and_an_owner_of_the_farm() -> None:
    from farm.backends._cann import CODES

    for status, owner, what, lost in CODES.values():
        assert Status(status) and Owner(owner) and what and isinstance(lost, bool)
        assert (status == "infra_error") == (owner in ("device", "infra"))
