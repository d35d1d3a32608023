"""The coordinator over a cluster that is a script: what is sick, dies or is signalled in it."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster, run, slot

from farm.coordinator import devices
from farm.errors import id_of
from farm.store import fold, recovery


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "REFRESH_SECONDS", 0.0)


def test_a_device_that_fails_everything_is_probed_and_its_cells_run_elsewhere(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    cluster.bad = {"cuda:0"}
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1", "g")], cells=40)
    assert Counter(r["status"] for r in outcome.rows) == {"passed": 40} and outcome.exit_code == 0
    states = [(e["device"], e["state"]) for e in journal if e["event"] == "health"]
    assert states == [("cuda:0", "suspect"), ("cuda:0", "quarantined")]
    found = [e for e in journal if e["event"] == "probe"]
    assert [(e["device"], e["passed"], e["reason"]) for e in found] == [("cuda:0", False, "ECC")] * 2
    assert (tmp_path / "store/runs/run" / found[0]["log"]).read_text() == "ECC"
    assert ("cuda:0", "health", "its probe failed: ECC") in cluster.reports
    noted = json.loads((tmp_path / "store/runs/run/run.json").read_text())["health"]
    assert [(e["device"], e["state"]) for e in noted] == states and noted[1]["reason"] == "its probe failed: ECC"
    assert list(recovery.read(journal).health)[:2] == noted
    assert not {e.get("cell") for e in journal if e["event"] == "started"} & {-1, None}, "a probe is no attempt"


def test_a_probe_is_a_cell_that_passed_or_a_small_one_of_torchs_own(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    real, down = cluster.events, [2]

    def events(wait_s: float) -> list[dict[str, Any]]:
        said = real(wait_s)
        if down[0] and any(e["event"] == "lease_done" for e in said):
            down[0] -= 1
            at, dead = time.monotonic(), {"event": "device_down", "device": "cuda:0", "final": False}
            return [{**dead, "at": at, "reason": "killed"}]
        return said

    cluster.events = events  # type: ignore[method-assign]
    outcome, _, _ = run(tmp_path, cluster, [slot("cuda:0")], cells=9)
    ((device, order),) = cluster.probes
    assert Counter(r["status"] for r in outcome.rows) == {"passed": 9}
    assert (device, order["id"], order["call"]["provider"]["name"]) == ("cuda:0", 1, "torch")
    assert order["cell"]["index"] == -1 and order["deadlines"]["timing"] > 0


def test_a_run_whose_only_device_fails_its_probe_stops_and_can_be_resumed(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    cluster.bad = {"cuda:0"}
    outcome, journal, _ = run(tmp_path, cluster, [slot("cuda:0")], cells=40)
    assert outcome.interrupted and Counter(r["status"] for r in outcome.rows) == {"lost": 40}
    (end,) = [e for e in journal if e["event"] in ("interrupted", "finished")]
    assert end["event"] == "interrupted" and end["reason"] == outcome.stopped
    assert id_of(outcome.stopped) == "run-devices-out"
    why = {f"planned, no result: {outcome.stopped}"}
    assert {r["reason"] for r in outcome.rows} == {r["reason"] for r in fold(journal)} == why
    assert not (tmp_path / "store/runs/run/run.json").exists()
    assert recovery.read(journal).rows == {}


def test_a_resumed_run_begins_with_all_devices_ready(tmp_path: Path) -> None:
    """A quarantine is not carried over: whoever resumes has repaired something, and if not, it costs what it did."""
    cluster = ScriptedCluster()
    cluster.bad = {"cuda:0"}
    _, journal, _ = run(tmp_path, cluster, [slot("cuda:0")], cells=40)
    assert [e["state"] for e in journal if e["event"] == "health"][-1] == "quarantined"
    well = ScriptedCluster()
    outcome, _, _ = run(tmp_path, well, [slot("cuda:0")], cells=40, finished=recovery.read(journal))
    assert {r["status"] for r in outcome.rows} == {"passed"} and well.probes == []


def test_a_judge_that_died_is_a_fault_of_its_node(tmp_path: Path) -> None:
    cluster = ScriptedCluster()
    real, told = cluster.events, [2]

    def events(wait_s: float) -> list[dict[str, Any]]:
        said = real(wait_s)
        if told[0] and any(e["event"] == "lease_done" for e in said):
            told[0] -= 1
            died = {"event": "judge_down", "device": "cuda:0", "judge": 0, "reason": "a judge died"}
            return [{**died, "at": time.monotonic()}, *said]
        return said

    cluster.events = events  # type: ignore[method-assign]
    _, journal, _ = run(tmp_path, cluster, [slot("cuda:0"), slot("cuda:1")], cells=9)
    assert len([e for e in journal if e["event"] == "judge_down"]) == 2
    assert ("cuda:0", "judge_down", "a judge died") in cluster.reports


class SignalledCluster(ScriptedCluster):
    """Its children and this process get a signal at the same moment."""

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        said = super().events(wait_s)
        out = []
        for event in said:
            if event["event"] == "measured":
                continue
            if event["event"] == "judged":
                kept = {k: event[k] for k in ("device", "cell", "attempt", "at")}
                event = {"event": "ended", **kept, "status": "crashed", "owner": "kernel", "reason": "SIGTERM"}
                event |= {"log": "", "origin": {"target": None, "device": "d", "node": "n", "fingerprint": {}}}
            out.append(event)
        if any(event["event"] == "ended" for event in out):
            signal.raise_signal(signal.SIGTERM)
        return out


def test_a_signal_for_all_processes_accuses_no_kernel(tmp_path: Path) -> None:
    outcome, journal, _ = run(tmp_path, SignalledCluster(), [slot("cuda:0")])
    assert outcome.interrupted and {row["status"] for row in outcome.rows} == {"lost"}
    assert not [e for e in journal if e["event"] in ("ended", "result")] and journal[-1]["event"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("interrupt", [False, True])
def test_what_is_known_is_written_before_the_cluster_is_closed(tmp_path: Path, interrupt: bool) -> None:
    """Closing takes long, or ends this process, where a part of the cluster is gone."""
    there: list[list[str]] = []
    folder = tmp_path / "store/runs/run"

    class Closing(SignalledCluster if interrupt else ScriptedCluster):  # type: ignore[misc]
        def close(self) -> None:
            last = json.loads((folder / "journal.jsonl").read_text().splitlines()[-1])
            there.append(
                [last["event"], *sorted(p.name for p in folder.glob("*.parquet")), *map(str, folder.glob("run.json"))]
            )

    run(tmp_path, Closing(), [slot("cuda:0")])
    finished = ["finished", "cells.parquet", "samples.parquet", str(folder / "run.json")]
    assert there == [["interrupted"] if interrupt else finished]
