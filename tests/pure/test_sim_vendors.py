"""Fakes that play a vendor's device: who they say they are, and how each vendor's failures look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm import backends
from farm.backends import _sim_session, _simulated, sim
from farm.cell import Target
from farm.child.protocol import Failed, Measured, Phase, Run
from farm.node import admission

MI = {
    "as": "rocm",
    "model": "AMD Instinct MI300X",
    "partition": "cpx-nps4",
    "power_limit_w": 750,
    "driver": "6.14.14",
    "stack": "7.1.1",
    "per_module": 8,
    "torch": "2.9.1+rocm7.1",
    "host": "a",
}
GB = {"as": "cuda", "model": "NVIDIA GB200", "power_limit_w": 1200, "driver": "580.95", "stack": "13.0", "host": "b"}
NPU = {"as": "ascend", "model": "Ascend910B3", "driver": "25.2.0", "stack": "8.3.RC1", "host": "c"}
PLAYED = {"rocm": MI, "cuda": GB, "ascend": NPU}


def order(tmp_path: Path, script: dict[str, Any], method: str = "none", **call: Any) -> Run:
    timing = {"method": method, "min_samples": 3}
    cell = {"index": 0, "mode": "auto", "timing": timing, "seed": 1}
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return Run("r", 0, 1, cell, [], {"sim": script, **call}, str(out))


def play(options: dict[str, Any], message: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[Failed | Measured, list[str]]:
    monkeypatch.setattr(_sim_session, "_outputs", lambda *_: [])
    phases: list[str] = []
    session = sim.open_session("0", options)
    return session.run(message, lambda m: phases.append(m.phase) if isinstance(m, Phase) else None), phases


@pytest.mark.parametrize("backend", PLAYED)
def test_it_is_the_vendors_by_name_and_a_fake_by_every_other_word(backend: str) -> None:
    options = PLAYED[backend]
    session = sim.open_session("0", options)
    assert session.target["backend"] == backend
    assert session.target["model"] == options["model"]
    assert session.device_name == f"simulated {options['model']} #0"
    assert session.fingerprint["uuid"].startswith("simulated-")
    assert session.fingerprint["driver"] == options["driver"]
    assert "power_limit_w" not in session.fingerprint
    assert session.fingerprint["python"] == ".".join(map(str, sys.version_info[:3]))
    assert sim.EVIDENCE == "simulated"


@pytest.mark.parametrize("backend", PLAYED)
def test_its_identity_and_its_child_agree_and_are_admitted(backend: str) -> None:
    options = PLAYED[backend]
    identity = sim.identity("3", options)
    session = sim.open_session("3", options)
    assert identity is not None
    assert admission.refusal({}, {"backend": backend}, identity, session.target, session.fingerprint) == ""
    assert str(Target(**admission.complete(session.target, identity))) == str(Target(**session.target))


def test_a_wrong_label_or_a_wrong_mask_is_refused() -> None:
    identity = sim.identity("0", MI)
    assert "model MI355X" in admission.refusal({}, {"model": "MI355X"}, identity, _simulated.target(MI), {})
    other = {**MI, "opens": "AMD Instinct MI250X"}
    assert "a mask" in admission.refusal({}, {}, sim.identity("0", other), _simulated.target(other), {})


def test_neighbours() -> None:
    modules = [_simulated.module(str(i), MI) for i in range(9)]
    assert len(set(modules[:8])) == 1 and modules[8] != modules[0]
    assert _simulated.module("0", {**GB, "module": "board-7"}) == "board-7"
    assert _simulated.module("0", GB) == ""


def test_two_nodes_that_this_machine_plays_share_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FARM_SIM_HOST", raising=False)
    monkeypatch.delenv("FARM_NODE", raising=False)
    plain = {k: v for k, v in GB.items() if k != "host"}
    assert sim.physical_id("0", {}) == "" and sim.physical_id("0", plain) == ""
    names = []
    for node in ("one.yaml", "two.yaml"):
        monkeypatch.setenv("FARM_NODE", f"/etc/{node}")
        state = _simulated.state_file(tmp_path, "0", plain)
        names += [sim.physical_id("0", plain), _simulated.uuid("0", plain), state.name]
        assert sim.physical_id("0", {}) == ""  # a plain fake is the run's own, whatever the node
        assert sim.physical_id("0", plain) != sim.physical_id("1", plain)
    assert len(set(names)) == 6
    monkeypatch.setenv("FARM_SIM_HOST", "h")
    assert sim.physical_id("0", {}) == "sim-h-0"


def test_a_fake_that_plays_nobody_has_no_identity() -> None:
    assert sim.identity("0", {}) is None
    assert sim.identity("0", {"model": "sim-2"}) is None


def test_its_telemetry_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(GB, order(tmp_path, {"telemetry": {"power_w": 900.0}}), monkeypatch)
    assert sim.telemetry("0", GB, str(tmp_path)).sample().power_w == 900.0
    assert sim.telemetry("0", {**GB, "host": "elsewhere"}, str(tmp_path)).sample().power_w == 100.0
    assert sim.telemetry("0", {**MI, "host": "b"}, str(tmp_path)).sample().power_w == 100.0


# how each fails


@pytest.mark.parametrize("kind", ["illegal_access", "aicore", "abort"])
def test_nvidias_faults_are_exceptions_and_the_context_is_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, phases = play(GB, order(tmp_path, {"fault": kind}), monkeypatch)
    assert isinstance(reply, Failed)
    assert (reply.status, reply.owner, reply.fatal) == ("crashed", "kernel", True)
    assert "AcceleratorError: CUDA error" in reply.reason and "in phase check" in reply.reason
    assert phases == ["import", "compile", "check"]


@pytest.mark.parametrize("options", [MI, GB, NPU], ids=lambda o: str(o["as"]))
def test_too_much_on_chip_memory_is_a_compile_error_of_a_process_that_lives(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, phases = play(options, order(tmp_path, {"fault": "ub_overflow"}), monkeypatch)
    assert isinstance(reply, Failed)
    assert (reply.status, reply.owner, reply.fatal) == ("compile_error", "kernel", False)
    assert phases == ["import", "compile"]


CHILD = """
import json, sys
from farm.backends import _sim_session, sim
from farm.child.protocol import Run
message = json.loads(sys.argv[2])
sim.open_session("0", json.loads(sys.argv[1])).run(Run(**message), lambda said: None)
print("alive")
"""


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [
        ("illegal_access", signal.SIGABRT, "Memory access fault by GPU node"),
        ("hang", signal.SIGABRT, "GPU Hang"),
        ("abort", signal.SIGABRT, "HSA_STATUS_ERROR_EXCEPTION"),
    ],
)
def test_amds_faults_end_the_process_without_an_exception(kind: str, number: int, words: str, tmp_path: Path) -> None:
    message = vars(order(tmp_path, {"fault": kind}))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(MI), json.dumps(message)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == -number, done
    assert words in done.stderr and "Traceback" not in done.stderr and "alive" not in done.stdout


def test_a_capture_that_kills_spares_the_process_that_times_by_events(tmp_path: Path) -> None:
    script = {"fault": "capture", "time_us": 5}
    for override, code in (({}, -signal.SIGSEGV), ({"timing_override": "events"}, 0)):
        message = vars(order(tmp_path, script, "rotating_graph", **override))
        source = CHILD.replace("message =", "_sim_session._outputs = lambda *_: []\nmessage =")
        done = subprocess.run(
            [sys.executable, "-c", source, json.dumps(MI), json.dumps(message)],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
        assert done.returncode == code, done


@pytest.mark.parametrize("options", [GB, NPU], ids=lambda o: str(o["as"]))
def test_a_capture_that_fails_is_told_as_one(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"fault": "capture", "time_us": 5}
    reply, _ = play(options, order(tmp_path, script, "rotating_graph"), monkeypatch)
    assert isinstance(reply, Failed) and reply.status == "capture_failed" and reply.fatal
    reply, _ = play(options, order(tmp_path, script, "rotating_graph", timing_override="events"), monkeypatch)
    assert isinstance(reply, Measured) and reply.timing["method"] == "events"


def test_ascends_errors_carry_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, number in (("illegal_access", "507035"), ("aicore", "507015")):
        reply, _ = play(NPU, order(tmp_path, {"fault": kind}), monkeypatch)
        assert isinstance(reply, Failed) and number in reply.reason and reply.fatal


def test_a_fault_that_no_such_device_has_is_the_scripts_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, _ = play(GB, order(tmp_path, {"fault": "gremlins"}), monkeypatch)
    assert isinstance(reply, Failed)
    assert (reply.status, reply.owner) == ("infra_error", "harness") and "available: abort" in reply.reason


@pytest.mark.parametrize(("backend", "kind"), sorted(k for k, one in _simulated.FAULTS.items() if not one.graph_only))
def test_the_real_backend_understands_what_is_played(backend: str, kind: str) -> None:
    """Every text or death that a fake shows is one that the backend itself would classify; how a capture ends is the
    actor's to judge."""
    one = _simulated.FAULTS[backend, kind]
    text = one.text if one.signal else f"{one.error}: {one.text}"
    found = backends.get(backend).fault(text, -one.signal if one.signal else None)
    assert found is not None, one
    assert (found.status, found.owner) == ("compile_error" if one.phase == "compile" else "crashed", "kernel"), found
