"""Judges of an inline run are processes: one that crashes, hangs or is killed costs itself, and at most its call."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm_process import is_dead, wait_for
from one_device import OneDevice

from farm.cell import Cell
from farm.contracts.discovery import contract
from farm.deadline import Deadline
from farm.errors import JudgeFailed, id_of
from farm.judge.pool import LocalJudges


@pytest.fixture
def judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalJudges]:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    made = LocalJudges(str(tmp_path / "spool"), 1)
    yield made
    made.close()


def a_cell(rows: int, hidden: int = 8) -> dict[str, Any]:
    parameters = {p.name: p.default for p in contract("rms_norm").parameters}
    dtypes = dict.fromkeys(("x", "weight"), "float32")
    dims = {"rows": rows, "hidden": hidden}
    return replace(Cell("sim", "rms_norm", "torch", "auto", "forward", dtypes, dims, parameters), index=rows).to_dict()


def prepared(judges: LocalJudges, rows: int, seconds: float = 60.0) -> Any:
    return judges.prepare(a_cell(rows), Deadline(seconds))["tensors"]


def the_process(judges: LocalJudges) -> int:
    (only,) = judges._processes._all
    return only.pid


def judged(judges: LocalJudges, path: Path, rows: int, hidden: int, seconds: float = 120.0) -> queue.Queue[Any]:
    heard: queue.Queue[Any] = queue.Queue()
    told = {"name": "y", "dtype": "float32", "shape": [rows, hidden], "path": str(path)}
    judges.judge({"cell": a_cell(rows, hidden), "outputs": [told]}, heard.put, seconds)
    return heard


def test_an_output_that_is_cut_while_it_is_judged_costs_a_judge_and_accuses_the_kernel(
    judges: LocalJudges, tmp_path: Path
) -> None:
    """Whoever reads a map of what was cut off gets SIGBUS; inline that was the whole run."""
    path, rows, hidden = tmp_path / "y.bin", 2048, 16384
    with path.open("wb") as file:
        file.truncate(rows * hidden * 4)
    prepared(judges, 2)
    first = the_process(judges)
    heard = judged(judges, path, rows, hidden)
    end = Deadline(60)
    while str(path) not in Path(f"/proc/{first}/maps").read_text() and not end.expired:
        pass
    os.truncate(path, 0)
    found = heard.get(timeout=120)
    assert (found["status"], found["owner"]) == ("crashed", "kernel"), found
    assert is_dead(first)


def test_one_that_hangs_is_killed_at_its_limit_and_another_answers_the_next(judges: LocalJudges) -> None:
    prepared(judges, 2)
    first = the_process(judges)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(JudgeFailed) as silent:
        judges._processes.call("prepare", a_cell(3), 0.3)
    assert id_of(silent.value.args[0]) == "judge-silent"
    assert prepared(judges, 3) and is_dead(first)


def test_one_that_was_killed_costs_no_call(judges: LocalJudges) -> None:
    prepared(judges, 2)
    first = the_process(judges)
    os.kill(first, signal.SIGKILL)
    assert prepared(judges, 3) and the_process(judges) != first
    os.kill(the_process(judges), signal.SIGSTOP)
    waiting = judged(judges, Path("/nowhere"), 4, 8)
    wait_for("the call", lambda: not judges._processes._idle, 60)
    os.kill(the_process(judges), signal.SIGKILL)  # in its call: asked again in another, which finds no file
    found = waiting.get(timeout=120)
    assert (found["status"], found["owner"]) == ("infra_error", "infra") and "FileNotFoundError" in found["reason"]


def test_calls_of_one_key_go_to_the_process_that_has_its_inputs(judges: LocalJudges) -> None:
    """Each makes inputs and references for itself."""
    prepared(judges, 2)
    first, served = the_process(judges), judges._processes._served
    os.kill(first, signal.SIGSTOP)
    waiting = judged(judges, Path("/nowhere"), 2, 8)
    wait_for("the call", lambda: not judges._processes._idle, 60)
    assert prepared(judges, 3)  # not by the one that stays at work
    os.kill(first, signal.SIGCONT)
    assert waiting.get(timeout=120)["reason"]
    by = {key: process.pid for key, process in served.items()}
    assert len(set(by.values())) == 2
    for rows in (2, 3, 3, 2):
        prepared(judges, rows)
    assert {key: process.pid for key, process in served.items()} == by


def test_the_end_of_a_run_waits_for_no_judge(judges: LocalJudges) -> None:
    prepared(judges, 2)
    first = the_process(judges)
    os.kill(first, signal.SIGSTOP)
    waiting = judged(judges, Path("/nowhere"), 4, 8, seconds=600.0)
    wait_for("the call", lambda: not judges._processes._idle, 60)
    judges.close()
    assert waiting.get(timeout=60)["status"] == "infra_error"
    wait_for("its end", lambda: is_dead(first), 60)
    wait_for("its thread", lambda: not any(t.name.startswith("judge") for t in threading.enumerate()), 60)


def test_inputs_that_no_judge_makes_are_the_farms_fault_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneDevice(tmp_path)
    try:
        one.up()
        prepare, said = one.judges.prepare, iter([JudgeFailed("gone")])

        def lost_once(*given: Any) -> Any:
            for error in said:
                raise error
            return prepare(*given)

        monkeypatch.setattr(one.judges, "prepare", lost_once)
        _, ended = one.run()
        assert (ended["status"], ended["owner"]) == ("infra_error", "infra")
        assert one.run()[1]["status"] == "passed"
    finally:
        one.stop()
