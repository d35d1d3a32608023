"""What an AMD GPU says of itself while it works, against stubs of AMD's package and command (tests/stubs/amdsmi)."""

from __future__ import annotations

import os
import threading
from typing import Any

import amd_hosts
import pytest
from amd_hosts import Host

from farm.backends import _amd_tool, _amdsmi, rocm
from farm.backends.api import Counters, Sample
from farm.guard import telemetry
from farm.guard.sampler import Sampler

bare, host = amd_hosts.bare, amd_hosts.host
BOTH = pytest.mark.parametrize("by", ["amdsmi", "amd-smi"])


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set whenever the question for violations has been answered."""
    event = threading.Event()
    real = _amdsmi._Violations._work

    def work(self: Any) -> None:
        ask = self._ask

        def asked() -> Any:
            try:
                return ask()
            finally:
                threading.Timer(0.05, event.set).start()

        self._ask = asked
        real(self)

    monkeypatch.setattr(_amdsmi._Violations, "_work", work)
    return event


def sampled(reader: Any, answered: threading.Event) -> Sample:
    """A sample that knows what throttles: asked for once, and again when the answer is there."""
    reader.sample()
    assert answered.wait(10)
    found: Sample = reader.sample()
    return found


@BOTH
def test_a_whole_gpu(host: Host, by: str, answered: threading.Event) -> None:
    host("MI300X", by=by, pids=[os.getpid(), 3999999], uncorrectable=2)
    reader = rocm.telemetry("1", {}, "")
    if by == "amd-smi":
        answered.set()
    assert sampled(reader, answered) == Sample(0.0, 1987.0, 1300.0, 61.0, 412.0, ())
    counters = reader.counters()
    assert (counters.ecc_uncorrected, counters.xid) == (2, None)
    assert [p.pid for p in counters.processes] == [os.getpid(), 3999999]
    assert counters.processes[0].name and not counters.processes[1].name
    assert reader.memory_used_mib() == 300
    reader.close()


@BOTH
def test_nobody_on_the_device_is_an_empty_list_and_not_unknown(host: Host, by: str) -> None:
    host(by=by)
    assert rocm.telemetry("0", {}, "").counters() == Counters(0, None, ())


@BOTH
def test_a_partition_reads_what_only_its_gpus_first_can_tell_there(
    host: Host, by: str, answered: threading.Event
) -> None:
    host("MI300X", "cpx-nps4", gpus=2, by=by, pids=[7])
    reader = rocm.telemetry("13", {}, "")
    if by == "amd-smi":
        answered.set()
    sample = sampled(reader, answered)
    assert (sample.sm_clock_mhz, sample.power_w, sample.throttle) == (1987.0, 412.0, ())
    assert reader.counters().ecc_uncorrected == 0
    assert reader.memory_used_mib() == 300
    if by == "amdsmi":
        assert (reader._whole.id, reader._device.id) == ("8", "13")


@BOTH
@pytest.mark.parametrize(
    ("active", "reasons", "throttled"),
    [
        (["ppt_pwr"], ("sw_power_cap",), False),
        (["prochot_thrm"], ("hw_thermal",), True),
        (["hbm_thrm", "vr_thrm"], ("hw_thermal",), True),
        (["socket_thrm", "ppt_pwr"], None, True),
    ],
)
def test_what_throttles(
    host: Host, by: str, answered: threading.Event, active: list[str], reasons: Any, throttled: bool
) -> None:
    host("MI355X", by=by, violation=active)
    if by == "amd-smi":
        answered.set()
    sample = sampled(rocm.telemetry("0", {}, ""), answered)
    assert sample.throttle is not None
    assert set(sample.throttle) == set(reasons or ("sw_thermal", "sw_power_cap"))
    told = telemetry.summarize([sample], Counters(), Counters(), ())
    assert told["throttled"] is throttled


@BOTH
def test_clocks_that_are_set_are_told_and_count_as_no_throttling(
    host: Host, by: str, answered: threading.Event
) -> None:
    host(by=by, perf_level="MANUAL", max_mhz=1700)
    if by == "amd-smi":
        answered.set()
    sample = sampled(rocm.telemetry("0", {}, ""), answered)
    assert sample.throttle == ("clocks_set",)
    assert not telemetry.summarize([sample], Counters(), Counters(), ())["throttled"]


def test_until_the_library_has_answered_nothing_is_said_of_throttling(host: Host) -> None:
    host(wrong="slow", violation=["prochot_thrm"])
    sample = rocm.telemetry("0", {}, "").sample()
    assert (sample.sm_clock_mhz, sample.throttle) == (1987.0, None)


def test_an_answer_that_is_old_says_nothing_of_now(
    host: Host, answered: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(violation=["prochot_thrm"])
    reader = rocm.telemetry("0", {}, "")
    assert sampled(reader, answered).throttle == ("hw_thermal",)
    monkeypatch.setattr(_amdsmi, "VIOLATION_AGE_S", -1.0)
    assert reader.sample().throttle is None


@pytest.mark.parametrize(
    ("active", "reasons"), [([], ()), (["ppt_pwr"], ("sw_power_cap",)), (["socket_thrm"], ("hw_thermal",))]
)
def test_parts_before_mi300_tell_by_bits(
    host: Host, answered: threading.Event, active: list[str], reasons: tuple[str, ...]
) -> None:
    host("MI250X", violation=active)
    sample = sampled(rocm.telemetry("0", {}, ""), answered)
    assert (sample.throttle, sample.power_w, sample.sm_clock_mhz) == (reasons, 412.0, 1987.0)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (None, None),
        ({}, None),
        ({"active_ppt_pwr": "N/A", "per_ppt_pwr": "N/A"}, None),
        ({"active_ppt_pwr": 255}, None),
        ({"per_ppt_pwr": 0xFFFFFFFFFFFFFFFF}, None),
        ({"active_ppt_pwr": 0}, ()),
        ({"active_ppt_pwr": 1}, ("sw_power_cap",)),
        ({"active_hbm_thrm": "ACTIVE"}, ("hw_thermal",)),
        ({"active_hbm_thrm": "NOT ACTIVE"}, ()),
        ({"active_ppt_pwr": False, "per_ppt_pwr": 3}, ("sw_power_cap",)),
        ("N/A", None),
    ],
)
def test_violations_in_every_documented_form(status: Any, told: Any) -> None:
    assert _amdsmi.throttling(status) == told


def test_an_apus_memory_counts_with_what_it_shares_with_its_host(host: Host) -> None:
    host("MI300A", gpus=1)
    assert rocm.telemetry("0", {}, "").memory_used_mib() == 300 + 64


def test_a_library_that_somebody_else_has_shut_down_is_opened_again(host: Host) -> None:
    host(gpus=2)
    reader = rocm.telemetry("1", {}, "")
    import amdsmi

    amdsmi.amdsmi_shut_down()
    assert reader.memory_used_mib() == 300
    assert reader.sample().power_w == 412
    assert amdsmi.calls.count("amdsmi_init") == 2
    assert reader._device.physical == "amd-0000:1d:00-0"


def test_a_driver_that_hangs_under_its_reader_ends_telemetry_and_no_more(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host()
    reader = rocm.telemetry("0", {}, "")
    stuck = threading.Event()
    monkeypatch.setattr(reader, "memory_used_mib", lambda: stuck.wait(60))
    watch = Sampler(reader, answer_s=0.2)
    assert watch.memory_used_mib() is None
    assert "did not answer" in watch.failed
    stuck.set()
    watch.close()


def test_the_command_is_started_no_oftener_than_it_can_tell_something_new(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(by="amd-smi")
    reader = rocm.telemetry("0", {}, "")
    started: list[tuple[str, ...]] = []

    def smi(*words: str) -> str:
        started.append(words)
        return _amd_tool.smi(*words)

    reader._smi = smi
    for _ in range(5):
        assert reader.sample().power_w == 412
        assert reader.counters().processes == ()
    assert [w[0] for w in started] == ["metric", "process"]
    assert reader.memory_used_mib() == 300  # after a child's end it is always read anew
    assert [w[0] for w in started] == ["metric", "process", "metric"]


def test_a_command_that_fails_leaves_every_reading_unknown(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host(by="amd-smi")
    reader = rocm.telemetry("0", {}, "")
    monkeypatch.setenv("FARM_STUB_AMD_BREAK", "tool_fails")
    assert reader.sample() == Sample(0.0)
    assert reader.counters() == Counters()
    assert reader.memory_used_mib() is None


def test_a_command_without_violations_says_nothing_of_throttling(host: Host) -> None:
    host(by="amd-smi", wrong="no_violations")
    assert rocm.telemetry("0", {}, "").sample().throttle is None
    assert _amd_tool.sampled({"power": {"throttle_status": "THROTTLED"}}).throttle == ("hw_slowdown",)
    assert _amd_tool.sampled({"power": {"throttle_status": "UNTHROTTLED"}}).throttle == ()


def test_files_alone_are_no_telemetry(host: Host) -> None:
    host(by="kfd")
    assert rocm.identity("0", {}) is not None
    assert rocm.telemetry("0", {}, "") is None
