"""Which devices a run is offered as nodes come, leave, are drained and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from farm.cluster.inventory import ClusterNode, Inventory, nodes


def row(
    name: str,
    id: str = "",
    *,
    alive: bool = True,
    backend: str = "sim",
    address: str = "10.0.0.9",
    resources: Mapping[str, float] | None = None,
    **labels: str,
) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    own = {"farm/backend": backend} if backend else {}
    named = {"farm/node": name} if name else {}
    return {
        "NodeID": id or f"id-{name}",
        "Alive": alive,
        "NodeName": address,
        "NodeManagerHostname": f"host-{name}",
        "NodeManagerAddress": address,
        "Resources": {"CPU": 8.0, **(resources or {"farm_sim": 2.0})},
        "Labels": {**own, **named, **{f"farm/{k}": v for k, v in labels.items()}, "ray.io/node-id": id},
    }


def nobody(node: ClusterNode) -> str:
    return ""


class Out:
    """Names that an operator has taken out."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, node: ClusterNode) -> str:
        return "drained by me" if node.name in self.names else ""


def names(slots: Any) -> list[str]:
    return [s.device for s in slots]


def test_a_slot_for_each_device_with_its_host_and_its_labels() -> None:
    table = nodes(
        [
            row("a", rack="r7"),
            row("b", backend="sim.cuda", resources={"farm_sim": 1.0, "GPU": 2.0}),
            row("c", backend=""),
        ]
    )
    found = Inventory(None).begin(table, ["sim", "cuda"], nobody)
    assert names(found) == ["a/sim:0", "a/sim:1", "b/sim:0", "b/cuda:0", "b/cuda:1"]
    assert [s.host for s in found] == ["a", "a", "b", "b", "b"]
    assert found[0].labels == {"backend": "sim", "node": "a", "rack": "r7"}
    assert found[0].node == "id-a"


def test_nodes_of_one_machine_share_its_host() -> None:
    table = nodes([row("a", host="m1"), row("b", host="m1")])
    assert {s.host for s in Inventory(None).begin(table, ["sim"], nobody)} == {"m1"}


@pytest.mark.parametrize(
    ("backend", "resources", "count"),
    [
        ("cuda", {"GPU": 4.0}, 4),
        ("rocm", {"GPU": 8.0}, 8),
        ("ascend", {"NPU": 8.0, "GPU": 1.0}, 8),
        ("ascend", {"GPU": 8.0}, 0),  # what Ray counts as GPU is no NPU
        ("cpu", {"farm_cpu": 3.0}, 3),
        ("cpu", {"object_store_memory": 1.0}, 2),  # by its label alone
        ("cuda", {"object_store_memory": 1.0}, 0),
    ],
)
def test_devices_are_counted_by_the_backends_resource(backend: str, resources: dict[str, float], count: int) -> None:
    (node,) = nodes([row("a", backend=backend, resources=resources)])
    assert node.count(backend) == count
    assert Inventory(None).available([node], nobody) == {backend: count}
    assert Inventory(2).available([node], nobody) == {backend: min(2, count)}


def test_a_node_that_joins_is_new_once() -> None:
    roster = Inventory(None)
    first = nodes([row("a")])
    begun = roster.begin(first, ["sim"], nobody)
    assert names(begun) == ["a/sim:0", "a/sim:1"]
    assert roster.refresh(first, nobody, names(begun)).new == ()
    both = nodes([row("a"), row("b"), row("c", backend="cuda", resources={"GPU": 1.0})])
    assert names(roster.refresh(both, nobody, names(begun)).new) == ["b/sim:0", "b/sim:1"]  # cuda is not this run's
    assert roster.refresh(both, nobody, names(begun)).new == ()


def test_a_device_that_was_given_up_is_not_offered_again() -> None:
    roster = Inventory(None)
    table = nodes([row("a")])
    roster.begin(table, ["sim"], nobody)
    assert roster.refresh(table, nobody, held=["a/sim:1"]).new == ()


def test_a_drained_node_is_told_once_and_new_again_when_it_is_restored_and_idle() -> None:
    roster, out = Inventory(None), Out()
    table = nodes([row("a"), row("b")])
    roster.begin(table, ["sim"], out)
    held = ["a/sim:0", "a/sim:1", "b/sim:0", "b/sim:1"]
    out.names = {"a"}
    assert roster.refresh(table, out, held).drained == ("a/sim:0", "a/sim:1")
    assert roster.refresh(table, out, held).drained == ()
    assert roster.available(table, out) == {"sim": 2}
    out.names = set()
    assert roster.refresh(table, out, held).new == ()  # a device there still ends what it has begun
    assert roster.refresh(table, out, ["a/sim:1", *held[2:]]).new == ()
    assert names(roster.refresh(table, out, held[2:]).new) == ["a/sim:0", "a/sim:1"]
    assert roster.refresh(table, out, held) == roster.refresh(table, out, held)
    out.names = {"a"}
    assert roster.refresh(table, out, held).drained == ("a/sim:0", "a/sim:1")


def test_a_node_that_was_out_from_the_beginning_joins_when_it_is_restored() -> None:
    roster, out = Inventory(None), Out()
    out.names = {"a"}
    table = nodes([row("a"), row("b")])
    assert names(roster.begin(table, ["sim"], out)) == ["b/sim:0", "b/sim:1"]
    assert roster.refresh(table, out, ["b/sim:0", "b/sim:1"]).drained == ()
    out.names = set()
    assert names(roster.refresh(table, out, ["b/sim:0", "b/sim:1"]).new) == ["a/sim:0", "a/sim:1"]


def test_a_node_that_came_back_has_its_names_again_once_the_run_knows_of_its_death() -> None:
    roster = Inventory(None)
    begun = names(roster.begin(nodes([row("a", "one")]), ["sim"], nobody))
    back = nodes([row("a", "one", alive=False), row("a", "two")])
    assert roster.refresh(back, nobody, begun).new == ()  # the run still holds the dead ones
    new = roster.refresh(back, nobody, []).new
    assert names(new) == begun
    assert {s.node for s in new} == {"two"}


def test_living_nodes_of_one_name_have_devices_of_different_names() -> None:
    roster = Inventory(1)
    found = names(roster.begin(nodes([row("a", "one"), row("a", "two")]), ["sim"], nobody))
    assert found == ["a/sim:0", "a/sim:0~2"]
    third = nodes([row("a", "one"), row("a", "two"), row("a", "three")])
    assert names(roster.refresh(third, nobody, found).new) == ["a/sim:0~3"]


def test_without_a_label_a_nodes_name_is_rays() -> None:
    (node,) = nodes([row("", "x", backend="nonsense.sim")])
    assert node.name == "10.0.0.9"
    assert node.backends == ("sim",)
    assert names(Inventory(None, local=True).begin([node], ["sim"], nobody)) == ["sim:0", "sim:1"]
