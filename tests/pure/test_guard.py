"""What the guard of a device keeps from block to block, with a fake's reader in place of the backend's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from farm.backends import sim
from farm.backends.api import Counters, Process, Sample
from farm.errors import DeviceUnfit
from farm.guard import device, sampler, telemetry

CONFIG = {"backend": "sim", "device": "sim:0", "device_id": "0", "spool": "/nowhere"}
ROOT = 100


class Reader:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.mhz, self.reasons, self.ecc, self.memory = 1980.0, (), 0, 512.0
        self.processes: tuple[Process, ...] | None = (Process(ROOT),)
        self.hang = threading.Event()
        self.free = threading.Event()

    def sample(self) -> Sample:
        if self.hang.is_set():
            self.free.wait(30)
        return Sample(0.0, self.mhz, throttle=self.reasons)

    def counters(self) -> Counters:
        return Counters(self.ecc, (), self.processes)

    def memory_used_mib(self) -> float | None:
        return self.memory

    def close(self) -> None:
        return


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    one = Reader()
    monkeypatch.setattr(sim, "telemetry", lambda *_: one)
    monkeypatch.setattr(sampler, "ANSWER_SECONDS", 2.0)
    yield one
    one.free.set()


@pytest.fixture
def held(reader: Reader) -> Iterator[device.Guard]:
    one = device.Guard(CONFIG, lambda: False, sim)
    one.take(lambda text: None)
    one.before_child()
    one.child_ready(ROOT)
    yield one
    one.release()


def block(held: device.Guard, likeness: str = "a") -> dict[str, Any]:
    held.begin(likeness)
    said = held.end()
    assert said is not None
    return said


def test_at_the_power_limit_blocks_are_held_against_their_likes(reader: Reader, held: device.Guard) -> None:
    assert not block(held)["throttled"]  # 1980 MHz, below the limit: no measure for those at it
    reader.mhz, reader.reasons = 1700.0, ("sw_power_cap",)
    for _ in range(3):
        assert not block(held)["throttled"]
    reader.mhz = 1500.0
    for _ in range(10):
        assert block(held)["throttled"]  # a throttled block does not become the usual one
    assert not block(held, "b")["throttled"]  # other work may draw more power
    reader.mhz = 1600.0
    assert not block(held)["throttled"]


def test_a_device_always_at_its_limit_is_not_throttled(reader: Reader, held: device.Guard) -> None:
    reader.mhz, reader.reasons = 1500.0, ("sw_power_cap",)
    assert not any(block(held)["throttled"] for _ in range(3))


def test_what_an_earlier_child_did_to_the_counters_is_not_the_next_ones(reader: Reader, held: device.Guard) -> None:
    reader.ecc = 4
    assert block(held)["ecc_uncorrected"] == 4
    assert block(held)["ecc_uncorrected"] == 0
    reader.ecc = 9
    held.child_ready(ROOT)
    assert block(held)["disturbed"] is None


def test_without_a_timed_phase_there_is_nothing(held: device.Guard) -> None:
    assert held.end() is None
    assert not held.pause(None, 1, 0.0)


def test_repeating_ends_with_patience_and_begins_anew_when_all_is_well(reader: Reader, held: device.Guard) -> None:
    reader.reasons = ("hw_thermal",)
    for _ in range(telemetry.PATIENCE):
        tries = 1
        while held.pause(block(held), tries, 0.0):
            tries += 1
        assert tries == 1 + len(sim.PAUSES)
    assert not held.pause(block(held), 1, 0.0)
    reader.reasons = ()
    assert not held.pause(block(held), 1, 0.0)
    reader.reasons = ("hw_thermal",)
    assert held.pause(block(held), 1, 0.0)
    assert not held.pause(block(held), 1, device.MAX_REPEATED_SECONDS + 1)


def test_a_driver_that_hangs_costs_the_telemetry_only(
    reader: Reader, held: device.Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held._watch is not None
    held._watch._answer_s = 0.2
    reader.hang.set()
    held.begin("a")
    assert held.end() is None
    assert held.failed.startswith("no telemetry: the driver did not answer")
    held.before_child()  # what memory is in use cannot be known: it goes on


def test_memory_in_use_beyond_the_baseline_makes_it_unfit(reader: Reader, held: device.Guard) -> None:
    reader.memory = 512.0 + telemetry.MEMORY_SLACK_MIB
    held.before_child()
    reader.memory += 1
    with pytest.raises(DeviceUnfit, match=r"65 MiB of device memory .* on the device now: unnamed \(pid 100\)"):
        held.before_child()


@pytest.mark.parametrize("seen", [(Process(7, "gedit"),), (), None])
def test_memory_that_others_take_is_told_and_no_reason_to_give_the_device_up(
    reader: Reader, held: device.Guard, seen: Any
) -> None:
    reader.processes = seen
    reader.memory += 3000
    held.before_child()
    told = held.remark()
    assert told.startswith("3000 MiB more device memory is in use than before the run, but not by a process of this")
    assert told.endswith("gedit (pid 7))" if seen else "no visible process)")
    assert held.remark() == ""
    held.before_child()  # that is the baseline from now on
    assert held.remark() == ""
    reader.processes, reader.memory = (Process(7), Process(ROOT)), reader.memory + 65
    with pytest.raises(DeviceUnfit, match="65 MiB of device memory"):
        held.before_child()


def test_who_else_is_on_the_device_is_told_beside_memory_that_is_out(reader: Reader, held: device.Guard) -> None:
    assert held.company() == ""
    reader.processes = (Process(7, "gedit"), Process(ROOT))
    assert held.company() == "also on the device: gedit (pid 7)"
    reader.processes = (Process(7),)  # ours is not in the list, so it is not of this namespace
    assert held.company() == ""


def test_what_a_child_started_is_its_own_after_its_end(
    reader: Reader, held: device.Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.processes = (Process(ROOT), Process(101))
    monkeypatch.setattr(device, "own_pids", lambda root, processes: {root, 101})
    block(held)
    monkeypatch.setattr(device, "own_pids", lambda root, processes: {root})  # its parent is gone
    reader.processes, reader.memory = (Process(101),), 4000.0
    with pytest.raises(DeviceUnfit):
        held.before_child()
