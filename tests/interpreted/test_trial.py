"""A trial of a capture in a child's session, on a pretend device: its phases, its ends, and what it leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))

from fake_device import FakeApi  # noqa: E402

from farm.cell import Cell, Timing  # noqa: E402
from farm.child.protocol import Failed, Phase, Trial, Tried  # noqa: E402
from farm.child.session import TorchSession  # noqa: E402
from farm.child.timing import graph, trial  # noqa: E402
from farm.contracts.call import call_for  # noqa: E402
from farm.contracts.discovery import contract  # noqa: E402
from farm.judge.judge import Judge  # noqa: E402

CPU = torch.device("cpu")
API: Any = None


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    global API
    API = FakeApi()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: API)
    monkeypatch.setattr(graph, "_FLOOR", {})
    return API


@pytest.fixture
def tried(tmp_path: Path, api: FakeApi) -> Callable[..., tuple[Any, list[str], list[Path]]]:
    """(the session's reply, its phases, files that were written) of a trial of `path` (module:function of here)."""

    def one(name: str, operation: str = "forward") -> tuple[Any, list[str], list[Path]]:
        op = contract("rms_norm")
        cell = Cell(
            "cpu",
            "rms_norm",
            name,
            "auto",
            operation,
            {"x": "float32", "weight": "float32"},
            {"rows": 4, "hidden": 96},
            {p.name: p.default for p in op.parameters},
            timing=Timing("rotating_graph"),
        )
        prepared = Judge(str(tmp_path / "spool"), 1, str(tmp_path / "cache")).prepare(cell.to_dict())
        session = TorchSession(
            backend="cpu", device=CPU, target={}, device_name="cpu", timing_methods=("rotating_graph",)
        )
        session.max_graph_launches = 8
        out, phases = tmp_path / "out", []
        out.mkdir()
        call = call_for(cell, op, {"name": name, "path": f"{__name__}:{name}"})
        message = Trial("r", 2, 3, cell.to_dict(), prepared["tensors"], call, str(out), prepared["work"])
        reply = session.run(message, lambda said: phases.append(said.phase) if isinstance(said, Phase) else None)
        return reply, phases, list(out.iterdir())

    return one


def right(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def waits(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    API.synchronize()
    return right(x, weight, eps)


def aside(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    before, API.here = API.here, "other"
    try:
        return right(x, weight, eps)
    finally:
        API.here = before


def raises(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    raise ValueError("no such shape")


def cannot(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    raise NotImplementedError("hidden is no multiple of 128")


def switches(x: Any, weight: Any, eps: float, **_: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    return right(x, weight, eps)


@pytest.mark.parametrize("operation", ["forward", "no-grad-forward", "backward", "full"])
def test_a_call_that_captures_is_told_so_and_writes_nothing(tried: Any, operation: str) -> None:
    reply, phases, files = tried("right", operation)
    assert isinstance(reply, Tried), reply
    assert (reply.revision, reply.round, reply.attempt, reply.differs, reply.spent) == ("r", 2, 3, "", False)
    assert reply.compile_s is not None and reply.compile_s > 0
    assert phases == ["import", "compile", "timing"] and files == []


def test_replays_that_differ_are_told(tried: Any) -> None:
    reply, _, _ = tried("aside")
    assert isinstance(reply, Tried) and reply.differs == trial.DIFFERS


def test_a_refused_capture_spends_the_process(tried: Any) -> None:
    reply, phases, _ = tried("waits")
    assert isinstance(reply, Failed) and (reply.status, reply.fatal) == ("capture_failed", True)
    assert phases[-1] == "timing"


@pytest.mark.parametrize(("name", "status"), [("raises", "crashed"), ("cannot", "unsupported")])
def test_what_fails_before_its_capture_fails_in_an_earlier_phase(tried: Any, name: str, status: str) -> None:
    reply, phases, _ = tried(name)
    assert isinstance(reply, Failed) and (reply.status, reply.fatal) == (status, False)
    assert phases == ["import", "compile"]


def test_what_a_trial_switches_is_put_back(tried: Any) -> None:
    reply, _, _ = tried("switches")
    assert isinstance(reply, Tried)
    assert torch.get_default_dtype() is torch.float32
