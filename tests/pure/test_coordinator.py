"""The coordinator over a cluster that is a script: devices that come, go, are refused, or sit beside each other."""

from __future__ import annotations

import json
import pkgutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster, events, run, slot

from farm import backends, limits
from farm.cluster.base import Changes, DeviceHandle
from farm.coordinator import devices
from farm.coordinator import run as coordinator_run
from farm.coordinator.colocation import Colocation
from farm.coordinator.devices import DRAINED, PLACE_SECONDS, RELEASED
from farm.coordinator.request import RunOutcome
from farm.errors import id_of
from farm.judge.digest import judging_digest
from farm.store import recovery


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "REFRESH_SECONDS", 0.0)


def test_labels_go_to_the_actor_and_evidence_comes_from_it(tmp_path: Path) -> None:
    cluster = ScriptedCluster({"cuda:0": {"evidence": "simulated", "environment": "vendor", "labels": {"a": "b"}}})
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")])
    assert cluster.configs["cuda:0"]["labels"] == {"model": "H200"}
    assert {r["evidence"] for r in outcome.rows} == {"simulated"}  # not the backend's own word
    (up,) = [e for e in journal if e["event"] == "device_up"]
    assert (up["evidence"], up["environment"], up["labels"]) == ("simulated", "vendor", {"a": "b"})
    head = json.loads((tmp_path / "store/runs/run/run.json").read_text())
    (device,) = head["backends"]["cuda"]["devices"]
    assert (device["evidence"], device["environment"]) == ("simulated", "vendor")


def test_scripts_go_to_any_backend_where_the_matrix_has_them(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    run(tmp_path, cluster, [slot("cuda:0")], sim={"default": {"time_us": 10}})
    assert [call["sim"] for call in cluster.calls] == [{"time_us": 10}] * 3
    other = ScriptedCluster()
    (tmp_path / "b").mkdir()
    run(tmp_path / "b", other, [slot("cuda:0")])
    assert not any("sim" in call for call in other.calls)


def test_a_call_knows_its_matrix_own_deadlines(tmp_path: Path) -> None:
    """A backend may have to bound by them what no process can end (an operator of Ascend's)."""
    cluster = ScriptedCluster([])
    run(tmp_path, cluster, [slot("cuda:0")], deadlines={"check": 7})
    assert {call["deadlines"]["check"] for call in cluster.calls} == {7.0}


def test_cells_of_a_named_target_go_to_the_device_that_says_it_is_one(tmp_path: Path) -> None:
    slice_ = {"target": {"backend": "cuda", "model": "NVIDIA H200", "partition": "mig-1g.18gb"}}
    cluster = ScriptedCluster({"cuda:1": slice_})
    outcome, _, _ = run(
        tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], targets={"cuda": ["H200:mig-1g.18gb", "GB200"]}
    )
    assert {device for device, _ in cluster.grants} == {"cuda:1"}
    assert [r["status"] for r in outcome.rows] == ["passed"] * 3 + ["lost"] * 3
    assert "cuda:GB200" in outcome.rows[3]["reason"]
    assert outcome.exit_code == 3


def test_a_refused_device_is_named_by_what_it_leaves_lost(tmp_path: Path) -> None:
    why = "the node's label says model MI355X, the device is AMD Instinct MI300X: correct the label or the node"
    cluster = ScriptedCluster({"cuda:0": {"event": "device_down", "reason": why, "final": True}})
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")])
    assert {r["status"] for r in outcome.rows} == {"lost"}
    assert all(why in r["reason"] for r in outcome.rows)
    ((device, event, reason),) = cluster.reports
    assert (device, event) == ("cuda:0", "quarantine") and reason.startswith(why)
    assert events(journal, "device_down", "retired") == [("device_down", "cuda:0"), ("retired", "cuda:0")]


def test_a_device_that_joins_is_started_and_works(tmp_path: Path) -> None:
    cluster = ScriptedCluster(changes=[Changes(new=(slot("cuda:7", "late"), slot("rocm:0", "late")))])
    outcome, journal, progress = run(tmp_path, cluster, [], grace=30.0)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert set(cluster.configs) == {"cuda:7"}  # nobody asked for rocm
    assert events(journal, "device_added", "device_up") == [("device_added", "cuda:7"), ("device_up", "cuda:7")]
    assert any(line.startswith("cuda:7: ") for line in progress.lines)


def test_nothing_comes_within_the_grace(tmp_path: Path) -> None:
    outcome, journal, progress = run(tmp_path, ScriptedCluster(), [], grace=0.1)
    assert {r["status"] for r in outcome.rows} == {"lost"}
    assert "cuda" in outcome.rows[0]["reason"] and "0.1 s" in outcome.rows[0]["reason"]
    assert [id_of(line) for line in progress.lines] == ["run-waits-for-devices"]
    (waits,) = [e for e in journal if e["event"] == "cells_wait"]
    assert (waits["pool"], waits["nodes"]) == ("backend cuda", [])


def resumable(tmp_path: Path, outcome: RunOutcome, journal: list[dict[str, Any]], left: list[int]) -> None:
    """The run is interrupted, says why, and `farm resume` would run these cells."""
    assert outcome.interrupted and id_of(outcome.stopped) == "run-lacks-devices"
    assert not (tmp_path / "store/runs/run/run.json").exists()
    assert journal[-1]["event"] == "interrupted" and journal[-1]["reason"] == outcome.stopped
    assert [c.index for c in recovery.read(journal).open] == left
    assert [r["status"] == "lost" for r in outcome.rows] == [r["index"] in left for r in outcome.rows]


def test_a_run_stops_at_its_first_finding_and_can_be_resumed(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    cluster.crashing = {0}
    outcome, journal, _ = run(
        tmp_path, cluster, [slot("cuda:0")], cells=200, providers=["farm"], stop_at_first=True, strict_peers=False
    )
    lost = [r["index"] for r in outcome.rows if r["status"] == "lost"]
    assert outcome.rows[0]["status"] == "crashed" and len(lost) > 50
    assert outcome.interrupted and outcome.by_finding and outcome.final_code == 1
    assert id_of(outcome.stopped) == "run-first-finding" and outcome.rows[0]["cell_id"] in outcome.stopped
    assert not (tmp_path / "store/runs/run/run.json").exists()
    assert journal[-1]["event"] == "interrupted" and [c.index for c in recovery.read(journal).open] == lost


def test_what_stops_no_run_at_its_first_finding(tmp_path: Path) -> None:
    """A peer's failure, unless peers are strict; a finding in the last cell, after which nothing is left to run."""
    for name, crashing, more, by_finding in (
        ("peer", {0}, {}, False),
        ("strict", {0}, {"strict_peers": True}, True),
        ("last", {199}, {"providers": ["farm"]}, False),
    ):
        cluster = ScriptedCluster()
        cluster.crashing = crashing
        (tmp_path / name).mkdir()
        outcome, _, _ = run(tmp_path / name, cluster, [slot("cuda:0")], cells=200, stop_at_first=True, **more)
        assert (outcome.by_finding, outcome.interrupted) == (by_finding, by_finding), name


def test_a_run_whose_device_was_refused_can_be_resumed(tmp_path: Path) -> None:
    cluster = ScriptedCluster({"cuda:0": {"event": "device_down", "reason": "not today", "final": True}})
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")])
    resumable(tmp_path, outcome, journal, [0, 1, 2])


def test_the_last_node_is_drained_and_restored_and_nothing_is_lost(tmp_path: Path) -> None:
    """A grace of 0.05 s is over at once, if it counted."""
    there = slot("cuda:0")
    drained = [Changes(drained=("cuda:0",), away=(("h", "cuda"),)), *40 * [Changes(away=(("h", "cuda"),))]]
    cluster = ScriptedCluster(changes=[*drained, Changes(new=(there,))])
    cluster.pace = 0.005
    outcome, journal, progress = run(tmp_path, cluster, [there], cells=200, grace=0.05)
    assert {r["status"] for r in outcome.rows} == {"passed"} and not outcome.interrupted
    (waits,) = [e for e in journal if e["event"] == "cells_wait"]
    assert waits["nodes"] == ["h"] and "farm nodes restore h" in waits["reason"]
    assert waits["reason"] in progress.lines


class BusyCluster(ScriptedCluster):
    """Ray has not placed the actor of cuda:0, since another run has the device until `until`."""

    def __init__(self, until: float = float("inf")):
        super().__init__()
        self.until, self.said = until, False
        self._held: list[Any] = []

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        if slot.device == "cuda:0":
            self._held.append((slot, config))
        else:
            super().start(slot, config)

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        time.sleep(0.001)
        if self._held and time.monotonic() >= self.until:
            super().start(*self._held.pop())
        busy = {"event": "device_waits", "device": "cuda:0", "reason": "run r1 has it", "busy": True}
        self.said, told = True, self.said
        return [*([] if told else [{**busy, "at": time.monotonic()}]), *super().events(wait_s)]


def test_a_run_waits_for_a_device_that_another_run_uses(tmp_path: Path) -> None:
    cluster = BusyCluster(until=time.monotonic() + 0.3)
    outcome, journal, progress = run(tmp_path, cluster, [slot("cuda:0")], wait=60.0)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert [e["reason"] for e in journal if e["event"] == "device_waits"] == ["run r1 has it"]
    assert events(journal, "device_down", "retired", "replaced") == [] == cluster.reports
    assert "cuda:0: run r1 has it" in progress.lines


def test_a_run_waits_for_a_busy_device_no_longer_than_it_may(tmp_path: Path) -> None:
    """Nor for the grace after that; nobody is accused, and the cells can be resumed."""
    cluster = BusyCluster()
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")], wait=0.1, grace=600.0)
    resumable(tmp_path, outcome, journal, [0, 1, 2])
    (down,) = [e for e in journal if e["event"] == "device_down"]
    assert down["busy"] and "--wait" in down["reason"]
    assert cluster.reports == []


def test_a_busy_device_keeps_nobody_from_working_on_the_others(tmp_path: Path) -> None:
    cluster = BusyCluster()
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], wait=60.0)
    assert {r["status"] for r in outcome.rows} == {"passed"} and events(journal, "device_down") == []


@pytest.mark.parametrize(
    ("busy", "changed", "waits"), [(True, 0.0, 9.9), (False, 0.0, PLACE_SECONDS), (False, 50.0, 50 + PLACE_SECONDS)]
)
def test_a_process_has_its_time_to_start_however_short_the_wait(busy: bool, changed: float, waits: float) -> None:
    one = devices._Unplaced(0.0, changed, busy)
    assert not one.expired(waits - 0.1, 9.8) and one.expired(waits + 0.1, 9.8)


def test_a_drained_device_is_released_and_no_fault_is_reported(tmp_path: Path) -> None:
    cluster = ScriptedCluster(changes=[Changes(drained=("cuda:0", "unknown"))])
    outcome, journal, progress = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], cells=40)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert len([d for d, _ in cluster.grants if d == "cuda:0"]) <= 1
    assert events(journal, "drain", "retired") == [("drain", "cuda:0"), ("retired", "cuda:0")]
    assert [e["drained"] for e in journal if e["event"] == "retired"] == [True]
    assert cluster.reports == []
    assert f"cuda:0: {RELEASED} ({DRAINED})" in progress.lines


def test_a_device_that_returns_under_its_name_is_started_where_it_is_now(tmp_path: Path) -> None:
    there = DeviceHandle("cuda:0", "cuda", "another-id", "0", "h", {"model": "H200", "again": "yes"})
    cluster = ScriptedCluster(
        {"cuda:0": {"event": "device_down", "reason": "the device's node has left the cluster", "final": True}},
        [Changes(new=(there,))],
    )
    real = cluster.start

    def start(slot: DeviceHandle, config: dict[str, Any]) -> None:
        if slot.node == "another-id":
            cluster.up.clear()
        real(slot, config)

    cluster.start = start  # type: ignore[method-assign]
    outcome, _, _ = run(tmp_path, cluster, [slot("cuda:0")], grace=30.0)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert cluster.configs["cuda:0"]["labels"]["again"] == "yes"


def two_dies(module: str = "board-0") -> ScriptedCluster:
    return ScriptedCluster({f"cuda:{i}": {"identity": {"module": module}} for i in range(2)})


def test_rows_say_how_many_neighbours_were_busy(tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, two_dies(), [slot("cuda:0"), slot("cuda:1")], cells=8)
    assert {r["neighbours_busy"] for r in outcome.rows} >= {1}
    assert {r["neighbours_busy"] for r in outcome.rows} <= {0, 1}


@pytest.mark.parametrize("quiet", ["module", "host"])
def test_quiet_cells_have_no_busy_neighbour(quiet: str, tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, two_dies(), [slot("cuda:0"), slot("cuda:1")], cells=8, quiet=quiet)
    assert [r["neighbours_busy"] for r in outcome.rows] == [0] * 8


def test_unknown_neighbours_are_not_counted_as_none(tmp_path: Path) -> None:
    outcome, _, _ = run(tmp_path, two_dies(""), [slot("cuda:0"), slot("cuda:1")])
    assert [r["neighbours_busy"] for r in outcome.rows] == [None] * 3


def test_a_neighbour_counts_once_however_often_it_works_and_only_on_its_host() -> None:
    n = Colocation()
    for device, host, module in [("a", "h", "m"), ("b", "h", "m"), ("c", "h", "x"), ("d", "far", "m"), ("e", "h", "m")]:
        n.placed(device, host, module)
    n.busy("a", 0.0)
    n.busy("b", 0.0)
    n.started("a", 1, 1.0)
    n.idle("b", 2.0)
    for device in ("b", "c", "d", "e"):
        n.busy(device, 3.0)
    assert n.measured("a", 1, 4.0) == 2
    n.idle("e", 4.5)
    n.started("a", 2, 5.0)
    assert n.measured("a", 2, 6.0) == 1
    assert n.measured("a", 2, 6.0) is None  # it did not begin again
    n.started("b", 3, 6.0)
    n.idle("b", 7.0)
    assert n.measured("b", 3, 7.0) is None


def test_siblings_count_by_the_time_of_events_not_by_their_arrival() -> None:
    """A device's answers come in bundles: of a cell is heard after the neighbour's lease has ended, or begun."""
    n = Colocation()
    for device in ("a", "b"):
        n.placed(device, "h", "m")
    n.busy("b", 1.0)
    n.idle("b", 2.0)
    n.busy("b", 5.0)
    for cell, since, until, busy in ((1, 0.0, 0.9, 0), (2, 1.5, 1.6, 1), (3, 2.5, 4.5, 0), (4, 4.6, 5.1, 1)):
        n.started("a", cell, since)
        assert n.measured("a", cell, until) == busy, cell


def test_no_cell_costs_a_look_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop serves all devices; a walk over the backends' files for each cell was two thirds of its time."""
    backends.known()
    looked: list[object] = []
    real = pkgutil.iter_modules
    monkeypatch.setattr(pkgutil, "iter_modules", lambda *args: looked.append(args) or real(*args))
    few, _, _ = run(tmp_path, ScriptedCluster(), [slot("cuda:0")], cells=3)
    once = len(looked)
    (tmp_path / "b").mkdir()
    many, _, _ = run(tmp_path / "b", ScriptedCluster(), [slot("cuda:0")], cells=30)
    assert (len(few.rows), len(many.rows)) == (3, 30)
    assert len(looked) == 2 * once


@pytest.mark.parametrize("judge", [{"judged_by": "0123456789abcdef"}, {"judged_by": ""}, {"judged_by": None}, {}])
def test_the_verdict_of_another_judge_is_none(tmp_path: Path, judge: dict[str, Any]) -> None:
    cluster = ScriptedCluster()
    cluster.judge = {**judge, "metrics": {"y": {"max_ulp": 0.0}}, "output_hash": "h"}
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")])
    assert outcome.exit_code == 3 and outcome.interrupted, "nor can such devices pass a probe"
    for row in outcome.rows:
        assert row["status"] in ("infra_error", "lost") and row["judged_by"] == ""
    found = [e for e in journal if e["event"] == "judged"]
    assert {e["status"] for e in found} == {"infra_error"}
    for e in found:
        assert all(text in e["reason"] for text in (judge.get("judged_by") or "unknown", judging_digest(), " n,"))


def test_each_row_says_what_judged_it(tmp_path: Path) -> None:
    outcome, journal, _ = run(tmp_path, ScriptedCluster(), [slot("cuda:0")])
    assert {r["judged_by"] for r in outcome.rows} == {judging_digest()}
    assert {e["judged_by"] for e in journal if e["event"] == "judged"} == {judging_digest()}


def test_a_node_with_other_sources_is_a_warning(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    differs = {"event": "node_differs", "device": "cuda:0", "node": "h", "content": "aa", "ours": "bb"}
    cluster._queue.append([differs])
    outcome, journal, progress = run(tmp_path, cluster, [slot("cuda:0")])
    (told,) = [e for e in journal if e["event"] == "node_differs"]
    assert (told["node"], told["content"], told["ours"]) == ("h", "aa", "bb")
    assert [id_of(line) for line in progress.lines].count("node-differs") == 1
    assert {r["status"] for r in outcome.rows} == {"passed"}


#: What is wrong with the events of one cell, as (event, its field, the value).
BROKEN = [
    ("judged", "status", "haha"),
    ("judged", "owner", "nobody"),
    ("measured", "timing", {}),
    ("measured", "facts", 7),
    ("measured", "timing", {"method": {1}}),  # which is no JSON
]


def bent(cluster: ScriptedCluster, event: str, field: str, value: Any, cells: tuple[int, ...]) -> ScriptedCluster:
    """Events of these cells have another value."""
    real = cluster.events

    def events(wait_s: float) -> list[dict[str, Any]]:
        said = real(wait_s)
        return [{**e, field: value} if e["event"] == event and e.get("cell") in cells else e for e in said]

    cluster.events = events  # type: ignore[method-assign]
    return cluster


@pytest.mark.parametrize(("event", "field", "value"), BROKEN)
def test_no_event_ends_the_run(tmp_path: Path, event: str, field: str, value: Any) -> None:
    cluster = bent(ScriptedCluster(), event, field, value, (1,))
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")])
    assert [r["status"] for r in outcome.rows] == ["passed", "infra_error", "passed"]
    assert outcome.rows[1]["fault_owner"] == "harness" and outcome.exit_code == 3
    assert "Traceback" in (tmp_path / "store/runs/run" / outcome.rows[1]["log"]).read_text()
    assert [e["row"]["status"] for e in journal if e["event"] == "result"].count("infra_error") == 1


def test_a_device_whose_events_fail_again_and_again_is_suspect_and_costs_no_cell(tmp_path: Path) -> None:
    cluster = bent(ScriptedCluster(), "judged", "status", "haha", tuple(range(40)))
    real = cluster.events
    cluster.events = lambda wait_s: [  # type: ignore[method-assign]
        {**e, "status": "passed"} if e["device"] == "cuda:1" and e["event"] == "judged" else e for e in real(wait_s)
    ]
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], cells=40)
    assert ("cuda:0", "suspect") in [(e["device"], e["state"]) for e in journal if e["event"] == "health"]
    found = Counter(r["status"] for r in outcome.rows)
    assert found == {"passed": 40}, "each was tried on the other device too"


@pytest.mark.parametrize("broken", [{"target": {"haha": 1}}, {"target": None}, {"name": None, "target": 3}])
def test_a_device_whose_greeting_cannot_be_read_is_at_fault_itself(tmp_path: Path, broken: dict[str, Any]) -> None:
    outcome, journal, _ = run(tmp_path, ScriptedCluster({"cuda:0": broken}), [slot("cuda:0"), slot("cuda:1")])
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert [e["device"] for e in journal if e["event"] == "retired"] in ([], ["cuda:0"])


def test_an_event_of_another_devices_cell_changes_nothing(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    real = cluster.events

    def events(wait_s: float) -> list[dict[str, Any]]:
        out = []
        for e in real(wait_s):
            foreign = {"device": "cuda:1" if e["device"] == "cuda:0" else "cuda:0", "status": "inaccurate"}
            out += [{**e, **foreign, "owner": "kernel"}, e] if e["event"] == "judged" else [e]
            out += [{**e, "attempt": 7, "status": "crashed"}] if e["event"] == "judged" else []
        return out

    cluster.events = events  # type: ignore[method-assign]
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], cells=8)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert {e["status"] for e in journal if e["event"] == "judged"} == {"passed"}


def test_a_cell_that_cannot_be_ordered_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = coordinator_run.call_for

    def call_for(cell: Any, *args: Any) -> Any:
        if cell.dims["hidden"] == 65:
            raise KeyError("a contract's own fault")
        return real(cell, *args)

    monkeypatch.setattr(coordinator_run, "call_for", call_for)
    outcome, _, _ = run(tmp_path, ScriptedCluster(), [slot("cuda:0")])
    assert [r["status"] for r in outcome.rows] == ["passed", "infra_error", "passed"]
    assert "a contract's own fault" in outcome.rows[1]["reason"]


def test_a_device_that_cannot_be_granted_or_started_is_given_up(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    start, grant = cluster.start, cluster.grant
    cluster.start = lambda slot, config: 1 / 0 if "cuda:0" in cluster.stopped else start(slot, config)  # type: ignore

    def refuse(device: str, lease: dict[str, Any]) -> None:
        if device == "cuda:0":
            cluster.stopped.append(device)
            raise RuntimeError("no such actor")
        grant(device, lease)

    cluster.grant = refuse  # type: ignore[method-assign]
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], cells=8)
    assert {r["status"] for r in outcome.rows} == {"passed"}
    assert [e["device"] for e in journal if e["event"] == "retired"] == ["cuda:0"]


class ForgetfulCluster(ScriptedCluster):
    """The first lease never reaches its device; of the others each device reports its phases."""

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        super().grant(device, lease)
        if len(self.grants) == 1:
            self._queue.pop()
            return
        said = self._queue.pop()
        ids = {name: said[0][name] for name in ("device", "cell", "attempt")}
        shown = {"event": "progress", **ids, "phase": "compile", "up_to_s": 600.0}
        self._queue.append([{**said[0], "up_to_s": 300.0}, shown, *said[1:]])


def test_a_lease_that_never_arrived_costs_the_slack_and_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AFTER_PHASE", 0.0)
    cluster = ForgetfulCluster()
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")], deadlines={"silence": 2.0})
    assert {r["status"] for r in outcome.rows} == {"passed"} and outcome.exit_code == 0
    assert cluster.stopped and events(journal, "replaced")
    assert max(Counter(index for _, cells in cluster.grants for index in cells).values()) >= 2
