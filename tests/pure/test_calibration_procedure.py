"""What a calibration measures, in which order, and what becomes of what it cannot."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from calibrations import MIB, FakeDevice, ranked, record

from farm.calibration import report
from farm.calibration.copies import COPIES, Copy
from farm.calibration.procedure import ANCHORS, LARGEST, calibrate, fits, sizes, survivors
from farm.calibration.scripted import ScriptedDevice
from farm.errors import CannotMeasure
from farm.guard.telemetry import complaint
from farm.timing.roof import parse


def test_sizes_go_from_a_mebibyte_to_eight_gibibytes() -> None:
    powers, between = sizes(LARGEST)
    assert powers == [MIB << i for i in range(14)] and powers[-1] == 8 << 30
    assert len(between) == 13 and all(n % 4096 == 0 for n in between)
    assert all(a < b < c for a, b, c in zip(powers, between, powers[1:]))
    assert set(ANCHORS) <= set(powers)


def test_the_curve_is_the_best_of_the_configurations_at_each_size() -> None:
    device = FakeDevice(lambda copy, n: (1.0 + n / 4e6) * (0.9 if copy is COPIES[4] else ranked(copy)))
    found = calibrate(device, 60)
    assert [p["bytes"] for p in found["curve"]] == sorted([*sizes(LARGEST)[0], *sizes(LARGEST)[1]])
    for p in found["curve"]:
        assert p["config"] == COPIES[4].name and p["us"] == pytest.approx(0.9 * (1.0 + p["bytes"] / 4e6))
        assert p["gbps"] == pytest.approx(p["bytes"] / p["us"] / 1e3)
    assert set(found["curve"][0]["all"]) == {c.name for c in COPIES}  # the first size is an anchor
    assert found["skipped"] == [] and found["notes"] == []


def test_between_anchors_only_what_was_near_the_best_is_measured() -> None:
    us = {16 * MIB: COPIES[2], 128 * MIB: COPIES[7]}  # who wins where
    device = FakeDevice(lambda copy, n: 10.0 if us.get(n) is copy else 11.0 if n in us else 10.0)
    calibrate(device, 60)
    at = lambda n: {name for size, name in device.copies if size == n}  # noqa: E731
    assert len(at(16 * MIB)) == len(COPIES)
    assert at(32 * MIB) == {COPIES[2].name, COPIES[7].name}
    assert len(at(2 * MIB)) == len(COPIES)  # at 1 MiB all were alike


def test_survivors_without_anchors_are_all() -> None:
    assert survivors({}, MIB) == list(COPIES)
    assert survivors({MIB: {COPIES[0].name: 1.0, COPIES[1].name: 1.05}}, 2 * MIB) == [COPIES[0]]


def test_the_time_is_kept_and_what_it_cost_is_told() -> None:
    slow = FakeDevice(step=1.0)
    found = calibrate(slow, 10)
    assert found["seconds"] < 10 * 2 + len(COPIES) * len(ANCHORS)
    measured = {p["bytes"] for p in found["curve"]}
    assert set(ANCHORS) <= measured
    left = {s["bytes"]: s["why"] for s in found["skipped"]}
    assert measured | set(left) == set(sizes(LARGEST)[0])  # intermediate sizes are extras: not promised, not told
    assert all("no time" in why for why in left.values()) and left
    assert any("no time" in n for n in found["notes"])
    quick = calibrate(FakeDevice(step=0.01), 60)
    assert len(quick["curve"]) == 27


def test_a_small_device_skips_what_does_not_fit_and_says_so() -> None:
    found = calibrate(FakeDevice(free=8 << 30), 60)
    assert max(p["bytes"] for p in found["curve"]) <= 2 << 30
    assert {s["bytes"] for s in found["skipped"]} >= {4 << 30, 8 << 30}
    assert all(s["why"] == "does not fit in the device's memory" for s in found["skipped"])
    assert fits(2 << 30, 9 << 30) and not fits(2 << 30, 8 << 30)


def test_a_configuration_that_fails_costs_itself_and_is_told_once() -> None:
    def us(copy: Copy, nbytes: int) -> float:
        if copy is COPIES[0]:
            raise CannotMeasure("the copy is wrong")
        return 0.0 if copy is COPIES[3] else 10.0  # and one whose clock stands still

    found = calibrate(FakeDevice(us), 60)
    assert found["notes"] == [f"copy {COPIES[0].name}: the copy is wrong"]
    assert all({COPIES[0].name, COPIES[3].name}.isdisjoint(p["all"]) for p in found["curve"])


def test_a_device_on_which_nothing_can_be_copied_is_refused() -> None:
    def us(copy: Copy, nbytes: int) -> float:
        raise CannotMeasure("no")

    with pytest.raises(CannotMeasure, match="no"):
        calibrate(FakeDevice(us), 60)
    with pytest.raises(CannotMeasure, match="does not fit"):
        calibrate(FakeDevice(free=1 << 20), 60)


def test_a_dtype_that_the_device_does_not_know_is_told_and_the_rest_measured() -> None:
    found = calibrate(FakeDevice(gemms=("bfloat16",)), 60)
    assert [g["dtype"] for g in found["gemm"]] == ["bfloat16", "bfloat16"]
    assert found["gemm"][0]["tflops"] == pytest.approx(2 * 4096**3 / 40.96 / 1e6)
    assert sum("no such product" in n for n in found["notes"]) == 5


def test_drift_is_the_same_copy_at_the_beginning_in_the_middle_and_at_the_end() -> None:
    device = FakeDevice(lambda copy, n: 10.0)
    device.us = lambda copy, n: 10.0 + device.clock / 1000
    found = calibrate(device, 60)["drift"]
    first, middle, last = found["us"]
    assert first < middle < last and found["spread"] == pytest.approx((last - first) / first)
    assert found["at_s"][0] < found["at_s"][1] < found["at_s"][2]
    assert found["bytes"] == 64 * MIB


def test_steps_are_told() -> None:
    said: list[str] = []
    calibrate(FakeDevice(), 60, said.append)
    assert said[0] == "launch floors" and said[-1] == "intermediate sizes" and len(said) == 5


def up() -> dict[str, Any]:
    return {
        "backend": "sim",
        "target": {"backend": "sim", "model": "sim-1"},
        "name": "sim-1 #0",
        "node": "here",
        "fingerprint": {"uuid": "sim-1-0"},
    }


def stored(found: dict[str, Any], **given: Any) -> dict[str, Any]:
    at = datetime(2026, 11, 21, 13, 5, 7, tzinfo=timezone.utc)
    policy = {"method": "host", "version": 2, "cache": "cold"}
    return report.record(
        found,
        **{"up": up(), "policy": policy, "evidence": "simulated", "revision": {"name": "abc"}, "made": at, **given},
    )


def test_what_is_stored_is_a_calibration() -> None:
    whole = stored(calibrate(ScriptedDevice(), 40))
    read = parse(whole)
    assert read.id == whole["id"] and read.id.endswith("-20261121T130507Z") and read.id.startswith("sim-sim-1-")
    assert read.cold is False and read.uuid == "sim-1-0" and read.gemm["bfloat16"] == pytest.approx(100.0)
    assert whole["telemetry"] is None
    assert (
        parse(stored(calibrate(ScriptedDevice(), 40), policy={"method": "events", "version": 3, "cache": "cold"})).cold
        is True
    )


def test_a_disturbed_calibration_says_so() -> None:
    told = {"throttled": False, "throttled_by": "", "disturbed": "another process on the device: x", "raw": [1]}
    whole = stored(calibrate(ScriptedDevice(), 40), telemetry=told, complaint=complaint(told))
    assert any("another process on the device: x" in n for n in whole["notes"]) and "raw" not in whole["telemetry"]


def test_a_run_keeps_a_calibration_without_what_was_not_the_best() -> None:
    short = report.short(record())
    assert all("all" not in p for p in short["curve"])
    assert parse(short).curve == parse(record()).curve
    assert "all" in record()["curve"][0]


def test_the_terminal_is_told_the_curve_and_what_is_missing() -> None:
    text = "\n".join(report.lines(record()))
    for part in (
        "1 MiB",
        "1 GiB",
        "once-1024x8",
        "1.10 us (rotating_graph)",
        "bfloat16 733 (8192)",
        "1.2% apart",
        "omitted: 8 GiB: does not fit",
        "GEMM int8: no such product",
    ):
        assert part in text
    assert "more than 3 %" not in text
    assert "more than 3 %" in report.drift(record(drift={"bytes": 1, "us": [1.0, 1.5], "spread": 0.5}))
    assert report.drift(record(drift={})) == "not measured"


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(4096, "4 KiB"), (MIB, "1 MiB"), (1482752, "1.41 MiB"), (1023 * MIB, "1023 MiB"), (8 << 30, "8 GiB")],
)
def test_sizes_in_words(nbytes: int, said: str) -> None:
    assert report.size(nbytes) == said
