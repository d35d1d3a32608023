"""What a compiling worker says of exceptions, and which kept reports it believes."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.compile import worker
from farm.compile.targets import TARGETS


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENOMEM])
def test_what_the_host_lacks_is_no_fault_of_the_kernel(number: int) -> None:
    status, reason = worker.classify(OSError(number, "told by the system"))
    assert status == "infra_error" and "told by the system" in reason


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no such file"), ValueError("wrong"), MemoryError()])
def test_what_the_code_under_test_may_cause_is_its_crash(error: Exception) -> None:
    assert worker.classify(error)[0] == "crashed"


def test_a_report_is_not_believed_once_the_code_that_reads_kernels_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, found = SimpleNamespace(hash="aa"), []
    for number, text in enumerate(("a = 1", "a = 1", "a = 2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "nvidia.py").write_text(text)
        monkeypatch.setattr(worker, "READERS", folder)
        found.append(worker._digest(TARGETS["sm_90"], kernel, {}))
    assert found[0] == found[1] != found[2]
    assert worker._digest(TARGETS["sm_100"], kernel, {}) != found[2]


class JITFunction:
    """As Triton's is called."""

    fn = SimpleNamespace(__name__="ring")

    def run(self) -> None:
        raise RuntimeError("PassManager::run failed")


class GluonJITFunction(JITFunction):
    """As Gluon's is."""


@pytest.mark.parametrize("function", [JITFunction(), GluonJITFunction()])
def test_the_kernel_that_does_not_compile_is_named(function: JITFunction) -> None:
    with pytest.raises(RuntimeError) as raised:
        function.run()
    status, reason = worker.classify(raised.value)
    assert status == "compile_error" and reason.startswith("kernel ring: RuntimeError: PassManager::run failed")
