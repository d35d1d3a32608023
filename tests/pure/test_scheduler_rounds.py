"""Two arms in the scheduler, under random worlds: a pair is granted whole, to one device, in one lease, all of one arm
before all of the other; it ends as one, and nothing of it stands beside a result of another lease."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cell import Owner, Status
from farm.scheduler import Scheduler
from farm.scheduler.events import (
    Action,
    Conclude,
    DeviceDown,
    DeviceUp,
    Ended,
    Event,
    Finish,
    Grant,
    Interrupted,
    Lease,
    LeaseDone,
    MeasuredEvent,
    Probed,
    ProbeGrant,
    Replace,
    Retire,
    Started,
    Submitted,
    Tick,
)

ENDS = {
    "passed": (Status.PASSED, None),
    "crashed": (Status.CRASHED, Owner.KERNEL),
    "infra": (Status.INFRA_ERROR, Owner.INFRA),
}


class World:
    """`pairs` cells in two arms, `single` ones in the second only, on `devices` devices of two hosts."""

    def __init__(self, dice: random.Random, pairs: int, single: int, devices: int, bad: float, deaths: float):
        cells = 2 * pairs + single
        self.dice, self.bad, self.deaths, self.at = dice, bad, deaths, 0.0
        self.mates = {i: pairs + i for i in range(pairs)}
        self.arms = [0] * pairs + [1] * (pairs + single)
        names = [f"sim:{i}" for i in range(devices)]
        self.scheduler = Scheduler(
            ["sim"] * cells,
            [dice.choice((0.1, 5.0)) for _ in range(cells)],
            [10.0] * cells,
            dict.fromkeys(names, "sim"),
            groups=[i % 3 for i in range(cells)],
            hosts={name: f"host{i % 2}" for i, name in enumerate(names)},
            arms=self.arms,
            mates=self.mates,
        )
        self.wanted = set(range(cells))
        self.round = 0
        self.work: dict[str, tuple[Lease, list[tuple[int, int]]]] = {}
        self.judging: list[tuple[str, int, int]] = []
        self.of: dict[tuple[int, int], int] = {}  # cell, attempt -> its lease
        self.granted: Counter[int] = Counter()
        self.ends: dict[int, Conclude] = {}  # of the round
        self.rounds: list[dict[int, Conclude]] = []
        self.finished: Finish | None = None
        self.see(self.scheduler.begin(0.0))
        for name in names:
            self.tell(DeviceUp(self.now(), name, "sim:sim-1"))

    def now(self) -> float:
        self.at += 0.01
        return self.at

    def tell(self, event: Event) -> None:
        self.see(self.scheduler.step(event))

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.finished is None
            if isinstance(action, Grant):
                self.grant(action.lease)
            elif isinstance(action, Conclude):
                assert action.cell not in self.ends and action.round == self.round
                self.ends[action.cell] = action
            elif isinstance(action, (Replace, Retire)):
                self.work.pop(action.device, None)
                self.judging = [j for j in self.judging if j[0] != action.device]
            elif isinstance(action, Finish):
                self.finished = action
        for action in actions:  # an actor starts anew; a probe passes, mostly
            if isinstance(action, Replace):
                self.tell(DeviceUp(self.now(), action.device, "sim:sim-1"))
            elif isinstance(action, ProbeGrant):
                self.tell(Probed(self.now(), action.device, action.probe, self.dice.random() > self.deaths))

    def grant(self, lease: Lease) -> None:
        cells = [a.cell for a in lease.attempts]
        assert lease.device not in self.work
        assert all(a.round == self.round for a in lease.attempts)
        assert all((b in cells) == (a in cells) for a, b in self.mates.items()), "half of a pair was granted"
        arms = [self.arms[c] for c in cells]
        assert arms == sorted(arms, reverse=self.round % 2 == 1)
        for a in lease.attempts:
            self.granted[a.cell] += 1
            assert (a.cell, a.number) not in self.of
            self.of[a.cell, a.number] = lease.id
        self.work[lease.device] = (lease, [(a.cell, a.number) for a in lease.attempts])

    def turn(self) -> None:
        """One thing that happens, drawn."""
        if self.judging and (not self.work or self.dice.random() < 0.5):
            device, cell, number = self.judging.pop(self.dice.randrange(len(self.judging)))
            self.tell(self.end(device, cell, number))
        elif self.work:
            device = self.dice.choice(sorted(self.work))
            lease, left = self.work[device]
            if self.dice.random() < self.deaths:
                self.tell(DeviceDown(self.now(), device, "the node is gone"))
            elif not left:
                del self.work[device]
                self.tell(LeaseDone(self.now(), device, lease.id))
            else:
                cell, number = left.pop(0)
                self.tell(Started(self.now(), device, cell, number))
                if self.dice.random() < 0.5:
                    self.tell(self.end(device, cell, number))
                else:
                    self.judging.append((device, cell, number))
                    self.tell(MeasuredEvent(self.now(), device, cell, number))
        else:
            self.at += 700.0  # quarantines end
            self.tell(Tick(self.at))

    def end(self, device: str, cell: int, number: int) -> Ended:
        kind = "infra" if self.dice.random() < self.bad else self.dice.choice(("passed", "passed", "crashed"))
        return Ended(self.now(), device, cell, number, *ENDS[kind])

    def play(self, rounds: int) -> None:
        while self.finished is None:
            if self.scheduler.open_cells:
                self.turn()
                continue
            self.complete()
            self.rounds.append(self.ends)
            left = [a for a in self.mates if self.dice.random() < 0.8] if len(self.rounds) < rounds else []
            if left:
                self.round += 1
                self.ends = {}
            self.wanted = {c for a in left for c in (a, self.mates[a])}
            self.tell(Submitted(self.now(), tuple(left), self.round))

    def complete(self) -> None:
        """Each cell of the round has ended, and both arms of a pair in one lease."""
        assert self.ends.keys() == self.wanted
        for a, b in self.mates.items():
            if a in self.ends:
                assert self.of[a, self.ends[a].attempt] == self.of[b, self.ends[b].attempt]


worlds = st.fixed_dictionaries(
    {
        "pairs": st.integers(1, 12),
        "single": st.integers(0, 3),
        "devices": st.integers(1, 4),
        "bad": st.sampled_from((0.0, 0.1, 0.4)),
        "deaths": st.sampled_from((0.0, 0.02, 0.1)),
    }
)


def play(shape: dict[str, Any], dice: random.Random) -> None:
    world = World(dice, **shape)
    world.play(4)
    assert world.finished is not None
    assert world.finished.stopped or world.scheduler.open_cells == 0
    if shape["bad"] == shape["deaths"] == 0.0:
        assert world.rounds and max(world.granted.values()) <= len(world.rounds)


@settings(max_examples=60, deadline=None)
@given(shape=worlds, dice=st.randoms(use_true_random=False))
def test_every_round_is_whole_on_one_device_and_nothing_is_lost(shape: dict[str, Any], dice: random.Random) -> None:
    play(shape, dice)


def pair() -> tuple[Scheduler, Lease]:
    s = Scheduler(["sim"] * 2, [1.0] * 2, [10.0] * 2, {"sim:0": "sim", "sim:1": "sim"}, arms=[0, 1], mates={0: 1})
    s.begin(0.0)
    (grant,) = s.step(DeviceUp(0.0, "sim:0", "sim:sim-1"))
    assert isinstance(grant, Grant)
    return s, grant.lease


def test_a_node_that_is_lost_between_the_arms_costs_the_whole_round() -> None:
    s, _ = pair()
    s.step(Started(1.0, "sim:0", 0, 1))
    assert s.step(Ended(2.0, "sim:0", 0, 1, Status.PASSED)) == []  # it waits for its mate
    s.step(Started(3.0, "sim:0", 1, 1))
    s.step(DeviceDown(4.0, "sim:0", "gone", final=True))
    (grant,) = s.step(DeviceUp(5.0, "sim:1", "sim:sim-1"))
    assert isinstance(grant, Grant)
    assert [(a.cell, a.number) for a in grant.lease.attempts] == [(0, 2), (1, 2)]
    s.step(Ended(6.0, "sim:1", 0, 2, Status.CRASHED, Owner.KERNEL, "SIGSEGV"))
    done = s.step(Ended(7.0, "sim:1", 1, 2, Status.PASSED))
    assert [(a.cell, a.status) for a in done if isinstance(a, Conclude)] == [(0, Status.CRASHED), (1, Status.PASSED)]


def test_what_was_judged_of_a_pair_that_runs_again_is_not_used() -> None:
    s, lease = pair()
    s.step(Ended(1.0, "sim:0", 1, 1, Status.INFRA_ERROR, Owner.INFRA, "no inputs"))
    assert s.step(Ended(2.0, "sim:0", 0, 1, Status.PASSED)) == []
    assert s.step(LeaseDone(3.0, "sim:0", lease.id)) == []  # the other device has yet to show what it is
    (grant,) = s.step(DeviceUp(4.0, "sim:1", "sim:sim-1"))
    assert isinstance(grant, Grant)
    assert [(a.cell, a.number, a.last) for a in grant.lease.attempts] == [(0, 2, False), (1, 2, True)]


def test_a_run_waits_for_more_rounds_until_none_come() -> None:
    s, lease = pair()
    for cell in (0, 1):
        s.step(Ended(1.0, "sim:0", cell, 1, Status.PASSED))
    assert s.step(LeaseDone(2.0, "sim:0", lease.id)) == []
    (grant,) = s.step(Submitted(3.0, (0,), 1))
    assert isinstance(grant, Grant)
    assert [(a.cell, a.number, a.round) for a in grant.lease.attempts] == [(1, 2, 1), (0, 2, 1)]
    for cell in (0, 1):
        s.step(Ended(4.0, "sim:0", cell, 2, Status.PASSED))
    assert s.step(LeaseDone(5.0, "sim:0", grant.lease.id)) == []
    assert s.step(Submitted(6.0, ())) == [Finish()]


@pytest.mark.parametrize("rounds", [False, True])
def test_a_lease_with_two_arms_takes_a_whole_share(rounds: bool) -> None:
    arms, mates = ([0] * 100 + [1] * 100, {i: 100 + i for i in range(100)}) if rounds else (None, None)
    s = Scheduler(["sim"] * 200, [0.05] * 200, [10.0] * 200, {"sim:0": "sim"}, arms=arms, mates=mates)
    s.begin(0.0)
    (grant,) = s.step(DeviceUp(0.0, "sim:0", "sim:sim-1"))
    assert isinstance(grant, Grant)
    assert len(grant.lease.attempts) == (200 if rounds else 20)
    assert s.step(Interrupted(1.0)) == [Finish()]


def played(s: Scheduler, lease: Lease, at: float, seconds: float) -> tuple[list[Lease], float]:
    """The leases of a round on one device, each of whose cells takes so many seconds; and when it was over."""
    leases = [lease]
    while True:
        for a in leases[-1].attempts:
            s.step(Started(at, "sim:0", a.cell, a.number))
            at += seconds
            s.step(MeasuredEvent(at, "sim:0", a.cell, a.number))
            s.step(Ended(at, "sim:0", a.cell, a.number, Status.PASSED))
        more = s.step(LeaseDone(at, "sim:0", leases[-1].id))
        if not more:
            return leases, at
        (grant,) = more
        assert isinstance(grant, Grant)
        leases.append(grant.lease)


def test_rounds_that_are_timed_only_have_leases_as_long_as_the_first_whatever_it_took() -> None:
    """Each lease costs two starts of a child: by the pace of round 0, which compiles, a timed round of 300 cells would
    be parted into ten leases."""
    n = 300
    s = Scheduler(
        ["sim"] * 2 * n,
        [1.0] * 2 * n,
        [10.0] * 2 * n,
        {"sim:0": "sim"},
        arms=[0] * n + [1] * n,
        mates={i: n + i for i in range(n)},
    )
    s.begin(0.0)
    (grant,) = s.step(DeviceUp(0.0, "sim:0", "sim:sim-1"))
    assert isinstance(grant, Grant)
    first, at = played(s, grant.lease, 0.0, 0.9)
    assert len(first) > 8
    counts = []
    for number in (1, 2):
        (grant,) = s.step(Submitted(at, tuple(range(n)), number))
        assert isinstance(grant, Grant)
        leases, at = played(s, grant.lease, at, 0.14)
        assert all(len(lease.attempts) * 0.14 <= 60.0 for lease in leases)
        counts.append(len(leases))
    assert counts[0] <= 4 and counts[1] <= 2
