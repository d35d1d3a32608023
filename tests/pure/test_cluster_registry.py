"""What the registry of nodes remembers, also over its own death; and the list made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cluster_inventory import row

from farm.cluster import listing
from farm.cluster.inventory import nodes
from farm.cluster.registry import KEEP_DEVICES, Registry, away

UP = {
    "event": "device_up",
    "run": "r1",
    "name": "AMD Instinct MI300X",
    "evidence": "executed",
    "target": {"backend": "rocm", "model": "AMD Instinct MI300X", "partition": "spx"},
    "fingerprint": {"torch": "2.9.1+rocm7.1", "driver": "6.12.12", "rocm": "7.1.0", "memory_gib": 191.7},
}


def test_a_drained_node_is_out_until_it_is_restored(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "state" / "nodes.json"))
    registry.drain("a", "id-1", "fan", "me@here")
    assert away(registry.out(), "b", "id-2") is None
    for known in (registry, Registry(str(tmp_path / "state" / "nodes.json"))):  # it was written down
        said = away(known.out(), "a", "id-2")  # also when the host comes back as another node
        assert said is not None
        assert (said["state"], said["reason"], said["who"]) == ("draining", "fan", "me@here")
    registry.drained("a", "id-1")
    again = Registry(str(tmp_path / "state" / "nodes.json"))
    assert again.out()["a"]["state"] == "drained"
    assert again.restore("a", "id-1")
    assert not again.restore("a", "id-1")
    assert Registry(str(tmp_path / "state" / "nodes.json")).out() == {}


def test_out_once_is_over_when_the_node_comes_back() -> None:
    registry = Registry()
    registry.drain("a", "id-1", "walltime", "me@here", once=True)
    assert away(registry.out(), "a", "id-1")
    assert away(registry.out(), "a", "id-2") is None
    assert registry.restore("a", "id-1")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"out": 3}', '{"out": {}}'])
def test_a_damaged_file_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "n.json").write_text(content)
    registry = Registry(str(tmp_path / "n.json"))
    assert registry.told() == {"out": {}, "devices": {}}
    registry.drain("a", "1", "", "me")
    assert json.loads((tmp_path / "n.json").read_text())["out"]["a"]["state"] == "draining"


def test_a_folder_that_cannot_be_written_is_no_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    registry = Registry(str(tmp_path / "file" / "nodes.json"))
    registry.drain("a", "1", "", "me")
    assert away(registry.out(), "a", "1")


def test_devices_are_remembered_in_bounds() -> None:
    registry = Registry()
    for i in range(KEEP_DEVICES + 5):
        registry.seen("a", f"a/sim:{i}", {"event": "device_down", "reason": "it broke", "run": "r1"})
    kept = registry.told()["devices"]
    assert len(kept) == KEEP_DEVICES
    assert "a/sim:0" not in kept and f"a/sim:{KEEP_DEVICES + 4}" in kept


def test_the_list_tells_state_model_versions_and_the_last_fault() -> None:
    registry = Registry()
    registry.seen("amd", "amd/rocm:0", UP)
    registry.seen("amd", "amd/rocm:0", {"event": "device_down", "reason": "it was long ago", "run": "r0"})
    registry.seen("amd", "amd/rocm:1", {"event": "quarantine", "reason": "faulted twice", "run": "r1"})
    registry.drain("amd", "id-amd", "swap the fan", "me@here")
    table = nodes(
        [
            row("amd", backend="rocm", resources={"GPU": 8.0}),
            row("idle", driver="580.95", model="H200"),
            row("", "head", backend="", address="10.0.0.1"),
            row("left", alive=False),
            row("amd", "old", alive=False),
            row("other", backend="", alive=False),
        ]
    )
    found = {r["node"]: r for r in listing.rows(table, registry.told())}
    assert list(found) == ["10.0.0.1", "amd", "idle", "left"]
    amd = found["amd"]
    assert amd["backends"] == {"rocm": 8}
    assert (amd["state"], amd["model"]) == ("draining", "AMD Instinct MI300X")
    assert amd["targets"] == ["rocm:AMD-Instinct-MI300X:spx"]
    assert amd["versions"] == {"torch": "2.9.1+rocm7.1", "driver": "6.12.12", "rocm": "7.1.0"}
    assert amd["last_fault"]["reason"] == "faulted twice"
    assert (found["idle"]["state"], found["idle"]["model"], found["idle"]["versions"]) == (
        "up",
        "H200",
        {"driver": "580.95"},
    )
    assert found["left"]["state"] == "gone"
    json.dumps(list(found.values()))
    at = registry.told()["devices"]["amd/rocm:1"]["fault"]["at"]
    lines = listing.lines(list(found.values()), at + 180)
    assert lines[0].split() == ["NODE", "HOST", "BACKEND", "DEVICES", "MODEL", "VERSIONS", "STATE", "LAST", "FAULT"]
    (line,) = [x for x in lines if x.startswith("amd")]
    for part in (
        "rocm  ",
        " 8 ",
        "driver 6.12.12, rocm 7.1.0",
        "draining by me@here since",
        ": swap the fan",
        "rocm:1 3 min ago: faulted twice",
    ):
        assert part in line


def test_fakes_are_called_simulated() -> None:
    registry = Registry()
    registry.seen("amd", "amd/rocm:0", {**UP, "evidence": "simulated"})
    table = nodes([row("amd", backend="rocm", resources={"GPU": 1.0})])
    assert "simulated AMD Instinct MI300X" in listing.lines(listing.rows(table, registry.told()), 0.0)[1]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", ["a"]),
        ("id-b", ["b"]),
        ("abcdef1", ["c"]),
        ("abcde", []),
        ("host-b", ["b"]),
        ("10.0.0.9", ["a", "b", "c"]),
        ("gone", []),
        ("", []),
    ],
)
def test_a_node_is_meant_by_name_id_host_or_address(name: str, found: list[str]) -> None:
    table = nodes([row("a"), row("b"), row("c", "abcdef123456"), row("gone", alive=False, address="10.0.0.7")])
    assert [n.name for n in listing.chosen(table, name)] == found


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (864000, "10 d")]
)
def test_distances_in_time(seconds: float, text: str) -> None:
    assert listing.ago(seconds) == text


def test_what_was_drained_once_is_forgotten_when_it_has_left(tmp_path: Path) -> None:
    """Each Slurm allocation drains a node of a new id; every run asks for all of them every other second."""
    file = tmp_path / "nodes.json"
    registry = Registry(str(file))
    registry.drain("kept", "id-kept", "repair", "me")
    for i in range(50):
        registry.drain("slurm1", f"id-{i}", "walltime", "me", True, [f"id-{i}", "other"])
    assert set(registry.out()) == {"kept", "id:id-49"}
    assert set(Registry(str(file)).out()) == {"kept", "id:id-49"}


def test_the_list_shows_which_devices_are_suspect_or_quarantined() -> None:
    registry, table = Registry(), nodes([row("a", backend="rocm")])

    def shown() -> str:
        (found,) = listing.rows(table, registry.told())
        return listing._state(found)

    registry.seen("a", "a/rocm:0", UP)
    assert shown() == "up"
    for device, state in (("a/rocm:0", "suspect"), ("a/rocm:1", "suspect"), ("a/rocm:0", "quarantined")):
        registry.seen("a", device, {"event": "health", "run": "r1", "state": state, "reason": "ECC"})
    assert shown() == "up, 1 quarantined, 1 suspect"
    registry.seen("a", "a/rocm:0", UP)  # its actor has started again: nothing is proved by that
    assert shown() == "up, 1 quarantined, 1 suspect"
    registry.seen("a", "a/rocm:1", {"event": "health", "run": "r1", "state": "ready", "reason": ""})
    registry.seen("a", "a/rocm:0", {**UP, "run": "r2"})
    assert shown() == "up"
