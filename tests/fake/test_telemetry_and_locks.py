"""Fakes that throttle, have company, keep memory and are wanted by two farms: what a run says, and what it costs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from farm_process import FarmRun, wait_for

from farm.guard import telemetry

Farm = Callable[..., FarmRun]
ADDRESSES = ["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.long])]
HOT = {"sm_clock_mhz": 1200, "temperature_c": 90, "power_w": 650, "throttle": ["hw_thermal"]}
#: name -> (script, quality, tries, the flag's beginning or None)
CASES: dict[str, tuple[dict[str, Any], str, int, str | None]] = {
    "well": ({}, "ok", 1, None),
    "throttles": (
        {"telemetry": HOT},
        "throttled",
        3,
        "throttled (hardware thermal slowdown) while timed (timed 3 times)",
    ),
    "well_2": ({}, "ok", 1, None),
    "heals": (
        {"telemetry": {**HOT, "until_try": 2}},
        "ok",
        2,
        "timed 2 times; the previous try was throttled (hardware thermal slowdown)",
    ),
    "has_company": (
        {"telemetry": {"foreign": ["gedit"]}},
        "noisy",
        3,
        "disturbed (another process on the device: gedit (pid 10000000)) while timed (timed 3 times)",
    ),
    "well_3": ({}, "ok", 1, None),
    "memory_error": (
        {"telemetry": {"ecc_uncorrected": 1, "until_try": 2}},
        "ok",
        2,
        "timed 2 times; the previous try was disturbed (1 uncorrected memory error)",
    ),
    "xid": ({"telemetry": {"xid": [79]}}, "noisy", 3, "disturbed (the driver reported Xid 79) while timed"),
    "at_its_limit": ({"telemetry": {"throttle": ["sw_power_cap"], "power_w": 700}}, "ok", 1, None),
    "well_4": ({}, "ok", 1, None),
    "not_timed": ({"telemetry": HOT, "time_us": None}, "none", 0, None),
}
HIDDEN = {name: 128 + i for i, name in enumerate(CASES)}


def matrix(scripts: dict[int, dict[str, Any]], **default: Any) -> str:
    rules = [{"when": {"hidden": hidden}, **script} for hidden, script in scripts.items()]
    return json.dumps(
        {
            "name": "telemetry",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": list(scripts)}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {"default": {"time_us": 10, "noise": 0.01, **default}, "rules": rules},
        }
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One device, so that the cells come one after another."""
    scripts = {HIDDEN[name]: {k: v for k, v in case[0].items() if v is not None} for name, case in CASES.items()}
    text = json.loads(matrix(scripts))
    for rule in text["sim"]["rules"]:
        if rule["when"]["hidden"] == HIDDEN["not_timed"]:
            rule["status"], rule["owner"] = "unsupported", "kernel"
    run = FarmRun(tmp_path_factory.mktemp("telemetry"), json.dumps(text), ("--devices", "1"))
    try:
        assert run.start().wait(120) == 0, run.said()
        yield run
    finally:
        run.end()


@pytest.mark.parametrize("name", [n for n in CASES if n != "not_timed"])
def test_a_bad_block_is_repeated_within_bounds_then_marked(done: FarmRun, name: str) -> None:
    _, quality, tries, flag = CASES[name]
    row = done.row_of(HIDDEN[name])
    (said,) = [e["telemetry"] for e in done.journal("measured") if e["cell"] == row["index"]]
    assert (row["status"], row["attempt"], row["timing_quality"]) == ("passed", 1, quality)
    assert said["tries"] == tries
    flags = json.loads(row["flags"])
    assert flags[0].startswith(flag) if flag else flags == []
    assert len(flags) == (1 if flag else 0)


def test_rows_have_what_the_device_said(done: FarmRun) -> None:
    row = done.row_of(HIDDEN["throttles"])
    assert (row["sm_clock_mhz"], row["temperature_c"], row["power_w"], row["throttle"]) == (1200, 90, 650, "hw_thermal")
    assert row["time_us_p50"] == pytest.approx(10, rel=0.02)  # it is told, beside its quality
    well = done.row_of(HIDDEN["well"])
    assert (well["sm_clock_mhz"], well["temperature_c"], well["power_w"], well["throttle"]) == (1500, 40, 100, "")
    assert done.row_of(HIDDEN["not_timed"])["sm_clock_mhz"] is None


def test_samples_have_raw_telemetry_beside_them(done: FarmRun) -> None:
    table = pq.read_table(done.run.dir / "samples.parquet").to_pylist()
    told = {r["cell_id"]: json.loads(r["telemetry"]) for r in table}
    rows = told[done.row_of(HIDDEN["throttles"])["cell_id"]]
    assert len(rows) >= 2
    assert all(len(r) == len(telemetry.KEPT) for r in rows)
    assert rows[0][1:] == [1200, 2600.0, 90, 650, "hw_thermal"]
    assert [r[0] for r in rows] == sorted(r[0] for r in rows)


def test_the_page_says_so(done: FarmRun) -> None:
    page = Path(done.said().rpartition("page: ")[2].splitlines()[0]).read_text(encoding="utf-8")
    assert "hardware thermal slowdown" in page
    assert "gedit (pid 10000000)" in page
    assert "1200–1500 MHz" in page
    assert "40–90 °C" in page
    assert "1 cell throttled" in page


def test_a_device_that_stays_bad_is_not_waited_for_for_ever(farm: Farm) -> None:
    run = farm(matrix({64 + i: {} for i in range(8)}, telemetry=HOT), "--devices", "1")
    assert run.wait() == 0, run.said()
    tries = [e["telemetry"]["tries"] for e in run.journal("measured")]
    assert tries == [3] * telemetry.PATIENCE + [1] * (8 - telemetry.PATIENCE)
    assert {r["timing_quality"] for r in run.rows()} == {"throttled"}


def test_the_power_limit_counts_where_likes_had_more_clock(farm: Farm) -> None:
    text = json.loads(matrix({64: {}, 65: {}}))
    text["providers"] = ["farm", "torch"]
    text["sim"]["rules"] = [
        {
            "when": {"hidden": hidden, "provider": provider},
            "telemetry": {"throttle": ["sw_power_cap"], "sm_clock_mhz": mhz},
        }
        for hidden, provider, mhz in [(64, "farm", 1500), (64, "torch", 1300), (65, "farm", 1300), (65, "torch", 1290)]
    ]
    run = farm(json.dumps(text), "--devices", "1")
    assert run.wait() == 0, run.said()
    rows = {(json.loads(r["dims"])["hidden"], r["provider"]): r for r in run.rows()}
    assert [e["cell"] for e in run.journal("measured")] == [
        rows[k]["index"] for k in [(64, "farm"), (64, "torch"), (65, "farm"), (65, "torch")]
    ]
    assert {k: r["timing_quality"] for k, r in rows.items()} == {
        (64, "farm"): "ok",
        (64, "torch"): "throttled",
        (65, "farm"): "ok",
        (65, "torch"): "ok",
    }
    assert json.loads(rows[64, "torch"]["flags"]) == ["throttled (power limit) while timed (timed 3 times)"]


def test_cpu_has_no_telemetry_and_says_nothing(farm: Farm) -> None:
    text = json.loads(matrix({64: {}}))
    del text["sim"]
    run = farm(json.dumps({**text, "providers": ["torch"]}), backend="cpu")
    assert run.wait() == 0, run.said()
    (row,) = run.rows()
    assert (row["sm_clock_mhz"], row["throttle"], row["timing_quality"]) == (None, "", "none")
    assert [e["telemetry"] for e in run.journal("measured")] == [None]


# memory after a kill


def test_memory_that_comes_back_after_a_kill_is_waited_for(farm: Farm) -> None:
    run = farm(matrix({64: {}, 65: {"exit": 7, "keep_mib": 3000, "keep_s": 0.5}, 66: {}}), "--devices", "1")
    assert run.wait() == 1, run.said()
    assert [r["status"] for r in run.rows()] == ["passed", "crashed", "passed"]
    assert run.journal("device_down") == []


def test_memory_that_stays_after_a_kill_takes_the_device_down(farm: Farm) -> None:
    scripts: dict[int, dict[str, Any]] = {64 + i: {} for i in range(6)}
    scripts[66] = {"exit": 7, "keep_mib": 3000}
    run = farm(matrix(scripts, wall_s=0.1))  # two devices: the other one has the rest
    assert run.wait() == 1, run.said()
    assert [r["status"] for r in run.rows()] == ["passed", "passed", "crashed", "passed", "passed", "passed"]
    (down,) = run.journal("device_down")
    assert "3000 MiB of device memory was still in use 1.5 s" in down["reason"]
    assert "before the first child: 512 MiB" in down["reason"]
    assert [e["device"] for e in run.journal("retired")] == [down["device"]]


# one farm at a time


def shared(tmp_path: Path, wait: float) -> dict[str, str]:
    return {"FARM_SIM_HOST": "h", "FARM_LOCKS": str(tmp_path / "locks"), "FARM_LOCK_WAIT": str(wait)}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_second_farm_waits_for_the_first(farm: Farm, tmp_path: Path, address: str) -> None:
    first = farm(
        matrix({64 + i: {} for i in range(200)}, wall_s=0.5),
        "--devices",
        "1",
        address=address,
        environment=shared(tmp_path, 60),
    )
    first.wait_for("measured")
    second = farm(matrix({64: {}}), "--devices", "1", environment=shared(tmp_path, 60))
    (waits,) = second.wait_for("device_waits")
    first.ctrl_c()  # it would go on for longer than a busy host takes to start the second
    assert second.wait() == 0, second.said()
    assert f"run {first.run_id!r}" in waits["reason"]
    assert waits["reason"] in second.said()
    assert first.wait() == 3, first.said()
    assert second.journal("started")[0]["time"] >= max(e["time"] for e in first.journal("measured"))


def test_a_farm_that_waited_in_vain_says_who_has_the_device(farm: Farm, tmp_path: Path) -> None:
    first = farm(matrix({64: {"hang": True}}), "--devices", "1", environment=shared(tmp_path, 60))
    first.wait_for("started")
    second = farm(matrix({64: {}}), "--devices", "1", environment=shared(tmp_path, 0.5))
    assert second.wait() == 3, second.said()
    assert first.process is not None
    (down,) = second.journal("device_down")
    assert down["reason"].startswith(f"the device is in use by another farm (pid {first.worker}, user ")
    assert f"run {first.run_id!r}) after a wait of 0.5 s for " in down["reason"]
    assert [r["status"] for r in second.rows()] == ["lost"]
    assert "in use by another farm" in second.said()
    assert "[run-lacks-devices]" in second.said() and f"farm resume {second.run_id}" in second.said()
    assert not (second.run.dir / "run.json").exists()
    assert "Traceback" not in second.said()


def test_kill_9_of_a_farm_frees_its_device(farm: Farm, tmp_path: Path) -> None:
    first = farm(matrix({64: {"hang": True}}), "--devices", "1", environment=shared(tmp_path, 60))
    first.wait_for("started")
    second = farm(matrix({64: {}}), "--devices", "1", environment=shared(tmp_path, 60))
    wait_for("the second to wait", lambda: second.journal("device_waits"))
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGKILL)
    assert second.wait() == 0, second.said()


def test_two_devices_of_one_host_are_two_locks(farm: Farm, tmp_path: Path) -> None:
    run = farm(matrix({64 + i: {} for i in range(6)}, wall_s=0.1), environment=shared(tmp_path, 0))
    assert run.wait() == 0, run.said()
    assert len(run.journal("device_up")) == 2
    assert sorted(p.name for p in (tmp_path / "locks").iterdir()) == ["sim-h-0.lock", "sim-h-1.lock"]


def test_a_lock_folder_that_cannot_be_used_is_one_clear_sentence(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    run = farm(matrix({64: {}}), environment=shared(tmp_path, 1))
    assert run.wait() == 3, run.said()
    assert "the device's lock cannot be opened" in run.said()
    assert "Traceback" not in run.said()
