"""Peak memory: the call's own share, and as peers count it, everything that lives; by a fake allocator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.child import provider_call, session

MIB = 1 << 20
KEPT = 7 * MIB  # copies of inputs that the farm keeps: nobody's but its own


class Allocator:
    """What torch.cuda says of memory, from what a call tells it."""

    def __init__(self) -> None:
        self.now = self.peak = KEPT

    def take(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peak = self.now

    def memory_allocated(self, device: Any) -> int:
        return self.now

    def max_memory_allocated(self, device: Any) -> int:
        return self.peak

    def synchronize(self, device: Any) -> None:
        pass


def test_beyond_the_inputs_and_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Allocator()
    monkeypatch.setattr(session.torch, "get_device_module", lambda kind: fake)
    x, dy = torch.empty(MIB // 4), torch.empty(MIB // 2)  # 1 and 2 MiB

    def make() -> provider_call.Problem:
        fake.take(3 * MIB)
        return provider_call.Problem([x, None], [dy], [], "forward")

    def function(*inputs: Any) -> torch.Tensor:
        fake.take(5 * MIB)  # a temporary and the output
        fake.take(-4 * MIB)
        return torch.empty(1)

    attempt: Any = session._Attempt.__new__(session._Attempt)
    attempt.s, attempt.facts = SimpleNamespace(device=torch.device("cuda")), {}
    attempt.make, attempt.timed, attempt._drop = make, lambda action: action(), lambda outputs: None
    assert attempt.peak_memory(function) == 5
    assert attempt.facts["peak_memory_live_mib"] == 8
