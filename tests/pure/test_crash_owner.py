"""Whose fault a child's end is: a signal that others got too accuses nobody, one that comes twice to one cell does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from farm.actor.crash_owner import MOST_DEATHS, SENT, STOP, Death, of_death, of_stop, sent, tried_alone
from farm.actor.signal_deaths import SignalDeaths
from farm.backends.api import Fault

OWN = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP")
CODES = st.sampled_from([STOP, *(-n for n in sorted(SENT)), *(-getattr(signal, name) for name in OWN), 0, 1, 3])
PHASES = st.sampled_from(["import", "compile", "check", "timing", "teardown"])


def play(ends: list[tuple[int, bool]], phase: str) -> tuple[Death | None, int]:
    """What an actor says of a cell whose children end so, (code, whether others got a signal) one after the other; None
    where it was tried again to the last.  And how many it took."""
    deaths = 0
    for taken, (code, outside) in enumerate(ends, 1):
        deaths += sent(code)
        if not tried_alone(code, phase, None, deaths, outside=outside):
            if code == STOP:
                return of_stop("it is stopped", 3.0, phase, outside=outside), taken
            return of_death("it", code, phase, None, outside=outside), taken
    return None, len(ends)


@given(ends=st.lists(st.tuples(CODES, st.booleans()), min_size=1, max_size=6), phase=PHASES)
def test_who_is_accused(ends: list[tuple[int, bool]], phase: str) -> None:
    found, taken = play(ends, phase)
    assert taken <= MOST_DEATHS
    if found is None:
        assert all(sent(code) for code, _ in ends) and len(ends) < MOST_DEATHS
        return
    code, outside = ends[taken - 1]
    if found.owner == "kernel":  # its own doing, or twice a signal of which no other heard at the end
        assert found.status == ("timed_out" if code == STOP else "crashed")
        assert not sent(code) or (taken >= 2 and not outside)
        assert all(sent(code) for code, _ in ends[: taken - 1])
    else:
        assert (found.status, found.owner) == ("infra_error", "infra") and sent(code) and outside


def test_sent_signals_are_those_that_others_send() -> None:
    names = {signal.Signals(n).name for n in SENT}
    assert names == {f"SIG{n}" for n in ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "XCPU")}


@given(code=CODES, outside=st.booleans(), deaths=st.integers(1, 4))
def test_the_vendors_last_words_and_an_unbegun_cell_decide_first(code: int, outside: bool, deaths: int) -> None:
    words = Fault("out_of_memory", "kernel", "no memory")
    assert not tried_alone(code, "check", words, deaths, outside=outside)
    assert of_death("it", code, "check", words, outside=outside)[:2] == ("out_of_memory", "kernel")
    assert not tried_alone(code, "spawn", None, deaths, outside=outside)
    assert of_death("it", code, "spawn", None, outside=outside)[:2] == ("infra_error", "infra")


def test_siblings_see_each_others_deaths_for_a_while(tmp_path: Path) -> None:
    one, other = SignalDeaths(str(tmp_path), "host/sim:0"), SignalDeaths(str(tmp_path), "host/sim:1")
    assert not one.others_within(10) and not other.others_within(10)
    one.note()
    assert other.others_within(10) and not one.others_within(10)
    past = time.time() - 60
    os.utime(next(tmp_path.rglob("*sim:0")), (past, past))
    assert not other.others_within(10)


def test_a_folder_that_cannot_be_used_tells_nothing(tmp_path: Path) -> None:
    one = SignalDeaths(str(tmp_path / "none"), "sim:0")
    one.note()
    assert not one.others_within(10)
