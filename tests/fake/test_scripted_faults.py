"""One run of many fakes, each with a fault of its own: what the farm says of each, over real Ray and inline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from farm_process import FarmRun

FOREIGN = json.dumps({"kind": "phase", "revision": "x", "round": 0, "attempt": 1, "phase": "check"})
#: name -> (script, status, owner, attempt, words of the reason)
CASES: dict[str, tuple[dict[str, Any], str, str, int, str]] = {
    "fine": ({}, "passed", "", 1, ""),
    "exit_7": ({"exit": 7}, "crashed", "kernel", 1, "exit code 7 in phase check"),
    "exit_0": ({"exit": 0}, "crashed", "kernel", 1, "exit code 0"),
    "segfault": ({"signal": 11}, "crashed", "kernel", 1, "signal 11 (SIGSEGV)"),
    "abort": ({"signal": 6}, "crashed", "kernel", 1, "signal 6 (SIGABRT)"),
    "killed_always": ({"signal": 9}, "crashed", "kernel", 1, "second time it ran alone in a fresh child"),
    "hangs": ({"hang": True}, "timed_out", "kernel", 1, "phase check took more than 3 s"),
    "hangs_in_compile": ({"hang": "compile"}, "timed_out", "kernel", 1, "phase compile took more than 3 s"),
    "leaks": ({"leak_mib": 64}, "passed", "", 1, ""),
    "lies": ({"lie": True}, "crashed", "kernel", 1, "private pipe: not a protocol line: b'all cells passed"),
    "speaks_for_another": ({"lie": FOREIGN}, "crashed", "kernel", 1, "an unexpected message"),
    "unsupported": ({"status": "unsupported", "reason": "too odd"}, "unsupported", "kernel", 1, "too odd"),
    "out_of_memory": ({"status": "out_of_memory"}, "out_of_memory", "kernel", 1, "scripted"),
    "compile_error": ({"status": "compile_error"}, "compile_error", "kernel", 1, "scripted"),
    "infra_once": ({"status": "infra_error", "owner": "infra", "until_attempt": 2}, "passed", "", 2, ""),
    "device_once": ({"status": "infra_error", "owner": "device", "until_attempt": 2}, "passed", "", 2, ""),
    "infra_always": ({"status": "infra_error", "owner": "infra"}, "infra_error", "infra", 2, "scripted"),
    "harness": ({"status": "infra_error", "owner": "harness"}, "infra_error", "harness", 2, "scripted"),
    "one_percent": ({"error": 0.01}, "inaccurate", "kernel", 1, "y"),
    "unwritten": ({"unwritten": 1}, "inaccurate", "kernel", 1, "y"),
    "no_time": ({"time_us": 0}, "passed", "", 1, ""),
}
HIDDEN = {name: 128 + i for i, name in enumerate(CASES)}
FINE = [600 + i for i in range(8)]


def matrix() -> str:
    """Each case at a hidden size of its own, with well-behaved neighbours around."""
    rules = [{"when": {"hidden": HIDDEN[name]}, **case[0]} for name, case in CASES.items()]
    data = {
        "name": "faults",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 3, "hidden": [*HIDDEN.values(), *FINE]}], "dtype": "float32"},
        "providers": ["farm"],
        "exclude": [{"hidden": FINE[-1], "reason": "to have one skipped"}],
        "deadlines": {"check": 3, "compile": 3},
        "sim": {"default": {"time_us": 10, "noise": 0.01}, "rules": rules},
    }
    return json.dumps(data)  # JSON is YAML


@pytest.fixture(scope="module", params=["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.long])])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = FarmRun(tmp_path_factory.mktemp(request.param), matrix(), address=request.param)
    try:
        run.start()
        run.wait(120)
        yield run
    finally:
        run.end()


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of(done: FarmRun, name: str) -> None:
    _, status, owner, attempt, words = CASES[name]
    row = done.row_of(HIDDEN[name])
    assert (row["status"], row["fault_owner"], row["attempt"]) == (status, owner, attempt), row
    assert words in row["reason"]
    assert row["evidence"] == "simulated"
    assert row["seconds"] is not None


def test_the_neighbours_finish(done: FarmRun) -> None:
    assert [done.row_of(h)["status"] for h in FINE] == ["passed"] * (len(FINE) - 1) + ["skipped"]


def test_all_that_was_planned_is_accounted_for(done: FarmRun) -> None:
    rows = done.rows()
    head = done.run.head
    assert len(rows) == len(CASES) + len(FINE) == head["planned"]
    assert head["counts"] == dict(Counter(r["status"] for r in rows))
    assert sum(head["backends"]["sim"]["counts"].values()) == len(rows)
    assert (head["verdict"], head["exit_code"]) == ("farm_fault", 3)  # infra_always
    assert done.process is not None
    assert done.process.returncode == 3
    assert f"{len(rows)} planned = {len(rows)} accounted for" in done.said()


def test_every_cell_has_one_result_in_the_journal_and_it_is_the_tables(done: FarmRun) -> None:
    written = [e["row"] for e in done.journal("result")]
    assert sorted(r["index"] for r in written) == list(range(len(CASES) + len(FINE)))
    table = {r["index"]: r for r in done.run.rows}
    assert all(table[r["index"]] == r for r in written)


def test_faults_of_device_and_farm_are_tried_on_another_device(done: FarmRun) -> None:
    tried: dict[int, list[str]] = {}
    for event in done.journal("started"):
        tried.setdefault(event["cell"], []).append(event["device"])
    for name in ("infra_once", "device_once", "infra_always", "harness"):
        devices = tried[done.row_of(HIDDEN[name])["index"]]
        assert len(devices) == 2, name
        assert len(set(devices)) == 2, name
    for name in ("exit_7", "hangs", "lies", "one_percent", "out_of_memory", "killed_always"):
        assert len(tried[done.row_of(HIDDEN[name])["index"]]) == 1, name


def test_what_failed_has_its_log_and_what_no_judge_saw_no_time(done: FarmRun) -> None:
    for name in ("exit_7", "hangs", "infra_always", "unsupported"):
        row = done.row_of(HIDDEN[name])
        assert row["time_us_p50"] is None
        assert row["log"] == "" or (done.run.dir / row["log"]).is_file()
    assert done.row_of(HIDDEN["fine"])["time_us_p50"] == pytest.approx(10, rel=0.02)
    assert done.row_of(HIDDEN["no_time"])["timing_quality"] == "impossible"
    assert done.row_of(HIDDEN["no_time"])["bandwidth_gbps"] is None


def test_each_matrix_has_its_own_deadlines(tmp_path: Path) -> None:
    common = {"op": "rms_norm", "providers": ["farm"]}
    first = {
        "name": "a",
        **common,
        "axes": {"shape": [{"rows": 2, "hidden": 64}]},
        "deadlines": {"check": 0.5},
        "sim": {"default": {"hang": True}},
    }
    second = {"name": "b", **common, "axes": {"shape": [{"rows": 2, "hidden": 65}]}}
    run = FarmRun(tmp_path, f"{json.dumps(first)}\n---\n{json.dumps(second)}")
    try:
        assert run.start().wait() == 1
    finally:
        run.end()
    assert [(r["status"], r["reason"]) for r in run.rows()] == [
        ("timed_out", "phase check took more than 0.5 s"),
        ("passed", ""),
    ]


def test_nothing_is_left_behind(done: FarmRun) -> None:
    done.assert_nothing_left()
    assert not done.spool.exists()
    assert not list(Path("/dev/shm").glob(f"*{done.run_id}*"))
