"""The judges of a node as its devices see them, over a Ray of this file: who is asked, and what a death costs."""

from __future__ import annotations

import itertools
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from farm.deadline import Deadline
from farm.errors import JudgeFailed, fault_owner
from farm.judge import pool
from farm.judge.judge import Judge
from farm.judge.pool import JudgeHandle, RayJudges


class Died(Exception):
    """Stands for Ray's."""


class TaskFailed(Exception):
    def __init__(self, cause: Exception):
        super().__init__("a page of text")
        self.cause = cause


class Answer:
    """A reference."""

    def __init__(self) -> None:
        self.made: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.made


class FakeJudge:
    """Answers at once, or dies of each call (`dies`), or keeps silent until it is told to (`slow`)."""

    def __init__(self, name: str, *, dies: bool = False, slow: bool = False, error: Exception | None = None):
        self.name, self.dies, self.slow, self.error, self.calls = name, dies, slow, error, list[tuple[str, Answer]]()

    def __getattr__(self, method: str) -> Any:
        def remote(request: Any) -> Answer:
            answer = Answer()
            self.calls.append((method, answer))
            if self.error:
                answer.made.set_exception(self.error)
            elif self.dies:
                answer.made.set_exception(Died())
            elif not self.slow:
                answer.made.set_result({"tensors": [], "by": self.name, "status": "passed"})
            return answer

        return SimpleNamespace(options=lambda concurrency_group: SimpleNamespace(remote=remote))


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = ModuleType("ray")
    made.get = lambda answer, timeout: answer.made.result(timeout=timeout)
    made.exceptions = SimpleNamespace(RayTaskError=TaskFailed, GetTimeoutError=TimeoutError)
    monkeypatch.setitem(sys.modules, "ray", made)


def judges(*actors: FakeJudge | None) -> tuple[RayJudges, list[dict[str, Any]]]:
    made, reports = RayJudges([JudgeHandle(i, 0, a) for i, a in enumerate(actors)]), list[dict[str, Any]]()
    made.report = lambda **fields: reports.append(fields)
    return made, reports


def cell(number: int) -> dict[str, Any]:
    return {"index": number, "cell_key": str(number), "dims": {"rows": number}}


def judged(pool: RayJudges, answers: list[dict[str, Any]], number: int = 0) -> None:
    pool.judge({"cell": cell(number)}, answers.append)


def test_a_judge_that_dies_while_inputs_are_made_costs_the_cell_nothing() -> None:
    made, reports = judges(FakeJudge("a", dies=True), FakeJudge("b"))
    assert [made.prepare(cell(i), Deadline(60.0))["by"] for i in range(6)] == ["b"] * 6
    assert [(r["judge"], r["generation"]) for r in reports] == [(0, 0)]


def test_a_dead_judge_is_reported_once_and_used_no_more() -> None:
    dead, living = FakeJudge("a", dies=True), FakeJudge("b")
    made, reports = judges(dead, living)
    answers: list[dict[str, Any]] = []
    for number in range(10):
        judged(made, answers, number)
    assert [a["status"] for a in answers].count("passed") == 9 and len(dead.calls) == 1
    (failed,) = [a for a in answers if a["status"] != "passed"]
    assert (failed["status"], failed["owner"], failed["judge_died"]) == ("infra_error", "infra", True)
    assert len(reports) == 1


def test_the_calls_of_one_key_go_to_one_judge_and_all_judges_have_some() -> None:
    """Each makes inputs and references for itself."""
    actors = [FakeJudge(name) for name in "abcd"]
    made, answers = judges(*actors)[0], list[dict[str, Any]]()
    by = {number: made.prepare(cell(number), Deadline(60.0))["by"] for number in range(32)}
    for number in [*range(32), *range(32)]:
        made.warm(cell(number))
        judged(made, answers, number)
    assert [a["by"] for a in answers] == [*by.values()] * 2
    assert set(by.values()) == set("abcd")
    for actor in actors:
        mine = [name for name in by.values() if name == actor.name]
        assert [m for m, _ in actor.calls].count("warm") == 2 * len(mine)


def test_a_judge_that_is_far_behind_is_relieved_by_the_idlest() -> None:
    slow = [FakeJudge(name, slow=True) for name in "ab"]
    made, answers = judges(*slow)[0], list[dict[str, Any]]()
    for _ in range(20):
        judged(made, answers)
    assert sorted(len(judge.calls) for judge in slow) == [7, 13]
    for judge in slow:
        for _, answer in judge.calls:
            answer.made.set_result({"status": "passed"})
    judged(made, answers)  # and what is judged burdens nobody
    assert sorted(len(judge.calls) for judge in slow) == [7, 14]


def test_what_was_prepared_early_and_is_gone_is_prepared_again(tmp_path: Path) -> None:
    actor = FakeJudge("a", slow=True)
    made, file = judges(actor)[0], tmp_path / "x.bin"
    made.prefetch(cell(1))
    actor.calls[0][1].made.set_result({"tensors": [{"file": str(file)}], "by": "first"})
    actor.slow = False  # from now on it answers at once
    assert made.prepare(cell(1), Deadline(60.0))["by"] == "a" and len(actor.calls) == 2
    file.touch()
    made.prefetch(cell(2))
    actor.calls[2][1].made = Future()
    actor.calls[2][1].made.set_result({"tensors": [{"file": str(file)}], "by": "early"})
    assert made.prepare(cell(2), Deadline(60.0))["by"] == "early" and len(actor.calls) == 3


def test_what_several_calls_met_is_one_death() -> None:
    slow = FakeJudge("a", slow=True)
    made, reports = judges(slow)
    answers: list[dict[str, Any]] = []
    for _ in range(3):
        judged(made, answers)
    for _, answer in slow.calls:
        answer.made.set_exception(Died())
    assert len(answers) == 3 and len(reports) == 1


def test_outputs_wait_for_the_next_judge() -> None:
    made, _ = judges(FakeJudge("a", dies=True))
    answers: list[dict[str, Any]] = []
    for _ in range(3):
        judged(made, answers)
    assert [a["status"] for a in answers] == ["infra_error"]
    made.replace(JudgeHandle(0, 1, FakeJudge("b")))
    assert [a["status"] for a in answers] == ["infra_error", "passed", "passed"]
    made.replace(JudgeHandle(0, 1, FakeJudge("c")))  # late words
    assert made.prepare(cell(1), Deadline(60.0))["by"] == "b"


def test_a_cell_waits_for_the_next_judge_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = judges(FakeJudge("a", dies=True))
    comes = threading.Timer(0.1, lambda: made.replace(JudgeHandle(0, 1, FakeJudge("b"))))
    comes.start()
    assert made.prepare(cell(1), Deadline(60.0))["by"] == "b"
    monkeypatch.setattr(pool, "JUDGELESS_SECONDS", 0.05)
    gone, _ = judges(None)
    made.prefetch(cell(2))
    with pytest.raises(JudgeFailed) as failed:
        gone.prepare(cell(1), Deadline(60.0))
    assert failed.value.owner == "infra"
    gone.warm(cell(3))


def test_a_judge_that_does_not_answer_is_replaced_like_one_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LATE_LOOK_SECONDS", 0.01)
    made, reports = judges(FakeJudge("a", slow=True))
    answered = threading.Event()
    made.judge({"cell": cell(1)}, lambda judged: answered.set() if judged["judge_died"] else None, 0.0)
    assert answered.wait(60)
    assert [(r["judge"], r["generation"]) for r in reports] == [(0, 0)]


@pytest.mark.parametrize(("cause", "owner"), [(OSError(28, "full"), "infra"), (TypeError("no"), "harness")])
def test_the_cause_decides_whose_fault_it_is(cause: Exception, owner: str, tmp_path: Path) -> None:
    made, reports = judges(FakeJudge("a", error=TaskFailed(cause)))
    with pytest.raises(JudgeFailed) as failed:
        made.prepare(cell(1), Deadline(60.0))
    assert fault_owner(failed.value) == owner and reports == []
    judge = Judge(str(tmp_path), 1, cache=str(tmp_path / "cache"))

    def fail(request: Any) -> dict[str, Any]:
        raise cause

    judge._judge = fail  # type: ignore[method-assign]
    assert judge.judge({})["owner"] == owner


def test_memory_and_timeouts_are_nobodys_bug() -> None:
    assert {fault_owner(e) for e in (MemoryError(), TimeoutError(), RuntimeError(), OSError())} == {"infra"}
    assert {fault_owner(e) for e in (KeyError("x"), AssertionError(), ZeroDivisionError())} == {"harness"}


def test_judges_serve_the_runs_of_a_watch_until_contracts_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    removed: list[str] = []
    numbers = itertools.count()
    monkeypatch.setattr(pool.JudgeProcesses, "close", lambda self: closed.append(self._spool))
    packed: list[Any] = [None]
    monkeypatch.setattr(pool.contracts, "pack", lambda: packed[0])
    monkeypatch.setattr(pool.contracts, "text", str)
    kept = pool.KeptJudges(lambda: str(tmp_path / str(next(numbers))), removed.append)
    with pool.keeping(kept):
        first, second = pool.LocalJudges("run-1"), pool.LocalJudges("run-2")
        assert first._processes is second._processes and first.spool == second.spool == str(tmp_path / "0")
        first.close()
        assert not closed and not removed, "the next run needs them"
        packed[0] = "another contract"
        third = pool.LocalJudges("run-3")
        assert third.spool == str(tmp_path / "1") and closed == removed == [first.spool]
    assert closed == removed == [first.spool, third.spool]
    alone = pool.LocalJudges("run-4")
    alone.close()
    assert alone.spool == "run-4" and closed[-1] == "run-4" and removed[-1] != "run-4"
