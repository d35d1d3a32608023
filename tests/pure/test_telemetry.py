"""What is made of a device's own words: summaries, when a block is repeated, what quality it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.backends.api import Counters, Process, Sample
from farm.guard import telemetry

MINE = Process(100, "python")
OTHER = Process(7, "gedit")


def block(*throttle: str, mhz: float | tuple[float, ...] = 1980.0, count: int = 3) -> list[Sample]:
    clocks = mhz if isinstance(mhz, tuple) else (mhz,) * count
    return [Sample(1.0 + 0.02 * i, c, 3201.0, 40.0 + i, 300.0, tuple(throttle)) for i, c in enumerate(clocks)]


def summary(samples: list[Sample], usual: float | None = None, **after: Any) -> dict[str, Any]:
    known = {"ecc_uncorrected": 0, "xid": (), "processes": (MINE,)}
    return telemetry.summarize(samples, Counters(0, (), (MINE,)), Counters(**{**known, **after}), {100}, usual)


def test_a_quiet_block_is_neither_throttled_nor_disturbed() -> None:
    said = summary(block("idle", mhz=(1500.0, 1980.0, 1980.0, 1965.0)))
    assert said["sm_clock_mhz"] == [1500.0, 1972.5, 1980.0]
    assert said["temperature_c"] == [40.0, 41.5, 43.0]
    assert (said["power_w"], said["mem_clock_mhz"]) == ([300.0] * 3, [3201.0] * 3)
    assert (said["throttle"], said["throttled"], said["disturbed"], said["samples"]) == ([], False, None, 4)
    assert (said["ecc_uncorrected"], said["xid"], said["foreign"]) == (0, [], [])
    assert telemetry.complaint(said) == ""
    json.dumps(said)


@pytest.mark.parametrize("reason", sorted(telemetry.SLOWED))
def test_one_sample_with_a_reason_of_the_hardware_is_enough(reason: str) -> None:
    said = summary([*block(), *block(reason, count=1), *block()])
    assert said["throttled"]
    assert telemetry.WORDS[reason] in telemetry.complaint(said)
    assert said["throttle"] == [reason]


@pytest.mark.parametrize("reason", ["idle", "clocks_set", "sync_boost", "sw_power_cap", "reason_0x200"])
def test_other_reasons_are_told_at_most(reason: str) -> None:
    said = summary(block(reason))
    assert not said["throttled"]
    assert said["throttle"] == ([] if reason == "idle" else [reason])


@pytest.mark.parametrize(
    ("mhz", "usual", "throttled"),
    [
        ((1980.0, 1400.0, 1400.0), None, False),  # at its limit, as it may always be with this work
        ((1980.0, 1790.0, 1790.0), 1980.0, False),  # 9.6 % below what it was
        ((1980.0, 1770.0, 1770.0), 1980.0, True),  # 10.6 % below
        ((1700.0, 1700.0, 1700.0), 1710.0, False),
        ((1700.0, 1700.0, 1700.0), 1980.0, True),
        ((1980.0, 1980.0, 1200.0), 1980.0, False),  # one low sample does not move the median
    ],
)
def test_the_power_limit_counts_where_it_costs_clock(
    mhz: tuple[float, ...], usual: float | None, throttled: bool
) -> None:
    said = summary(block("sw_power_cap", mhz=mhz), usual)
    assert said["throttled"] is throttled
    assert summary(block(mhz=mhz), usual)["throttled"] is False  # a low clock alone may be the load's own


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"processes": (OTHER, MINE)}, "another process on the device: gedit (pid 7)"),
        ({"processes": (Process(8), MINE)}, "another process on the device: pid 8"),
        ({"ecc_uncorrected": 2}, "2 uncorrected memory errors"),
        ({"xid": (79,)}, "the driver reported Xid 79"),
    ],
)
def test_company_and_errors_disturb(after: dict[str, Any], words: str) -> None:
    said = summary(block(), **after)
    assert said["disturbed"] == words
    assert telemetry.complaint(said) == f"disturbed ({words})"
    assert telemetry.quality("ok", said) == "noisy"


def test_errors_before_the_block_are_not_its_own() -> None:
    before = Counters(3, (13,), (MINE,))
    said = telemetry.summarize(block(), before, Counters(3, (13,), (MINE,)), {100})
    assert (said["ecc_uncorrected"], said["xid"], said["disturbed"]) == (0, [], None)
    said = telemetry.summarize(block(), before, Counters(4, (13, 79), (MINE,)), {100})
    assert (said["ecc_uncorrected"], said["xid"]) == (1, [79])
    assert said["disturbed"] == "1 uncorrected memory error; the driver reported Xid 79"


def test_what_cannot_be_read_is_none() -> None:
    said = telemetry.summarize([Sample(1.0)], Counters(), Counters(), {100})
    for name in (
        "sm_clock_mhz",
        "mem_clock_mhz",
        "temperature_c",
        "power_w",
        "throttle",
        "ecc_uncorrected",
        "xid",
        "foreign",
        "disturbed",
    ):
        assert said[name] is None, name
    assert not said["throttled"]
    assert telemetry.columns(said) == {"sm_clock_mhz": None, "temperature_c": None, "power_w": None, "throttle": ""}
    assert telemetry.columns(None) == telemetry.columns(said)


def test_pids_of_another_namespace_say_nothing() -> None:
    assert telemetry.strangers((Process(4711),), {100}) is None  # ours is on the device and not in the list
    assert telemetry.strangers((), {100}) is None
    assert telemetry.strangers(None, {100}) is None
    assert telemetry.strangers((MINE,), {100}) == []
    assert summary(block(), processes=(Process(4711),))["disturbed"] is None


def test_children_of_the_child_are_its_own() -> None:
    parents = {300: 200, 200: 100, 400: 1, 500: 501, 501: 500}
    assert telemetry.own_tree(100, parents.get, [100, 300, 200, 400, 500, 600]) == {100, 200, 300}
    assert telemetry.own_tree(100, parents.get, []) == {100}


BAD = {"throttled": True, "throttled_by": "hardware thermal slowdown", "disturbed": None}
WELL = {"throttled": False, "throttled_by": "", "disturbed": None}


def test_a_bad_block_is_repeated_within_bounds() -> None:
    assert telemetry.again(BAD, 1, 0) == telemetry.PAUSES[0]
    assert telemetry.again(BAD, 2, 0) == telemetry.PAUSES[1]
    assert telemetry.again(BAD, 3, 0) is None
    assert telemetry.again(BAD, 1, telemetry.PATIENCE) is None
    assert telemetry.again(BAD, 1, telemetry.PATIENCE - 1) is not None
    assert telemetry.again(WELL, 1, 0) is None
    assert telemetry.again(None, 1, 0) is None


def test_remarks() -> None:
    assert telemetry.flag([], "") is None
    assert telemetry.flag([], "throttled (x)") == "throttled (x) while timed"
    assert telemetry.flag(["throttled (x)", "throttled (y)"], "throttled (z)") == (
        "throttled (z) while timed (timed 3 times)"
    )
    assert telemetry.flag(["disturbed (x)"], "") == "timed 2 times; the previous try was disturbed (x)"


@pytest.mark.parametrize(
    ("found", "said", "quality"),
    [
        ("ok", BAD, "throttled"),
        ("launch_bound", BAD, "throttled"),
        ("noisy", BAD, "throttled"),
        ("impossible", BAD, "impossible"),
        ("none", BAD, "none"),
        ("ok", WELL, "ok"),
        ("ok", None, "ok"),
        ("impossible", {**WELL, "disturbed": "x"}, "impossible"),
        ("noisy", {**WELL, "disturbed": "x"}, "noisy"),
        ("ok", {**BAD, "disturbed": "x"}, "throttled"),
    ],
)
def test_quality(found: str, said: dict[str, Any] | None, quality: str) -> None:
    assert telemetry.quality(found, said) == quality


def test_raw_rows_are_bounded_and_keep_the_ends() -> None:
    samples = [Sample(10.0 + i, float(i), throttle=("idle",)) for i in range(1001)]
    rows = telemetry.raw(samples, 10.0)
    assert len(rows) <= telemetry.MAX_KEPT + 1
    assert rows[0] == [0.0, 0.0, None, None, None, "idle"]
    assert rows[-1][0] == 1000.0
    assert telemetry.raw([], 0.0) == []
    assert len(rows[0]) == len(telemetry.KEPT)
    assert len(telemetry.raw(samples[:5], 10.0)) == 5


def test_columns_are_median_clock_highest_temperature_median_power() -> None:
    found = telemetry.columns(summary(block("sw_power_cap", "sync_boost", mhz=(1.0, 2.0, 9.0))))
    assert found == {
        "sm_clock_mhz": 2.0,
        "temperature_c": 42.0,
        "power_w": 300.0,
        "throttle": "sw_power_cap,sync_boost",
    }


@pytest.mark.parametrize(
    ("baseline", "used", "held"), [(500.0, 564.0, None), (500.0, 565.0, 65.0), (None, 9e9, None), (500.0, None, None)]
)
def test_memory_held_beyond_the_slack(baseline: float | None, used: float | None, held: float | None) -> None:
    assert telemetry.memory_held(baseline, used) == held
