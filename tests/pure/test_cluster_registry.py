"""What the registry of nodes remembers, also over its own death; and the list made from it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_cluster_inventory import row

from farm.cluster import listing
from farm.cluster.inventory import nodes
from farm.cluster.registry import (
    KEEP_DEVICES,
    RUN_SECONDS,
    Registry,
    away,
    bereft,
    damage,
    holders,
    sound,
    sound_out,
    sound_runs,
)
from farm.errors import id_of

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


DRAIN = {"state": "draining", "reason": "fan", "who": "me@here", "since": 1.0, "name": "n1"}
SEEN = {"node": "n2", "last": 1.0, "fault": {"at": 1.0, "run": "r", "reason": "it broke"}}
DEEP = "[" * 100_000 + "]" * 100_000


def written(out: object = None, devices: object = None) -> str:
    return json.dumps({"out": {"n1": DRAIN} if out is None else out, "devices": devices or {}})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"out": 3}',
        '{"out": {}}',
        written(out={"n1": "x"}),
        written(out={"n1": {**DRAIN, "since": "today"}}),
        written(out={"n1": {"state": "draining"}}),
        written(out={}, devices={"n1/cuda:0": "x"}),
        written(out={}, devices={"n1/cuda:0": {**SEEN, "up": {"at": 1.0, "target": 3}}}),
        DEEP,
        f'{{"out": {DEEP}, "devices": {{}}}}',
        "\x00\x01",
    ],
)
def test_a_damaged_file_is_no_state_and_is_reported_until_somebody_saw_to_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "n.json").write_text(content)
    registry = Registry(str(tmp_path / "n.json"))
    told = registry.told()
    assert (told["out"], told["devices"]) == ({}, {})
    assert id_of(damage(told)) == "registry-damaged"
    table = nodes([row("n1", backend="rocm", resources={"GPU": 1.0})])
    listing.lines(listing.rows(table, sound(told)), 0.0)
    assert away(sound_out(registry.out()), "n1", "id-n1") is None
    registry.drain("a", "1", "", "me")
    assert json.loads((tmp_path / "n.json").read_text())["out"]["a"]["state"] == "draining"
    assert damage(registry.told()) == ""


def test_what_is_sound_in_a_damaged_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(written(out={"n1": DRAIN, "n3": 4}, devices={"n2/cuda:0": SEEN, "x": []}))
    told = Registry(str(tmp_path / "n.json")).told()
    assert (told["out"], told["devices"]) == ({"n1": DRAIN}, {"n2/cuda:0": SEEN})
    assert damage(told)


@pytest.mark.parametrize("file", ["", "n.json"])
def test_a_registry_that_begins_is_not_damaged(tmp_path: Path, file: str) -> None:
    registry = Registry(str(tmp_path / file) if file else "")
    registry.seen("amd", "amd/rocm:0", UP)
    registry.drain("amd", "id", "", "me")
    assert damage(registry.told()) == ""
    if file:
        assert Registry(str(tmp_path / file)).told() == registry.told()


@pytest.mark.parametrize("told", [None, 3, [], {"out": 3}, {"out": {"a": 1}, "devices": {"b": 2}}])
def test_whatever_a_registry_answers_can_be_read(told: object) -> None:
    assert sound(told) == {"out": {}, "devices": {}}
    assert sound_out(told) == {} == sound_runs(told)


def a_run(*held: tuple[str, str, str], patterns: dict[str, list[str]] | None = None, run: str = "r1") -> dict[str, Any]:
    devices = {
        f"{node}/{backend}:{i}": {"node": node, "backend": backend, "target": target, "since": 60.0 * i}
        for i, (node, backend, target) in enumerate(held)
    }
    return {"run": run, "user": "me@here", "devices": devices, "patterns": patterns or {"cuda": [""]}}


def test_runs_are_known_until_they_end_or_fall_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.run("k1", a_run(("n1", "cuda", "")))
    registry.run("k2", a_run(("n1", "cuda", ""), run="r2"))
    assert set(sound_runs(registry.runs())) == {"k1", "k2"}
    registry.ended("k2")
    registry.ended("nobody")
    assert set(registry.runs()) == {"k1"}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + RUN_SECONDS + 1)
    assert registry.runs() == {}


def test_the_holders_of_a_device_are_named_with_the_time() -> None:
    runs = {"a": a_run(("n1", "cuda", ""), ("n1", "cuda", "")), "b": a_run(("n2", "cuda", ""), run="r2")}
    assert holders(runs, "n1", "cuda", "b") == "run r1 of me@here since 1970-01-01 00:00:00 UTC"
    assert holders(runs, "n1", "cuda", "a") == "" == holders(runs, "n1", "rocm", "b")
    many = {str(i): a_run(("n1", "cuda", ""), run=f"r{i}") for i in range(5)}
    assert holders(many, "n1", "cuda", "").endswith(" and 2 more")


@pytest.mark.parametrize(
    ("held", "patterns", "out", "lost"),
    [
        ([("n1", "cuda", "")], {"cuda": [""]}, ["n1"], ["cuda"]),
        ([("n1", "cuda", ""), ("n2", "cuda", "")], {"cuda": [""]}, ["n1"], []),
        ([("n1", "cuda", ""), ("n2", "cuda", "")], {"cuda": [""]}, ["n1", "n2"], ["cuda"]),
        ([("n1", "cuda", ""), ("n2", "rocm", "")], {"cuda": [""], "rocm": [""]}, ["n1"], ["cuda"]),
        (
            [("n1", "cuda", "cuda:NVIDIA-GB200"), ("n2", "cuda", "cuda:NVIDIA-H200")],
            {"cuda": ["", "GB200"]},
            ["n1"],
            ["cuda:GB200"],
        ),
        ([("n2", "cuda", "")], {"cuda": [""]}, ["n1"], []),
    ],
)
def test_a_run_without_another_device_for_its_cells_waits_for_a_drained_node(
    held: list[tuple[str, str, str]], patterns: dict[str, list[str]], out: list[str], lost: list[str]
) -> None:
    runs = sound_runs({"k": a_run(*held, patterns=patterns)})
    assert bereft(runs, "n1", out) == ([("r1 of me@here", lost)] if lost else [])


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
