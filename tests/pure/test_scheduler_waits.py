"""Cells without a device: they wait for one, longer while its node is only drained, and then the run stops with a
sentence, so that `farm resume` can run them.  Law over random worlds, then rule by rule."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import ends, grants
from test_scheduler_pools import GB200, H200, Machine, machine, made, scheduler_of, work

from farm.cell import Owner, Status
from farm.errors import id_of
from farm.scheduler import Scheduler
from farm.scheduler.events import (
    Action,
    Away,
    AwayNode,
    CellPool,
    DeviceAdded,
    DeviceDown,
    DeviceWaits,
    Drain,
    Ended,
    Finish,
    Grant,
    LeaseDone,
    Retire,
    Started,
    Tick,
)

POOL = CellPool("b")


def stop(actions: list[Action]) -> Finish:
    """The end of a run that lacked a device."""
    finish = actions[-1]
    assert isinstance(finish, Finish) and id_of(finish.stopped) == "run-lacks-devices", actions
    return finish


def away(at: float, *nodes: AwayNode) -> Away:
    return Away(at, nodes)


def drained(s: Scheduler, device: str, node: AwayNode, at: float = 1.0) -> list[Action]:
    return [*s.step(away(at, node)), *s.step(Drain(at, device, "its node was drained"))]


def test_a_run_that_lacks_a_device_stops_with_a_sentence_and_is_not_done() -> None:
    s, actions = made([("b", "", "none"), ("b", "GB200", "none")], H200)
    (lease,) = grants(actions)
    after = work(s, lease)
    assert ends(after) == [(0, Status.PASSED), (1, Status.LOST)]
    assert "target b:GB200" in stop(after).stopped


def test_a_run_whose_cells_all_have_a_result_is_not_stopped() -> None:
    s, actions = made([("b", "", "none")], H200)
    assert work(s, grants(actions)[0])[-1] == Finish()


def test_cells_without_a_device_stay_open_while_others_run() -> None:
    """A device that comes in the meantime runs them, however long after the grace."""
    s, actions = made([("b", "", "none"), ("c", "", "none")], H200)
    (lease,) = grants(actions)
    assert ends(s.step(Tick(20.0))) == []
    s.step(DeviceAdded(21.0, "c:0", "c", "h"))
    (other,) = grants(s.step(machine("c:0").up(22.0)))
    assert ends(work(s, lease, 23.0)) == [(0, Status.PASSED)]
    after = work(s, other, 24.0)
    assert ends(after) == [(1, Status.PASSED)] and after[-1] == Finish()


def test_the_grace_has_no_end_while_the_node_is_only_drained() -> None:
    s, actions = made([("b", "", "none")] * 2, H200, grace=60.0)
    (lease,) = grants(actions)
    node = AwayNode("n1", "b")
    assert drained(s, "b:0", node) == []
    assert [type(a) for a in work(s, lease, 2.0)][-1] is Retire
    assert s.step(Tick(1e6)) == []
    assert s.waiting() == {POOL: ("n1",)}
    s.step(away(1e6 + 1))  # it is restored
    assert s.waiting() == {POOL: ()}
    assert s.step(Tick(1e6 + 59)) == []  # and the grace begins now
    s.step(DeviceAdded(1e6 + 60, "b:0", "b", "h"))
    assert s.waiting() == {}
    (again,) = grants(s.step(H200.up(1e6 + 70)))
    after = work(s, again, 1e6 + 80)
    assert [status for _, status in ends(after)] == [Status.PASSED] and after[-1] == Finish()


def test_who_gave_no_grace_does_not_wait_for_a_drained_node() -> None:
    s, actions = made([("b", "", "none")] * 2, H200, grace=0.0)
    drained(s, "b:0", AwayNode("n1", "b"))
    assert "n1" in stop(work(s, grants(actions)[0], 2.0)).stopped  # which is to be restored


def test_only_a_node_that_could_run_the_cells_is_waited_for() -> None:
    cells = [("b", "GB200", "none")]
    for node, waits in (
        (AwayNode("n", "c"), False),
        (AwayNode("n", "b", H200.target), False),
        (AwayNode("n", "b", GB200.target), True),
        (AwayNode("n", "b"), True),  # whose devices the run never saw
    ):
        s = scheduler_of({}, [], cells, 60.0, 1.0)
        s.begin(0.0)
        s.step(away(1.0, node))
        assert bool(ends(s.step(Tick(100.0)))) is not waits, node


def test_a_device_that_another_run_kept_is_not_waited_for_once_more() -> None:
    """`--wait` is over: the grace for devices that join would only be added to it."""
    s = scheduler_of({"b:0": H200}, ["b:0"], [("b", "", "none")], 600.0, 1.0)
    s.begin(0.0)
    actions = s.step(DeviceDown(1800.0, "b:0", "run r1 still uses it", final=True, busy=True))
    assert actions[0] == Retire("b:0", "run r1 still uses it", drained=True)  # it has no fault
    assert ends(actions) == [(0, Status.LOST)]
    assert "run r1 still uses it" in stop(actions).stopped


def test_what_failed_on_one_device_does_not_wait_for_one_that_another_run_uses() -> None:
    """But for one that starts it does."""
    for busy, again in ((True, ["b:0"]), (False, [])):
        s = scheduler_of({"b:0": H200, "b:1": machine("b:1")}, ["b:0", "b:1"], [("b", "", "none")], 0.0, 1.0)
        s.begin(0.0)
        (lease,) = grants(s.step(H200.up()))
        s.step(DeviceWaits(0.5, "b:1", busy))
        s.step(Started(1.0, "b:0", 0, 1))
        s.step(Ended(1.0, "b:0", 0, 1, Status.INFRA_ERROR, Owner.DEVICE, "a bit flipped"))
        assert [g.device for g in grants(s.step(LeaseDone(1.0, "b:0", lease.id)))] == again


def test_quiet_does_not_wait_for_a_device_that_another_run_uses_and_it_joins_when_it_is_free() -> None:
    there = machine("b:1")
    s = scheduler_of({"b:0": H200, "b:1": there}, ["b:0", "b:1"], [("b", "", "host")] * 2, 0.0, 3.0)
    s.begin(0.0)
    s.step(DeviceWaits(0.1, "b:1"))
    (quiet,) = grants(s.step(H200.up()))
    s.step(there.up(1.0))
    assert [g.device for g in grants(work(s, quiet, 2.0))] == ["b:0"]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Machine], list[tuple[str, str, str]], float]:
    models = ("NVIDIA H200", "NVIDIA GB200")
    machines = [machine(f"b:{i}", draw(st.sampled_from(models)), host=f"n{i}") for i in range(draw(st.integers(1, 3)))]
    cells = draw(st.lists(st.sampled_from([("b", "", "none"), ("b", "H200", "none"), ("b", "GB200", "none")])))
    return machines, cells, draw(st.sampled_from([10.0, 600.0]))


@settings(max_examples=100, deadline=None)
@given(world=worlds(), data=st.data())
def test_what_is_drained_and_restored_loses_nothing(
    world: tuple[list[Machine], list[tuple[str, str, str]], float], data: st.DataObject
) -> None:
    """However long the nodes are drained: what a machine of the world could run has a result at the end, and nothing
    is lost before all that could run has run."""
    play(*world, data.draw(st.randoms(use_true_random=False)))


def play(machines: list[Machine], cells: list[tuple[str, str, str]], grace: float, dice: random.Random) -> None:
    by_name = {m.name: m for m in machines}
    s = scheduler_of(by_name, list(by_name), cells, grace, 1.0)
    now, out, leases = 0.0, {m.name for m in machines}, dict[str, Grant]()
    gone: set[str] = set()
    away_now: set[str] = set()
    seen: list[Action] = []

    def feed(actions: list[Action]) -> None:
        seen.extend(actions)
        for a in actions:
            if isinstance(a, Grant):
                leases[a.lease.device] = a
            elif isinstance(a, Retire):
                gone.add(a.device)

    feed(s.begin(now))
    for m in machines:
        feed(s.step(m.up(now)))
    for turn in range(10_000):
        if any(isinstance(a, Finish) for a in seen):
            break
        now += dice.choice((0.1, 5.0, 1000.0))
        calm = turn > 60
        pick = dice.choice(sorted(out))
        nodes = lambda: tuple(AwayNode(by_name[n].host, "b", by_name[n].target) for n in sorted(away_now))  # noqa: E731
        if not calm and pick not in away_now and dice.random() < 0.3:
            away_now.add(pick)
            feed(s.step(Away(now, nodes())))
            feed(s.step(Drain(now, pick, "drained")))
        elif pick in away_now and pick in gone and (calm or dice.random() < 0.3):
            away_now.discard(pick)
            gone.discard(pick)
            feed(s.step(Away(now, nodes())))
            feed(s.step(DeviceAdded(now, pick, "b", by_name[pick].host)))
            feed(s.step(by_name[pick].up(now)))
        elif leases:
            feed(work(s, leases.pop(dice.choice(sorted(leases))).lease, now))
        else:
            feed(s.step(Tick(now)))
    status = dict(ends(seen))
    assert sorted(status) == list(range(len(cells)))
    has = {m.target.rpartition("-")[2] for m in machines}
    assert {i for i, end in status.items() if end is Status.LOST} == {
        i for i, (_, target, _) in enumerate(cells) if target and target not in has
    }
    finish = seen[-1]
    assert isinstance(finish, Finish) and bool(finish.stopped) is (Status.LOST in status.values())
