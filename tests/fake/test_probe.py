"""An actor's probe goes the way of a cell, through child and judge, and is reported as one event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_device import DEADLINES, OneDevice

from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.coordinator.probes import small_cell
from farm.errors import JudgeFailed
from farm.judge.digest import judging_digest


@pytest.fixture
def device(tmp_path: Path) -> Iterator[OneDevice]:
    made = OneDevice(tmp_path)
    assert made.up()["event"] == "device_up"
    yield made
    made.stop()


def order(number: int, backend: str = "sim", **script: Any) -> dict[str, Any]:
    cell = small_cell(backend)
    call = {**call_for(cell, contract(cell.op), {"name": cell.provider}), "sim": script}
    what = {"cell": cell.to_dict(), "number": 1, "round": 0, "last": True, "call": call, "tolerances": []}
    return {"probe": {"id": number, **what, "deadlines": DEADLINES}}


def test_a_probe_is_one_event_whether_it_passes_or_not(device: OneDevice) -> None:
    device.actor.submit(order(1))
    passed = device.wait("probe", "device_down")
    assert (passed["probe"], passed["status"], passed["judged_by"]) == (1, "passed", judging_digest())
    device.actor.submit(order(2, exit=3))
    failed = device.wait("probe", "device_down")
    assert (failed["probe"], failed["status"]) == (2, "crashed") and "exit code 3" in failed["reason"]
    device.actor.submit(order(3))
    assert device.wait("probe", "device_down")["status"] == "passed", "another child serves the next"
    assert {e["event"] for e in device.events} == {"device_up", "probe"}


@pytest.mark.parametrize("call", ["prepare", "judge"])
def test_a_probe_does_not_pass_where_no_judge_answers(
    device: OneDevice, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Device and child are well; a node whose judges are dead gets no work all the same."""
    real = device.judges._processes.call

    def dead(name: str, given: Any, seconds: float, key: str = "") -> Any:
        if name == call:
            raise JudgeFailed("no judge could be started")
        return real(name, given, seconds, key)

    monkeypatch.setattr(device.judges._processes, "call", dead)
    device.actor.submit(order(1))
    failed = device.wait("probe", "device_down")
    assert (failed["status"], failed["owner"]) == ("infra_error", "infra") and "no judge" in failed["reason"]


def test_a_probe_uses_device_child_and_judge(device: OneDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is asked for it: no verdict of before stands in."""
    calls: list[str] = []
    real = device.judges._processes.call

    def noted(name: str, given: Any, seconds: float, key: str = "") -> Any:
        calls.append(name)
        return real(name, given, seconds, key)

    monkeypatch.setattr(device.judges._processes, "call", noted)
    for number in (1, 2):
        calls.clear()
        device.actor.submit(order(number, exit=3) if number == 2 else order(number))
        probe = device.wait("probe", "device_down")
        assert (probe["status"] == "passed") is (number == 1)
        assert "prepare" in calls or number > 1  # the second may have the answer of the first
        assert ("judge" in calls) is (number == 1)
