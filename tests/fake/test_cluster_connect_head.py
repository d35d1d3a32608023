"""`--address` of a real head that asks for a token, of one whose node froze, and of what only looks like a head."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from farm_process import FarmRun, is_dead, marked
from ray_head import ray_head

from farm.cluster import connect
from farm.errors import InfraError

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]
TOKEN = "0123456789abcdef0123456789abcdef"
MATRIX = json.dumps(
    {
        "name": "token",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64, 65]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {"default": {"time_us": 10}},
    }
)
RAYS_OWN = ("gcs_client.cc", "core_worker", "Unauthenticated", "Traceback")  # what its lines have


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, mark) of a cluster that asks for TOKEN and offers two fakes."""
    words = ("--num-cpus=2", "--labels=farm/backend=sim", '--resources={"farm_sim": 2}')
    with ray_head(tmp_path_factory.mktemp("head"), *words, token=TOKEN) as found:
        yield found


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RAY_AUTH_TOKEN": "stale-and-secret"}, "(from RAY_AUTH_TOKEN) [connect-token-rejected]"),
        ({}, "this host [connect-token-rejected]"),
        ({"RAY_AUTH_MODE": "token"}, "this host [connect-token-missing]"),
    ],
)
def test_a_wrong_or_missing_token_is_one_sentence(
    farm: Farm, head: tuple[str, str], tmp_path: Path, environment: dict[str, str], told: str
) -> None:
    run = farm(MATRIX, address=head[0], environment={**environment, "HOME": str(tmp_path)})
    assert run.wait() == 2
    said, (data, _, name) = run.said(), told.partition(" [")
    assert said.count("\n") == 1 and said.startswith(f"farm run: --address {head[0]}: ")
    assert data in said and f" [{name}" in said
    assert "stale-and-secret" not in said
    assert not marked(run.mark) and not run.spool.exists()


def test_with_the_right_token_it_runs_and_ray_says_nothing(farm: Farm, head: tuple[str, str], tmp_path: Path) -> None:
    run = farm(MATRIX, address=head[0], environment={"RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)})
    assert run.wait() == 0, run.said()
    assert not [word for word in RAYS_OWN if word in run.said()], run.said()


def test_a_node_that_froze_is_told_and_not_waited_for(
    head: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`ray.init` itself would end this process, with the exit code that means findings."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setattr(connect, "ASK_SECONDS", 8.0)
    raylets = [pid for pid, line in marked(head[1]).items() if "raylet/raylet" in line]
    assert raylets
    for pid in raylets:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(InfraError, match=r"does not answer within|Ray gave up joining"):
            connect.join(SimpleNamespace(), head[0], {})
    finally:
        for pid in raylets:
            os.kill(pid, signal.SIGCONT)
    assert capfd.readouterr().err == ""
    assert not any(is_dead(pid) for pid in raylets)


def test_what_speaks_grpc_and_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the first look, which only asks whether somebody speaks HTTP/2."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(connect, "ASK_SECONDS", 6.0)
    talks: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    talk, _ = server.accept()
                    talks.append(talk)
                    talk.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # an empty SETTINGS frame

        threading.Thread(target=accept, daemon=True).start()
        try:
            with pytest.raises(InfraError, match=r"does not answer within|Ray did not answer"):
                connect.join(SimpleNamespace(), f"127.0.0.1:{server.getsockname()[1]}", {})
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for talk in talks:
                talk.close()
