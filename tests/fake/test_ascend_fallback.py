"""On a (simulated) Ascend device a call that no graph captures is timed by mspti: one monitor, so one child, for all
such cells of a lease, and none of the others in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_device import OneDevice

NODE = {"backend": "ascend", "simulate": {"model": "Ascend910B3", "devices": 1}}
FLAG = "timed by mspti: capture failed"


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneDevice]:
    (tmp_path / "node.yaml").write_text(json.dumps(NODE), encoding="utf-8")
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))
    one = OneDevice(tmp_path, "ascend")
    yield one
    one.stop()


def flagged(measured: dict[str, object]) -> bool:
    facts = measured["facts"]
    assert isinstance(facts, dict)
    return any(str(f).startswith(FLAG) for f in facts["flags"])


def test_a_failed_capture_is_timed_by_mspti_in_one_child(npu: OneDevice) -> None:
    first = npu.up()["pid"]
    measured, judged = npu.run({"fault": "capture"}, method="rotating_graph")
    assert judged["status"] == "passed", judged
    assert measured["timing"]["method"] == "mspti" and flagged(measured)
    second = npu.actor.child_pid()
    assert second != first  # a failed capture spends the child
    for hidden in (128, 256):
        measured, judged = npu.run({"fault": "capture"}, hidden=hidden, method="rotating_graph")
        assert (measured["timing"]["method"], judged["status"]) == ("mspti", "passed")
        assert flagged(measured) and npu.actor.child_pid() == second
    measured, judged = npu.run(method="events")
    assert (measured["timing"]["method"], judged["status"]) == ("events", "passed")
    assert npu.actor.child_pid() != second  # nothing else is timed beside the monitor


def test_a_matrix_may_ask_for_mspti_itself(npu: OneDevice) -> None:
    npu.up()
    measured, judged = npu.run(method="mspti")
    assert (measured["timing"]["method"], judged["status"]) == ("mspti", "passed")
    assert not flagged(measured)
