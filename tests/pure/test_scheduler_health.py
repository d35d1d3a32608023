"""One bad device, judge, node or cell costs a bounded number of cells, whatever it does.

`Farm` is a cluster in simulated seconds: devices on hosts, each of which can be bad in one of several ways, judges that
a host's devices share, and cells that can kill what they meet.  The law compares each run with what a healthy farm
would have reported of the same cells.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from farm.cell import Owner, Status
from farm.errors import id_of
from farm.scheduler import Scheduler
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
    JudgeDown,
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
from farm.scheduler.health import (
    ALONE_AFTER,
    HEAL_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MAX_DEATHS,
    MAX_PROBES,
    QUARANTINE_SECONDS,
    SUSPECT_AFTER,
    Health,
    JudgeHealth,
    NodeHealth,
)

CELL_SECONDS, FAST_SECONDS, START_SECONDS = 0.5, 0.005, 3.0
#: How a device can be bad: what it does with each cell, and with each probe.
BAD_DEVICES = ("infra", "device", "harness", "dies", "silent", "stuck", "never starts")
#: What a cell can kill.
BAD_CELLS = ("its actor", "its actor while judged", "its judge")


@dataclass
class Farm:
    """`devices`: name -> host.  `bad`: device -> how; `bad_judges`: hosts whose judges die of every cell; `poison`:
    cell -> what it kills.  `wrong`: cells whose kernel is wrong, in any farm."""

    devices: dict[str, str]
    cells: int
    bad: dict[str, str] = field(default_factory=dict)
    bad_judges: frozenset[str] = frozenset()
    poison: dict[int, str] = field(default_factory=dict)
    wrong: frozenset[int] = frozenset()
    heals_at: float = float("inf")  # when what is bad is well again
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    now: float = 0.0
    ends: dict[int, Conclude] = field(default_factory=dict)
    stopped: str | None = None
    tries: Counter[int] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    probes: list[ProbeGrant] = field(default_factory=list)
    health: list[HealthChanged] = field(default_factory=list)
    held: dict[str, dict[int, int]] = field(default_factory=dict)  # device -> cell -> attempt: granted or judged
    measured: set[tuple[int, int]] = field(default_factory=set)
    in_flight: int = 0  # the most cells that a bad part had at a time
    companions: dict[int, int] = field(default_factory=dict)  # cell -> other cells of its last lease, or on its host

    def __post_init__(self) -> None:
        self.heap: list[tuple[float, int, str, int, Event]] = []
        self.number = 0
        self.life: Counter[str] = Counter()  # device -> its actors so far
        self.scheduler = Scheduler(
            ["b"] * self.cells,
            [CELL_SECONDS] * self.cells,
            [30.0] * self.cells,
            dict.fromkeys(self.devices, "b"),
            hosts=self.devices,
        )

    def run(self) -> Farm:
        self.obey(self.scheduler.begin(0.0))
        self.later(1.0, "", 0, Tick(0.0))
        for device in self.devices:
            self.start(device)
        for _ in range(200_000):
            if self.stopped is not None:
                return self
            self.now, _, device, life, event = heapq.heappop(self.heap)
            if not device:  # ticks come whatever happens
                self.later(self.now + 1.0, "", 0, event)
            if life == self.life[device]:
                self.feed(event)
        raise AssertionError(f"the run does not end: {self.scheduler.open_cells} cells are open at {self.now:g} s")

    def feed(self, event: Event) -> None:
        if isinstance(event, Ended):
            self.held.get(event.device, {}).pop(event.cell, None)
        if isinstance(event, LeaseDone):  # of what it kept silent about, nothing comes any more
            held = self.held[event.device]
            self.held[event.device] = {c: n for c, n in held.items() if (c, n) in self.measured}
        if isinstance(event, MeasuredEvent):
            self.measured.add((event.cell, event.attempt))
        if isinstance(event, DeviceDown):
            self.deaths[event.device] += 1
            self.life[event.device] += 1  # from the grave comes nothing
        self.obey(self.scheduler.step(type(event)(**{**event.__dict__, "at": self.now})))

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.stopped is None, f"{action} after the end"
            if isinstance(action, Grant):
                self.work(action.lease)
            elif isinstance(action, ProbeGrant):
                self.probe(action)
            elif isinstance(action, Conclude):
                assert action.cell not in self.ends
                without = action.status in (Status.LOST, Status.INFRA_ERROR)
                assert len(action.reason.split()) > 1 or not without, f"{action} has no sentence"
                self.ends[action.cell] = action
            elif isinstance(action, (Replace, Start)):
                self.start(action.device)
            elif isinstance(action, Retire):
                self.life[action.device] += 1
                self.held.pop(action.device, None)
            elif isinstance(action, HealthChanged):
                self.health.append(action)
            elif isinstance(action, Finish):
                self.stopped = action.stopped
                left = self.scheduler.open_cells
                assert bool(left) is bool(action.stopped), f"{left} cells are open: {action.stopped!r}"

    def later(self, at: float, device: str, life: int, event: Event) -> None:
        self.number += 1
        heapq.heappush(self.heap, (at, self.number, device, life, event))

    def say(self, after: float, device: str, event: Event) -> None:
        self.later(self.now + after, device, self.life[device], event)

    def how(self, device: str) -> str:
        return self.bad.get(device, "") if self.now < self.heals_at else ""

    def start(self, device: str) -> None:
        self.life[device] += 1
        self.held[device] = {}
        down = DeviceDown(0.0, device, "it does not start")
        self.say(START_SECONDS, device, down if self.how(device) == "never starts" else DeviceUp(0.0, device, "b:chip"))

    def probe(self, grant: ProbeGrant) -> None:
        self.probes.append(grant)
        assert not self.held[grant.device], "a suspect is probed when it has nothing else"
        device, how = grant.device, self.how(grant.device)
        if how in ("dies", "stuck"):
            if how == "dies":
                self.say(FAST_SECONDS, device, DeviceDown(0.0, device, "died"))
            return
        passed = not how and (self.devices[device] not in self.bad_judges or self.now >= self.heals_at)
        self.say(CELL_SECONDS, device, Probed(0.0, device, grant.probe, passed, "" if passed else "it failed"))

    def work(self, lease: Lease) -> None:
        """What the device will say of a lease, unless it dies before."""
        device, host, at = lease.device, self.devices[lease.device], 0.0
        for a in lease.attempts:
            self.tries[a.cell] += 1
            assert self.tries[a.cell] < 50, f"cell {a.cell} is tried again and again"
            self.held[device][a.cell] = a.number
            beside = [c for d, cells in self.held.items() if self.devices[d] == host for c in cells]
            self.companions[a.cell] = len({*beside, *(b.cell for b in lease.attempts)}) - 1
        if device in self.bad or host in self.bad_judges:
            self.in_flight = max(self.in_flight, len(self.held[device]))
        for a in lease.attempts:
            if a.cell in self.poison:  # all that could be there with it
                self.in_flight = max(self.in_flight, *(len(h) for h in self.held.values()))
            at = self.attempt(device, host, a.cell, a.number, at)
        self.say(at, device, LeaseDone(0.0, device, lease.id))

    def attempt(self, device: str, host: str, cell: int, number: int, at: float) -> float:
        how, of = self.how(device), (0.0, device, cell, number)
        if how == "silent":
            return at + FAST_SECONDS
        self.say(at, device, Started(*of))
        if how in ("infra", "device", "harness"):
            self.say(at + FAST_SECONDS, device, Ended(*of, Status.INFRA_ERROR, Owner(how), "bad device"))
            return at + FAST_SECONDS
        if how == "stuck":
            return at + 1e9
        if how == "dies" or self.poison.get(cell) == "its actor":
            self.say(at + FAST_SECONDS, device, DeviceDown(0.0, device, "its actor died"))
            return at + FAST_SECONDS
        at += CELL_SECONDS * (0.8 + 0.4 * self.dice.random())
        self.say(at, device, MeasuredEvent(*of))
        judged = at + 0.05 + 0.2 * self.dice.random()
        bad_judge = host in self.bad_judges and self.now < self.heals_at
        if self.poison.get(cell) == "its actor while judged":
            self.say(judged, device, DeviceDown(0.0, device, "its actor died"))
        elif bad_judge or self.poison.get(cell) == "its judge":
            why = "the judge died"
            self.say(judged, device, JudgeDown(0.0, device, why))
            self.say(judged, device, Ended(*of, Status.INFRA_ERROR, Owner.INFRA, why, judge_died=True))
        elif cell in self.wrong:
            self.say(judged, device, Ended(*of, Status.INACCURATE, Owner.KERNEL, "wrong"))
        else:
            self.say(judged, device, Ended(*of, Status.PASSED))
        return at

    def expected(self, cell: int) -> Status:
        return Status.INACCURATE if cell in self.wrong else Status.PASSED

    def changed(self) -> list[int]:
        """Cells that have another status than in a healthy farm."""
        return [cell for cell, end in self.ends.items() if end.status is not self.expected(cell)]

    def counts(self) -> Counter[str]:
        return Counter(end.status.value for end in self.ends.values())


def node_of(devices: int, hosts: int) -> dict[str, str]:
    return {f"b:{i}": f"h{i % hosts}" for i in range(devices)}


def law(farm: Farm) -> None:
    """What holds whatever the one bad part is."""
    farm.run()
    changed = [cell for cell in farm.changed() if cell not in farm.poison]
    assert len(farm.changed()) <= farm.in_flight + 2, (farm.counts(), farm.in_flight, farm.bad, farm.poison)
    if farm.stopped:
        assert farm.scheduler.open_cells == farm.cells - len(farm.ends) > 0
        assert farm.bad or farm.bad_judges, "the healthy devices of a farm with one bad cell do all the others"
    else:
        assert len(farm.ends) == farm.cells
    if not farm.stopped:
        assert not changed, [(c, farm.ends[c].status, farm.ends[c].reason) for c in changed]


@pytest.mark.parametrize("seed", range(60))
def test_one_bad_part_costs_a_bounded_number_of_cells(seed: int) -> None:
    play(random.Random(seed))


def play(dice: random.Random) -> None:
    """A farm with one bad part; `make soak` plays more of them."""
    devices = node_of(dice.randint(1, 8), dice.randint(1, 3))
    cells = dice.choice([1, 5, 40, 150])
    farm = Farm(devices, cells, dice=dice, wrong=frozenset(dice.sample(range(cells), cells // 5)))
    part = dice.choice(["device", "device", "judge", "node", "cell"])
    if part == "device":
        farm.bad = {dice.choice(list(devices)): dice.choice(BAD_DEVICES)}
    elif part == "judge":
        farm.bad_judges = frozenset({dice.choice(list(devices.values()))})
    elif part == "node":
        host, how = dice.choice(list(devices.values())), dice.choice(BAD_DEVICES)
        farm.bad = {d: how for d, h in devices.items() if h == host}
    else:
        farm.poison = {dice.randrange(cells): dice.choice(BAD_CELLS)}
        farm.wrong -= farm.poison.keys()
    farm.heals_at = dice.choice([float("inf"), float("inf"), 20.0])
    law(farm)


# The cases of which the law was made


@pytest.mark.parametrize("owner", ["harness", "infra", "device"])
def test_a_device_that_fails_each_cell_at_once_burns_no_plan(owner: str) -> None:
    farm = Farm(node_of(8, 8), 2000, bad={"b:3": owner}).run()
    assert farm.counts() == {"passed": 2000} and farm.stopped == ""
    assert [(h.device, h.state) for h in farm.health] == [("b:3", "suspect"), ("b:3", "quarantined")]


@pytest.mark.parametrize("hosts", [1, 4, 8])
def test_two_sick_devices_burn_no_plan(hosts: int) -> None:
    farm = Farm(node_of(8, hosts), 2000, bad={"b:3": "device", "b:6": "device"}).run()
    assert farm.counts()["passed"] >= 1998 and len(farm.ends) == 2000
    assert {h.device for h in farm.health if h.state == "quarantined"} == {"b:3", "b:6"}


@pytest.mark.parametrize("kills", BAD_CELLS)
def test_a_cell_that_kills_what_it_meets_is_given_up_and_takes_no_device_with_it(kills: str) -> None:
    farm = Farm(node_of(8, 8), 400, poison={7: kills}).run()
    assert farm.counts() == {"passed": 399, "infra_error": 1}
    end = farm.ends[7]
    assert (end.owner, id_of(end.reason), farm.tries[7]) == (Owner.INFRA, "cell-deaths", MAX_DEATHS)
    assert farm.companions[7] == 0, "the third time it was alone"
    assert not [h for h in farm.health if h.state == "quarantined"]


def test_faults_hours_apart_do_not_add_up() -> None:
    s = Scheduler(["b"] * 9, [2.0] * 9, [1e6] * 9, {"b:0": "b"})
    s.begin(0.0)
    for n in range(6):
        s.step(DeviceUp(n * 3600.0, "b:0", "b:chip"))
        actions = s.step(DeviceDown(n * 3600.0 + 60, "b:0", "the OOM killer"))
        assert [type(a) for a in actions if not isinstance(a, Conclude)] == [Replace]


def test_successes_heal_a_device() -> None:
    farm = Farm({"b:0": "h", "b:1": "g"}, 300, poison=dict.fromkeys(range(0, 300, 50), "its actor")).run()
    assert farm.counts() == {"passed": 294, "infra_error": 6}
    assert not [h for h in farm.health if h.state == "quarantined"]


# The rules one by one


def one(cells: int = 9, devices: int = 1) -> tuple[Scheduler, list[Lease]]:
    names = [f"b:{i}" for i in range(devices)]
    s = Scheduler(["b"] * cells, [2.0] * cells, [30.0] * cells, dict.fromkeys(names, "b"), hosts={n: n for n in names})
    s.begin(0.0)
    found: list[Lease] = []
    for name in names:
        found += [a.lease for a in s.step(DeviceUp(0.0, name, "b:chip")) if isinstance(a, Grant)]
    return s, found


def fails(s: Scheduler, lease: Lease, at: float, **how: bool) -> list[Action]:
    out: list[Action] = []
    for a in lease.attempts:
        s.step(Started(at, lease.device, a.cell, a.number))
        of = (at, lease.device, a.cell, a.number)
        out += s.step(Ended(*of, Status.INFRA_ERROR, Owner.DEVICE, "ECC", **how))
    return out + s.step(LeaseDone(at, lease.device, lease.id))


def passes(s: Scheduler, lease: Lease, at: float) -> list[Action]:
    out: list[Action] = []
    for a in lease.attempts:
        s.step(Started(at, lease.device, a.cell, a.number))
        out += s.step(Ended(at, lease.device, a.cell, a.number, Status.PASSED))
    return out + s.step(LeaseDone(at, lease.device, lease.id))


def of(actions: list[Action], kind: Callable[..., Action]) -> list[Action]:
    return [a for a in actions if isinstance(a, kind)]  # type: ignore[arg-type]


def suspect() -> tuple[Scheduler, list[Action]]:
    """One device, suspect by its second fault."""
    s, (lease,) = one()
    (again,) = of(fails(s, lease, 1.0), Grant)
    return s, fails(s, again.lease, 2.0)  # type: ignore[union-attr]


def test_a_suspect_gets_a_probe_and_nothing_else() -> None:
    s, actions = suspect()
    assert of(actions, HealthChanged) == [HealthChanged("b:0", "suspect", "ECC")]
    assert of(actions, ProbeGrant) == [ProbeGrant("b:0", 1, None)] and not of(actions, Grant)
    assert s.step(Tick(3.0)) == []


def test_a_probe_is_the_last_cell_that_passed_on_such_a_device() -> None:
    s, (lease,) = one()
    (grant,) = of(passes(s, lease, 1.0), Grant)
    actions = fails(s, grant.lease, 2.0)  # type: ignore[union-attr]
    passed = lease.attempts[-1]
    assert of(actions, ProbeGrant) == [ProbeGrant("b:0", 1, passed.cell, passed.number)]


def test_a_probe_that_passes_brings_the_device_back_and_uses_no_attempt() -> None:
    s, _ = suspect()
    actions = s.step(Probed(4.0, "b:0", 1, True))
    assert of(actions, HealthChanged) == [HealthChanged("b:0", "ready", "the device passed its probe")]
    (grant,) = of(actions, Grant)
    assert min(a.number for a in grant.lease.attempts) == 1  # type: ignore[union-attr]
    assert s.step(Probed(4.0, "b:0", 1, False)) == []  # late words


def test_what_failed_on_a_suspect_is_charged_once_it_has_proved_itself() -> None:
    s, (lease,) = one(1)
    (again,) = of(fails(s, lease, 1.0), Grant)
    assert not of(fails(s, again.lease, 2.0), Conclude)  # type: ignore[union-attr]
    (end,) = of(s.step(Probed(3.0, "b:0", 1, True)), Conclude)
    assert (end.status, end.owner) == (Status.INFRA_ERROR, Owner.DEVICE)  # type: ignore[union-attr]


def test_a_probe_that_fails_is_repeated_with_another_actor_then_the_device_is_out_and_the_run_stops() -> None:
    s, _ = suspect()
    assert s.step(Probed(4.0, "b:0", 1, False, "ECC again")) == [Replace("b:0", "ECC again")]
    (probe,) = s.step(DeviceUp(5.0, "b:0", "b:chip"))
    assert probe == ProbeGrant("b:0", 2, None)
    actions = s.step(Probed(6.0, "b:0", 2, False, "ECC once more"))
    assert [type(a) for a in actions] == [HealthChanged, Retire, Finish]
    assert "only device of backend b" in actions[-1].stopped and "ECC once more" in actions[-1].stopped  # type: ignore
    assert s.open_cells == 9, "nothing is concluded: farm resume runs it all"


def test_a_device_that_dies_in_its_probe_or_never_ends_it_has_failed_it() -> None:
    s, _ = suspect()
    assert [type(a) for a in s.step(DeviceDown(4.0, "b:0", "died"))] == [Replace]
    s.step(DeviceUp(5.0, "b:0", "b:chip"))
    actions = s.step(Tick(1e5))
    assert [type(a) for a in actions] == [HealthChanged, Retire, Finish]


def test_a_device_that_never_starts_is_tried_three_times() -> None:
    s = Scheduler(["b"], [1.0], [1.0], {"b:0": "b"})
    s.begin(0.0)
    seen = [[type(a) for a in s.step(DeviceDown(float(n), "b:0", "no driver"))] for n in range(3)]
    assert seen == [[Replace], [HealthChanged, Replace], [HealthChanged, Retire, Finish]]


def test_the_others_work_on_until_over_half_are_out() -> None:
    for bad, stops in ((4, False), (5, True)):
        farm = Farm(node_of(8, 8), 400, bad={f"b:{i}": "device" for i in range(bad)}).run()
        assert bool(farm.stopped) is stops
        assert bool(farm.scheduler.open_cells) is stops
        if stops:
            assert "5 of the 8 devices of backend b" in str(farm.stopped)
            assert len(farm.changed()) <= bad * 2


def test_a_target_that_is_out_stops_no_other() -> None:
    s = Scheduler(["a"] * 3 + ["b"] * 3, [2.0] * 6, [9.0] * 6, {"a:0": "a", "b:0": "b"}, hosts={"a:0": "x", "b:0": "y"})
    s.begin(0.0)
    for n in range(3):
        actions = s.step(DeviceDown(float(n), "a:0", "no driver"))
    assert [type(a) for a in actions] == [HealthChanged, Retire]
    actions = s.step(DeviceUp(5.0, "b:0", "b:chip"))
    for at in (6.0, 7.0, 8.0):
        (grant,) = of(actions, Grant)
        actions = passes(s, grant.lease, at)  # type: ignore[union-attr]
    (finish,) = of(actions, Finish)
    assert "backend a" in finish.stopped and s.open_cells == 3  # type: ignore[union-attr]


def test_a_quarantined_device_is_probed_again_after_a_while() -> None:
    farm = Farm(node_of(3, 3), 6000, bad={"b:1": "device"}, heals_at=100.0).run()
    assert [h.state for h in farm.health] == ["suspect", "quarantined", "ready"]
    assert farm.counts() == {"passed": 6000}


def test_a_quarantined_device_that_is_added_again_starts_with_a_clean_state() -> None:
    s, _ = one(9, 2)
    for n in range(4):
        s.step(DeviceDown(float(n), "b:0", "died"))
    assert s.step(DeviceAdded(9.0, "b:0", "b", "b:0")) == [Start("b:0")]
    (grant,) = of(s.step(DeviceUp(10.0, "b:0", "b:chip")), Grant)
    assert grant.lease.device == "b:0"  # type: ignore[union-attr]


def test_a_cell_that_failed_goes_to_another_node_if_there_is_one() -> None:
    names = {"b:0": "h", "b:1": "h", "b:2": "g"}
    s = Scheduler(["b"] * 3, [2.0] * 3, [30.0] * 3, dict.fromkeys(names, "b"), hosts=names)
    s.begin(0.0)
    leases = [of(s.step(DeviceUp(0.0, n, "b:chip")), Grant)[0].lease for n in names]  # type: ignore[union-attr]
    fails(s, leases[0], 1.0)
    assert not of(passes(s, leases[1], 2.0), Grant), "b:1 is on the same node"
    (grant,) = of(passes(s, leases[2], 3.0), Grant)
    assert grant.lease.device == "b:2"  # type: ignore[union-attr]


def test_faults_of_several_devices_of_a_node_make_all_of_them_suspect() -> None:
    names = {"b:0": "h", "b:1": "h", "b:2": "h", "b:3": "g"}
    s = Scheduler(["b"] * 20, [2.0] * 20, [30.0] * 20, dict.fromkeys(names, "b"), hosts=names)
    s.begin(0.0)
    leases = [of(s.step(DeviceUp(0.0, n, "b:chip")), Grant)[0].lease for n in names]  # type: ignore[union-attr]
    assert not of(fails(s, leases[0], 1.0), HealthChanged)
    changed = of(fails(s, leases[1], 1.5), HealthChanged)
    assert [(h.device, h.state) for h in changed] == [(n, "suspect") for n in ("b:0", "b:1", "b:2")]  # type: ignore
    assert of(passes(s, leases[3], 2.0), Grant), "another node works on"


# The records


def test_a_device_is_suspect_after_faults_in_a_row_and_time_halves_the_row() -> None:
    health = Health()
    assert [health.fault(float(n), "x") for n in range(SUSPECT_AFTER)] == [False] * (SUSPECT_AFTER - 1) + [True]
    assert not health.fault(9.0, "x"), "it is suspect already"
    slow = Health()
    assert not any(slow.fault(n * HEAL_SECONDS, "x") for n in range(1, 9))
    healed = Health()
    healed.fault(0.0, "x")
    healed.success()
    assert not healed.fault(1.0, "x")


def test_a_quarantine_takes_twice_as_long_each_time_and_needs_one_failure_after_the_first() -> None:
    health = Health()
    assert [health.fail(0.0, "x") for _ in range(MAX_PROBES)] == [False] * (MAX_PROBES - 1) + [True]
    assert health.until == QUARANTINE_SECONDS
    assert health.fail(1000.0, "x") and health.until == 1000.0 + 2 * QUARANTINE_SECONDS
    health.passed()
    assert not health.suspect and not health.fail(2000.0, "x")


def test_one_part_alone_makes_no_bad_node() -> None:
    node = NodeHealth()
    assert not any(node.fault(float(n), "b:0") for n in range(9))
    assert node.fault(9.0, "b:1")
    node.fault(10.0, "b:0")
    node.success()
    assert not node.fault(11.0, "b:1")


def test_a_judge_is_replaced_without_bound_after_pauses_that_double_and_are_forgotten() -> None:
    judge = JudgeHealth()
    pauses = [judge.died(float(n)) for n in range(20)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0] and pauses[-1] == LONGEST_PAUSE_SECONDS
    assert judge.died(1e6) == 1.0


def test_the_limits_are_in_order() -> None:
    assert 1 < ALONE_AFTER < MAX_DEATHS
