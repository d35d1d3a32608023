"""Where the seconds of a run's devices went: all of them, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import utilisation
from farm.actor.spent import PHASES, Spent
from farm.utilisation import BOOKED, CAUSES, DeviceTimes


def checked(summed: dict) -> dict:
    """The law: the parts of each device are known causes, none is negative, and they add up to the whole; what happened
    beside them took no longer than that."""
    for device in summed["devices"].values():
        parts = device["parts"]
        assert parts.keys() == CAUSES.keys()
        assert all(seconds >= 0 for seconds in parts.values())
        assert sum(parts.values()) == pytest.approx(summed["seconds"], abs=1e-6)
        assert 0 <= device["beside"]["judging"] <= summed["seconds"] + 1e-3
    return summed


def of(summed: dict, device: str) -> dict[str, float]:
    """The parts of a device that are not zero."""
    return {cause: seconds for cause, seconds in checked(summed)["devices"][device]["parts"].items() if seconds}


def test_a_life_from_the_command_to_the_end():
    times = DeviceTimes(began=100.0, run=102.0)
    times.starts("sim:0", 102.5)
    times.told("sim:0", 105.0, {"start": 2.0})
    times.heard({"event": "measured", "device": "sim:0", "at": 106.0})
    times.heard({"event": "measured", "device": "sim:0", "at": 107.0})
    times.heard({"event": "judged", "device": "sim:0", "at": 107.5})
    times.heard({"event": "judged", "device": "sim:0", "at": 108.0})
    spent = {"start": 2.0, "timing": 3.0, "work": 0.5}
    times.heard({"event": "lease_done", "device": "sim:0", "at": 108.5, "spent": spent})
    found = checked(times.summed(ended=110.0, closed=110.5))
    assert found["seconds"] == 10.5
    assert of(found, "sim:0") == {
        "command": 2.0,
        "place": 1.0,
        "start": 2.0,
        "work": 0.5,
        "timing": 3.0,
        "tail": 1.5,
        "end": 0.5,
    }
    assert found["devices"]["sim:0"]["beside"] == {"judging": 2.0}
    assert utilisation.line(found) == (
        "utilisation, 10.5 s: timing 29 %, command 19 %, start 19 %, tail 14 %, place 10 %, others 10 %"
    )


def test_an_actor_that_died_and_the_next():
    times = DeviceTimes(0.0, 0.0)
    times.starts("a", 0.0)
    times.told("a", 4.0, {"start": 3.0, "check": 1.0})
    times.stopped("a", 6.0)
    times.stopped("a", 6.5)  # said twice
    times.starts("a", 7.0)
    times.told("a", 9.0, {"start": 1.0})
    times.stopped("a", 9.0)
    assert of(times.summed(12.0, 12.0), "a") == {"place": 1.0, "start": 4.0, "check": 1.0, "died": 2.0, "away": 4.0}


def test_what_an_actor_says_too_much_of_is_shortened():
    """Its events take their way: the time between two is never certain to the millisecond."""
    times = DeviceTimes(0.0, 0.0)
    times.starts("a", 0.0)
    times.told("a", 1.0, {"check": 1.5, "timing": 1.5, "a later revision's": 1.0, "tail": 0.0})
    assert of(times.summed(1.0, 1.0), "a") == {"check": 0.375, "timing": 0.375, "messages": 0.25}


def test_the_planted_fault_is_seen():
    """A cause that is booked twice breaks the law."""
    parts = {**dict.fromkeys(CAUSES, 0.0), "check": 0.7, "timing": 0.3}
    one = {"parts": parts, "beside": {"judging": 0.0}}
    checked({"seconds": 1.0, "devices": {"a": one}})
    parts["timing"] = 0.7
    with pytest.raises(AssertionError):
        checked({"seconds": 1.0, "devices": {"a": one}})


def test_the_docs_have_each_cause():
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text(encoding="utf-8")
    rows = [
        line for line in text.partition("### Utilisation")[2].partition("\n## ")[0].splitlines() if line[:2] == "| "
    ]
    assert rows[1:] == [f"| {cause} | {means} |" for cause, means in CAUSES.items()]


def test_what_a_strangers_run_says_is_read_within_its_form():
    one = {"parts": {"check": 1.0, "unknown": 5.0}, "beside": {"judging": 0}}
    kept = {"seconds": 1.0, "devices": {"a": {"parts": {"check": 1.0}, "beside": {"judging": 0.0}}}}
    assert utilisation.read({"utilisation": {"seconds": 1, "devices": {"a": one}}}) == kept
    for wrong in (None, 3, [], {"seconds": 1, "devices": {}}, {"seconds": "x", "devices": {"a": one}}):
        assert utilisation.read({"utilisation": wrong}) == {}
    for value in (-1, float("nan"), float("inf"), "1", True, None):
        assert utilisation.read({"utilisation": {"seconds": value, "devices": {"a": one}}}) == {}
    assert utilisation.shares({}) == [] and utilisation.line({}) == ""


SECONDS = st.floats(0, 50, allow_nan=False)
STEP = st.one_of(
    st.tuples(st.just("starts"), SECONDS),
    st.tuples(st.just("stopped"), SECONDS),
    st.tuples(st.just("measured"), SECONDS),
    st.tuples(st.just("judged"), SECONDS),
    st.tuples(st.just("told"), SECONDS, st.dictionaries(st.sampled_from([*sorted(BOOKED), "tail", "odd"]), SECONDS)),
)


@settings(max_examples=150, deadline=None)
@given(SECONDS, SECONDS, st.lists(st.tuples(st.sampled_from("ab"), STEP), max_size=12), SECONDS, SECONDS)
def test_every_second_has_one_cause(began, run, steps, ended, closed):
    """Whatever is heard, in whatever order and at whatever times."""
    times = DeviceTimes(began, run)
    for device, (what, at, *more) in steps:
        getattr(times, what)(device, at, *more)
    checked(times.summed(ended, max(closed, *[began, run, *(step[1] for _, step in steps)])))


def test_the_actor_books_one_thing_at_a_time():
    now = [0.0]
    spent = Spent(lambda: now[0])

    def takes(seconds: float) -> None:
        now[0] += seconds

    takes(1.0)
    with spent.within("child"):  # of the start
        takes(2.0)
    spent.enter("messages")
    with spent.within("inputs"):
        takes(0.5)
    before = spent.of("check")
    for phase in ("import", "compile", "check", "timing"):
        spent.phase(phase)
        takes(0.25)
    spent.enter("messages")
    spent.move("check", "outputs", 0.1, before)
    spent.move("check", "outputs", "much", before)
    with spent.within("trial"):
        spent.phase("timing")
        with spent.within("child"):
            takes(1.0)
    told = spent.told()
    assert told == {
        "start": 3.0,
        "inputs": 0.5,
        "load": 0.25,
        "compile": 0.25,
        "check": 0.15,
        "timing": 0.25,
        "outputs": 0.1,
        "trial": 1.0,
    }
    assert sum(told.values()) == now[0]
    assert told.keys() | set(PHASES.values()) <= BOOKED


def test_a_child_is_not_believed_beyond_the_supervisors_clock():
    now = [0.0]
    spent = Spent(lambda: now[0])
    spent.enter("check")
    now[0] = 1.0
    before = spent.of("check")
    now[0] = 1.5
    spent.enter("messages")
    spent.move("check", "outputs", 1e9, before)  # of this cell's half second, and of none before
    assert spent.told() == {"check": 1.0, "outputs": 0.5}
