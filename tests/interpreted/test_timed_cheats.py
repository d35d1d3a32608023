"""Cheats that only a timed cell shows, in a session on the CPU that may time (by the wall clock; no speed is claimed),
and fallbacks that would pass as our kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cheats"))

import kernels  # noqa: E402
from farm.cell import Cell, Timing  # noqa: E402
from farm.child import provider_call  # noqa: E402
from farm.child.protocol import Failed, Measured, Run  # noqa: E402
from farm.child.session import TorchSession  # noqa: E402
from farm.contracts.call import call_for  # noqa: E402
from farm.contracts.discovery import contract  # noqa: E402
from farm.judge.judge import Judge  # noqa: E402

CPU = torch.device("cpu")
SHORT = Timing(method="host", min_samples=6, max_samples=12, max_seconds=0.2)


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(str(tmp_path / "spool"), 1, str(tmp_path / "cache"))


def attempt(
    judge: Judge,
    tmp_path: Path,
    provider: dict[str, Any],
    operation: str = "forward",
    timing: Timing = SHORT,
    rows: int = 12,
) -> tuple[Measured | Failed, dict[str, Any]]:
    """A child's reply, and what the judge says of it."""
    op = contract("rms_norm")
    params = {p.name: p.default for p in op.parameters}
    cell = Cell(
        "cpu",
        "rms_norm",
        provider["name"],
        "auto",
        operation,
        {"x": "float32", "weight": "float32"},
        {"rows": rows, "hidden": 96},
        params,
        timing=timing,
    )
    prepared = judge.prepare(cell.to_dict())
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    session = TorchSession(
        backend="cpu", device=CPU, target={}, device_name="cpu", timing_methods=("host",) if timing is SHORT else ()
    )
    message = Run(
        "r", 0, 1, cell.to_dict(), prepared["tensors"], call_for(cell, op, provider), str(out), prepared["work"]
    )
    reply = session.run(message, lambda said: None)
    if isinstance(reply, Failed):
        return reply, {"status": reply.status, "reason": reply.reason}
    request = {
        "cell": cell.to_dict(),
        "outputs": reply.outputs,
        "timed_outputs": reply.timing.get("timed_outputs"),
        "others": reply.facts.get("others", []),
        "flags": reply.facts["flags"],
        "tolerances": [],
    }
    return reply, judge.judge(request)


def cheat(name: str) -> dict[str, Any]:
    return {"name": name, "path": f"cheats:{name}"}


@pytest.mark.parametrize("operation", ["forward", "backward", "full", "no-grad-forward"])
def test_an_honest_provider_is_timed_without_a_flag(judge: Judge, tmp_path: Path, operation: str) -> None:
    reply, judged = attempt(judge, tmp_path, cheat("honest"), operation)
    assert judged["status"] == "passed", judged
    assert isinstance(reply, Measured) and len(reply.timing["samples_us"]) >= 6
    assert reply.facts["flags"] == [] and not reply.spent and "others" not in reply.facts


def test_right_in_the_check_and_nothing_in_the_timing_loop(judge: Judge, tmp_path: Path) -> None:
    _, untimed = attempt(judge, tmp_path, cheat("detects_the_timing_loop"), timing=Timing())
    assert untimed["status"] == "passed"  # so it is the timed launch that gives it away
    _, judged = attempt(judge, tmp_path, cheat("detects_the_timing_loop"))
    assert judged["status"] == "inaccurate"
    assert judged["reason"].startswith(("in a timed launch", "timed launches gave the same outputs")), judged["reason"]


def test_a_cache_that_only_a_timer_meets(judge: Judge, tmp_path: Path) -> None:
    _, untimed = attempt(judge, tmp_path, cheat("caches_in_the_timing_loop"), timing=Timing())
    assert untimed["status"] == "passed"
    _, judged = attempt(judge, tmp_path, cheat("caches_in_the_timing_loop"))
    assert (judged["status"], judged["reason"].split(":")[0]) == (
        "inaccurate",
        "timed launches gave the same outputs for other inputs, so they do not compute these outputs",
    )


def test_a_call_that_fails_leaves_its_switches_to_nobody(judge: Judge, tmp_path: Path) -> None:
    reply, _ = attempt(judge, tmp_path, cheat("switches_and_raises"))
    assert isinstance(reply, Failed) and reply.status == "crashed"
    assert torch.get_default_dtype() is torch.float32


def eager(x: Any, weight: Any, eps: float = 1e-6, **_: Any) -> Any:
    """What a kernel package may fall back to."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def eager_with_a_note(x: Any, weight: Any, eps: float = 1e-6, **_: Any) -> Any:
    from kernels import launches

    launches.record("forward_block", (1,), {"mode": "multi_wave_cached", "direction": "forward"})
    return eager(x, weight, eps)


@pytest.mark.parametrize(
    ("function", "rows", "operation", "words"),
    [
        (eager, 12, "forward", "launched none of its kernels forward"),
        (eager, 12, "backward", "launched none of its kernels backward"),
        (eager_with_a_note, 12, "forward", "claimed kernel launches that never happened (forward_block)"),
        (eager, 0, "forward", ""),  # nothing to launch for
    ],
)
def test_an_eager_fallback_cannot_pass_as_our_kernels(
    judge: Judge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    rows: int,
    operation: str,
    words: str,
) -> None:
    monkeypatch.setattr(kernels, "rms_norm", function, raising=False)
    _, judged = attempt(judge, tmp_path, {"name": "farm"}, operation, rows=rows, timing=Timing())
    assert judged["status"] == ("inaccurate" if words else "passed"), judged
    assert words in judged["reason"]


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_our_kernels_are_seen_to_be_launched(judge: Judge, tmp_path: Path, operation: str) -> None:
    reply, judged = attempt(judge, tmp_path, {"name": "farm"}, operation, timing=Timing())
    assert judged["status"] == "passed", judged
    assert isinstance(reply, Measured) and reply.facts["flags"] == []
    launch = reply.facts["launch"]
    assert {k["kernel"] for k in launch["kernels"]} <= set(launch["seen"])


def test_the_grad_mode_that_a_call_leaves_is_told_by_the_call(tmp_path: Path) -> None:
    def switch(x: Any) -> Any:
        torch.set_grad_enabled(False)
        return x + 1

    problem = provider_call.Problem([torch.ones(2)], [], [], "forward")
    problem.run(switch)
    assert problem.findings == {"changed torch's grad mode from True to False"}
    assert torch.is_grad_enabled()
