"""Joining a Ray that refuses, hangs or dies: one sentence, the right exit code, an end in time, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.cluster import connect
from farm.cluster.ray_token import TokenFacts
from farm.errors import FarmError, InfraError, UsageError
from farm.process.steps import ProbeResult

ROOT = Path(__file__).resolve().parents[2]
HAS = TokenFacts("token", "RAY_AUTH_TOKEN")
OPEN = TokenFacts("disabled")
WRONG = "AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Ensure that"
NO_NODE = "ConnectionError: Failed to connect (from RuntimeError: No node info found matching attributes: '' when)"
TRACED = (
    "ConnectionError: Failed to connect to Ray cluster at 10.0.0.1:6379 (from RuntimeError: Failed to connect to GCS. "
    'Last connection error: Traceback (most recent call last):\n  File "/a/site-packages/ray/node.py", line 9, in x'
)
VERSION = "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.12.1"


@pytest.mark.parametrize(
    ("trial", "token", "kind", "id", "words"),
    [
        (ProbeResult("failed", WRONG), HAS, UsageError, "connect-token-rejected", "(from RAY_AUTH_TOKEN)"),
        (ProbeResult("failed", WRONG), OPEN, UsageError, "connect-token-rejected", "this host"),
        (ProbeResult("failed", NO_NODE), HAS, UsageError, "connect-not-a-node", "farm nodes join"),
        (ProbeResult("failed", VERSION), HAS, UsageError, "connect-version-differs", "Ray: 2.59.0 Python: 3.12.1;"),
        (ProbeResult("hung", "45 s"), HAS, InfraError, "connect-hung", "within 45 s"),
        (ProbeResult("died", "exit code 1"), HAS, InfraError, "connect-node-silent", "(exit code 1)"),
        (ProbeResult("failed", "RpcError: X"), HAS, InfraError, "connect-failed", "(RpcError: X)"),
        (
            ProbeResult("failed", TRACED),
            HAS,
            InfraError,
            "connect-failed",
            "(ConnectionError: Failed to connect to Ray cluster at 10.0.0.1:6379);",
        ),
        (ProbeResult("skipped"), HAS, InfraError, "connect-failed", "(skipped)"),
    ],
)
def test_what_the_probe_saw_is_one_sentence(
    trial: ProbeResult, token: TokenFacts, kind: type[FarmError], id: str, words: str
) -> None:
    error = connect.judged("h:1", trial, token)
    assert type(error) is kind and error.id == id and words in str(error)
    assert str(error).startswith("--address h:1: ") and "\n" not in str(error) and "Traceback" not in str(error)


def test_who_could_join_is_let_in() -> None:
    assert connect.judged("h:1", ProbeResult("ok", "2.60.0"), HAS) is None


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (TokenFacts("token"), "this host"),
        (TokenFacts("Token", "/a/file", "No such file"), "(No such file)"),
        (HAS, None),
        (OPEN, None),
        (TokenFacts("disabled", "/a/file", "No such file"), None),
        (TokenFacts(None), None),
    ],
)
def test_a_token_that_is_asked_for_must_be_there(token: TokenFacts, words: str | None) -> None:
    error = connect.lacking("h:1", token)
    assert (error is None) if words is None else (isinstance(error, UsageError) and words in str(error))


def test_rays_process_is_not_touched_where_the_probe_could_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(connect, "ask", lambda address: ProbeResult("hung", "45 s"))
    with pytest.raises(InfraError) as refused:
        connect.join(SimpleNamespace(), "h:1", {})  # it has no init
    assert refused.value.id == "connect-hung"


def test_what_joins_gets_its_arguments_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def init(**arguments: Any) -> None:
        given.update(arguments)
        os.write(2, b"[gcs_client.cc:210] a line of Ray's\n")

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(connect, "ask", lambda address: ProbeResult("ok", "2.60.0"))
    before = threading.active_count()
    connect.join(SimpleNamespace(init=init), "h:1", {"namespace": "farm"})
    print("after", file=sys.stderr)
    assert given == {"address": "h:1", "namespace": "farm"}
    assert capfd.readouterr().err == "after\n"
    assert threading.active_count() == before


def test_a_refusal_of_an_own_ray_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    def init(**arguments: Any) -> None:
        os.write(2, b"raw\n")
        raise RuntimeError("\nno ports left\nat all")

    busy = rf"this host has a load of \d+ on {os.cpu_count()} processors"
    with pytest.raises(InfraError, match=rf"--address local: .* \(no ports left\); {busy}; .*farm doctor") as refused:
        connect.start(SimpleNamespace(init=init, shutdown=lambda: None), "local", {})
    assert refused.value.id == "connect-ray-failed"
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "after\n"


def test_an_own_ray_that_does_not_start_is_tried_once_more() -> None:
    """What the first try has left, which would only make the host busier, is ended."""
    done: list[str] = []
    left: list[subprocess.Popen[bytes]] = []

    def init(**arguments: Any) -> None:
        done.append("init")
        if len(done) == 1:
            left.append(subprocess.Popen(["/ray/gcs_server", "600"], executable=shutil.which("sleep")))
            raise RuntimeError("The current node timed out during startup.")

    try:
        connect.start(SimpleNamespace(init=init, shutdown=lambda: done.append("shutdown")), "local", {})
        assert done == ["init", "shutdown", "init"]
        assert left[0].wait(30) == -signal.SIGKILL
    finally:
        left[0].kill()


STUCK = """
import time
from types import SimpleNamespace
from farm.cluster import connect
connect.START_SECONDS = 0.2
def init(**arguments):
    while True:
        try:
            time.sleep(100)  # as a call of C++ does, it hears no exception of ours
        except BaseException:
            pass
connect.start(SimpleNamespace(init=init), "local", {})
"""


def test_a_ray_that_never_answers_ends_the_process_with_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert done.returncode == InfraError.exit_code
    assert done.stderr.startswith("farm: --address local: Ray did not start within 0.2 s; ")
    assert done.stderr.count("\n") == 1


ORPHANED = """
import os, signal, subprocess, sys, time
from types import SimpleNamespace
from farm.cluster import connect
from farm.process import supervisor
connect.PART_DIED_SECONDS = 0.2
def init(**arguments):
    part = subprocess.Popen([sys.argv[1], "600"])
    if supervisor.may_restart() or sys.argv[2] == "always":
        time.sleep(0.5)
        part.kill()
        while True:
            time.sleep(100)  # as Ray does, for a minute
    part.kill()
def work():
    connect.start(SimpleNamespace(init=init), "local", {})
    return 0
sys.exit(supervisor.run(work, print) if sys.argv[3] == "supervised" else work())
"""


@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
@pytest.mark.parametrize(
    ("dies", "how", "code", "said"),
    [
        ("once", "supervised", 0, ["trying once more"]),
        ("always", "supervised", 3, ["trying once more", "repeat the command"]),
        ("always", "alone", 3, ["repeat the command"]),
    ],
)
def test_a_part_that_dies_while_ray_starts_is_not_waited_for(
    tmp_path: Path, part: str, dies: str, how: str, code: int, said: list[str]
) -> None:
    shutil.copy(str(shutil.which("sleep")), tmp_path / part)
    words = [sys.executable, "-c", ORPHANED, str(tmp_path / part), dies, how]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(said) and all(word in line for word, line in zip(said, lines, strict=True)), lines
    kind = {"gcs_server": "gcs", "raylet": "raylet"}[part]
    assert all("died (" in line and line.endswith(f"[{kind}-died-early]") for line in lines), lines


@pytest.mark.parametrize("what", ["time.sleep(100)", "os._exit(1)"])
def test_a_probe_that_hangs_or_dies_is_told_and_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As where the head is stopped, and where Ray ends the process."""
    pids = tmp_path / "pids"
    module = tmp_path / "stuck_probe.py"
    module.write_text(
        "import os, sys, time, json\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        "print(json.dumps({'step': sys.argv[1], 'ended': 'begun'}), flush=True)\n"
        f"{what}\n"
    )
    monkeypatch.setattr(connect.connect_probe, "__name__", "stuck_probe")
    monkeypatch.syspath_prepend(str(tmp_path))
    hangs = "sleep" in what
    trial = connect.ask("h:1", seconds=5.0 if hangs else 60.0)  # a busy host takes its time to start one
    assert trial.ended == ("hung" if hangs else "died")
    for pid in pids.read_text().split():
        assert not Path("/proc", pid).exists()
