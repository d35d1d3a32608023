"""Out of time in the interpreter: who still finished programs needs more of it, who did not hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.actor import out_of_time
from farm.actor.out_of_time import Programs
from farm.child.interpreter_progress import FILE, ProgramCount
from farm.errors import id_of

seconds = st.floats(0.1, 1e5)


@given(st.integers(1, 10**9), st.integers(0, 10**9), seconds, st.floats(0, 1))
def test_progress_up_to_the_end_accuses_nobody(finished: int, more: int, limit: float, share: float) -> None:
    status, owner, reason = out_of_time.ended("check", limit, Programs(finished, finished + more, share * limit / 2))
    assert (status, owner, id_of(reason)) == ("unsupported", "harness", "interpreter-time")
    assert f"{finished} of {finished + more}" in reason


@given(st.integers(1, 10**9), seconds, seconds)
def test_no_program_or_none_any_more_is_the_kernels_doing(finished: int, limit: float, later: float) -> None:
    for programs in (None, Programs(0, finished, 0.0), Programs(finished, finished, limit / 2 + later)):
        assert out_of_time.ended("check", limit, programs)[:2] == ("timed_out", "kernel")


def test_what_is_counted_is_read_and_each_phase_counts_anew(tmp_path: Path) -> None:
    count = ProgramCount()
    count.program()  # nobody asked
    count.begin(str(tmp_path))
    assert out_of_time.read(str(tmp_path)) is None
    for _ in range(2):
        count.launch((3, 2, 1))
        for _ in range(6):
            count.program()
    found = out_of_time.read(str(tmp_path))
    assert found is not None and (found.finished, found.planned) == (11, 12) and found.silent_s < 60.0
    count.begin(str(tmp_path))
    count.launch((4,))
    count.program()
    found = out_of_time.read(str(tmp_path))
    assert found is not None and (found.finished, found.planned) == (0, 4)
    count.end()
    count.program()


@pytest.mark.parametrize("planted", ["nothing", "short", "link", "pipe", "folder"])
def test_a_file_that_is_no_count_is_none(tmp_path: Path, planted: str) -> None:
    """The folder is the code under test's to write to."""
    place = tmp_path / FILE
    if planted == "short":
        place.write_bytes(b"1234")
    elif planted == "link":
        (tmp_path / "other").write_bytes(bytes(16))
        place.symlink_to("other")
    elif planted == "pipe":
        os.mkfifo(place)
    elif planted == "folder":
        place.mkdir()
    assert out_of_time.read(str(tmp_path)) is None
