"""These tests run kernels in Triton's interpreter: the process is switched before anything imports triton."""

from __future__ import annotations

import os
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"  # before any test module of this folder can import triton

import pytest

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
    return f"tests/interpreted: skipped, {_reason}" if _reason else "tests/interpreted: Triton's interpreter is on"


@pytest.fixture(autouse=True)
def _quiet_recorder():
    """No test leaves launches behind for the next."""
    from kernels import launches

    launches.drain()
    yield
    launches.disable()
    launches.drain()


@pytest.fixture(autouse=True)
def _few_sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sum_partials` in four programs, or as many as its tiles allow: a device has cores for the 129 of 4,097 columns,
    here each costs as much as a row of the backward that it ends.  A test marked `device_sums` keeps what a device
    would launch."""
    if _reason or request.node.get_closest_marker("device_sums"):
        return
    from kernels.ops.rms_norm.choice import divide_up, next_power_of_2
    from kernels.ops.rms_norm.gpu import choose

    stock = choose.reduction

    def wide(count: int, hidden: int) -> choose.Choice:
        choice = stock(count, hidden)
        fits = 2**20 // choice.rows  # what a tensor of Triton's may hold
        block = min(fits, max(choice.block, next_power_of_2(divide_up(hidden, 4))))
        return replace(choice, block=block, programs=divide_up(hidden, block))

    monkeypatch.setattr(choose, "reduction", wide)
