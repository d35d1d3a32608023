"""A child that is kept from running until its time is over: stopped by somebody else it accuses nobody, and a kernel
that stops itself is named."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_device import OneDevice

from farm.actor.crash_owner import MOST_DEATHS
from farm.process import procfs

LIMITS = {"check": 1.5}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[OneDevice]:
    made = OneDevice(tmp_path)
    assert made.up()["event"] == "device_up"
    yield made
    made.stop()


def stopped(device: OneDevice, times: int) -> tuple[dict[str, Any], set[int]]:
    """How a cell of a second ended whose child was stopped while it checked, so many times; and which children were."""
    pids: set[int] = set()
    over = threading.Event()

    def stop() -> None:
        while not over.is_set() and len(pids) < times:
            checks = [e for e in list(device.events) if e["event"] == "progress" and e["phase"] == "check"]
            pid = device.actor.child_pid()
            if len(checks) > len(pids) and pid is not None and pid not in pids:
                os.kill(pid, signal.SIGSTOP)
                pids.add(pid)
            time.sleep(0.02)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        measured, ended = device.run({"wall_s": 1.0}, deadlines={"check": 4.0})
    finally:
        over.set()
        thread.join()
    return {**ended, "flags": measured.get("facts", {}).get("flags")}, pids


def test_one_stopped_by_somebody_else_costs_its_deadline_and_accuses_nobody(device: OneDevice) -> None:
    ended, pids = stopped(device, 1)
    assert (ended["event"], ended["status"]) == ("judged", "passed"), ended
    assert len(pids) == 1 and pids.isdisjoint({device.actor.child_pid()})
    assert ended["flags"] == [
        "a child did not run (it is stopped by a signal) in phase check, so the cell ran again alone"
    ]


def test_a_kernel_that_stops_itself_is_named_the_second_time(device: OneDevice) -> None:
    _, ended = device.run({"signal": int(signal.SIGSTOP)}, deadlines=LIMITS)
    assert (ended["status"], ended["owner"]) == ("timed_out", "kernel"), ended
    assert "stopped by a signal" in ended["reason"] and "alone in a fresh child" in ended["reason"]
    assert device.run()[1]["status"] == "passed"


def test_a_frozen_control_group_never_accuses_the_kernel(device: OneDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()

    def frozen(pid: int) -> procfs.Suspended:
        if pid == device.actor.child_pid():  # a judge is waited for likewise
            asked.add(pid)
        return procfs.Suspended("its control group /job is frozen", frozen=True)

    monkeypatch.setattr(procfs, "suspended", frozen)
    _, ended = device.run({"hang": True}, deadlines=LIMITS)
    assert (ended["status"], ended["owner"]) == ("infra_error", "infra"), ended
    assert "control group /job is frozen" in ended["reason"] and "from outside" in ended["reason"]
    assert len(asked) == MOST_DEATHS, "each time in a fresh child"
