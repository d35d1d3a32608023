"""The one child of a device: which may be taken for a living one, and beside which there is no other."""

from __future__ import annotations

from typing import Any

import pytest

from farm.actor import child_process
from farm.actor.child_manager import ChildManager
from farm.child import protocol

READY = protocol.Ready.__new__(protocol.Ready)  # what it says is not read here


class FakeChild:
    """Lives until it is told to end, or for good where nothing ends it."""

    device_pid = 1
    has_spoken = False
    tool_output = None

    def __init__(self, immortal: bool):
        self.alive, self.immortal, self.closed = True, immortal, 0

    @property
    def gone(self) -> bool:
        return not self.alive

    def kill(self, grace: float = 3.0) -> bool:
        self.alive = self.immortal
        return not self.alive

    def close(self) -> None:
        self.closed += 1
        self.kill()


class Fakes:
    """A place whose children are fakes, and a guard that minds nothing."""

    def __init__(self) -> None:
        self.made: list[FakeChild] = []
        self.immortal = False
        self.arm = ""

    def child(self) -> FakeChild:
        self.made.append(FakeChild(self.immortal))
        return self.made[-1]

    def refused(self, said: Any) -> str:
        return ""

    def subject_not_taken(self, said: Any) -> str:
        return ""

    def completed(self, said: Any) -> Any:
        return said

    def before_child(self) -> None:
        return

    def child_ready(self, pid: int) -> None:
        return


@pytest.mark.parametrize("immortal", [False, True])
def test_a_child_that_never_greeted_is_not_taken_for_a_living_one(
    monkeypatch: pytest.MonkeyPatch, immortal: bool
) -> None:
    """After one that was ready, which `ready` goes on to tell of."""
    fakes = Fakes()
    kept: Any = ChildManager(fakes, fakes, 1.0, lambda: False)  # type: ignore[arg-type]
    monkeypatch.setattr(child_process, "greeting", lambda child, seconds: READY)
    assert kept.ensure() is READY
    kept.replace()
    fakes.immortal = immortal

    def silent(child: FakeChild, seconds: float) -> protocol.Ready:
        child.kill()
        raise child_process.NoChild("the child was not ready within 1 s")

    monkeypatch.setattr(child_process, "greeting", silent)
    with pytest.raises(child_process.NoChild, match="was not ready") as refused:
        kept.ensure()
    assert refused.value.final is immortal  # beside a child that lives there is no other, in no actor
    assert kept.current is None and fakes.made[-1].closed == 1 and kept.ready is READY
    monkeypatch.setattr(child_process, "greeting", lambda child, seconds: READY)
    fakes.immortal = False
    if immortal:
        with pytest.raises(child_process.NoChild, match="could not be ended"):
            kept.ensure()
    else:
        assert kept.ensure() is READY
    assert len(fakes.made) == (2 if immortal else 3)
