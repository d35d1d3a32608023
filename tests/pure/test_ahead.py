"""The child that starts before its run is planned: when one does, and that the run takes it only if it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.actor import waiting
from farm.actor.device_setup import DeviceSetup
from farm.cli import ahead
from farm.limits import of as limits_of
from farm.node import config
from farm.node.environment import Environment


@pytest.mark.parametrize(
    ("words", "environ", "found"),
    [
        ("run m.yaml --backend cpu", {}, "cpu"),
        ("run m.yaml --backend=cuda", {}, "cuda"),
        ("run m.yaml", {}, "cpu"),
        ("run --failed", {}, "cpu"),
        ("run m.yaml --address inline", {"FARM_ADDRESS": "auto"}, "cpu"),
        ("run m.yaml", {"FARM_ADDRESS": "auto"}, ""),
        ("run m.yaml --address local", {}, ""),
        ("run m.yaml --backend sim", {}, ""),
        ("run m.yaml --backend cpu,cuda", {}, ""),
        ("run missing.yaml --backend cpu", {}, ""),
        ("run --help", {}, ""),
        ("run m.yaml --watch", {}, ""),
        ("run m.yaml --sandbox", {}, ""),
        ("run m.yaml --sanitize=memcheck", {}, ""),
    ],
)
def test_a_child_starts_ahead_of_a_plain_run_on_this_host(
    words: str, environ: dict[str, str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text("")
    assert ahead.backend(words.split(), environ, tmp_path) == found
    (tmp_path / "nvidiactl").touch()
    here = "cuda" if found else ""
    assert ahead.backend(words.split(), environ, tmp_path) == (found if "--backend" in words else here)
    (tmp_path / "kfd").touch()  # which of them, or both, nobody knows yet
    assert ahead.backend(words.split(), environ, tmp_path) == (found if "--backend" in words else "")


@pytest.mark.parametrize(
    ("backend", "words", "environ", "found"),
    [
        ("cuda", "run m.yaml", {}, 4),
        ("cuda", "run m.yaml --devices 2", {}, 2),
        ("cuda", "run m.yaml --devices=1", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 1),
        ("cuda", "run m.yaml", {"CUDA_VISIBLE_DEVICES": "2,GPU-1"}, 2),
        ("cuda", "run m.yaml", {"CUDA_VISIBLE_DEVICES": ""}, 1),
        ("cuda", "run m.yaml --devices many", {}, 4),
        ("rocm", "run m.yaml", {}, 1),
        ("cpu", "run m.yaml", {}, 1),
    ],
)
def test_each_gpu_has_a_child_ahead(
    backend: str, words: str, environ: dict[str, str], found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 16)
    assert ahead.count(backend, words.split(), environ, tmp_path) == found
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 2)
    assert ahead.count(backend, words.split(), environ, tmp_path) == 1


class _Started:
    """In place of a child: what it was started and told with."""

    alive = True

    def __init__(self, *given: Any, waits: bool = False, **more: Any) -> None:
        self.backend, self.waits, self.order, self.killed = given[0], waits, None, False

    def begin(self, order: Any) -> None:
        self.order = order

    def kill(self, grace: float) -> None:
        self.killed = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_Started]:
    found: list[_Started] = []
    monkeypatch.setattr(waiting, "Child", lambda *a, **k: found.append(_Started(*a, **k)) or found[-1])
    monkeypatch.setattr("farm.actor.child_process.Child", waiting.Child)
    monkeypatch.setattr(waiting.LineProcess, "close", lambda child: None)
    monkeypatch.delenv(config.VARIABLE, raising=False)
    monkeypatch.setattr(config, "DEFAULT_FILE", Path("/nonexistent"))
    return found


def setup(tmp_path: Path, **variables: str) -> DeviceSetup:
    asked = Environment.default().plain()
    limits = limits_of({}, {})
    given = {"backend": "cpu", "device_id": "1", "environment": asked, "spool": str(tmp_path), "deadlines": limits}
    found = DeviceSetup({**given, "variables": variables})
    found.prepare()
    return found


def test_a_run_takes_the_child_that_has_its_environment_and_no_other(
    started: list[_Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text("")
    words = ["run", "m.yaml", "--backend", "cpu"]
    with ahead.child(words):
        (one,) = started
        assert one.waits and setup(tmp_path).child() is one and one.order["argv"][:2] == ["cpu", "1"]
        assert setup(tmp_path).child() is started[1] and not started[1].waits  # there was one
    assert not one.killed
    del started[:]
    with ahead.child(words):
        assert setup(tmp_path, TRITON_X="1").child() is started[1]  # a variable that the first one does not have
        assert started[0].killed and started[0].order is None  # at once: it would go on importing
    del started[:]
    with ahead.child(words):
        pass
    assert started[0].killed  # the run was refused
    for backends, ended in ((["cuda", "cpu"], False), (["sim"], True), ((), True)):  # of Ray's actors, none
        del started[:]
        with ahead.child(words):
            waiting.keep(backends)
            assert started[0].killed is ended
    del started[:]
    monkeypatch.setattr(ahead, "count", lambda *given: 3)
    with ahead.child(words):
        waiting.at_most(2)  # devices that there are
        assert [one.killed for one in started] == [False, False, True]
        assert [setup(tmp_path).child() for _ in range(3)] == [*started[:2], started[3]]
    del started[:]
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "m.yaml")  # an environment of the node's own
    with ahead.child(words):
        assert not started
