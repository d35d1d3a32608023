"""The roof: what a calibration's file must hold, how its curve is read, which one serves whom."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from calibrations import MADE, MIB, TARGET, record

from farm.timing.roof import BadCalibration, Roof, choose, copy_us, fingerprint_id, of_cell, parse, roof_us

POLICIES = [("rotating_graph", 2)]
GOOD = parse(record())


def test_measured_sizes_are_what_was_measured() -> None:
    for point in GOOD.curve:
        assert copy_us(GOOD.curve, point.nbytes) == (pytest.approx(point.us), "")


def test_between_sizes_it_is_straight_on_log_log_axes() -> None:
    # halfway between 1 and 4 MiB on a log scale lies 2 MiB; halfway between 2 and 4 us lies 2 sqrt(2)
    assert copy_us(GOOD.curve, 2 * MIB) == (pytest.approx(2 * 2**0.5), "")


def test_beyond_the_curve_it_says_so() -> None:
    assert copy_us(GOOD.curve, MIB // 8) == (2.0, "below")
    assert copy_us(GOOD.curve, 4096 * MIB) == (pytest.approx(1024.0), "above")


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 34))
def test_more_bytes_never_take_less(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert copy_us(GOOD.curve, low)[0] <= copy_us(GOOD.curve, high)[0] * (1 + 1e-12)


def test_whichever_takes_longer_binds() -> None:
    def roof(operations: int, dtype: str = "bfloat16", nbytes: int = 4 * MIB) -> Roof | None:
        return roof_us(GOOD, nbytes, {"tensor": operations}, dtype)

    assert roof(10**9) == Roof(pytest.approx(4.0), "copy")  # 1e9 / 733e12 s: 1.4 us
    assert roof(10**10) == Roof(pytest.approx(1e10 / 733e6), "gemm")  # the best of the two sizes
    assert roof(10**9, "float32") is None  # no GEMM in it was measured: bytes alone would flatter
    assert roof_us(GOOD, 4 * MIB, {"vector": 10**15}, "float32") == Roof(pytest.approx(4.0), "copy")
    assert roof_us(GOOD, 0, {}, "float32") is None


def test_a_cell_is_held_only_against_its_own_policy() -> None:
    cell: dict[str, Any] = {
        "method": "rotating_graph",
        "version": 2,
        "cold": True,
        "bytes_moved": 4 * MIB,
        "operations": {"vector": 7},
        "dtype": "float32",
    }
    assert of_cell(GOOD, **cell) == {
        "us": pytest.approx(4.0),
        "what": "copy",
        "calibration": GOOD.id,
        "extrapolated": "",
    }
    for other in ({"method": "events"}, {"version": 1}, {"cold": False}):
        assert of_cell(GOOD, **{**cell, **other}) is None
    warm = parse(record(cold=False))
    assert of_cell(warm, **{**cell, "cold": False}) is not None


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"made": "yesterday"}, "ISO 8601"),
        ({"curve": []}, "curve"),
        ({"curve": "fast"}, "curve is missing"),
        ({"curve": [{"bytes": MIB, "us": -1.0}]}, r"curve\[0\] has 1048576 bytes in -1.0 us"),
        ({"curve": [{"bytes": MIB, "us": float("nan")}]}, r"in nan us"),
        ({"curve": [{"bytes": True, "us": 1.0}]}, r"curve\[0\] has True bytes"),
        ({"curve": [{"bytes": MIB}]}, r"in None us"),
        ({"curve": [7]}, r"curve\[0\]"),
        ({"curve": [{"bytes": 4, "us": 1.0}, {"bytes": 4, "us": 1.0}]}, "curve"),
        ({"gemm": [{"dtype": "bfloat16", "tflops": 0}]}, r"gemm\[0\] has no dtype with a positive rate"),
        ({"gemm": ["fast"]}, r"gemm\[0\]"),
        ({"target": None}, "target is missing"),
        ({"policy": "fast"}, "policy is missing"),
        ({"policy": {"method": ["fast"], "version": 1}}, "the calibration does not state the method and the version"),
        ({"curve": [{"bytes": 10**400, "us": 1.0}]}, r"curve\[0\] has 1000"),
    ],
)
def test_what_is_no_calibration_is_refused_in_a_sentence(planted: dict[str, Any], said: str) -> None:
    with pytest.raises(BadCalibration, match=said) as refused:
        parse(record(**planted))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [None, [], "x", 3, {}])
def test_what_is_no_object_of_ours_is_refused(data: Any) -> None:
    with pytest.raises(BadCalibration):
        parse(data)


def made(days: float, uuid: str = "GPU-1", **given: Any) -> Any:
    fingerprint = {"uuid": uuid, "driver": "580.1"}
    at = (MADE - timedelta(days=days)).isoformat()
    return parse(record(id=f"{uuid}-{days}", made=at, fingerprint=fingerprint, **given))


def choice(calibrations: list[Any], target: dict[str, Any] = TARGET, uuid: str = "GPU-1", driver: str = "580.1") -> Any:
    return choose(calibrations, target, {"uuid": uuid, "driver": driver}, POLICIES, MADE)


def test_the_newest_of_ones_own_serves() -> None:
    found = choice([made(3), made(1), made(2), made(0.5, "GPU-2")])
    assert (found.calibration.id, found.own, found.stale) == ("GPU-1-1", True, False)
    assert found.age == pytest.approx(1)


def test_anothers_serves_where_there_is_none_of_ones_own_and_is_marked() -> None:
    found = choice([made(3), made(1)], uuid="GPU-7")
    assert (found.calibration.id, found.own) == ("GPU-1-1", False)
    assert choice([made(1, "")], uuid="").own is False  # two that do not say who they are


@pytest.mark.parametrize(
    ("given", "sound"),
    [
        ({}, True),
        ({"telemetry": {"throttled": False, "disturbed": None}}, True),
        ({"telemetry": {"throttled": True, "disturbed": None}}, False),
        ({"telemetry": {"throttled": False, "disturbed": "another process on the device: pid 8"}}, False),
        ({"drift": {"spread": 0.051}}, False),
        ({"drift": {"spread": None}}, True),
        ({"telemetry": "x", "drift": []}, True),
    ],
)
def test_a_device_that_was_held_back_has_no_bound(given: dict[str, Any], sound: bool) -> None:
    assert parse(record(**given)).sound is sound


def test_an_old_one_still_serves_and_is_stale() -> None:
    assert choice([made(31)]).stale and not choice([made(29)]).stale
    assert choice([made(31), made(1, "GPU-2")]).own  # one's own old one before a neighbour's fresh one
    assert choice([made(-2)]).age == 0  # a clock that went back


@pytest.mark.parametrize(
    ("target", "driver"),
    [
        ({**TARGET, "model": "NVIDIA H100"}, "580.1"),
        ({**TARGET, "power_limit_w": 500}, "580.1"),
        ({**TARGET, "clocks": "locked-1500mhz"}, "580.1"),
        ({**TARGET, "partition": "1g.18gb"}, "580.1"),
        ({**TARGET, "backend": "rocm"}, "580.1"),
        (TARGET, "590.0"),
    ],
)
def test_another_setup_is_another_device(target: dict[str, Any], driver: str) -> None:
    assert choice([made(1)], target, driver=driver) is None
    a = fingerprint_id(TARGET, {"uuid": "GPU-1", "driver": "580.1"})
    assert fingerprint_id(target, {"uuid": "GPU-1", "driver": driver}) != a


def test_a_fakes_roof_is_lent_to_fakes_alone() -> None:
    """A fake that plays an H200 has an H200's target and driver; its clock is a script's."""
    fake, real = made(1, "simulated-cuda-0", evidence="simulated"), made(2, "GPU-2", evidence="executed")
    said = (TARGET, {"uuid": "GPU-7", "driver": "580.1"}, POLICIES, MADE)
    assert choose([fake], *said) is None
    assert choose([fake, real], *said).calibration is real
    assert choose([fake, real], *said, "simulated").calibration is fake
    assert choose([real], *said, "simulated") is None


def test_a_calibration_by_another_policy_serves_nobody() -> None:
    assert choice([made(1, policy={"method": "rotating_graph", "version": 1})]) is None
    assert choice([made(1, policy={"method": "events", "version": 2})]) is None


def test_a_device_has_a_readable_name() -> None:
    name = fingerprint_id(TARGET, {"uuid": "GPU-1", "driver": "580.1", "torch": "2.11"})
    assert name.startswith("cuda-NVIDIA-H200-") and name.replace("-", "").isalnum()
    assert name == fingerprint_id(TARGET, {"uuid": "GPU-1", "driver": "580.1", "torch": "2.12"})
    assert name != fingerprint_id(TARGET, {"uuid": "GPU-2", "driver": "580.1"})
