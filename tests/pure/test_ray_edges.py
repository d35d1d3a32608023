"""What a run does with a Ray that answers late, or not at all: nothing of it may make other devices wait."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from farm import PROTOCOL, __version__
from farm.cluster import node_actors, ray_cluster, registry_client
from farm.cluster.base import DeviceHandle
from farm.cluster.inventory import ClusterNode
from farm.cluster.ray_cluster import RayCluster
from farm.cluster.raylet_watchdog import RayletWatchdog
from farm.cluster.registry_client import NodeWatch
from farm.deadline import Deadline
from farm.errors import id_of
from farm.shipping import revision


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeRay:
    """References are texts; those in `there` have answers.  Waiting for others costs the whole timeout."""

    def __init__(self, clock: Clock):
        self.clock, self.there, self.killed = clock, dict[str, Any](), list[Any]()

    def wait(self, refs: list[str], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[str], list[str]]:
        ready = [r for r in refs if r in self.there][:num_returns]
        if len(ready) < num_returns:
            self.clock.now += timeout
        return ready, [r for r in refs if r not in ready]

    def get(self, ref: str, timeout: float) -> Any:
        if ref not in self.there:
            self.clock.now += timeout
            raise TimeoutError(ref)
        return self.there[ref]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Actor:
    """Each call gives a reference `name.method-N`."""

    def __init__(self, name: str):
        self.name, self.asked = name, list[str]()

    def __getattr__(self, method: str) -> Any:
        return self

    def remote(self, *arguments: Any) -> str:
        self.asked.append(f"{self.name}-{len(self.asked)}")
        return self.asked[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ray_cluster, "time", made)
    return made


@pytest.fixture
def ray(clock: Clock) -> FakeRay:
    return FakeRay(clock)


@pytest.fixture
def cluster(ray: FakeRay) -> RayCluster:
    made: Any = object.__new__(RayCluster)
    made._ray, made._local, made._watch, made._in_vain, made.lost = ray, False, None, 0.0, False
    made._deaths = RayletWatchdog({}, "r1")
    made._deaths.settle()
    made._content, made._differing, made._judges, made._lock_s = "ours", set(), {}, {}
    made._actors, made._slots, made._polls, made._next_look = {}, {}, {}, Deadline(1e9)
    made._key, made._run, made._patterns, made._held, made._unplaced = "k", "r", {}, {}, {}
    made._reported, made._next_registry = (None, Deadline(0.0)), Deadline(1e9)
    for i in range(64):
        made._actors[f"d{i}"] = Actor(f"d{i}")
        made._slots[f"d{i}"] = DeviceHandle(f"d{i}", "sim", f"n{i}", host=f"n{i}")
        made._poll(f"d{i}")
    found: RayCluster = made
    return found


def test_events_of_all_devices_arrive_in_one_round(cluster: RayCluster, ray: FakeRay) -> None:
    """With one answer a round a busy cluster's leases would seem to run out while their ends wait to be heard."""
    ray.there = {f"d{i}-0": [{"event": "lease_done", "lease": i}] for i in range(63)}
    assert sorted(e["lease"] for e in cluster.events(0.2)) == list(range(63))
    assert cluster.events(0.2) == []
    ray.there["d63-0"] = [{"event": "lease_done", "lease": 63}]
    assert [e["device"] for e in cluster.events(0.2)] == ["d63"]


def test_an_actor_whose_answer_is_malformed_is_down_and_asked_no_more(cluster: RayCluster, ray: FakeRay) -> None:
    ray.there = {"d3-0": [{"event": "lease_done", "lease": 1}, {"event": "haha"}], "d4-0": 7}
    found = cluster.events(0.2)
    assert sorted((e["device"], e["event"]) for e in found) == [
        ("d3", "device_down"),
        ("d3", "lease_done"),
        ("d4", "device_down"),
    ]
    assert {d for d, _ in cluster._polls.values()} == {f"d{i}" for i in range(64)} - {"d3", "d4"}


def queued(cluster: RayCluster, ray: FakeRay, *devices: str) -> None:
    """None of the devices answers, and Ray has not placed the actors of these."""
    for name in devices:
        cluster._unplaced[name] = ray_cluster._Unplaced(0.0)


def test_an_actor_that_ray_has_not_placed_is_waiting_and_not_silent(
    cluster: RayCluster, ray: FakeRay, clock: Clock
) -> None:
    queued(cluster, ray, "d0", "d1")
    clock.now = ray_cluster.POLL_SECONDS + cluster._silence + 1
    found = cluster.events(0.0)
    assert sorted(e["device"] for e in found if e["event"] == "device_down") == sorted(f"d{i}" for i in range(2, 64))
    clock.now = 10_000.0
    assert {e["event"] for e in cluster.events(0.0)} <= {"device_waits"}


def test_a_ray_of_its_own_keeps_nobody_waiting_for_a_device(cluster: RayCluster, ray: FakeRay, clock: Clock) -> None:
    cluster._local = True
    queued(cluster, ray, *(f"d{i}" for i in range(64)))
    clock.now = ray_cluster.FIRST_SECONDS - 1  # on a busy host a process may take its time
    assert cluster.events(0.0) == []
    clock.now = ray_cluster.FIRST_SECONDS + 1
    assert {e["event"] for e in cluster.events(0.0)} == {"device_down"}


def test_an_actor_is_held_to_answer_once_it_has_answered(cluster: RayCluster, ray: FakeRay, clock: Clock) -> None:
    queued(cluster, ray, *(f"d{i}" for i in range(64)))
    clock.now = 1000.0
    ray.there = {"d0-0": [{"event": "placed"}]}
    assert [(e["event"], e["device"]) for e in cluster.events(0.0) if e["event"] != "device_waits"] == [
        ("placed", "d0")
    ]
    clock.now += ray_cluster.POLL_SECONDS + cluster._silence + 1
    (down,) = [e for e in cluster.events(0.0) if e["event"] == "device_down"]
    assert down["device"] == "d0" and not down["final"]


def test_a_run_says_rarely_which_run_has_the_device_it_waits_for(
    cluster: RayCluster, ray: FakeRay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Actor("nodes")
    monkeypatch.setattr(registry_client, "find", lambda ray, create: registry)
    cluster._watch = NodeWatch(ray)
    monkeypatch.setattr(cluster._watch, "_answer", lambda method, seconds, known: runs)
    queued(cluster, ray, "d0")
    held = {"x": {"node": "n0", "backend": "sim", "target": "", "since": 0.0}}
    busy = {"other": {"run": "r1", "user": "me@here", "devices": held, "patterns": {}}}
    runs: dict[str, Any] = busy
    said: list[tuple[float, bool, str]] = []
    for _ in range(1000):
        clock.now += 2.0
        if clock.now > 1500:
            runs = {}
        cluster._next_registry = Deadline(0.0)
        said += [(clock.now, e["busy"], e["reason"]) for e in cluster._look_at_registry()]
    (first, again, more, freed) = said
    assert first[:2] == (2.0, True) and "run r1 of me@here since 1970-01-01 00:00:00 UTC" in first[2]
    assert again[0] - first[0] >= ray_cluster.REPEAT_SECONDS <= more[0] - again[0]
    assert not freed[1] and [id_of(s[2]) for s in said] == 3 * ["cluster-device-busy"] + ["cluster-device-unplaced"]


def test_the_registry_hears_what_the_run_has_as_soon_as_it_changes(
    cluster: RayCluster, ray: FakeRay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Actor("nodes")
    monkeypatch.setattr(registry_client, "find", lambda ray, create: registry)
    cluster._watch = NodeWatch(ray)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(cluster._watch, "standing", lambda key, said: told.append(copy.deepcopy(said)))
    queued(cluster, ray, "d0")

    def hear(*events: dict[str, Any]) -> None:
        for event in events:
            ray.there = {next(r for r, (d, _) in cluster._polls.items() if d == "d0"): [event]}
            cluster.events(0.0)
        for _ in range(2):  # the second time there is nothing new
            cluster._next_registry = Deadline(0.0)
            cluster._look_at_registry()

    hear()
    hear({"event": "placed"})
    up = {"event": "device_up", "backend": "sim", "target": {"backend": "sim", "model": "x"}, "name": "x", "node": "n"}
    hear({**up, "fingerprint": {}, "evidence": "simulated"})
    cluster.stop("d0")
    hear()
    assert [[d["target"] for d in said["devices"].values()] for said in told] == [[], [""], ["sim:x"], []]


def test_an_actor_that_was_never_placed_is_ended_without_being_asked(
    cluster: RayCluster, ray: FakeRay, clock: Clock
) -> None:
    queued(cluster, ray, *(f"d{i}" for i in range(64)))
    for i in range(64):
        cluster.stop(f"d{i}")
    assert len(ray.killed) == 64 and clock.now == 0.0


def test_a_node_that_froze_does_not_stop_the_run(cluster: RayCluster, ray: FakeRay, clock: Clock) -> None:
    for i in range(64):
        cluster.stop(f"d{i}")
    assert len(ray.killed) == 64
    assert clock.now < 10  # leases have 30 s to spare
    clock.now, cluster._actors["late"] = 0.0, Actor("late")
    cluster.events(0.0)
    cluster.stop("late")
    assert clock.now >= ray_cluster.STOP_SECONDS  # in the next round one is waited for again


def test_actors_that_stop_are_waited_for_however_many(cluster: RayCluster, ray: FakeRay, clock: Clock) -> None:
    ray.there = {f"d{i}-1": None for i in range(63)}
    for i in range(64):
        cluster.stop(f"d{i}")
    assert clock.now == ray_cluster.STOP_SECONDS  # for the one that does not


def test_a_node_of_another_protocol_is_refused_with_both_numbers(cluster: RayCluster, ray: FakeRay) -> None:
    ray.there["d7-0"] = [{"event": "node_farm", "protocol": 0, "content": ""}]
    (down,) = cluster.events(0.2)
    assert (down["event"], down["device"], down["final"]) == ("device_down", "d7", True)
    assert id_of(down["reason"]) == "cluster-protocol"
    assert "protocol 0" in down["reason"] and str(PROTOCOL) in down["reason"]


def test_other_sources_of_a_node_are_reported_once_for_the_node(cluster: RayCluster, ray: FakeRay) -> None:
    for i in range(8):
        cluster._slots[f"d{i}"] = DeviceHandle(f"d{i}", "sim", f"n{i // 4}", labels={"node": f"node-{i // 4}"})
        theirs = "ours" if i < 4 else "theirs"
        ray.there[f"d{i}-0"] = [{"event": "node_farm", "protocol": PROTOCOL, "content": theirs}]
    told, *placed = sorted(cluster.events(0.2), key=lambda e: str(e["event"]))
    assert {e["event"] for e in placed} == {"placed"}  # each of them has come further
    assert (told["event"], told["node"], told["content"], told["ours"]) == ("node_differs", "node-1", "theirs", "ours")


@pytest.mark.parametrize(
    ("labels", "id"),
    [
        ({}, ""),
        ({"protocol": str(PROTOCOL), "version": "0.0.9"}, ""),
        ({"protocol": "0", "version": __version__}, "cluster-protocol"),
        ({"version": __version__}, ""),  # it joined with older software; its actor states what it has now
        ({"version": "0.0.9"}, "cluster-version"),
    ],
)
def test_a_node_is_held_to_what_it_stated_when_it_joined(labels: dict[str, str], id: str) -> None:
    assert id_of(ray_cluster._stale(labels)) == id


def first_words(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What an actor without Ray says until it has nothing more to say."""
    actor = node_actors._RayDevice(config, [])
    actor._starting.join(60)
    said = [event for _ in range(5) for event in actor.poll(0.01)]
    actor.submit({})
    actor.stop()
    return said


def test_an_actor_on_a_node_of_another_protocol_starts_nothing() -> None:
    said = first_words({"protocol": PROTOCOL + 1})
    assert said == [{"event": "placed"}, {"event": "node_farm", "protocol": PROTOCOL, "content": ""}]


def test_an_actor_whose_start_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would have told of an exception in its constructor; of one in its thread nobody would hear."""
    monkeypatch.setattr(revision, "content", lambda folder: 1 / 0)
    placed, down = first_words({"protocol": PROTOCOL})
    assert placed["event"] == "placed" and (down["event"], down["final"]) == ("device_down", False)


def test_an_actor_answers_while_its_farm_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cold network file system that takes longer than an actor may be silent."""
    going_on = threading.Event()
    monkeypatch.setattr(revision, "content", lambda folder: going_on.wait(60) and "x")
    actor = node_actors._RayDevice({"protocol": PROTOCOL, "device": "d"}, [])
    monkeypatch.setattr(actor, "_device", lambda *given: None)
    assert [actor.poll(0.01) for _ in range(3)] == [[{"event": "placed"}], [], []]
    going_on.set()
    assert actor.poll(60)[0]["content"] == "x"
    actor.stop()


def a_node(name: str) -> ClusterNode:
    return ClusterNode(f"id-{name}", name, "h", "a", True, ("sim",), {})


def test_a_registry_that_hangs_is_asked_once_and_heard_when_it_answers(
    ray: FakeRay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Actor("nodes")
    monkeypatch.setattr(registry_client, "find", lambda ray, create: registry)
    watch = NodeWatch(ray)
    for _ in range(10):
        watch.look(0.1)
    assert registry.asked == ["nodes-0"] and clock.now < 1.01
    assert watch.away(a_node("n1")) == ""
    ray.there["nodes-0"] = {"n1": {"state": "draining", "since": 1.0, "who": "me", "reason": "repair"}}
    watch.look(0.1)
    assert all(fact in watch.away(a_node("n1")) for fact in ("me", "repair"))
    ray.there["nodes-1"] = {}
    watch.look(0.1)
    assert watch.away(a_node("n1")) == ""


def test_a_registry_that_died_is_looked_for_again(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Actor("old"), Actor("new")]
    monkeypatch.setattr(registry_client, "find", lambda ray, create: found.pop(0))
    watch, get = NodeWatch(ray), ray.get

    def died(ref: str, timeout: float) -> Any:
        raise RuntimeError("the actor died")

    ray.there = {"old-0": {}, "new-0": {"n1": {"state": "draining", "since": 1.0, "who": "me"}}}
    monkeypatch.setattr(ray, "get", died)
    watch.look(0.1)
    monkeypatch.setattr(ray, "get", get)
    watch.look(0.1)
    assert "me" in watch.away(a_node("n1"))


def test_a_judge_that_died_is_reported_once_and_replaced_after_a_pause(
    cluster: RayCluster, ray: FakeRay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_judge", lambda node, sharers: f"next judge of {node}, one of {sharers}")
    cluster._judges = {"id-h": [ray_cluster._NodeJudge("first"), ray_cluster._NodeJudge("second")]}
    cluster._slots = {f"d{i}": DeviceHandle(f"d{i}", "cuda", "id-h") for i in range(3)}
    died = {"event": "judge_down", "judge": 1, "generation": 0, "reason": "killed"}
    ray.there = {"d0-0": [died], "d1-0": [died], "d2-0": [{**died, "judge": 7}]}
    assert [(e["event"], e["device"]) for e in cluster.events(0.0)] == [("judge_down", "d0")]
    assert ray.killed == ["second"]
    assert cluster._judges_on("id-h", 60.0) == [(0, 0, "first"), (1, 0, None)]
    clock.now += 2.0
    asked = {device: len(cluster._actors[device].asked) for device in ("d0", "d1", "d2")}
    cluster.events(0.0)
    assert cluster._judges_on("id-h", 60.0) == [(0, 0, "first"), (1, 1, "next judge of id-h, one of 2")]
    assert all(len(cluster._actors[d].asked) == asked[d] + 1 for d in asked)  # each device was told
    ray.there |= {cluster._actors["d0"].asked[1]: [died]}  # what comes late is of the dead one
    assert cluster.events(0.0) == [] and len(cluster._judges_on("id-h", 60.0)) == 2
