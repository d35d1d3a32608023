"""These tests run kernels in Triton's interpreter: the process is switched before anything imports triton."""

from __future__ import annotations

_reason = ""
try:
    from farm.child import interpreter

    interpreter.install()
    import torch

    torch.set_num_threads(1)
except ImportError as error:
    _reason = f"torch or triton is not installed: {error}"
    collect_ignore_glob = ["test_*.py"]
except Exception as error:  # triton was imported as a compiler: these tests need a process of their own
    _reason = str(error)
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"tests/mutants: skipped, {_reason}" if _reason else "tests/mutants: Triton's interpreter is on"
