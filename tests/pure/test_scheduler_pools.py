"""Targets, quiet and devices that come and go, under random worlds and rule by rule.

The world is test_scheduler's, with hosts, modules and models; its Watch holds these promises besides the old ones:
a cell with a target runs on devices that serve it alone, nothing runs beside what wants quiet, a device that was asked
back gets nothing more, and nothing starves: every run ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import Watch, World, ends, grants

from farm.cell import Owner, Status
from farm.device_pattern import serves
from farm.scheduler import Scheduler
from farm.scheduler.events import (
    Action,
    Conclude,
    DeviceAdded,
    DeviceDown,
    DeviceUp,
    Drain,
    Ended,
    Event,
    Finish,
    Grant,
    Lease,
    LeaseDone,
    MeasuredEvent,
    Replace,
    Retire,
    Start,
    Started,
    Tick,
)

MODELS = ("NVIDIA H200", "NVIDIA GB200")


@dataclass(frozen=True)
class Machine:
    """A device as the world knows it."""

    name: str
    backend: str
    host: str
    module: str
    target: str

    def up(self, at: float = 0.0) -> DeviceUp:
        return DeviceUp(at, self.name, self.target, self.module)


def machine(name: str, model: str = "NVIDIA H200", host: str = "h", module: str = "", partition: str = "") -> Machine:
    backend = name.split(":")[0]
    text = f"{backend}:{model.replace(' ', '-')}" + (f":{partition}" if partition else "")
    return Machine(name, backend, host, module, text)


@dataclass
class StrictWatch(Watch):
    machines: dict[str, Machine] = field(default_factory=dict)
    wants: list[tuple[str, str, str]] = field(default_factory=list)  # of each cell: backend, pattern, quiet
    drained: set[str] = field(default_factory=set)

    def see(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.drained.discard(action.device)
            if isinstance(action, Retire) and action.drained:
                assert action.device in self.drained, f"{action.device} is handed back, and nobody asked"
                assert action.device not in self.lease, f"{action.device} is handed back in the middle of its lease"
                assert not {k for k in self.measured & self.holds if k[0] == action.device}, "before it was judged"
                self.suspect.discard(action.device)
            if isinstance(action, Replace):
                assert action.device not in self.drained, f"{action.device} was asked back and is started again"
            super().see([action])
            self.everybody_is_quiet()

    def grant(self, lease: Lease) -> None:
        assert lease.device not in self.drained, f"{lease.device} was asked back and gets more"
        mine = self.machines[lease.device]
        for a in lease.attempts:
            backend, pattern, quiet = self.wants[a.cell]
            assert mine.backend == backend
            assert not pattern or serves(pattern, mine.target), f"{pattern} on {mine.target}"
            assert (pattern, quiet) == (lease.pool.target, lease.pool.quiet), "a lease of two pools"
        super().grant(lease)

    def everybody_is_quiet(self) -> None:
        for device, lease in self.lease.items():
            here = self.machines[device]
            for other in self.lease.keys() - {device}:
                there = self.machines[other]
                if here.host == there.host and lease.pool.quiet != "none":
                    near = lease.pool.quiet == "host" or (here.module and here.module == there.module)
                    assert not near, f"{other} works beside {device}, which wants {lease.pool.quiet} quiet"


class ChangingWorld(World):
    """Devices join, are asked back, and join again under the same name."""

    def __init__(
        self,
        scheduler: Scheduler,
        watch: StrictWatch,
        machines: dict[str, Machine],
        present: list[str],
        choose: Callable[[int], int],
    ):
        super().__init__(scheduler, watch, present, choose)
        self.strict, self.machines = watch, machines
        self.changes = (0, 3, 12)[choose(3)]

    def at(self, event: Event) -> Event:
        event = super().at(event)
        if isinstance(event, DeviceUp):  # the world knows what it is
            return self.machines[event.device].up(event.at)
        return event

    def obey(self, actions: list[Action]) -> None:
        self.starting |= {a.device for a in actions if isinstance(a, Start)}
        self.starting -= {a.device for a in actions if isinstance(a, Retire)}
        super().obey(actions)

    def turn(self) -> None:
        if self.changes and self.choose(6) == 0:
            self.changes -= 1
            device = sorted(self.machines)[self.choose(len(self.machines))]
            if self.choose(2):
                self.strict.drained.discard(device)
                there = self.machines[device]
                self.feed(self.at(DeviceAdded(0.0, device, there.backend, there.host)))
            elif device in self.starting | self.strict.up:
                self.strict.drained.add(device)
                self.feed(self.at(Drain(0.0, device, "wanted elsewhere")))
            return
        self.now += (0.0, 0.0, 3.0)[self.choose(3)]
        super().turn()


#: machines by name; those that are there from the start; (backend, target, quiet) of each cell; grace in seconds
Plan = tuple[dict[str, Machine], list[str], list[tuple[str, str, str]], float]


@st.composite
def worlds(draw: st.DrawFn) -> Plan:
    backends = [f"b{i}" for i in range(draw(st.integers(1, 2)))]
    machines = {}
    for i in range(draw(st.integers(1, 6))):
        backend = draw(st.sampled_from(backends))
        made = machine(
            f"{backend}:{i}",
            draw(st.sampled_from(MODELS)),
            draw(st.sampled_from(["h0", "h0", "h1"])),
            draw(st.sampled_from(["", "m0", "m1"])),
            draw(st.sampled_from(["", "mig-1g"])),
        )
        machines[made.name] = made
    present = [n for n in machines if draw(st.integers(0, 3))]
    cells = draw(
        st.lists(
            st.tuples(
                st.sampled_from(backends),
                st.sampled_from(["", "", "H200", "GB200", "H200:mig-1g"]),
                st.sampled_from(["none", "none", "module", "host"]),
            ),
            max_size=30,
        )
    )
    return machines, present, cells, draw(st.sampled_from([0.0, 0.0, 10.0]))


def scheduler_of(
    machines: dict[str, Machine], present: list[str], cells: list[tuple[str, str, str]], grace: float, seconds: float
) -> Scheduler:
    return Scheduler(
        [c[0] for c in cells],
        [seconds] * len(cells),
        [10.0] * len(cells),
        {n: machines[n].backend for n in present},
        targets=[c[1] for c in cells],
        quiet=[c[2] for c in cells],
        hosts={n: m.host for n, m in machines.items()},
        grace=grace,
    )


@settings(max_examples=300, deadline=None)
@given(world=worlds(), seconds=st.sampled_from([0.001, 0.1, 3.0]), data=st.data())
def test_whatever_comes_and_goes_every_cell_ends_once_where_it_belongs(
    world: Plan, seconds: float, data: st.DataObject
) -> None:
    play(world, seconds, data.draw(st.randoms(use_true_random=False)))


def play(world: Plan, seconds: float, dice: random.Random) -> None:
    """A whole run of these cells on these machines; `make soak` plays more of them."""
    machines, present, cells, grace = world
    scheduler = scheduler_of(machines, present, cells, grace, seconds)
    watch = StrictWatch(len(cells), machines=machines, wants=cells)
    played = ChangingWorld(scheduler, watch, machines, present, dice.randrange)
    played.run()
    assert watch.finishes == 1
    assert scheduler.open_cells == len(cells) - len(watch.concluded)
    assert watch.concluded.keys() == set(range(len(cells))) or watch.stopped
    for i, end in watch.concluded.items():
        if end.status is Status.LOST:
            backend, pattern, _ = cells[i]
            assert (f"target {backend}:{pattern}" if pattern else f"backend {backend}") in end.reason
    again = scheduler_of(machines, present, cells, grace, seconds)
    replayed = again.begin(0.0)
    for event in played.log:
        replayed += again.step(event)
    assert {a.cell: a for a in replayed if isinstance(a, Conclude)} == watch.concluded


def test_the_watch_notices_a_wrong_device_noise_and_a_device_asked_back() -> None:
    machines = {m.name: m for m in (machine("b:0"), machine("b:1", "NVIDIA GB200"))}

    def watch() -> StrictWatch:
        made = StrictWatch(9, machines=machines, wants=[("b", "GB200", "none"), ("b", "", "host"), ("b", "", "none")])
        made.up = {"b:0", "b:1"}
        return made

    def lease(n: int, device: str, cell: int, pattern: str = "", quiet: str = "none") -> Grant:
        from farm.scheduler.events import Attempt, CellPool

        return Grant(Lease(n, device, (Attempt(cell, 1),), CellPool("b", pattern, quiet)))

    with pytest.raises(AssertionError, match="GB200 on b:NVIDIA-H200"):
        watch().see([lease(1, "b:0", 0, "GB200")])
    with pytest.raises(AssertionError, match="wants host quiet"):
        watch().see([lease(1, "b:0", 1, quiet="host"), lease(2, "b:1", 2)])
    with pytest.raises(AssertionError, match="was asked back"):
        other = watch()
        other.drained = {"b:0"}
        other.see([lease(1, "b:0", 2)])
    with pytest.raises(AssertionError, match="nobody asked"):
        watch().see([Retire("b:0", "", drained=True)])


# The rules one by one


def made(
    cells: list[tuple[str, str, str]], *machines: Machine, grace: float = 0.0, seconds: float = 2.0
) -> tuple[Scheduler, list[Action]]:
    """Every machine up, and what was granted meanwhile."""
    s = scheduler_of({m.name: m for m in machines}, [m.name for m in machines], cells, grace, seconds)
    out = s.begin(0.0)
    for m in machines:
        out += s.step(m.up())
    return s, out


def work(s: Scheduler, lease: Lease, at: float = 1.0, status: Status = Status.PASSED) -> list[Action]:
    """The device goes through its lease."""
    out: list[Action] = []
    for a in lease.attempts:
        out += s.step(Started(at, lease.device, a.cell, a.number))
        out += s.step(Ended(at, lease.device, a.cell, a.number, status))
    return out + s.step(LeaseDone(at, lease.device, lease.id))


def run_out(s: Scheduler, actions: list[Action]) -> tuple[list[Action], list[tuple[str, int]]]:
    """Work until nobody has a lease: all actions, and who ran what in which order."""
    waiting, seen, ran = grants(actions), list(actions), []
    while waiting:
        lease = waiting.pop(0)
        ran += [(lease.device, a.cell) for a in lease.attempts]
        new = work(s, lease)
        seen += new
        waiting += grants(new)
    return seen, ran


H200, GB200 = machine("b:0"), machine("b:1", "NVIDIA GB200")


def test_a_named_target_is_served_by_its_part_alone_and_first() -> None:
    s, actions = made([("b", "", "none")] * 2 + [("b", "GB200", "none")] * 2, H200, GB200)
    _, ran = run_out(s, actions)
    assert {cell for device, cell in ran if device == "b:1"} >= {2, 3}
    assert next(cell for device, cell in ran if device == "b:1") == 2
    assert not {cell for device, cell in ran if device == "b:0"} & {2, 3}


def test_a_target_that_no_device_is_ends_as_lost_and_says_what_there_is() -> None:
    s, actions = made([("b", "MI300X", "none"), ("b", "", "none")], H200, GB200)
    _, lost = [a for a in run_out(s, actions)[0] if isinstance(a, Conclude)]
    assert (lost.cell, lost.status, lost.owner) == (0, Status.LOST, Owner.INFRA)
    assert "no device of target b:MI300X" in lost.reason
    assert "b:0 is b:NVIDIA-H200; b:1 is b:NVIDIA-GB200" in lost.reason
    assert s.open_cells == 0


def test_a_target_waits_for_devices_that_are_still_starting() -> None:
    s = scheduler_of({"b:0": H200, "b:1": GB200}, ["b:0", "b:1"], [("b", "GB200", "none")], 0.0, 1.0)
    assert s.begin(0.0) == []
    assert s.step(H200.up()) == []
    assert [lease.device for lease in grants(s.step(GB200.up()))] == ["b:1"]


def test_the_refusals_are_in_the_reason() -> None:
    s = scheduler_of({"b:0": H200, "b:1": GB200}, ["b:0", "b:1"], [("b", "GB200", "none")], 0.0, 1.0)
    s.begin(0.0)
    s.step(H200.up())
    why = "the node's label says model GB200, the device is NVIDIA H100: correct the label or the node"
    actions = s.step(DeviceDown(1.0, "b:1", why, final=True))
    (lost,) = [a for a in actions if isinstance(a, Conclude)]
    assert f"b:1: {why}" in lost.reason
    assert isinstance(actions[-1], Finish)


def test_many_refusals_are_told_in_short() -> None:
    names = [f"b:{i}" for i in range(9)]
    s = scheduler_of({n: machine(n) for n in names}, names, [("b", "", "none")], 0.0, 1.0)
    s.begin(0.0)
    for name in names:
        actions = s.step(DeviceDown(1.0, name, f"no {name}", final=True))
    (lost,) = [a for a in actions if isinstance(a, Conclude)]
    assert lost.reason.endswith("(b:0: no b:0; b:1: no b:1; b:2: no b:2; and 6 more)")


def test_devices_that_were_refused_alike_are_told_once() -> None:
    names = [f"b:{i}" for i in range(9)]
    s = scheduler_of({n: machine(n) for n in names}, names, [("b", "", "none")], 0.0, 1.0)
    s.begin(0.0)
    for name in names:
        actions = s.step(DeviceDown(1.0, name, "no" if name != "b:4" else "another", final=True))
    (lost,) = [a for a in actions if isinstance(a, Conclude)]
    assert lost.reason.endswith("(b:0 and 7 more: no; b:4: another)")


def test_a_pool_without_devices_waits_for_the_grace() -> None:
    s = scheduler_of({}, [], [("b", "", "none")], 60.0, 1.0)
    assert s.begin(100.0) == []
    assert s.step(Tick(159.0)) == []
    actions = s.step(Tick(160.0))
    assert ends(actions) == [(0, Status.LOST)]
    reason = actions[0].reason  # type: ignore[union-attr]
    assert "no device of backend b" in reason and "within 60 s" in reason


def test_a_device_that_comes_within_the_grace_runs_the_cells_and_the_clock_begins_anew() -> None:
    s = scheduler_of({}, [], [("b", "", "none")] * 2, 60.0, 5.0)
    s.begin(0.0)
    assert s.step(DeviceAdded(50.0, "b:0", "b", "h")) == [Start("b:0")]
    assert s.step(Tick(200.0)) == []  # it is starting
    assert len(grants(s.step(H200.up(201.0)))) == 1
    actions = s.step(DeviceDown(202.0, "b:0", "died", final=True))
    assert ends(actions) == []
    assert s.step(Tick(261.0)) == []
    assert len(ends(s.step(Tick(262.0)))) == 2


def test_a_device_that_returns_starts_with_a_clean_state() -> None:
    s, _ = made([("b", "", "none")] * 2, H200, grace=60.0, seconds=3.0)
    s.step(DeviceDown(1.0, "b:0", "hiccup"))
    s.step(H200.up(2.0))
    s.step(Started(3.0, "b:0", 1, 1))
    assert [type(a) for a in s.step(DeviceDown(3.0, "b:0", "its node died", final=True))] == [Retire]
    assert s.step(Ended(4.0, "b:0", 1, 1, Status.PASSED)) == []  # from the grave
    assert s.step(DeviceAdded(5.0, "b:0", "b", "h")) == [Start("b:0")]
    (again,) = grants(s.step(H200.up(6.0)))
    assert [(a.cell, a.number, a.last) for a in again.attempts] == [(0, 2, False)]
    assert [type(a) for a in s.step(DeviceDown(7.0, "b:0", "hiccup"))] == [Replace]  # the first


def test_a_device_that_returns_may_run_what_its_name_was_kept_from() -> None:
    s, actions = made([("b", "", "none")] * 2, H200, machine("b:1"), seconds=3.0)
    mine, other = grants(actions)
    number = mine.attempts[0].number
    s.step(Started(1.0, "b:0", 0, number))
    s.step(Ended(1.0, "b:0", 0, number, Status.INFRA_ERROR, Owner.DEVICE, "a bit flipped"))
    assert grants(s.step(LeaseDone(1.0, "b:0", mine.id))) == []  # b:1 is to try it
    s.step(DeviceDown(2.0, "b:0", "its node died", final=True))
    s.step(DeviceAdded(3.0, "b:0", "b", "h"))
    assert [a.cell for lease in grants(s.step(H200.up(4.0))) for a in lease.attempts] == [0]
    assert other.device == "b:1"


def test_what_is_added_twice_or_unknown_changes_nothing() -> None:
    s, _ = made([("b", "", "none")], H200)
    assert s.step(DeviceAdded(1.0, "b:0", "b", "h")) == []
    assert s.step(DeviceDown(1.0, "nobody", "?")) == []
    assert s.step(Drain(1.0, "nobody", "?")) == []
    assert s.step(DeviceUp(1.0, "nobody")) == []


def test_a_drained_device_ends_its_lease_and_takes_no_other() -> None:
    s, actions = made([("b", "", "none")] * 40, H200, machine("b:1"), seconds=0.3)
    first, _ = grants(actions)
    assert s.step(Drain(1.0, "b:0", "wanted elsewhere")) == []
    after = work(s, first, at=2.0)
    assert [a for a in after if isinstance(a, Retire)] == [Retire("b:0", "wanted elsewhere", drained=True)]
    assert not [lease for lease in grants(after) if lease.device == "b:0"]


def test_a_drained_device_waits_for_its_judge_and_is_no_fault() -> None:
    s, actions = made([("b", "", "none")], H200)
    (lease,) = grants(actions)
    s.step(Drain(0.5, "b:0", "wanted elsewhere"))
    s.step(Started(1.0, "b:0", 0, 1))
    s.step(MeasuredEvent(1.0, "b:0", 0, 1))
    assert s.step(LeaseDone(1.0, "b:0", lease.id)) == []
    actions = s.step(Ended(2.0, "b:0", 0, 1, Status.PASSED))
    assert actions == [Conclude(0, 1, Status.PASSED, None, ""), Retire("b:0", "wanted elsewhere", True), Finish()]


@pytest.mark.parametrize("up", [True, False])
def test_a_device_without_work_is_handed_back_at_once(up: bool) -> None:
    s = scheduler_of({"b:0": H200, "c:1": machine("c:1")}, ["b:0", "c:1"], [("c", "", "none")], 0.0, 1.0)
    s.begin(0.0)
    if up:
        s.step(H200.up())
    assert s.step(Drain(1.0, "b:0", "wanted elsewhere")) == [Retire("b:0", "wanted elsewhere", True)]
    assert s.step(Drain(2.0, "b:0", "wanted elsewhere")) == []


def test_a_device_that_dies_while_it_drains_is_not_replaced() -> None:
    s, _ = made([("b", "", "none")], H200, machine("b:1"))
    s.step(Drain(1.0, "b:0", "wanted elsewhere"))
    s.step(Started(1.0, "b:0", 0, 1))
    actions = s.step(DeviceDown(2.0, "b:0", "died"))
    assert [type(a) for a in actions] == [Retire, Grant]
    assert grants(actions)[0].device == "b:1"


def test_a_drain_that_is_taken_back_in_time_changes_nothing() -> None:
    s, actions = made([("b", "", "none")] * 4, H200, seconds=3.0)
    (lease,) = grants(actions)
    s.step(Drain(1.0, "b:0", "wanted elsewhere"))
    assert s.step(DeviceAdded(1.5, "b:0", "b", "h")) == []
    assert [lease.device for lease in grants(work(s, lease, at=2.0))] == ["b:0"]


def test_a_retry_does_not_wait_for_a_device_that_was_asked_back() -> None:
    s, actions = made([("b", "", "none")] * 2, H200, machine("b:1"), seconds=3.0)
    mine, _ = grants(actions)
    cell, number = mine.attempts[0].cell, mine.attempts[0].number
    s.step(Drain(1.0, "b:1", "wanted elsewhere"))
    s.step(Started(1.0, "b:0", cell, number))
    s.step(Ended(1.0, "b:0", cell, number, Status.INFRA_ERROR, Owner.DEVICE, "a bit flipped"))
    assert [lease.device for lease in grants(s.step(LeaseDone(1.0, "b:0", mine.id)))] == ["b:0"]


def test_what_the_last_device_of_a_pool_does_not_run_is_lost_when_it_is_handed_back() -> None:
    s, actions = made([("b", "", "none")] * 2, H200, seconds=3.0)
    (lease,) = grants(actions)
    assert s.step(Drain(1.0, "b:0", "wanted elsewhere")) == []
    after = work(s, lease, at=2.0)
    assert ends(after) == [(0, Status.PASSED), (1, Status.LOST)]
    assert "b:0: wanted elsewhere" in next(a.reason for a in after if isinstance(a, Conclude) and a.cell == 1)


# Quiet


def quiet_trio(quiet: str) -> tuple[Scheduler, list[Action], dict[str, Machine]]:
    """Two devices of a module and a third on the host, one on another host; two loud cells, then quiet ones."""
    machines = [
        machine("b:0", module="m"),
        machine("b:1", module="m"),
        machine("b:2", module="n"),
        machine("b:3", host="far", module="m"),
    ]
    cells = [("b", "", "none")] * 2 + [("b", "", quiet)] * 6
    s, actions = made(cells, *machines, seconds=3.0)
    return s, actions, {m.name: m for m in machines}


@pytest.mark.parametrize(
    ("quiet", "beside"), [("none", {"b:1", "b:2", "b:3"}), ("module", {"b:2", "b:3"}), ("host", {"b:3"})]
)
def test_who_may_work_beside_a_quiet_cell(quiet: str, beside: set[str]) -> None:
    s, actions, machines = quiet_trio(quiet)
    held = {lease.device: lease for lease in grants(actions)}
    seen: set[str] = set()
    for _ in range(40):
        if not held:
            break
        quiet_ones = [n for n, lease in held.items() if lease.pool.quiet == quiet != "none" and machines[n].host == "h"]
        for name in quiet_ones:
            if machines[name].module == "m":
                seen |= held.keys() - {name}
        if quiet == "none":
            seen |= held.keys() - {"b:0"}
        name = sorted(held)[0]
        for lease in grants(work(s, held.pop(name))):
            held[lease.device] = lease
    assert s.open_cells == 0
    assert seen <= beside
    assert "b:3" in seen


def test_loud_cells_go_first_and_quiet_ones_wait_for_them() -> None:
    s, actions = made([("b", "", "host")] * 2 + [("b", "", "none")] * 2, H200, machine("b:1"), seconds=3.0)
    first, second = grants(actions)
    assert {a.cell for lease in (first, second) for a in lease.attempts} == {2, 3}
    assert grants(work(s, first)) == []  # b:1 still works
    (third,) = grants(work(s, second))
    assert third.pool.quiet == "host"
    (fourth,) = grants(work(s, third))
    assert fourth.pool.quiet == "host"


@pytest.mark.parametrize("quiet", ["module", "host"])  # whose neighbour a device is that never was up, nobody knows
def test_quiet_waits_for_a_device_of_its_host_that_is_starting(quiet: str) -> None:
    machines = {m.name: m for m in (H200, machine("b:1"))}
    s = scheduler_of(machines, list(machines), [("b", "", quiet)], 0.0, 1.0)
    s.begin(0.0)
    assert grants(s.step(H200.up())) == []
    assert len(grants(s.step(machines["b:1"].up()))) == 1


def test_a_loud_retry_does_not_break_in_on_quiet() -> None:
    s, actions = made([("b", "", "none"), ("b", "", "host")], H200, machine("b:1"), seconds=3.0)
    (loud,) = grants(actions)
    s.step(Started(1.0, loud.device, 0, 1))
    s.step(MeasuredEvent(1.0, loud.device, 0, 1))
    (quiet,) = grants(s.step(LeaseDone(1.0, loud.device, loud.id)))
    assert quiet.pool.quiet == "host"
    judged = s.step(Ended(2.0, loud.device, 0, 1, Status.INFRA_ERROR, Owner.INFRA, "the judge died"))
    assert grants(judged) == []
    (again,) = grants(work(s, quiet, at=3.0))
    assert again.attempts[0].cell == 0


def test_quiet_counts_for_devices_of_every_backend_on_the_host() -> None:
    s, actions = made([("b", "", "host"), ("c", "", "none")], H200, machine("c:1", host="h"), seconds=3.0)
    (loud,) = grants(actions)
    assert loud.device == "c:1"
    assert [lease.device for lease in grants(work(s, loud))] == ["b:0"]


def test_the_eta_knows_that_others_cannot_help_a_target() -> None:
    s, _ = made([("b", "GB200", "none")] * 10, H200, GB200, seconds=2.0)
    assert s.remaining_seconds("b") == pytest.approx(18.0)  # nine wait for the one GB200
