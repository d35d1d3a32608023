"""The second arm's child that imports while the first one's starts: taken once, by its arm, and never left behind."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from farm.actor import waiting
from farm.node.environment import Environment
from farm.process.line_process import ChildDied, LineProcess

ENV = {"PYTHONPATH": os.pathsep.join(("/spool/overlay", "/home/x")), "CUDA_VISIBLE_DEVICES": "3", "X": "1"}
OWN = Environment.default()


class FakeChild:
    made: list[FakeChild] = []

    def __init__(self, backend: str, device: str, options: Any, env: Any, environment: Any, **more: Any):
        self.env, self.more, self.orders, self.ended, self.dead = env, more, list[Any](), 0, False
        self.signals = list[int]()
        self.made.append(self)

    def begin(self, order: Any) -> None:
        if self.dead:
            raise ChildDied(-9)
        self.orders.append(order)

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self, grace: float) -> None:
        self.ended += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    FakeChild.made = []
    monkeypatch.setattr(waiting, "Child", FakeChild)
    monkeypatch.setattr(LineProcess, "close", lambda child: None)
    return FakeChild.made


def test_it_imports_nothing_of_a_users_and_is_told_where_from_once_it_is_taken(made: list[FakeChild]) -> None:
    ahead = waiting.ArmAhead()
    ahead.start("b", "cuda", ENV, OWN, "/spool")
    (child,) = made
    assert child.env == {**ENV, "PYTHONPATH": "/home/x"} and child.more["waits"]
    assert ahead.take("a", ENV, {}) is None and not child.ended  # of another arm
    assert ahead.take("b", ENV, {"argv": ["cuda", "0"]}) is child
    (order,) = child.orders
    assert order["path"] == ["/spool/overlay", "/home/x"] and order["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert ahead.take("b", ENV, {}) is None
    ahead.close()
    assert not child.ended  # it is somebody's


def test_one_that_nobody_took_or_that_died_is_ended(made: list[FakeChild]) -> None:
    ahead = waiting.ArmAhead()
    ahead.start("a", "cuda", ENV, OWN, "/spool")
    made[0].dead = True
    assert ahead.take("a", ENV, {}) is None and made[0].ended == 1
    ahead.start("b", "cuda", ENV, OWN, "/spool")
    ahead.close()
    ahead.close()
    assert made[1].ended == 1


def test_several_wait_for_the_rounds_to_come_and_stand_still_while_a_cell_is_timed(made: list[FakeChild]) -> None:
    ahead = waiting.ArmAhead()
    for arm in ("a", "b"):
        ahead.start(arm, "cuda", ENV, OWN, "/spool", 3)
    assert len(made) == 6 and ahead.count("a") == ahead.count("b") == 3
    ahead.signal(signal.SIGSTOP)
    made[0].dead = True
    assert ahead.take("a", ENV, {}) is made[1] and made[0].ended == 1  # the dead one is passed over
    assert made[1].signals == [signal.SIGSTOP, signal.SIGCONT]  # one that stands still would never begin
    ahead.start("a", "cuda", ENV, OWN, "/spool", 3)
    assert len(made) == 8  # what is there counts
    ahead.close()
    assert [c.ended for c in made] == [1, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("backend", "command"), [("sim", ()), ("ascend", ()), ("cuda", ("apptainer", "exec"))])
def test_where_no_child_may_wait_none_is_started(made: list[FakeChild], backend: str, command: tuple[str, ...]) -> None:
    ahead = waiting.ArmAhead()
    ahead.start("b", backend, ENV, Environment("x", command=command) if command else OWN, "/spool")
    assert made == [] and ahead.take("b", ENV, {}) is None
