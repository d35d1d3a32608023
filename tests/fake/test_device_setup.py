"""What a node's configuration makes of a device: who it plays, whether it may serve, how its children are started, and
what its end is taken for.  Real children; the devices are fakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from one_device import OneDevice

from farm import backends
from farm.actor.device_setup import DeviceSetup
from farm.actor.out_of_time import Programs
from farm.backends import Fault, Identity, rocm, sim
from farm.cell import Target
from farm.errors import id_of
from farm.node.environment import START, Environment, child_variables
from farm.shipping import bundle
from farm.shipping import providers as shipping

MI300X = {"model": "AMD Instinct MI300X", "partition": "cpx-nps4", "driver": "6.12.12", "stack": "7.0.0"}
Start = Callable[..., OneDevice]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the actor of a device on a node of this configuration."""
    started: list[OneDevice] = []

    def start(node: dict[str, Any] | None = None, backend: str = "rocm", **config: Any) -> OneDevice:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        if node is None:
            monkeypatch.setenv("FARM_NODE", "")
        else:
            (folder / "node.yaml").write_text(json.dumps(node), encoding="utf-8")
            monkeypatch.setenv("FARM_NODE", str(folder / "node.yaml"))
        started.append(OneDevice(folder, backend, **config))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def rocm_node(**more: Any) -> dict[str, Any]:
    return {"backend": "rocm", "simulate": {**MI300X, "devices": 1}, **more}


def test_a_simulated_vendor_is_up_as_what_it_plays_and_says_what_that_proves(device: Start) -> None:
    one = device(rocm_node(labels={"rack": "r7"}))
    up = one.up()
    assert up["event"] == "device_up", up
    assert up["evidence"] == "simulated"
    assert up["backend"] == "rocm"
    assert up["target"]["backend"] == "rocm"
    assert str(Target(**up["target"])) == "rocm:AMD-Instinct-MI300X:cpx-nps4"
    assert (up["environment"], up["labels"]) == ("default", {"rack": "r7"})
    assert up["identity"]["model"] == "AMD Instinct MI300X"
    assert up["fingerprint"]["environment"] == "default"
    measured, judged = one.run()
    assert judged["status"] == "passed", judged
    assert measured["origin"]["evidence"] == "simulated"
    assert measured["origin"]["target"] == up["target"]
    assert measured["timing"]["samples_us"]  # a fake has a clock of its own


def test_a_node_that_says_nothing_gives_what_it_gave_before(device: Start) -> None:
    one = device(None, "sim")
    up = one.up()
    assert (up["event"], up["evidence"], up["labels"]) == ("device_up", "simulated", {})
    assert up["command"] == ["{python}", "{child}"]


@pytest.mark.long
def test_simulating_one_backend_leaves_the_others_alone(device: Start) -> None:
    up = device(rocm_node(expect={"model": "MI300X", "driver": "6.12"}), "cpu").up()
    assert (up["event"], up["evidence"]) == ("device_up", "interpreted"), up


@pytest.mark.parametrize(
    ("node", "labels", "words"),
    [
        ({}, {"model": "MI355X"}, ("MI355X", "AMD Instinct MI300X")),
        ({"expect": {"model": "MI325X"}}, None, ("MI325X", "AMD Instinct MI300X")),
        ({"expect": {"partition": ""}}, None, ("no partition", "cpx-nps4")),
        ({"expect": {"driver": "6.13"}}, None, ("6.13", "6.12.12")),
        ({"expect": {"python": "2.7"}}, None, ("2.7", "python")),
        ({}, {"backend": "cuda"}, ("cuda", "rocm")),
    ],
    ids=["label", "expect", "partition", "driver", "python", "backend"],
)
def test_a_device_that_is_not_what_its_node_says_is_refused_with_both_values(
    device: Start, node: dict[str, Any], labels: dict[str, str] | None, words: tuple[str, ...]
) -> None:
    one = device(rocm_node(**node), **({} if labels is None else {"labels": labels}))
    down = one.up()
    assert (down["event"], down["final"]) == ("device_down", True), down
    assert all(word in down["reason"] for word in words), down["reason"]
    assert one.actor.child_pid() is None  # nobody holds the device


def test_what_fits_is_admitted(device: Start) -> None:
    labels = {"backend": "rocm", "model": "MI300X", "rack": "r7"}
    up = device(rocm_node(expect={"model": "MI300X", "driver": "6.12", "stack": "7"}), labels=labels).up()
    assert up["event"] == "device_up", up
    assert up["labels"] == labels


def test_labels_of_the_accelerator_do_not_bind_the_processor_beside_it(device: Start) -> None:
    assert device(None, "cpu", labels={"backend": "cuda.cpu", "model": "H200"}).up()["event"] == "device_up"
    down = device(None, "cpu", labels={"backend": "cpu", "model": "H200"}).up()
    assert (down["event"], "H200" in down["reason"]) == ("device_down", True)


def test_a_wrong_configuration_takes_the_device_out_with_its_sentence(device: Start) -> None:
    down = device({"backend": "rocm", "expext": {"model": "MI300X"}}).up()
    assert (down["event"], down["final"]) == ("device_down", True)
    assert 'node.yaml:1: expext is unknown; did you mean "expect"?' in down["reason"]


def test_an_environment_that_the_node_has_not_is_named_with_those_there(device: Start) -> None:
    from farm.node.environment import Environment

    node = rocm_node(environments={"nightly": {"python": "/usr/bin/python3"}})
    down = device(node, environment=Environment.named("stable")).up()
    assert (down["event"], down["final"]) == ("device_down", True)
    assert '"stable"' in down["reason"] and "default, nightly" in down["reason"]


def test_a_host_that_cannot_be_read_is_no_reason_to_fall(device: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Identity:
        raise RuntimeError("the vendor's library is in a bad mood")

    monkeypatch.setattr(sim, "identity", broken, raising=False)
    up = device(None, "sim").up()
    assert (up["event"], up["identity"]) == ("device_up", {})


# what a process's end is taken for


@pytest.fixture
def rocm_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests need of a vendor's words, so that they hold whatever the backend learns; without trials
    (test_trial_captures.py), so that a capture kills the process that was to be timed."""

    def fault(text: str, code: int | None = None) -> Fault | None:
        if "Memory access fault by GPU" in text:
            return Fault("crashed", "kernel", f"memory access fault, exit {code}", True)
        return Fault("infra_error", "device", "the part is gone", True) if "GPU Hang" in text else None

    monkeypatch.setattr(rocm, "fault", fault, raising=False)
    monkeypatch.setattr(rocm, "CAPTURE_MAY_KILL", True, raising=False)
    monkeypatch.setattr(rocm, "TRIAL_CAPTURE", False)


def test_the_vendors_words_on_a_dying_process_win(device: Start, rocm_faults: None) -> None:
    one = device(rocm_node())
    assert one.up()["event"] == "device_up"
    _, ended = one.run({"fault": "illegal_access"})
    assert (ended["status"], ended["owner"]) == ("crashed", "kernel")
    assert ended["reason"].startswith("memory access fault, exit -6: the child ended with signal 6 (SIGABRT)")
    _, ended = one.run({"fault": "hang"})  # printed and aborted, as a runtime's watchdog does
    assert (ended["status"], ended["owner"]) == ("infra_error", "device")
    _, judged = one.run()
    assert judged["status"] == "passed"  # a fresh child


def test_what_a_fake_leaves_when_its_child_is_thrown_away_is_a_fakes_too(device: Start) -> None:
    one = device(rocm_node())
    one.up()
    _, ended = one.run({"lie": True})
    assert (ended["event"], ended["status"]) == ("ended", "crashed"), ended
    assert ended["origin"]["evidence"] == "simulated", "the row would take the evidence of the backend that is played"
    assert ended["origin"]["target"]["model"] == "AMD Instinct MI300X"
    assert ended["origin"]["device"].startswith("simulated")


def test_what_the_runtime_said_as_a_capture_ended_the_process_is_told(
    device: Start, rocm_faults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocm, "fault", lambda text, code=None: Fault("crashed", "kernel", f"words of {code}", True))
    one = device(rocm_node())
    one.up()
    measured, _ = one.run({"fault": "capture"}, method="rotating_graph")
    flag = "timed by events: capture ended the child (signal 11 (SIGSEGV); words of -11)"
    assert flag in measured["facts"]["flags"]


def test_an_earlier_cells_words_are_not_the_next_ones(device: Start, rocm_faults: None) -> None:
    one = device(rocm_node())
    one.up()
    one.run({"lie": "", "wall_s": 0.0})
    child = one.actor._children.current
    assert child is not None
    child._log.write(b"Memory access fault by GPU node-2\n")
    child._log.flush()
    _, ended = one.run({"exit": 7})
    assert (ended["status"], ended["reason"]) == ("crashed", "the child ended with exit code 7 in phase check")


def test_a_process_that_capture_ended_accuses_nobody_and_is_timed_by_events(device: Start, rocm_faults: None) -> None:
    one = device(rocm_node())
    first = one.up()["pid"]
    measured, judged = one.run({"fault": "capture"}, method="rotating_graph")
    assert judged["status"] == "passed", judged
    assert measured["timing"]["method"] == "events"
    flag = "timed by events: capture ended the child (signal 11 (SIGSEGV))"
    assert flag in measured["facts"]["flags"]
    second = one.actor.child_pid()
    assert second != first
    measured, judged = one.run({"fault": "capture"}, method="rotating_graph")  # known now: no second death
    assert (measured["timing"]["method"], judged["status"]) == ("events", "passed")
    assert flag in measured["facts"]["flags"]
    assert one.actor.child_pid() == second
    measured, _ = one.run(method="events")
    assert measured["facts"]["flags"] == []  # who asked for events is told nothing


def test_a_capture_that_never_ends_accuses_nobody_either(device: Start, rocm_faults: None) -> None:
    one = device(rocm_node())
    one.up()
    script = {"hang": "timing"}  # also by events: the process hangs again
    _, ended = one.run(script, method="rotating_graph", deadlines={"timing": 1})
    assert (ended["event"], ended["status"], ended["owner"]) == ("ended", "timed_out", "kernel")
    assert len([e for e in one.events if e["event"] == "started"]) == 1
    measured, _ = one.run(method="rotating_graph")  # it was not capture, so the next one is not spared it
    assert (measured["timing"]["method"], measured["facts"]["flags"]) == ("rotating_graph", [])


def test_who_dies_again_without_capture_is_accused(device: Start, rocm_faults: None) -> None:
    one = device(rocm_node())
    one.up()
    _, ended = one.run({"fault": "illegal_access"}, method="rotating_graph")
    assert (ended["status"], ended["owner"]) == ("crashed", "kernel")  # in the check: capture had not begun


@pytest.mark.parametrize("may_kill", [True, False])
def test_only_where_capture_may_kill_is_a_death_while_timing_forgiven(
    device: Start, rocm_faults: None, monkeypatch: pytest.MonkeyPatch, may_kill: bool
) -> None:
    monkeypatch.setattr(rocm, "CAPTURE_MAY_KILL", may_kill)
    one = device(rocm_node())
    one.up()
    _, ended = one.run({"fault": "capture"}, method="rotating_graph")
    want = ("passed", "") if may_kill else ("crashed", "kernel")
    assert (ended["status"], ended.get("owner") or "") == want, ended


def test_the_backends_that_exist_answer_what_the_actor_asks() -> None:
    for name in backends.known():
        module = backends.get(name)
        fault = getattr(module, "fault", None)
        assert fault is None or fault("the child ended", 1) is None, name
        assert isinstance(getattr(module, "CAPTURE_MAY_KILL", False), bool)
        assert isinstance(getattr(module, "TRIAL_CAPTURE", False), bool)


def test_the_shipped_provider_is_the_one_that_runs_whatever_the_node_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It travels by content, so that a run means one revision of it: an older one that is importable on the node, or
    lies in a folder that its environment adds, is not what was asked for."""
    monkeypatch.setenv("FARM_NODE", "")
    for folder, value in (("user", "new"), ("node", "old")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine_shipped.py").write_text(f"def f():\n    return {value!r}\n")
    with monkeypatch.context() as there:
        there.syspath_prepend(str(tmp_path / "user"))
        shipped = shipping.pack(["mine_shipped:f"])
    monkeypatch.syspath_prepend(str(tmp_path / "node"))
    config = {
        "backend": "sim",
        "device_id": "0",
        "spool": str(tmp_path / "spool"),
        "shipped": shipped,
        "bundles": [b.plain() for b in bundle.pack_all()],
        "environment": Environment.named("default").plain(),
    }
    placed = DeviceSetup(config)
    placed.prepare()
    assert str(tmp_path / "node") in placed.environment.path
    variables = child_variables({}, placed.environment)
    code = f"{START[1].partition('import runpy')[0]}import mine_shipped, farm; print(mine_shipped.f(), farm.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "new"
    assert str(tmp_path / "spool" / "bundles") in done.stdout.split()[1]


def test_a_nodes_cap_wins_over_what_a_matrix_allows_and_each_phase_is_reported(device: Start) -> None:
    one = device({"deadlines": {"check": 0.7}}, "sim")
    one.up()
    begun = len(one.events)
    _, ended = one.run({"hang": True}, deadlines={"check": 600, "prepare": 77})
    assert (ended["event"], ended["status"], ended["owner"]) == ("ended", "timed_out", "kernel")
    (started,) = (e for e in one.events[begun:] if e["event"] == "started")
    shown = [e for e in one.events[begun:] if e["event"] == "progress"]
    assert started["up_to_s"] == 77.0
    assert shown and (shown[-1]["phase"], shown[-1]["up_to_s"]) == ("check", 0.7), one.events[begun:]


def out_of_time(device: Start, check_s: float, rows: int = 300_000) -> dict[str, Any]:
    """The end of a cell that takes the interpreter longer, also on a fast host."""
    one = device(None, "cpu")
    one.up()
    limits = {"check": check_s, "import": 300, "prepare": 300}
    _, ended = one.run(hidden=8, rows=rows, method="none", provider="farm", deadlines=limits, seconds=400.0)
    return ended


def test_a_cell_that_the_interpreter_is_too_slow_for_accuses_no_kernel(
    device: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.actor.out_of_time.read", lambda folder: Programs(3, 9, 0.0))
    ended = out_of_time(device, 0.5)
    assert (ended["event"], ended["status"], ended["owner"]) == ("ended", "unsupported", "harness"), ended
    assert id_of(ended["reason"]) == "interpreter-time"


@pytest.mark.long
def test_its_programs_are_counted_until_it_is_killed(device: Start) -> None:
    ended = out_of_time(device, 30, 6_000_000)
    assert (ended["status"], id_of(ended["reason"])) == ("unsupported", "interpreter-time"), ended
