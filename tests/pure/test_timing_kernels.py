"""From the profiler's records to the kernel time of each call; versions of the policies."""

from __future__ import annotations

import random

import pytest

from farm.cell import METHODS, VERSIONS, Timing, spends
from farm.errors import RecordsLost
from farm.timing.kernels import MARKER, Record, busy_ns, per_call


def mark(at: int, stream: int = 7) -> Record:
    return Record(f"void at::{MARKER}(long)", at, at + 10, stream)


def kernel(start: int, end: int, stream: int = 7, kind: str = "kernel", name: str = "k") -> Record:
    return Record(name, start, end, stream, kind)


def test_a_calls_time_is_what_ran_between_two_markers() -> None:
    records = [mark(0), kernel(20, 1020), mark(1100), kernel(1200, 2200), kernel(2300, 2800), mark(2900)]
    random.Random(3).shuffle(records)
    found = per_call(records, 2)
    assert found.times_us == (1.0, 1.5)  # gaps between kernels are nobody's time
    assert (found.launched, found.kernels, found.elsewhere) == ((1, 2), (1, 2), 0)


def test_overlapping_kernels_count_once() -> None:
    records = [mark(0), kernel(20, 1020), kernel(520, 1520, stream=9), mark(1600)]
    found = per_call(records, 1)
    assert found.times_us == (1.5,)
    assert found.elsewhere == 1  # one of them on another stream


def test_copies_and_fills_are_work_and_waits_are_none() -> None:
    records = [
        mark(0),
        kernel(20, 120, kind="gpu_memset"),
        kernel(200, 400, kind="gpu_memcpy"),
        kernel(500, 900),
        kernel(0, 5000, kind="cuda_sync"),
        kernel(0, 5000, kind="gpu_user_annotation"),
        mark(1000),
    ]
    found = per_call(records, 1)
    assert (found.times_us, found.launched, found.kernels) == ((0.7,), (3,), (1,))


def test_what_runs_before_the_first_marker_belongs_to_no_call() -> None:
    assert per_call([kernel(0, 90), mark(100), kernel(120, 220), mark(300), kernel(400, 500)], 1).times_us == (0.1,)


@pytest.mark.parametrize("marks", [0, 1, 3])
def test_lost_markers_are_no_times(marks: int) -> None:
    with pytest.raises(RecordsLost, match=f"{marks} of 2 markers"):
        per_call([mark(100 * i) for i in range(marks)], 1)


def test_a_call_that_launches_nothing_takes_no_time() -> None:
    found = per_call([mark(0), mark(100)], 1)
    assert (found.times_us, found.launched) == ((0.0,), (0,))


def test_busy_time_is_the_union() -> None:
    dice = random.Random(1)
    records = [kernel(a, a + dice.randrange(1, 40)) for a in (dice.randrange(500) for _ in range(60))]
    covered = {t for r in records for t in range(r.start_ns, r.end_ns)}
    assert busy_ns(records) == len(covered)
    assert busy_ns([]) == 0


def test_each_policy_has_a_version_of_its_own_and_old_keys_stay() -> None:
    assert {m: Timing(m).version for m in METHODS} == dict(VERSIONS)
    assert (VERSIONS["rotating_graph"], VERSIONS["host"], VERSIONS["none"]) == (2, 2, 2)  # keys that are out there
    assert Timing("events", version=2).version == 2  # a stored cell keeps the version that it was timed by
    assert Timing(**Timing("profiler").to_dict()) == Timing("profiler")


def test_only_what_records_kernels_spends_its_process() -> None:
    assert [m for m in METHODS if spends(m)] == ["profiler", "mspti"]
