"""Dealing cells to processes, and the fate of a job whose process ended early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farm.cell import Cell, Owner, Status
from farm.compile.jobs import SMALLEST_SLICE, STARTS, CompileJob, after, split


def cells(count: int, hidden: int = 7) -> list[Cell]:
    return [
        Cell(
            "cuda",
            "rms_norm",
            "farm",
            "auto",
            "forward",
            {"x": "float32"},
            {"rows": i, "hidden": i % hidden},
            {},
            cell_key=str(i),
            index=i,
        )
        for i in range(count)
    ]


@given(st.integers(0, 300), st.integers(1, 8), st.integers(1, 20))
def test_every_cell_is_in_exactly_one_job(count: int, workers: int, hidden: int) -> None:
    jobs = split("sm_90", cells(count, hidden), workers)
    assert sorted(i for job in jobs for i in job.cells) == list(range(count))
    assert len(jobs) <= workers
    assert all(job.cells == tuple(sorted(job.cells)) for job in jobs)


def test_cells_that_may_share_a_kernel_stay_together() -> None:
    made = cells(200, hidden=5)
    jobs = split("sm_90", made, 4)
    assert len(jobs) == 4
    for hidden in range(5):
        assert len({n for n, job in enumerate(jobs) for i in job.cells if i % 5 == hidden}) == 1


def test_few_cells_are_not_worth_a_second_process() -> None:
    assert len(split("sm_90", cells(2 * SMALLEST_SLICE - 1), 8)) == 1
    assert len(split("sm_90", cells(2 * SMALLEST_SLICE), 8)) == 2


JOB = CompileJob("sm_90", (3, 4, 5, 6))


def test_the_cell_under_way_is_named_and_the_rest_goes_on() -> None:
    fate = after(JOB, {3}, 4, "signal 6 (SIGABRT)", timed_out=False)
    assert fate.settled == {4: (Status.CRASHED, Owner.KERNEL, "the compiling process ended with signal 6 (SIGABRT)")}
    assert fate.rest == CompileJob("sm_90", (5, 6))


def test_a_cell_whose_process_was_stopped_until_its_deadline_is_tried_once_more() -> None:
    first = after(JOB, {3}, 4, "the cell was not compiled within 9 s", timed_out=True, stopped=True)
    assert not first.settled and first.rest is not None and first.rest.cells == (4, 5, 6)
    again = after(first.rest, set(), 4, "the cell was not compiled within 9 s", timed_out=True, stopped=True)
    assert again.settled[4][:2] == (Status.TIMED_OUT, Owner.KERNEL) and again.rest == CompileJob("sm_90", (5, 6))
    other = after(first.rest, {4}, 5, "the cell was not compiled within 9 s", timed_out=True, stopped=True)
    assert not other.settled, "another cell has a second chance of its own"


def test_a_cell_beyond_its_deadline_is_named_as_such() -> None:
    fate = after(JOB, set(), 3, "the cell was not compiled within 5 s", timed_out=True)
    assert fate.settled[3] == (Status.TIMED_OUT, Owner.KERNEL, "the cell was not compiled within 5 s")
    assert fate.rest == CompileJob("sm_90", (4, 5, 6))


def test_the_last_cell_leaves_nothing_to_do() -> None:
    assert after(JOB, {3, 4, 5}, 6, "exit code 1", timed_out=False).rest is None
    assert after(JOB, {3, 4, 5, 6}, None, "exit code 0", timed_out=False) == after(JOB, {3, 4, 5, 6}, 6, "", False)


def test_a_worker_that_never_begins_is_started_again_and_then_is_the_farms_fault() -> None:
    job, fates = JOB, []
    while job:
        fates.append(after(job, set(), None, "exit code 1", timed_out=False))
        job = fates[-1].rest
    assert len(fates) == STARTS
    assert fates[0].settled == {}
    assert {s for s, _, _ in fates[-1].settled.values()} == {Status.INFRA_ERROR}
    assert set(fates[-1].settled) == set(JOB.cells)


def test_a_first_sigkill_is_somebody_elses_and_a_second_is_the_cells() -> None:
    first = after(JOB, {3}, 4, "signal 9 (SIGKILL)", timed_out=False)
    assert first.settled == {} and first.rest == CompileJob("sm_90", (4, 5, 6), killed=4)
    second = after(first.rest, set(), 4, "signal 9 (SIGKILL)", timed_out=False)
    assert second.settled[4][0] is Status.CRASHED
    third = after(first.rest, {4}, 5, "signal 9 (SIGKILL)", timed_out=False)  # at another cell it is a first one again
    assert third.settled == {} and third.rest == CompileJob("sm_90", (5, 6), killed=5)
    assert after(JOB, {3}, 4, "signal 9 (SIGKILL)", timed_out=True).settled[4][0] is Status.TIMED_OUT  # it was ours


@given(
    st.sets(st.integers(0, 9)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from(["exit code 1", "signal 9 (SIGKILL)"]),
)
def test_no_cell_is_lost_and_none_is_told_twice(
    done: set[int], begun: int | None, timed_out: bool, starts: int, how: str
) -> None:
    job = CompileJob("sm_90", tuple(range(10)), starts)
    fate = after(job, done, begun, how, timed_out)
    rest = set(fate.rest.cells) if fate.rest else set()
    assert rest | set(fate.settled) | done == set(job.cells)
    assert not rest & set(fate.settled) and not rest & done and not done & set(fate.settled)
