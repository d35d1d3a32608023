"""The marks around the one call that a profiler measures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farm.child import profiled_call

CUDA = torch.device("cuda", 0)


def run(device: torch.device, seen: list[str], fails: bool = False) -> None:
    with profiled_call.marked(device):
        seen.append("call")
        if fails:
            raise KeyError("the call")


def test_a_call_on_an_nvidia_gpu_stands_between_cudas_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: seen.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: seen.append("stop"))
    run(CUDA, seen)
    with pytest.raises(KeyError):
        run(CUDA, seen, fails=True)
    assert seen == ["start", "call", "stop"] * 2


class Roctx:
    def __init__(self, seen: list[str]) -> None:
        self.roctxProfilerResume = lambda thread: seen.append(f"resume {thread}")
        self.roctxProfilerPause = lambda thread: seen.append(f"pause {thread}")


@pytest.mark.parametrize("there", [True, False])
def test_a_call_on_an_amd_gpu_stands_between_those_of_roctx(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    seen: list[str] = []
    library: Any = Roctx(seen) if there else None
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(profiled_call, "_roctx", lambda: library)
    run(CUDA, seen)
    assert seen == (["resume 0", "call", "pause 0"] if there else ["call"])


def test_elsewhere_there_are_no_marks_and_a_host_without_roctx_is_no_error() -> None:
    seen: list[str] = []
    run(torch.device("cpu"), seen)
    assert seen == ["call"] and (profiled_call._roctx() is None or torch.version.hip)
