"""Which call gets which judge process, and for which cells inputs are made ahead."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import JudgeFailed
from farm.judge import pool, processes
from farm.judge.processes import CALLS, _Waiting, claims, sharing

PREPARE, JUDGE, WARM = range(3)


def cells(*rows: int) -> list[dict[str, Any]]:
    return [{"index": n, "dims": {"rows": n, "hidden": 1 << 10}} for n in rows]


@given(
    queue=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.floats(0, 2)), max_size=8),
    busy=st.integers(0, 3),
    idle=st.integers(0, 4),
    served=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6)),
    spare=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_no_process_is_promised_twice_and_urgent_calls_come_first(
    queue: list[tuple[int, str, float]], busy: int, idle: int, served: dict[str, int], spare: bool
) -> None:
    waiting = [_Waiting(*one) for one in queue]
    every: Any = range(busy + idle)
    found = claims(waiting, list(every[busy:]), every, served, 1.0, spare)  # type: ignore[arg-type]
    assert len(set(found.values())) == len(found) and set(found.values()) <= set(every[busy:])
    left = idle - len(found)
    for one in waiting:
        known = served.get(one.key)
        if one in found:
            assert found[one] == known or known not in every or known not in every[busy:] or known in found.values()
            if spare and one.rank == WARM:
                assert left >= 1, "a process is left for what a device waits for"
        elif left > (spare and one.rank == WARM):
            assert known in every and one.until > 1.0, "only the process that has its inputs is worth a wait"
    if len(found) == idle:
        taken, not_taken = (
            {w.rank for w in waiting if (w in found) is has and w.until <= 1.0} for has in (True, False)
        )
        assert not taken or not not_taken or min(not_taken) >= min(taken)


def test_a_call_waits_for_the_process_of_its_key_as_long_as_that_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = ({"cell": cell} for cell in cells(1 << 15, 1))
    many, few = (processes.JudgeProcesses("spool", 0, 6, cores) for cores in (16, 2))
    assert many._patience(small) == processes.LEAST_PATIENCE < many._patience(large)
    assert many._patience({"cell": cells(1 << 30)[0]}) == processes.START_AFTER_SECONDS == few._patience(small)
    assert many._patience(large["cell"]) == many._patience(large)


@pytest.mark.parametrize(
    ("cores", "first", "threads"), [(1, 1, 2), (2, 1, 2), (8, 1, 4), (12, 4, 3), (16, 5, 3), (128, 6, 8)]
)
def test_judges_share_the_cores_of_a_host(cores: int, first: int, threads: int) -> None:
    found = sharing(cores, 6)
    assert (found.first, found.threads) == (first, threads) and found.spare is (cores >= processes.MANY_CORES)
    assert cores < 2 or first * threads <= max(cores, 2)


def test_inputs_are_made_ahead_as_far_as_they_are_small() -> None:
    assert list(pool.soon(cells(*range(1, 20)), pool.FAR_AHEAD)) == cells(*range(1, 1 + pool.FAR_AHEAD))
    huge = cells(*[1 << 20] * 5)
    assert list(pool.soon(huge, pool.FAR_AHEAD)) == huge[: pool.AHEAD], "what was made ahead before"
    assert list(pool.soon(cells(1, 2, 3), pool.AHEAD)) == cells(1, 2) and not list(pool.soon([], 2))


def test_where_cores_are_to_spare_a_reference_follows_its_inputs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def call(self: Any, name: str, given: Any, seconds: float, key: str = "") -> dict[str, Any]:
        asked.append((name, given["dims"]["rows"]))
        return {"tensors": []}

    monkeypatch.setattr(processes.JudgeProcesses, "call", call)
    for cores in (16, 2):
        judges = pool.LocalJudges(str(tmp_path / str(cores)), cores=cores)
        judges.coming(cells(*range(1, 11)))
        for one in judges._pools.values():
            one.shutdown(wait=True)
        judges.close()
        made = {"prepare": set(range(1, 1 + judges.ahead)), "warm": set(range(1, 1 + judges.ahead))}
        found = {name: {rows for kind, rows in asked if kind == name} for name in made}
        assert found["prepare"] == made["prepare"] and (cores == 2) is (judges.ahead == pool.AHEAD)
        assert found["warm"] == (made["warm"] if cores == 16 else set())
        asked.clear()


def test_inputs_that_are_not_made_any_more_have_no_reference_made_for_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a future that was cancelled, asking for its exception raises, which its thread would print."""
    asked, goes_on = [], threading.Event()

    def call(self: Any, name: str, given: Any, seconds: float, key: str = "") -> Any:
        asked.append(name)
        assert goes_on.wait(30)
        raise JudgeFailed("no inputs")

    monkeypatch.setattr(processes.JudgeProcesses, "call", call)
    judges = pool.LocalJudges(str(tmp_path), cores=16)
    judges.coming(cells(*range(1, 9)))
    coming = list(judges._coming.values())
    judges.close()
    goes_on.set()
    assert all(one.cancelled() or one.exception(30) for one in coming)
    assert set(asked) == {"prepare"} and any(one.cancelled() for one in coming) and not caplog.records


def test_a_judge_keeps_the_memory_of_freed_arrays() -> None:
    """Page faults of a process that makes and frees arrays of a megabyte, without and with it."""
    text = (
        "import sys, resource, numpy as np\n"
        "from farm.judge.allocator import keep_freed_memory\n"
        "if int(sys.argv[1]): assert keep_freed_memory()\n"
        "def work():\n"
        "    for _ in range(60): a = np.ones(1 << 19); b = a * a; c = b - a\n"
        "work(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; work()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    words = [sys.executable, "-c", text]
    before, kept = (int(subprocess.run([*words, n], capture_output=True, text=True, check=True).stdout) for n in "01")
    assert kept * 4 < before


def test_the_calls_of_a_worker_are_those_that_are_ranked() -> None:
    from farm.judge import worker

    assert set(worker.CALLS) == set(CALLS)
