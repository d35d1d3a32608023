"""A child in a real sandbox, on a simulated device: it serves, it ends, and nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from farm_process import is_dead, wait_for
from one_device import OneDevice

from farm.node import sandbox_host
from farm.node.environment import Environment
from farm.process import cgroup

WHY_NOT = sandbox_host.refusal()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no sandbox can be made here: {WHY_NOT}")


def groups_left() -> set[str]:
    return {str(p) for p in Path("/sys/fs/cgroup").glob(f"**/{cgroup.PREFIX}*")}


def test_it_serves_and_ends_as_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.yaml").write_text("{}")
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the reserve of the spool
    before = groups_left()
    asked = Environment(sandbox={})  # as farm run --sandbox says it
    one = OneDevice(tmp_path, "sim", environment=asked)
    try:
        up = one.up()
        assert up["event"] == "device_up", up
        assert up["fingerprint"]["sandbox"].startswith("bubblewrap ")
        assert one.run()[1]["status"] == "passed"
        child = one.actor._children.current
        assert child is not None and child.device_pid != child.pid
        variables = Path(f"/proc/{child.device_pid}/environ").read_text()
        assert "HOME=/tmp/home" in variables and str(tmp_path / "node.yaml") not in variables
        _, ended = one.run({"signal": 11}, hidden=65)
        assert ended["reason"] == "the child ended with signal 11 (SIGSEGV) in phase check"
        shutil.rmtree(one.spool / "inputs")  # under the run: the next child has one that is there
        assert one.run(hidden=66)[1]["status"] == "passed"
        child = one.actor._children.current
        assert child is not None
        inside = child.device_pid
        os.kill(child.pid, signal.SIGKILL)  # the one outside takes all in it along
        wait_for("the child's end", lambda: is_dead(inside), 10)
    finally:
        one.stop()
    assert not list(one.spool.glob("child-*")), json.dumps(one.events[-3:])
    assert groups_left() == before


def test_where_none_can_be_made_the_device_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_host, "refusal", lambda: "bubblewrap (bwrap) is not installed")
    one = OneDevice(tmp_path, "sim", environment=Environment(sandbox={}))
    try:
        down = one.up()
        assert (down["event"], down["final"]) == ("device_down", True)
        assert down["reason"] == "no sandbox can be made here: bubblewrap (bwrap) is not installed"
    finally:
        one.stop()
