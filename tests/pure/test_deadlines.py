"""Deadlines by progress: a device that shows nothing of its lease, or of what it gave to a judge, costs its limit and
the slack; an honest one, however slow, is never replaced."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import limits
from farm.actor import backpressure
from farm.actor.event_buffer import EventBuffer
from farm.cell import Owner, Status
from farm.errors import id_of
from farm.scheduler import Scheduler
from farm.scheduler.events import (
    Action,
    Conclude,
    DeviceUp,
    Ended,
    Event,
    Finish,
    Grant,
    LeaseDone,
    MeasuredEvent,
    Probed,
    ProbeGrant,
    Progress,
    Replace,
    Retire,
    Started,
    Tick,
)

SLACK, LONGEST, TICK = 5.0, 20.0, 1.0


def a_scheduler(cells: int, devices: int, seconds: float = 0.01) -> Scheduler:
    names = {f"b:{i}": "b" for i in range(devices)}
    return Scheduler(["b"] * cells, [seconds] * cells, [LONGEST] * cells, names, slack=SLACK)


class Clock:
    """Plays devices in time.  Each says what is due, and then, after a gap within what it may take, the next; one that
    is `stuck` stops at a random word of a random lease, for ever or until it is replaced."""

    def __init__(self, scheduler: Scheduler, devices: int, dice: random.Random, stuck: float, dead_judges: float = 0.0):
        self.scheduler, self.dice, self.stuck, self.dead_judges = scheduler, dice, stuck, dead_judges
        self.now = 0.0
        self.due: list[tuple[float, Event]] = []
        self.silent: dict[str, float] = {}  # stuck devices -> by when they must be found
        self.lost: set[str] = set()  # devices that wait for a judgement in vain
        self.concluded: dict[int, Conclude] = {}
        self.replaced: Counter[str] = Counter()
        self.finished = False
        self.up = [DeviceUp(0.0, f"b:{i}") for i in range(devices)]

    def run(self) -> None:
        self.obey(self.scheduler.begin(0.0))
        for event in self.up:
            self.obey(self.scheduler.step(event))
        while not self.finished:
            assert self.now < 1e6, "the run does not end"
            self.now += TICK
            self.due.sort(key=lambda e: e[0])
            while self.due and self.due[0][0] <= self.now:
                at, event = self.due.pop(0)
                self.obey(self.scheduler.step(type(event)(**{**event.__dict__, "at": at})))
            self.obey(self.scheduler.step(Tick(self.now)))

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.play(action)
            elif isinstance(action, (Replace, Retire)):
                self.replaced[action.device] += 1
                assert action.device in {*self.silent, *self.lost}, f"{action.device} was honest: {action.reason}"
                late = self.now - self.silent.pop(action.device, self.now)
                self.lost.discard(action.device)
                assert late <= 2 * TICK, f"found {late:g} s late"
                self.due = [(at, e) for at, e in self.due if getattr(e, "device", "") != action.device]
                if isinstance(action, Replace):
                    self.due.append((self.now + 1.0, DeviceUp(0.0, action.device)))
            elif isinstance(action, Conclude):
                assert action.cell not in self.concluded
                self.concluded[action.cell] = action
            elif isinstance(action, ProbeGrant):  # it is healthy again as soon as it is replaced
                self.due.append((self.now + 1.0, Probed(0.0, action.device, action.probe, passed=True)))
            elif isinstance(action, Finish):
                self.finished = True

    def play(self, grant: Grant) -> None:
        device, at, words = grant.lease.device, self.now, []
        limit = 0.0  # beyond the slack, of the word that comes next
        for a in grant.lease.attempts:
            for _ in range(self.dice.randrange(2)):  # trials of captures come first
                words.append((Progress(0.0, device, a.cell, a.number, "compile", 7.0), 7.0))
        for a in grant.lease.attempts:
            ids = (device, a.cell, a.number)
            first = self.dice.choice([None, 3.0])
            words.append((Started(0.0, *ids, first), LONGEST if first is None else first))
            for _ in range(self.dice.randrange(5)):
                allowed = self.dice.choice([1.0, 4.0, LONGEST])
                words.append((Progress(0.0, *ids, self.dice.choice(list(limits.PHASES)), allowed), allowed))
            if self.dice.randrange(3):
                words.append((MeasuredEvent(0.0, *ids), 0.0))
            else:
                words.append((Ended(0.0, *ids, Status.UNSUPPORTED, Owner.KERNEL), 0.0))
        words.append((LeaseDone(0.0, device, grant.lease.id), 0.0))
        for word, allowed in words:
            if self.dice.random() < self.stuck:
                self.silent[device] = at + limit + SLACK
                return
            at += self.dice.random() * (limit + SLACK) * 0.999
            self.due.append((at, word))
            limit = allowed
            if isinstance(word, MeasuredEvent) and self.dice.random() < self.dead_judges:
                self.lost.add(device)
            elif isinstance(word, MeasuredEvent):
                judged = Ended(0.0, word.device, word.cell, word.attempt, Status.PASSED)
                self.due.append((at + self.dice.random() * LONGEST, judged))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.integers(1, 3), st.randoms(use_true_random=False))
def test_an_honest_device_is_never_replaced_however_slow(cells: int, devices: int, dice: random.Random) -> None:
    clock = Clock(a_scheduler(cells, devices), devices, dice, stuck=0.0)
    clock.run()
    assert not clock.replaced and sorted(clock.concluded) == list(range(cells))
    assert {c.status for c in clock.concluded.values()} <= {Status.PASSED, Status.UNSUPPORTED}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([0.02, 0.2]),
    st.sampled_from([0.0, 0.3]),
    st.randoms(use_true_random=False),
)
def test_a_stuck_device_costs_its_phase_and_the_slack(
    cells: int, devices: int, stuck: float, dead_judges: float, dice: random.Random
) -> None:
    """`Clock` holds each device that stops to its time; the run ends, whatever stops, judges too."""
    clock = Clock(a_scheduler(cells, devices), devices, dice, stuck, dead_judges)
    clock.run()
    assert sorted(clock.concluded) == list(range(cells))


def begun(cells: int = 1) -> tuple[Scheduler, Grant]:
    s = a_scheduler(cells, 1)
    s.begin(0.0)
    (grant,) = s.step(DeviceUp(0.0, "b:0"))
    assert isinstance(grant, Grant)
    return s, grant


def ticks(s: Scheduler, begin: float, end: float) -> list[Action]:
    out: list[Action] = []
    for n in range(int((end - begin) / TICK) + 1):
        out += s.step(Tick(begin + n * TICK))
    return out


def test_a_lease_that_never_began_is_found_within_the_slack_whatever_its_cells_may_take() -> None:
    s, _ = begun(64)
    assert ticks(s, 0.0, SLACK) == []
    (replace,) = ticks(s, SLACK + TICK, SLACK + 2 * TICK)
    assert isinstance(replace, Replace) and id_of(replace.reason) == "device-stuck"


def test_a_lease_whose_end_never_comes_is_found_and_costs_no_cell() -> None:
    s, _ = begun(1)
    s.step(Started(1.0, "b:0", 0, 1))
    s.step(MeasuredEvent(2.0, "b:0", 0, 1))
    (replace,) = ticks(s, 2.0, 2.0 + SLACK + TICK)
    assert isinstance(replace, Replace) and id_of(replace.reason) == "device-stuck"
    (again,) = s.step(DeviceUp(9.0, "b:0"))
    assert isinstance(again, Grant) and not again.lease.attempts[0].last


def test_a_judgement_that_never_comes_is_found_and_costs_no_cell() -> None:
    """Every pool of judges answers for its own; who says nothing has lost the answer."""
    s, _ = begun(1)
    s.step(Started(1.0, "b:0", 0, 1))
    s.step(MeasuredEvent(1.0, "b:0", 0, 1))
    s.step(LeaseDone(1.0, "b:0", 1))
    assert ticks(s, 1.0, 1.0 + LONGEST + SLACK) == []
    (replace,) = ticks(s, 2.0 + LONGEST + SLACK, 2.0 + LONGEST + SLACK)
    assert isinstance(replace, Replace) and id_of(replace.reason) == "device-stuck"
    (again,) = s.step(DeviceUp(99.0, "b:0"))
    assert isinstance(again, Grant) and not again.lease.attempts[0].last


def test_a_run_that_was_stopped_itself_blames_nobody_for_the_time() -> None:
    s, _ = begun(1)
    s.step(Started(0.0, "b:0", 0, 1, LONGEST))
    s.step(Tick(1.0))
    assert s.step(Tick(1e5)) == []  # what the device said meanwhile is heard in the next rounds
    assert [type(a) for a in ticks(s, 1e5, 1e5 + LONGEST + SLACK)] == [Replace]


def test_progress_of_another_attempt_or_of_no_lease_changes_nothing() -> None:
    s, _ = begun(1)
    for stray in (Progress(1.0, "b:0", 0, 2, "check", 1e6), Progress(1.0, "b:0", 7, 1, "check", 1e6)):
        assert s.step(stray) == []
    assert [type(a) for a in ticks(s, 1.0, 2.0 + SLACK)] == [Replace]


# The table


def test_what_is_asked_for_wins_over_the_default_and_a_nodes_cap_over_both() -> None:
    assert limits.of({}) == limits.TABLE
    found = limits.of({"check": 600.0, "lock": 1.0}, {"check": 30.0, "lock": 5.0, "judge": 10.0})
    assert (found["check"], found["lock"], found["judge"], found["timing"]) == (30.0, 1.0, 10.0, 60.0)


def test_a_device_serves_matrices_by_the_loosest_of_their_limits() -> None:
    assert limits.loosest([]) == limits.TABLE
    assert limits.loosest([{"check": 600.0}, {"lock": 1.0}])["check"] == 600.0
    assert limits.loosest([{"check": 600.0}, {"lock": 1.0}])["lock"] == limits.TABLE["lock"]


@pytest.mark.parametrize("silence", [1.0, 45.0, 600.0])
def test_who_does_not_answer_is_found_before_his_lease_is_blamed(silence: float) -> None:
    assert limits.slack(limits.of({"silence": silence})) > silence + 2.0


# What an actor says of it


def test_only_the_latest_progress_is_heard_and_none_that_an_event_has_overtaken() -> None:
    said = EventBuffer("b:0")
    for n in range(1000):
        said.progress(0, 1, f"phase {n}", 1.0)
    assert [e["phase"] for e in said.hear(0.0)] == ["phase 999"]
    assert said.hear(0.0) == []
    said.progress(0, 1, "check", 1.0)
    said.add("measured", cell=0, attempt=1)
    assert [e["event"] for e in said.hear(0.0)] == ["measured"]
    said.add("started", cell=1, attempt=1)
    said.progress(1, 1, "import", 1.0)
    said.add("judged", cell=0, attempt=1)  # another thread's, of another cell
    assert [e["event"] for e in said.hear(0.0)] == ["started", "judged", "progress"]


def test_a_wait_for_judges_is_reported_once_and_after_each_of_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "LOOK_SECONDS", 0.0)
    most = backpressure.MOST_WAITING
    waiting, shown, looks = backpressure.Backpressure(str(tmp_path)), [], iter(range(100))
    for _ in range(most + 1):
        waiting.began()

    def stopping() -> bool:
        look = next(looks)
        if look == 50:
            waiting.ended()
        return look == 90

    waiting.wait(stopping, lambda: shown.append(waiting._waiting))
    assert shown == [most + 1, most]
