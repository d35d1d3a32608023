"""Children in containers: the command lines of docs/environments.md, against stand-ins for docker, apptainer and enroot
that check their words, hide what is not mounted or handed over, and outlive their clients."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from farm_process import ROOT, is_dead, wait_for
from one_device import OneDevice

from farm.node import config
from farm.node.environment import Environment

STUB = ROOT / "tests" / "stubs" / "containers" / "containers.py"
TOOLS = ("docker", "apptainer", "enroot")
BLOCKS = [
    yaml.safe_load(text)
    for text in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)
]
#: (backend, tool) -> the environment as the guide has it.
DOCUMENTED = {
    (block["backend"], given["command"][0]): given
    for block in BLOCKS
    for given in block.get("environments", {}).values()
    if given.get("command", [""])[0] in TOOLS
}
DOCKER = DOCUMENTED["rocm", "docker"]


@pytest.fixture
def containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stand-ins on PATH; the folder of their state.  No container is left afterwards."""
    programs, state = tmp_path / "bin", tmp_path / "containers"
    programs.mkdir()
    state.mkdir()
    (state / "site").write_text(str(Path(numpy.__file__).parents[1]))
    for tool in TOOLS:
        program = programs / tool
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" {tool} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FARM_STUB_CONTAINERS", str(state))
    yield state
    for file in state.glob("*.pid"):
        try:
            os.killpg(int(file.read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            continue


Start = Callable[..., OneDevice]


@pytest.fixture
def device(tmp_path: Path, containers: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a fake of backend `sim` whose node has this environment as its default."""
    started: list[OneDevice] = []

    def start(default: dict[str, Any], **more: Any) -> OneDevice:
        folder = tmp_path / f"device{len(started)}"
        folder.mkdir()
        (folder / "node.yaml").write_text(json.dumps({"environments": {"default": default}}))
        monkeypatch.setenv("FARM_NODE", str(folder / "node.yaml"))
        started.append(OneDevice(folder, "sim", **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def calls(state: Path, tool: str, verb: str) -> list[list[str]]:
    lines = [json.loads(line) for line in (state / "calls").read_text().splitlines()]
    return [words[2:] for words in lines if words[:2] == [tool, verb]]


def containers_alive(state: Path) -> list[int]:
    return [int(text) for file in state.glob("*.pid") if (text := file.read_text())]


def test_the_guides_examples_are_configurations(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 5
    for block in BLOCKS:
        (tmp_path / "node.yaml").write_text(json.dumps(block))
        assert config.read(tmp_path / "node.yaml").backend == block["backend"]
    assert {backend for backend, tool in DOCUMENTED if tool == "docker"} == {"cuda", "rocm", "ascend"}
    assert {tool for _, tool in DOCUMENTED} == set(TOOLS)


@pytest.mark.parametrize(("backend", "tool"), sorted(DOCUMENTED))
def test_a_documented_command_line_runs_a_cell(
    device: Start, containers: Path, backend: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SUPERVISOR", "1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    one = device(DOCUMENTED[backend, tool])
    up = one.up()
    assert up["event"] == "device_up", up
    measured, judged = one.run()
    assert judged["status"] == "passed", judged
    assert measured["timing"]["samples_us"]
    child = one.actor._children.current
    assert child is not None
    variables = dict(
        pair.split("=", 1) for pair in Path(f"/proc/{child.device_pid}/environ").read_text().split("\0") if "=" in pair
    )
    assert "RAY_AUTH_TOKEN" not in variables
    assert "OF_THE_SUPERVISOR" not in variables
    assert variables["TRITON_CACHE_DIR"].startswith("/var/cache/farm/")
    assert variables["FARM_WRAPPED"] == "1"
    assert variables["OMP_NUM_THREADS"] == "1"  # what the backend sets for its device
    spool = str(one.spool)
    *folders, _ = variables["PYTHONPATH"].split(":")  # the last one is the image's
    assert len(folders) == 2
    assert all(p.startswith(f"{spool}/bundles/") for p in folders)
    pid = child.device_pid
    one.stop()
    wait_for("the child's end", lambda: is_dead(pid), 10)
    assert containers_alive(containers) == []


def test_what_is_not_mounted_is_not_there(device: Start) -> None:
    command = list(DOCKER["command"])
    i = command.index("{spool}:{spool}")
    one = device({**DOCKER, "command": [*command[: i - 1], *command[i + 1 :]]})
    down = one.up()
    assert down["event"] == "device_down"
    assert "No module named" in down["reason"]  # farm itself


def test_variables_that_are_not_handed_over_do_not_arrive(device: Start) -> None:
    one = device({**DOCKER, "command": [w for w in DOCKER["command"] if w != "{env}"]})
    assert one.up()["event"] == "device_down"


def test_an_option_that_the_tool_does_not_know_is_told_in_its_words(device: Start) -> None:
    command = list(DOCKER["command"])
    command[2] = "--remove"
    down = device({**DOCKER, "command": command}).up()
    assert "docker: unknown flag: --remove" in down["reason"]


def test_a_banner_on_the_protocols_pipe_is_told(device: Start) -> None:
    command = [w for w in DOCKER["command"] if w not in ("--entrypoint", "python3")]
    image = command.index("rocm/pytorch:latest")
    down = device({**DOCKER, "command": [*command[:image], "banner", "python3", *command[image + 1 :]]}).up()
    assert "not a protocol line" in down["reason"]
    assert "some vendor's entry point" in down["reason"]


def test_a_tool_that_is_not_there_is_told(device: Start) -> None:
    down = device({"command": ["podman", "run", "{child}"], "wrapped": True}).up()
    assert "the child could not be started" in down["reason"]
    assert "podman" in down["reason"]


def test_a_container_outlives_its_killed_client_until_it_is_ended_by_name(device: Start, containers: Path) -> None:
    (containers / "keep-stdin").touch()  # nor does it notice that the client is gone
    one = device(DOCKER)
    one.up()
    (first,) = containers_alive(containers)
    child = one.actor._children.current
    assert child is not None
    assert child.device_pid == first != child.pid
    _, ended = one.run({"hang": True}, deadlines={"check": 1})
    assert (ended["status"], ended["reason"]) == ("timed_out", "phase check took more than 1 s")
    assert "test_containers" not in ended["log"]
    assert "Current thread" in ended["log"]  # the stacks of the process in the container
    assert is_dead(first)
    (named,) = calls(containers, "docker", "kill")
    _, judged = one.run()
    assert judged["status"] == "passed"
    names = [words[words.index("--name") + 1] for words in calls(containers, "docker", "run")]
    assert len(names) == len(set(names)) == 2
    assert named == [names[0]]
    one.stop()
    assert containers_alive(containers) == []
    assert calls(containers, "docker", "kill")[1] == [names[1]]  # also after one that left by itself


def test_without_an_end_such_a_container_would_have_gone_on(device: Start, containers: Path) -> None:
    """That the test above can fail."""
    (containers / "keep-stdin").touch()
    one = device({k: v for k, v in DOCKER.items() if k != "end"})
    one.up()
    (pid,) = containers_alive(containers)
    _, ended = one.run({"hang": True}, deadlines={"check": 1})
    assert ended["status"] == "timed_out"
    assert not is_dead(pid)


def test_a_container_that_cannot_be_ended_takes_its_device_out(device: Start, containers: Path) -> None:
    for name in ("keep-stdin", "cannot-kill"):
        (containers / name).touch()
    one = device(DOCKER)
    one.up()
    _, ended = one.run({"hang": True}, deadlines={"check": 1})
    assert (ended["status"], ended["owner"]) == ("infra_error", "device")
    assert ended["reason"] == "the child could not be killed: the device is stuck"
    assert one.wait("device_down")["final"]
    (containers / "cannot-kill").unlink()


def test_beside_a_container_that_goes_on_nothing_is_measured(device: Start, containers: Path) -> None:
    for name in ("keep-stdin", "cannot-kill"):
        (containers / name).touch()
    one = device(DOCKER)
    one.up()
    (pid,) = containers_alive(containers)
    child = one.actor._children.current
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)  # the client, by whomever: what it stood for still has the device
    wait_for("the client's end", lambda: not child.alive, 10)
    _, ended = one.run()
    assert not is_dead(pid)
    assert (ended["event"], ended.get("status"), ended.get("owner")) == ("ended", "infra_error", "infra"), ended
    assert "could not be ended" in ended["reason"]
    assert one.wait("device_down")["final"]
    (containers / "cannot-kill").unlink()


@pytest.mark.parametrize("tool", ["docker", "apptainer"])
def test_how_a_process_in_a_container_ended_is_known(device: Start, tool: str) -> None:
    one = device(DOCUMENTED["rocm", tool])
    one.up()
    _, ended = one.run({"signal": 11})
    assert ended["reason"] == "the child ended with signal 11 (SIGSEGV) in phase check"
    _, ended = one.run({"exit": 7}, hidden=65)
    assert ended["reason"] == "the child ended with exit code 7 in phase check"


SUPERVISOR = """
import json, os, sys, time
from farm.shipping import bundle
from farm.actor import child_process
from farm.node.environment import Environment, child_variables, given_variables
from farm.child import protocol
given = json.loads(sys.argv[1])
spool = sys.argv[2]
path = tuple(str(bundle.install(b.sha, b.blob, spool)) for b in bundle.pack_all())
environment = Environment.of({**given, "name": "x", "path": path})
child = child_process.Child("sim", "0", {}, child_variables({}, environment), environment,
                        given=given_variables({}, environment), spool=spool)
assert isinstance(child_process.greeting(child, 60), protocol.Ready)
print(child.device_pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_a_killed_supervisor_leaves_no_child_behind(containers: Path, tmp_path: Path, tool: str) -> None:
    given = {k: v for k, v in DOCUMENTED["cuda", tool].items() if k != "variables"}
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, json.dumps(given), str(tmp_path / "spool")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert pid != process.pid
        assert not is_dead(pid)
        process.kill()
        wait_for("the child's end", lambda: is_dead(pid), 10)
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()  # type: ignore[union-attr]


def test_an_environment_that_is_said_in_full_needs_no_node(device: Start, containers: Path) -> None:
    asked = Environment(name="said", command=("{python}", "{child}"), variables={"A": "1"})
    one = device({"python": "/nowhere/python"}, environment=asked)
    up = one.up()
    assert (up["event"], up["environment"], up["command"]) == ("device_up", "said", ["{python}", "{child}"])
