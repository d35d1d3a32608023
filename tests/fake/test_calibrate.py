"""`farm calibrate` on fakes: the whole way from the command to the page, and what becomes of devices that fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from farm_process import clean_environ

from farm.actor import calibration as supervised
from farm.actor import child_process
from farm.calibration.scripted import ScriptedDevice, copy_us
from farm.child import protocol
from farm.child.calibration.run import calibrate as in_child
from farm.cli import calibrate as command
from farm.cli import main, run_command
from farm.cluster.base import DeviceHandle
from farm.coordinator import calibrate as coordinator
from farm.errors import CannotMeasure
from farm.guard import locks
from farm.process import procfs
from farm.store import Store

ROOT = Path(__file__).resolve().parents[2]
MATRIX = """
name: sim
op: rms_norm
axes: {shape: [{rows: [1024, 64], hidden: 1024}], dtype: float32}
providers: [farm, torch]
sim: {default: {time_us: 20, noise: 0.001}}
"""


def calibrate(store: Path, *more: str, backend: str = "sim") -> int:
    return main(["calibrate", "--backend", backend, "--address", "inline", "--out", str(store), *more])


def run(tmp_path: Path, run_id: str, *more: str) -> Any:
    (tmp_path / "m.yaml").write_text(MATRIX)
    code = main(
        [
            "run",
            str(tmp_path / "m.yaml"),
            "--backend",
            "sim",
            "--address",
            "inline",
            "--out",
            str(tmp_path / "store"),
            "--run-id",
            run_id,
            *more,
        ]
    )
    assert code == 0
    return Store(tmp_path / "store").run(run_id)


def test_the_whole_way_from_a_calibration_to_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert calibrate(store, "--devices", "1") == 0
    told = capsys.readouterr()
    assert "1 MiB" in told.out and "drift: 64 MiB" in told.out and "sim:0: sim-1 #0" in told.out
    (found,), bad = Store(store).calibrations()
    assert bad == [] and found.policy["method"] == "host" and str(store / "calibrations" / found.id) in told.out

    done = run(tmp_path, "a", "--devices", "1")
    said = capsys.readouterr().err
    assert "farm calibrate" not in said
    (device,) = done.head["backends"]["sim"]["devices"]
    assert device["calibration"] == {"id": found.id, "made": found.record["made"], "own": True, "stale": False}
    assert done.head["calibrations"][found.id]["gemm"]
    for row in done.rows:
        if row["shape"] == "1024x1024":
            want = copy_us(row["bytes_moved"]) / row["time_us_p50"]
            assert row["share_of_roof"] == pytest.approx(want, rel=0.01) and row["flags"] == "[]"
        else:  # half a mebibyte: under the curve
            assert row["share_of_roof"] == pytest.approx(copy_us(1 << 20) / row["time_us_p50"])
            assert "extrapolated" in row["flags"]
    (line,) = [e for e in done.journal() if e["event"] == "roof"]
    assert line["choice"]["id"] == found.id and line["calibration"]["id"] == found.id

    page = (store / "pages" / "run-a.html").read_text(encoding="utf-8")
    roofs = page.split('<section id="roofs">')[1].split("</section>")[0]
    assert 'class="curve"' in roofs and 'role="img"' in roofs and "copy bandwidth of sim-1 #0" in roofs
    assert '<span class="evidence ev-simulated">simulated</span>' in roofs and found.id in roofs
    assert roofs.count("<circle") == 4  # a subject and a peer at two sizes
    assert "64 MiB" in roofs and "bfloat16" in roofs and "empty launch, host" in roofs and 'href="#roofs"' in page


def test_without_a_calibration_a_run_says_what_makes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(tmp_path, "a")
    said = capsys.readouterr().err
    assert said.count("farm calibrate --backend sim") == 1  # of two devices
    assert all(r["share_of_roof"] is None for r in done.rows) and done.head["calibrations"] == {}
    assert [d["calibration"] for d in done.head["backends"]["sim"]["devices"]] == [None, None]
    assert 'id="roofs"' not in (tmp_path / "store" / "pages" / "run-a.html").read_text(encoding="utf-8")


def test_of_another_device_damaged_and_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert calibrate(store, "--devices", "1") == 0
    folder = store / "calibrations"
    (folder / "aaa.json").write_text('{"schema": 1, "id": "aaa"')
    (folder / "bbb.json").write_text('{"schema": 7, "id": "bbb"}')
    capsys.readouterr()

    done = run(tmp_path, "a")  # two devices, of which one was calibrated
    said = capsys.readouterr().err
    assert said.count("[store-calibration-unreadable]") == 2 and "schema 7" in said
    assert "measured on another sim-1" in said
    assert {d["device"]: d["calibration"]["own"] for d in done.head["backends"]["sim"]["devices"]} == {
        "sim:0": True,
        "sim:1": False,
    }
    assert all(r["share_of_roof"] for r in done.rows)
    page = (store / "pages" / "run-a.html").read_text(encoding="utf-8")
    (note,) = re.findall(r'data-id="roof-shared">([^<]*)<', page)
    assert "sim-1 #0" in note and "sim-1 #1" in note

    (path,) = folder.glob("sim-*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "made": "2020-01-01T00:00:00+00:00"}))
    run(tmp_path, "b", "--devices", "1")
    assert "days ago" in capsys.readouterr().err
    assert calibrate(store, "--devices", "1") == 0  # the older one stays, the newer one serves
    again = run(tmp_path, "c", "--devices", "1")
    assert len(Store(store).calibrations()[0]) == 2
    (device,) = again.head["backends"]["sim"]["devices"]
    assert device["calibration"]["stale"] is False and "days ago" not in capsys.readouterr().err.split("run c")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "cpu"], "[calibrate-backend-untimed]"),
        (["--backend", "sin"], 'did you mean "sim"?'),
        (["--backend", "rocm"], "rocm"),
        (["--backend", ","], "[option-backend-empty]"),
        (["--backend", "sim", "--seconds", "0"], "between 1 and 600"),
        (["--backend", "sim", "--seconds", "nan"], "between 1 and 600"),
        (["--backend", "sim", "--devices", "0"], "between 1 and 256"),
        (["--backend", "sim", "--address", "nowhere"], "--address"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["calibrate", "--out", str(tmp_path), *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and told.startswith("farm calibrate: ")


def test_a_host_without_accelerators_has_nothing_to_calibrate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.backends, "accelerators", list)
    assert main(["calibrate", "--address", "inline", "--out", str(tmp_path)]) == 2
    assert "[calibrate-no-accelerator]" in capsys.readouterr().err


def test_json_is_the_calibrations_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, "--devices", "1", "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["backend"] == "sim" and record["curve"]


def test_a_device_that_another_farm_holds_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.backends import sim

    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("FARM_SIM_HOST", "here")
    monkeypatch.setattr(locks, "wait_seconds", lambda asked=None: 0.3)
    held = locks.acquire(sim.physical_id("0", {}), {"run": "theirs", "device": "sim:0"}, 1.0)
    try:
        assert calibrate(tmp_path / "store", "--devices", "1") == 3
    finally:
        held.release()
    assert "sim:0 was not calibrated" in capsys.readouterr().err
    assert Store(tmp_path / "store").calibrations() == ([], [])
    assert calibrate(tmp_path / "store", "--devices", "1") == 0


class FakeCluster:
    """Devices that answer as scripted: name -> events after `device_up`."""

    def __init__(self, answers: dict[str, list[dict[str, Any]]], **up: Any):
        self.up = up  # more that they say of themselves
        self.answers, self.queue, self.closed = answers, [], False  # type: ignore[var-annotated]

    def slots(self, wanted: list[str]) -> list[DeviceHandle]:
        return [DeviceHandle(device, "sim") for device in self.answers]

    def start(self, slot: DeviceHandle, config: dict[str, Any]) -> None:
        up = {"target": {"backend": "sim", "model": "sim-1"}, "name": slot.device, "node": "here", "fingerprint": {}}
        self.queue.append({"event": "device_up", "device": slot.device, "backend": "sim", **up, **self.up})

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        assert lease["calibrate"]["policy"]["method"] == "host" and lease["calibrate"]["seconds"] == 5.0
        self.queue += [{"device": device, **e} for e in self.answers[device]]

    def events(self, wait_s: float) -> list[dict[str, Any]]:
        out, self.queue = self.queue, []
        return out

    def close(self) -> None:
        self.closed = True


def test_what_was_measured_is_kept_though_another_device_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.calibration import procedure

    good = {"event": "calibrated", "found": procedure.calibrate(ScriptedDevice(), 5), "telemetry": None}
    bad = {"event": "calibrated", "reason": "the child ended with signal 11 (SIGSEGV)", "log": "Fatal: x"}
    cluster = FakeCluster({"sim:0": [bad], "sim:1": [good], "sim:2": [{"event": "device_down", "reason": "gone"}]})
    monkeypatch.setattr(run_command, "InlineCluster", lambda *a: cluster)
    assert calibrate(tmp_path, "--seconds", "5") == 3
    told = capsys.readouterr().err
    assert "sim:0 was not calibrated: the child ended with signal 11 (SIGSEGV)" in told and "Fatal: x" in told
    assert "sim:2 was not calibrated: gone" in told and "1 of 3 devices calibrated" in told
    assert cluster.closed and len(Store(tmp_path).calibrations()[0]) == 1


def test_a_fake_that_plays_a_vendors_part_is_no_device_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.calibration import procedure
    from farm.coordinator.calibration_lookup import CalibrationLookup

    good = {"event": "calibrated", "found": procedure.calibrate(ScriptedDevice(), 5), "telemetry": None}
    cluster = FakeCluster({"sim:0": [good]}, evidence="simulated")
    monkeypatch.setattr(run_command, "InlineCluster", lambda *a: cluster)
    monkeypatch.setattr(command.backends.get("sim"), "EVIDENCE", "executed")  # as of the backend that is played
    assert calibrate(tmp_path, "--seconds", "5") == 0
    ((found,), _) = Store(tmp_path).calibrations()
    assert found.record["evidence"] == "simulated" and found.simulated
    cell = SimpleNamespace(
        backend="sim",
        skip_reason="",
        timing=SimpleNamespace(method=found.policy["method"], version=found.policy["version"]),
    )
    said = {"target": found.target, "fingerprint": found.fingerprint}
    for evidence, lent in (("simulated", True), ("executed", False)):
        roofs: Any = CalibrationLookup([found], [cell])  # type: ignore[list-item]
        choice, _ = roofs.device_up("sim:0", "sim", {**said, "evidence": evidence}, datetime.now(timezone.utc))
        assert (choice is not None) is lent, evidence


class FakeChild:
    """A child that says what it is given; an exception is raised."""

    suspended: procfs.Suspended | None = None

    def __init__(self, *said: Any):
        self.said: Iterator[Any] = iter(said)
        self.heard: list[Any] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)

    def receive(self, deadline: Any) -> Any:
        said = next(self.said)
        if isinstance(said, Exception):
            raise said
        return said

    def show_stacks(self) -> None:
        return

    def log_tail(self) -> str:
        return "last words"


IDS = ("abc", 0, 1)
ORDER = {"policy": {"method": "host"}, "seconds": 3, "deadline": 7}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (protocol.Failed(*IDS, "crashed", "device", "no memory", "trace"), "no memory"),
        (child_process.ChildTimedOut(), "the calibration took more than 7 s"),
        (child_process.ChildDied(-9), "the child ended with signal 9 (SIGKILL)"),
        (child_process.ChildLied("wrote nonsense"), "the child wrote nonsense"),
    ],
)
def test_a_child_that_does_not_calibrate_ends_with_a_reason(said: Any, reason: str) -> None:
    ended = supervised.follow(FakeChild(protocol.Phase(*IDS, "step"), said), "abc", ORDER, lambda text: None)  # type: ignore[arg-type]
    ended.pop("capture", None)
    assert ended["reason"].startswith(reason) and ended["log"] and "found" not in ended


def test_a_child_that_was_stopped_says_nothing_of_captures() -> None:
    child = FakeChild(child_process.ChildTimedOut())
    child.suspended = procfs.Suspended("it is stopped by a signal")
    ended = supervised.follow(child, "abc", ORDER, lambda text: None)  # type: ignore[arg-type]
    assert "could not run: it is stopped by a signal" in ended["reason"] and "capture" not in ended


def test_a_child_that_calibrates_is_followed_to_its_end() -> None:
    steps: list[str] = []
    child = FakeChild(protocol.Phase(*IDS, "floors"), protocol.Calibrated(*IDS, {"curve": []}))
    assert supervised.follow(child, "abc", ORDER, steps.append) == {"found": {"curve": []}}  # type: ignore[arg-type]
    assert steps == ["floors"] and child.heard == [protocol.Calibrate(*IDS, {"method": "host"}, 3.0)]


class FakeChildren:
    """The children of a device, in the order in which they are asked for; an exception is raised."""

    def __init__(self, *children: Any):
        self.left, self.replaced, self.served = [*children], 0, False

    def child(self) -> Any:
        child = self.left.pop(0)
        if isinstance(child, Exception):
            raise child
        return child

    def replace(self) -> None:
        self.replaced += 1


GRAPHS = {"policy": {"method": "rotating_graph"}, "seconds": 3, "deadline": 7, "otherwise": {"method": "events"}}


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (child_process.ChildDied(-6), "the child ended with signal 6 (SIGABRT)"),
        (child_process.ChildTimedOut(), "the calibration took more than 7 s"),
        (protocol.Failed(*IDS, "crashed", "device", "RuntimeError: no capture", "trace"), "RuntimeError: no capture"),
    ],
)
def test_a_capture_that_ends_the_process_costs_no_calibration(first: Any, why: str) -> None:
    other = FakeChild(protocol.Calibrated(*IDS, {"curve": [], "notes": ["n"]}))
    children, said, begun = FakeChildren(FakeChild(first), other), [], []  # type: ignore[var-annotated]
    ended = supervised.measure(
        children, "abc", GRAPHS, lambda kind, **fields: said.append((kind, fields)), lambda: begun.append(1)
    )  # type: ignore[arg-type]
    note = f"measured with events, because rotating_graph failed ({why})"
    assert ended == {"found": {"curve": [], "notes": ["n", note]}, "policy": {"method": "events"}}
    assert other.heard == [protocol.Calibrate(*IDS, {"method": "events"}, 3.0)] and children.replaced == 1
    ((kind, fields),) = said
    assert kind == "device_waits" and fields["up_to_s"] > 7 and why in fields["reason"] and len(begun) == 2


def test_a_calibration_is_measured_otherwise_once_and_only_where_that_may_help() -> None:
    def measure(order: dict[str, Any], *children: Any) -> tuple[dict[str, Any], FakeChildren]:
        fakes = FakeChildren(*children)
        return supervised.measure(fakes, "abc", order, lambda kind, **fields: None), fakes  # type: ignore[arg-type]

    dies = lambda: FakeChild(child_process.ChildDied(-6))  # noqa: E731
    ended, fakes = measure(GRAPHS, dies(), dies(), dies())
    died = "the child ended with signal 6 (SIGABRT)"
    assert ended["reason"] == f"by rotating_graph: {died}; by events: {died}" and len(fakes.left) == 1
    ended, fakes = measure({**GRAPHS, "otherwise": None}, dies(), dies())
    assert ended == {"reason": died, "log": "last words"} and len(fakes.left) == 1
    ended, fakes = measure(GRAPHS, child_process.NoChild("gone"), dies())
    assert ended == {"reason": "no child could be started: gone", "log": ""} and len(fakes.left) == 1
    for other in (
        child_process.ChildDied(-9),
        child_process.ChildDied(-15),
        protocol.Failed(*IDS, "crashed", "device", "OutOfMemoryError: none left", "trace"),
        protocol.Failed(*IDS, "unsupported", "device", "nothing fits", ""),
    ):  # no capture's doing
        ended, fakes = measure(GRAPHS, FakeChild(other), dies())
        assert set(ended) == {"reason", "log"} and len(fakes.left) == 1, other
    ended, _ = measure(GRAPHS, FakeChild(protocol.Calibrated(*IDS, {"curve": []})))
    assert ended == {"found": {"curve": []}}


def test_what_is_measured_otherwise_is_kept_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for backends whose captures are tried first; the record has the policy that measured."""
    from farm.calibration import procedure

    assert coordinator.otherwise_of("rocm") is not None
    assert [b for b in ("cuda", "rocm", "ascend", "sim") if coordinator.otherwise_of(b)] == ["rocm"]
    policy = coordinator.otherwise_of("rocm")
    assert policy is not None and policy["method"] == "events" and policy["max_samples"] == 40
    found = procedure.calibrate(ScriptedDevice(), 5)
    waits = {"event": "device_waits", "reason": "trying ", "up_to_s": 9}
    cluster = FakeCluster({"sim:0": [waits, {"event": "calibrated", "found": found, "policy": policy}]})
    monkeypatch.setattr(run_command, "InlineCluster", lambda *a: cluster)
    assert calibrate(tmp_path, "--seconds", "5") == 0
    ((kept,), _) = Store(tmp_path).calibrations()
    assert kept.policy == policy


def test_a_cell_that_no_graph_timed_has_the_roof_of_that_method(tmp_path: Path) -> None:
    """And one that a graph timed has its own, both being there."""
    from farm.calibration import procedure
    from farm.calibration.report import record
    from farm.cell import Timing
    from farm.coordinator.calibration_lookup import CalibrationLookup
    from farm.timing.roof import Calibration, parse

    found = procedure.calibrate(ScriptedDevice(), 5)
    up = {"backend": "rocm", "target": {"backend": "rocm", "model": "MI300X"}, "fingerprint": {"uuid": "u"}}

    def made(method: str, minute: int) -> Calibration:
        policy = {**Timing(method=method).to_dict(), "cache": "cold"}
        when = datetime(2026, 11, 22, 1, minute, tzinfo=timezone.utc)
        kept = record(found, up=up, policy=policy, evidence="executed", revision={}, made=when)
        return parse(kept)

    cell = SimpleNamespace(backend="rocm", skip_reason="", dtype="float32", timing=Timing(method="rotating_graph"))
    work = {"bytes_read": 1 << 25, "bytes_written": 1 << 25, "operations": {}}
    both = {"rotating_graph": made("rotating_graph", 1), "events": made("events", 2)}
    for there in (("events",), ("rotating_graph",), ("rotating_graph", "events")):
        roofs = CalibrationLookup([both[m] for m in there], [cell], lambda backend: "events")  # type: ignore[list-item]
        choice, told = roofs.device_up("rocm:0", "rocm", up, datetime(2026, 11, 22, 2, tzinfo=timezone.utc))
        assert choice is not None and choice.calibration.id == both[there[0]].id and told == ""
        assert set(roofs.used()) == {both[m].id for m in there}
        for method in both:
            timing = {"method": method, "samples_us": [40.0], "cold": True}
            carried = roofs.of_cell("rocm:0", cell, timing, work)  # type: ignore[arg-type]
            assert (carried or {}).get("calibration") == (both[method].id if method in there else None), (there, method)
    none = CalibrationLookup([both["events"]], [cell])  # type: ignore[list-item]
    assert none.device_up("rocm:0", "rocm", up, datetime(2026, 11, 22, 2, tzinfo=timezone.utc))[0] is None


def test_in_the_child_every_end_is_a_message() -> None:
    order = protocol.Calibrate(*IDS, {"method": "rotating_graph"}, 3.0)

    def broken(error: Exception) -> Any:
        def measurer(policy: Any) -> Any:
            raise error

        return in_child(SimpleNamespace(measurer=measurer), order, lambda message: None)

    assert broken(CannotMeasure("nothing fits")).reason == "nothing fits"
    crashed = broken(RuntimeError("lost\nall"))
    assert crashed.reason == "RuntimeError: lost all" and crashed.fatal and "Traceback" in crashed.trace
    said: list[Any] = []
    found = in_child(SimpleNamespace(measurer=lambda policy: ScriptedDevice()), order, said.append)
    assert isinstance(found, protocol.Calibrated) and protocol.decode_stamped(protocol.encode(found)) == (found, "")
    assert {type(m) for m in said} == {protocol.Phase}
    untimed = SimpleNamespace(timing_methods=(), backend="cpu")
    assert "has no timing method rotating_graph" in in_child(untimed, order, said.append).reason  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.ray
def test_over_real_ray(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "farm", "calibrate", "--backend", "sim", "--devices", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**clean_environ(), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found, bad = Store(tmp_path).calibrations()
    assert len(found) == 2 and bad == [] and len({c.uuid for c in found}) == 2
