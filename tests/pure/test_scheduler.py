"""The scheduler under random worlds: devices that die, hang, lie about leases and answer late, in any order.

`World` plays the cluster: it obeys every action and feeds back whatever hypothesis draws.  `Watch` holds the promises:
each cell concluded once, one Finish, no grant to a device that is gone, busy or suspect, no kernel's failure tried
again, and what was there at two deaths runs alone.  test_scheduler_health says what one bad part may cost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.cell import Owner, Status
from farm.scheduler import LEASE_SECONDS, MAX_ATTEMPTS, MAX_LEASE_CELLS, Scheduler
from farm.scheduler.core import STALL_SECONDS
from farm.scheduler.events import (
    Action,
    Conclude,
    DeviceAdded,
    DeviceDown,
    DeviceUp,
    Ended,
    Event,
    Finish,
    Grant,
    HealthChanged,
    Interrupted,
    Lease,
    LeaseDone,
    MeasuredEvent,
    Probed,
    ProbeGrant,
    Replace,
    Retire,
    Start,
    Started,
    Tick,
)
from farm.scheduler.health import ALONE_AFTER, MAX_DEATHS

#: What an attempt can come to: (status, owner).
OUTCOMES = {
    "passed": (Status.PASSED, None),
    "inaccurate": (Status.INACCURATE, Owner.KERNEL),
    "crashed": (Status.CRASHED, Owner.KERNEL),
    "timed_out": (Status.TIMED_OUT, Owner.KERNEL),
    "harness": (Status.INFRA_ERROR, Owner.HARNESS),
    "infra": (Status.INFRA_ERROR, Owner.INFRA),
    "device": (Status.INFRA_ERROR, Owner.DEVICE),
    "killed": (Status.CRASHED, Owner.INFRA),
}
RETRIED = {"harness", "infra", "device", "killed"}


@dataclass
class Watch:
    """Every promise that can be checked from outside, action by action."""

    cells: int
    concluded: dict[int, Conclude] = field(default_factory=dict)
    finishes: int = 0
    granted: Counter[int] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    up: set[str] = field(default_factory=set)
    lease: dict[str, Lease] = field(default_factory=dict)
    suspect: set[str] = field(default_factory=set)
    probing: set[str] = field(default_factory=set)
    stopped: str = ""
    deaths: Counter[int] = field(default_factory=Counter)  # of devices that had the cell
    blamed: set[int] = field(default_factory=set)  # cells whose kernel was found guilty
    charged: Counter[int] = field(default_factory=Counter)  # faults that were not the kernel's
    running: dict[str, tuple[int, int]] = field(default_factory=dict)  # device -> cell, attempt
    holds: set[tuple[str, int, int]] = field(default_factory=set)  # device, cell, attempt: granted, may still end
    measured: set[tuple[str, int, int]] = field(default_factory=set)
    grants: list[tuple[str, int, int]] = field(default_factory=list)  # device, cell, attempt

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.finishes == 0, f"{action} after Finish"
            if isinstance(action, Grant):
                self.grant(action.lease)
            elif isinstance(action, Conclude):
                assert action.cell not in self.concluded, f"cell {action.cell} concluded twice"
                self.concluded[action.cell] = action
            elif isinstance(action, Replace):
                self.drop(action.device)
            elif isinstance(action, Retire):
                self.drop(action.device)
                self.gone.add(action.device)
            elif isinstance(action, Start):
                self.gone.discard(action.device)
            elif isinstance(action, HealthChanged):
                (self.suspect.discard if action.state == "ready" else self.suspect.add)(action.device)
            elif isinstance(action, ProbeGrant):
                assert action.device in self.up & self.suspect - self.probing, f"{action} to who needs none"
                assert action.device not in self.lease, f"{action} to a device that is busy"
                self.probing.add(action.device)
            elif isinstance(action, Finish):
                self.finishes += 1
                self.stopped = action.stopped

    def hear(self, event: Event) -> None:
        """Keep count of what the scheduler is about to be told."""
        if isinstance(event, (Started, MeasuredEvent, Ended)):
            key = (event.device, event.cell, event.attempt)
            if key not in self.holds:
                return
            if isinstance(event, Started):
                self.running[event.device] = key[1:]
            elif self.running.get(event.device) == key[1:]:
                del self.running[event.device]
            if isinstance(event, MeasuredEvent):
                self.measured.add(key)
            if isinstance(event, Ended):
                self.holds.discard(key)
                if event.owner in (Owner.DEVICE, Owner.INFRA, Owner.HARNESS):
                    self.charged[event.cell] += 1
                elif event.owner is Owner.KERNEL:
                    self.blamed.add(event.cell)
        elif isinstance(event, DeviceAdded):
            if event.device in self.gone:  # it begins anew
                self.suspect.discard(event.device)
        elif isinstance(event, Probed):
            self.probing.discard(event.device)
        elif (
            isinstance(event, LeaseDone)
            and self.lease.get(event.device)
            and (self.lease[event.device].id == event.lease)
        ):
            for a in self.lease.pop(event.device).attempts:
                key = (event.device, a.cell, a.number)
                if key in self.holds - self.measured:  # the device has said nothing of it
                    self.holds.discard(key)
                    self.charged[a.cell] += 1
            self.running.pop(event.device, None)

    def drop(self, device: str) -> None:
        self.running.pop(device, None)
        self.deaths.update(cell for d, cell, _ in self.holds if d == device)
        self.holds = {h for h in self.holds if h[0] != device}
        self.probing.discard(device)
        self.up.discard(device)
        self.lease.pop(device, None)

    def grant(self, lease: Lease) -> None:
        assert lease.device not in self.gone, f"grant to {lease.device}, which is gone"
        assert lease.device in self.up, f"grant to {lease.device}, which is not up"
        assert lease.device not in self.lease, f"grant to {lease.device}, which is busy"
        assert 0 < len(lease.attempts) <= MAX_LEASE_CELLS
        assert lease.device not in self.suspect, f"grant to {lease.device}, which must prove itself"
        self.lease[lease.device] = lease
        for a in lease.attempts:
            assert a.cell not in self.concluded, f"cell {a.cell} is granted after its end"
            assert a.cell not in self.blamed, f"cell {a.cell} is tried again though its kernel failed"
            assert (a.cell, a.number) not in {(c, n) for _, c, n in self.grants}, "two tries have one number"
            assert not a.last or self.charged[a.cell] >= MAX_ATTEMPTS - 1
            assert self.deaths[a.cell] < MAX_DEATHS, f"cell {a.cell} goes on killing"
            assert self.deaths[a.cell] < ALONE_AFTER or len(lease.attempts) == 1, f"cell {a.cell} is not alone"
            self.granted[a.cell] += 1
            self.grants.append((lease.device, a.cell, a.number))
            self.holds.add((lease.device, a.cell, a.number))


class World:
    """A cluster in memory.  `choose(n)` gives a number below n: hypothesis decides what happens next."""

    def __init__(self, scheduler: Scheduler, watch: Watch, devices: list[str], choose: Callable[[int], int]):
        self.scheduler, self.watch, self.choose = scheduler, watch, choose
        self.now = 0.0
        self.log: list[Event] = []
        self.starting = set(devices)
        self.mailbox: dict[str, list[Event]] = {}  # what each device will say, in order
        self.late: list[Event] = []  # what comes from the judge, or from devices that were replaced
        self.violence = (0, 1, 4, 40)[choose(4)]  # kills that this world has in it

    def feed(self, event: Event) -> None:
        self.log.append(event)
        if isinstance(event, DeviceUp) and event.device in self.starting:
            self.watch.up.add(event.device)
            self.starting.discard(event.device)
        self.watch.hear(event)
        self.obey(self.scheduler.step(event))

    def obey(self, actions: list[Action]) -> None:
        self.watch.see(actions)
        for action in actions:
            if isinstance(action, (Replace, Retire)):
                self.late += self.mailbox.pop(action.device, [])
                (self.starting.add if isinstance(action, Replace) else self.starting.discard)(action.device)
            elif isinstance(action, Start):
                self.starting.add(action.device)
            elif isinstance(action, ProbeGrant):
                ended = Probed(0.0, action.device, action.probe, self.choose(4) > 0)
                self.mailbox[action.device] = [*self.mailbox.get(action.device, []), ended]
            elif isinstance(action, Grant):
                self.mailbox[action.lease.device] = [
                    *self.mailbox.get(action.lease.device, []),
                    *self.play(action.lease),
                ]

    def play(self, lease: Lease) -> list[Event]:
        """What the device will say of a lease; judged ends are put aside to come at any time."""
        said: list[Event] = []
        for a in lease.attempts:
            kind = list(OUTCOMES)[self.choose(len(OUTCOMES))]
            status, owner = OUTCOMES[kind]
            said.append(Started(0.0, lease.device, a.cell, a.number))
            if self.choose(10) == 0:
                continue  # the device says nothing more of it: the lease's end must bring it back
            ended = Ended(0.0, lease.device, a.cell, a.number, status, owner, kind)
            if kind in ("passed", "inaccurate"):
                said.append(MeasuredEvent(0.0, lease.device, a.cell, a.number))
                said.append(ended)
            else:
                said.append(ended)
        return [*said, LeaseDone(0.0, lease.device, lease.id)]

    def at(self, event: Event) -> Event:
        self.now += 0.01
        return type(event)(**{**event.__dict__, "at": self.now})

    def turn(self) -> None:
        """One thing happens."""
        talking = [d for d, box in self.mailbox.items() if box]
        kind = self.choose(12)
        if kind == 0 and self.violence and self.mailbox:
            self.violence -= 1
            device = sorted(self.mailbox)[self.choose(len(self.mailbox))]
            self.feed(self.at(DeviceDown(0.0, device, "killed")))
        elif kind == 1 and self.late:
            self.feed(self.at(self.late.pop(self.choose(len(self.late)))))
        elif kind == 2:
            if self.violence and self.choose(8) == 0:
                self.violence -= 1
                for _ in range(20):  # whoever has a lease has overrun it
                    self.now += STALL_SECONDS
                    self.feed(self.at(Tick(0.0)))
            self.feed(self.at(Tick(0.0)))
        elif self.starting and (kind == 3 or not talking):
            device = sorted(self.starting)[self.choose(len(self.starting))]
            if self.violence and self.choose(6) == 0:
                self.violence -= 1
                self.feed(self.at(DeviceDown(0.0, device, "would not start", final=self.choose(3) == 0)))
            else:
                self.feed(self.at(DeviceUp(0.0, device)))
        elif talking:
            device = sorted(talking)[self.choose(len(talking))]
            event = self.mailbox[device].pop(0)
            if isinstance(event, Ended) and event.reason in ("passed", "inaccurate") and self.choose(2):
                self.mailbox[device].append(event)  # the judge is slow: after everything else of the lease
                return
            self.feed(self.at(event))
        elif self.late:
            self.feed(self.at(self.late.pop()))
        else:
            self.feed(self.at(Tick(0.0)))

    def run(self) -> None:
        self.obey(self.scheduler.begin(0.0))
        for _ in range(20000):
            if self.watch.finishes:
                return
            self.turn()
        raise AssertionError(f"the run does not end: {self.scheduler.open_cells} cells are open")


def a_scheduler(cells: int, devices: dict[str, str], seconds: float = 0.1, **more: object) -> Scheduler:
    backends = list(dict.fromkeys(devices.values()))
    return Scheduler(
        [backends[i % len(backends)] for i in range(cells)], [seconds] * cells, [10.0] * cells, devices, **more
    )  # type: ignore[arg-type]


worlds = st.fixed_dictionaries(
    {
        "cells": st.integers(0, 40),
        "devices": st.integers(1, 4),
        "backends": st.integers(1, 2),
        "seconds": st.sampled_from([0.001, 0.1, 3.0]),
        "settled": st.integers(0, 5),
    }
)


@settings(max_examples=150, deadline=None)
@given(shape=worlds, data=st.data())
def test_whatever_happens_every_cell_ends_once_and_the_run_ends(shape: dict[str, float], data: st.DataObject) -> None:
    play(shape, data.draw(st.randoms(use_true_random=False)))


def play(shape: dict[str, float], dice: random.Random) -> None:
    """A whole run in a world of this shape; `make soak` plays more of them."""
    cells = int(shape["cells"])
    devices = {f"b{i % int(shape['backends'])}:{i}": f"b{i % int(shape['backends'])}" for i in range(shape["devices"])}
    settled = dict.fromkeys(range(min(cells, int(shape["settled"]))), (Status.SKIPPED, "excluded"))
    scheduler = a_scheduler(cells, devices, shape["seconds"], settled=settled)
    watch = Watch(cells)
    world = World(scheduler, watch, list(devices), dice.randrange)
    world.run()
    assert watch.finishes == 1
    assert scheduler.open_cells == cells - len(watch.concluded)
    assert watch.concluded.keys() == set(range(cells)) or watch.stopped
    assert all(watch.concluded[i].status is Status.SKIPPED and not watch.granted[i] for i in settled)
    # the end is the end: nothing that comes later changes anything
    for event in world.log[-20:]:
        assert scheduler.step(event) == []
    # and the same events give the same actions, from the first to the last
    again = a_scheduler(cells, devices, shape["seconds"], settled=settled)
    replayed = again.begin(0.0)
    for event in world.log:
        replayed += again.step(event)
    assert {a.cell: a for a in replayed if isinstance(a, Conclude)} == watch.concluded
    assert [(a.lease.device, t.cell, t.number) for a in replayed if isinstance(a, Grant) for t in a.lease.attempts] == (
        watch.grants
    )


def test_the_world_notices_a_scheduler_that_concludes_twice() -> None:
    watch = Watch(1)
    end = Conclude(0, 1, Status.PASSED, None, "")
    with pytest.raises(AssertionError, match="twice"):
        watch.see([end, end])
    with pytest.raises(AssertionError, match="not up"):
        Watch(1).see([Grant(Lease(1, "d", ()))])


# The rules one by one


def up(s: Scheduler, *devices: str, at: float = 0.0) -> list[Action]:
    out: list[Action] = []
    for d in devices:
        out += s.step(DeviceUp(at, d))
    return out


def grants(actions: list[Action]) -> list[Lease]:
    return [a.lease for a in actions if isinstance(a, Grant)]


def ends(actions: list[Action]) -> list[tuple[int, Status]]:
    return [(a.cell, a.status) for a in actions if isinstance(a, Conclude)]


def fail(s: Scheduler, lease: Lease, cell: int, kind: str, at: float = 1.0) -> list[Action]:
    number = next(a.number for a in lease.attempts if a.cell == cell)
    s.step(Started(at, lease.device, cell, number))
    out = s.step(Ended(at, lease.device, cell, number, *OUTCOMES[kind], kind))
    return out + s.step(LeaseDone(at, lease.device, lease.id))


def begun(cells: int, *devices: str, seconds: float = 2.0) -> tuple[Scheduler, list[Lease]]:
    s = a_scheduler(cells, {d: d.split(":")[0] for d in devices}, seconds)
    assert s.begin(0.0) == []
    return s, grants(up(s, *devices))


@pytest.mark.parametrize("kind", ["inaccurate", "crashed", "timed_out"])
def test_a_kernels_failure_is_never_tried_again(kind: str) -> None:
    s, leases = begun(1, "b:0", "b:1")
    actions = fail(s, leases[0], 0, kind)
    assert ends(actions) == [(0, OUTCOMES[kind][0])]
    assert not grants(actions)
    assert isinstance(actions[-1], Finish)


@pytest.mark.parametrize("kind", sorted(RETRIED))
def test_a_fault_of_device_or_farm_is_tried_once_more_elsewhere(kind: str) -> None:
    s, leases = begun(1, "b:0", "b:1")
    assert leases[0].device == "b:0"
    again = fail(s, leases[0], 0, kind)
    assert ends(again) == []
    (second,) = grants(again)
    assert second.device == "b:1"
    assert second.attempts[0].number == 2
    last = fail(s, second, 0, kind, at=2.0)
    assert ends(last) == [(0, OUTCOMES[kind][0])]
    assert isinstance(last[-1], Finish)


def test_with_one_device_the_retry_is_there() -> None:
    s, leases = begun(1, "b:0")
    (second,) = grants(fail(s, leases[0], 0, "infra"))
    assert (second.device, second.attempts[0].number) == ("b:0", 2)


def test_the_retry_waits_for_another_device_that_is_busy_and_takes_the_same_one_when_that_is_lost() -> None:
    s, leases = begun(2, "b:0", "b:1")
    actions = fail(s, leases[0], leases[0].attempts[0].cell, "device")
    assert grants(actions) == []  # b:1 is busy, b:0 must not
    actions = s.step(DeviceDown(2.0, "b:1", "gone", final=True))
    assert {lease.device for lease in grants(actions)} == {"b:0"}


def work(s: Scheduler, lease: Lease, at: float) -> list[Action]:
    out: list[Action] = []
    for a in lease.attempts:
        s.step(Started(at, lease.device, a.cell, a.number))
        out += s.step(Ended(at, lease.device, a.cell, a.number, Status.PASSED))
    return out + s.step(LeaseDone(at, lease.device, lease.id))


def test_a_dead_actor_charges_no_fault_to_what_it_had() -> None:
    s, (lease,) = begun(8, "b:0", seconds=0.01)
    assert len(lease.attempts) > 1
    s.step(Started(1.0, "b:0", lease.attempts[0].cell, 1))
    assert [type(a) for a in s.step(DeviceDown(1.0, "b:0", "killed"))] == [Replace]
    waiting, again = grants(up(s, "b:0", at=2.0)), list[int]()
    while waiting:
        lease = waiting.pop()
        assert not any(a.last for a in lease.attempts)
        again += [a.cell for a in lease.attempts if a.number == 2]
        waiting += grants(work(s, lease, 2.0))
    assert again == [0, 1, 2, 3], "later, and in their order"


def test_what_a_judge_had_when_the_device_died_is_charged_with_the_death() -> None:
    s, (lease,) = begun(1, "b:0")
    for n in range(1, MAX_DEATHS + 1):
        s.step(Started(n, "b:0", 0, n))
        s.step(MeasuredEvent(n, "b:0", 0, n))
        s.step(LeaseDone(n, "b:0", lease.id))
        actions = s.step(DeviceDown(n, "b:0", "killed"))
        if n < MAX_DEATHS:
            found = grants(up(s, "b:0", at=n)) or grants(s.step(Probed(n, "b:0", 1, True)))
            (lease,) = found
            assert not lease.attempts[0].last
            assert lease.attempts[0].number == n + 1  # and what the dead one says of number n is not taken for it
            assert s.step(Ended(n, "b:0", 0, n, Status.PASSED)) == []
    assert ends(actions) == [(0, Status.INFRA_ERROR)]


def test_a_device_that_dies_again_and_again_is_out_and_the_rest_stays_open() -> None:
    s, _ = begun(50, "b:0", seconds=5.0)
    seen: list[Action] = []
    for n in range(1, 5):
        actions = s.step(DeviceDown(float(n), "b:0", "died"))
        seen += actions
        up(s, "b:0", at=n + 0.5)
    assert isinstance(actions[-2], Retire) and isinstance(actions[-1], Finish)
    assert "only device of backend b" in actions[-1].stopped
    assert ends(seen) == [] and s.open_cells == 50


def test_lost_is_per_backend() -> None:
    s = a_scheduler(2, {"a:0": "a", "b:0": "b"}, 5.0)
    s.begin(0.0)
    actions = s.step(DeviceDown(0.0, "a:0", "no such device", final=True))
    assert [type(a) for a in actions] == [Retire]  # a device may come as long as the others work
    assert grants(up(s, "b:0"))
    assert ends(s.step(Ended(1.0, "b:0", 1, 1, Status.PASSED))) == [(1, Status.PASSED), (0, Status.LOST)]


def test_a_backend_with_no_device_at_all_is_lost_at_the_start() -> None:
    s = Scheduler(["ghost"], [1.0], [1.0], {})
    actions = s.begin(0.0)
    assert ends(actions) == [(0, Status.LOST)]
    assert isinstance(actions[-1], Finish)


def test_an_empty_plan_finishes_at_once() -> None:
    assert a_scheduler(0, {"b:0": "b"}).begin(0.0) == [Finish()]


def test_late_words_change_nothing() -> None:
    s, leases = begun(2, "b:0", "b:1")
    mine = leases[0]
    cell = mine.attempts[0].cell
    assert s.step(Ended(1.0, "b:1", cell, 1, Status.PASSED)) == []  # another device speaks of it
    assert s.step(Ended(1.0, "b:0", cell, 2, Status.PASSED)) == []  # another attempt
    assert s.step(LeaseDone(1.0, "b:0", mine.id + 100)) == []
    s.step(DeviceDown(1.0, "b:0", "killed"))
    assert s.step(Ended(2.0, "b:0", cell, 1, Status.PASSED)) == []  # from the grave
    assert s.open_cells == 2


def test_leases_are_about_a_second_and_shrink_towards_the_end() -> None:
    s, leases = begun(200, "b:0", "b:1", seconds=0.05)
    sizes = []
    at = 1.0
    waiting = list(leases)
    while waiting:
        lease = waiting.pop(0)
        sizes.append(len(lease.attempts))
        actions: list[Action] = []
        for a in lease.attempts:
            actions += s.step(Started(at, lease.device, a.cell, a.number))
            at += 0.05
            actions += s.step(Ended(at, lease.device, a.cell, a.number, Status.PASSED))
        actions += s.step(LeaseDone(at, lease.device, lease.id))
        waiting += grants(actions)
    assert sum(sizes) == 200
    assert sizes[0] * 0.05 == pytest.approx(LEASE_SECONDS, abs=0.06)
    assert sizes[-1] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(sizes))


def test_an_interrupt_finishes_once_and_leaves_the_rest_open() -> None:
    s, _ = begun(5, "b:0")
    assert s.step(Interrupted(1.0)) == [Finish()]
    assert s.step(Interrupted(2.0)) == []
    assert s.open_cells == 5


def test_the_eta_counts_what_is_queued_and_granted() -> None:
    s, leases = begun(10, "b:0", "b:1", seconds=2.0)
    assert s.remaining_seconds("b") == pytest.approx(10.0)
    s.step(Started(0.0, "b:0", leases[0].attempts[0].cell, 1))
    s.step(Ended(4.0, "b:0", leases[0].attempts[0].cell, 1, Status.PASSED))  # twice as long as estimated
    assert s.remaining_seconds("b") == pytest.approx(18.0)
    assert s.remaining_seconds("nobody") == 0.0


def test_what_comes_back_to_the_queue_counts_again() -> None:
    s, _ = begun(4, "b:0", seconds=2.0)
    s.step(DeviceDown(1.0, "b:0", "killed"))
    assert s.remaining_seconds("b") == pytest.approx(8.0)


def test_what_a_device_kept_quiet_about_is_granted_again() -> None:
    s, leases = begun(1, "b:0")
    (again,) = grants(s.step(LeaseDone(1.0, "b:0", leases[0].id)))
    assert [(a.cell, a.last) for a in again.attempts] == [(0, True)]
    actions = s.step(LeaseDone(2.0, "b:0", again.id))  # it is suspect: its probe decides whether it was the cell
    assert [type(a) for a in actions] == [HealthChanged, ProbeGrant]
    assert ends(s.step(Probed(3.0, "b:0", 1, True))) == [(0, Status.INFRA_ERROR)]
