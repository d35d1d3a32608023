"""Measuring processes from outside: a script stands in for them that ends, crashes, hangs or is slow as it is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes
from benchmarks.cases import Case, item

SCRIPT = """
import json, os, sys, time
plan = json.load(open(sys.argv[1]))
out = open(sys.argv[2], "a")
def emit(**event):
    out.write(json.dumps(event) + "\\n")
    out.flush()
emit(event="host")
for item in plan["items"]:
    case = item["case"]
    name = "/".join([case["op"], case["operation"], "bf16", f"{case['rows']}x{case['hidden']}"])
    if item["roof"]:
        emit(event="begin", case=name, subject="roof")
        if case["rows"] == 7:
            os.kill(os.getpid(), 9)
        emit(event="roof", nbytes=8, gbps=1.0)
    emit(event="begin", case=name, subject="inputs")
    if case["rows"] == 8:
        os._exit(5)
    for subject in item["subjects"]:
        emit(event="begin", case=name, subject=subject)
        if subject == "dies":
            os._exit(7)
        if subject == "hangs":
            time.sleep(60)
        if subject == "slow":
            time.sleep(1.5)
        emit(event="result", case=name, subject=subject, status="ok")
        if subject == "last":
            os._exit(3)
emit(event="end", why="done")
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "child.py"
    script.write_text(SCRIPT)
    return [sys.executable, "-I", str(script)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEAST_S", 0.0)
    monkeypatch.setattr(processes, "POLL_S", 0.02)


def case(rows: int = 4) -> Case:
    return Case("rms_norm", "forward", "bfloat16", rows, 16)


def run(program: list[str], items: list[dict[str, Any]], seconds: float = 30.0, **options: Any):
    events = processes.supervise({"items": items}, seconds, program=program, **options)
    found = {(c.split("/")[-1], s): e["status"] for (c, s), e in processes.results(events).items()}
    return events, found


def test_a_whole_run_is_one_process(program) -> None:
    events, found = run(program, [item(case(), ["a", "b"], roof=True), item(case(5), ["a"])])
    assert found == {("4x16", "a"): "ok", ("4x16", "b"): "ok", ("5x16", "a"): "ok"}
    assert {e["process"] for e in events} == {1}
    assert processes.ended(events)["why"] == "done"


def test_a_death_costs_the_subject_it_was_at(program) -> None:
    items = [item(case(), ["a", "dies", "b"]), item(case(5), ["a"])]
    events, found = run(program, items)
    assert found == {("4x16", "a"): "ok", ("4x16", "dies"): "crashed", ("4x16", "b"): "ok", ("5x16", "a"): "ok"}
    assert processes.results(events)[case().id, "dies"]["reason"] == "the process ended with exit code 7"
    assert {e["process"] for e in events} == {1, 2}
    assert processes.not_reached(items, events) == []


def test_a_process_that_gives_up_behind_a_result_is_followed_by_another(program) -> None:
    _, found = run(program, [item(case(), ["a", "last", "b"])])
    assert found == {("4x16", "a"): "ok", ("4x16", "last"): "ok", ("4x16", "b"): "ok"}


def test_a_silent_process_is_ended(program) -> None:
    begun = time.monotonic()
    events, found = run(program, [item(case(), ["hangs", "b"])], idle_s=0.7)
    assert found == {("4x16", "hangs"): "timed_out", ("4x16", "b"): "ok"}
    assert time.monotonic() - begun < 20
    assert "told nothing for 0.7 s" in processes.results(events)[case().id, "hangs"]["reason"]


def test_the_deadline_ends_everything_and_the_rest_is_listed(program) -> None:
    items = [item(case(n), ["slow"]) for n in range(20, 40)]
    events, found = run(program, items, 3.0)
    lost = processes.not_reached(items, events)
    assert 1 <= len(found) < 20 and len(found) + len(lost) == 20
    assert all(e.get("status") != "crashed" for e in events)


def test_a_roof_that_kills_leaves_the_case_without_one(program) -> None:
    events, found = run(program, [item(case(7), ["a"], roof=True), item(case(), ["a"], roof=True)])
    assert found == {("7x16", "roof"): "crashed", ("7x16", "a"): "ok", ("4x16", "a"): "ok"}
    assert sum(e["event"] == "roof" for e in events) == 1


def test_inputs_that_kill_cost_the_case(program) -> None:
    _, found = run(program, [item(case(8), ["a", "b"]), item(case(), ["a"])])
    assert found == {("8x16", "a"): "crashed", ("8x16", "b"): "crashed", ("4x16", "a"): "ok"}


def test_a_program_that_never_starts_is_said_once() -> None:
    events, found = run([sys.executable, "-c", "raise SystemExit(4)"], [item(case(), ["a"])])
    assert found == {} and [e["why"] for e in events] == ["failed"]
    assert events[0]["reason"] == "a process told nothing and ended with exit code 4"


def test_restarts_are_bounded(program, monkeypatch) -> None:
    monkeypatch.setattr(processes, "RESTARTS", 2)
    items = [item(case(n), ["dies"]) for n in range(20, 30)]
    events, found = run(program, items)
    assert list(found.values()) == ["crashed"] * 3
    assert len(processes.not_reached(items, events)) == 7


def test_several_at_once_give_their_events_and_are_ended(program) -> None:
    plans = [{"items": [item(case(n), ["a", "hangs" if n == 5 else "b"])]} for n in (4, 5)]
    begun = time.monotonic()
    events = processes.together(plans, 1.5, program=program)
    assert time.monotonic() - begun < 20
    assert {(c, s) for c, s in processes.results(events)} == {(case(4).id, "a"), (case(4).id, "b"), (case(5).id, "a")}


def test_a_torn_last_line_is_left(tmp_path: Path) -> None:
    file = tmp_path / "events"
    assert processes.read(file) == []
    file.write_text('{"event": "host"}\n{"event": "res')
    assert processes.read(file) == [{"event": "host"}]


def test_ticks_see_what_is_known_so_far(program) -> None:
    seen: list[int] = []
    run(program, [item(case(), ["a", "slow", "b"])], tick=lambda events: seen.append(len(events)))
    assert seen == sorted(seen) and len(set(seen)) > 1
