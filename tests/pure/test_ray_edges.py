"""What a run does with a Ray that answers late, or not at all: nothing of it may make other devices wait."""

from __future__ import annotations

from typing import Any

import pytest

from farm import PROTOCOL, __version__
from farm.cluster import node_actors, ray_cluster, registry_client
from farm.cluster.base import DeviceHandle
from farm.cluster.inventory import ClusterNode
from farm.cluster.ray_cluster import RayCluster
from farm.cluster.registry_client import NodeWatch
from farm.deadline import Deadline
from farm.errors import id_of


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
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
    made._ray, made._raylet, made._local, made._watch, made._in_vain = ray, None, False, None, 0.0
    made._content, made._differing, made._judges = "ours", set(), {}
    made._actors, made._slots, made._polls, made._next_look = {}, {}, {}, Deadline(1e9)
    for i in range(64):
        made._actors[f"d{i}"] = Actor(f"d{i}")
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
    (told,) = cluster.events(0.2)
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


def test_an_actor_on_a_node_of_another_protocol_starts_nothing() -> None:
    actor = node_actors._RayDevice({"protocol": PROTOCOL + 1}, [])
    assert actor.poll(0.0) == [{"event": "node_farm", "protocol": PROTOCOL, "content": ""}]
    actor.submit({})
    assert actor.poll(0.0) == []
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
    ray.there["nodes-0"] = {"n1": {"who": "me", "reason": "repair"}}
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

    ray.there = {"old-0": {}, "new-0": {"n1": {"who": "me"}}}
    monkeypatch.setattr(ray, "get", died)
    watch.look(0.1)
    monkeypatch.setattr(ray, "get", get)
    watch.look(0.1)
    assert "me" in watch.away(a_node("n1"))


def test_a_judge_that_died_is_reported_once_and_replaced_after_a_pause(
    cluster: RayCluster, ray: FakeRay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_judge", lambda node: f"next judge of {node}")
    cluster._judges = {"id-h": [ray_cluster._NodeJudge("first"), ray_cluster._NodeJudge("second")]}
    cluster._slots = {f"d{i}": DeviceHandle(f"d{i}", "cuda", "id-h") for i in range(3)}
    died = {"event": "judge_down", "judge": 1, "generation": 0, "reason": "killed"}
    ray.there = {"d0-0": [died], "d1-0": [died], "d2-0": [{**died, "judge": 7}]}
    assert [(e["event"], e["device"]) for e in cluster.events(0.0)] == [("judge_down", "d0")]
    assert ray.killed == ["second"]
    assert cluster._judges_on("id-h") == [(0, 0, "first"), (1, 0, None)]
    clock.now += 2.0
    asked = {device: len(cluster._actors[device].asked) for device in ("d0", "d1", "d2")}
    cluster.events(0.0)
    assert cluster._judges_on("id-h") == [(0, 0, "first"), (1, 1, "next judge of id-h")]
    assert all(len(cluster._actors[d].asked) == asked[d] + 1 for d in asked)  # each device was told
    ray.there |= {cluster._actors["d0"].asked[1]: [died]}  # what comes late is of the dead one
    assert cluster.events(0.0) == [] and len(cluster._judges_on("id-h")) == 2
