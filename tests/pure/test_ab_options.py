"""What `farm ab` makes of the options that it shares with `farm run`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from subject_repositories import committed, git, write

from farm.cli import ab, run_command
from farm.cli.main import main
from farm.cli.run import read_plan
from farm.compare.records import CellNoise, Kind, Record
from farm.coordinator import RunRequest
from farm.coordinator.request import RunOutcome
from farm.store import Store

MATRIX = "name: m\nop: rms_norm\naxes: {shape: [{rows: 4, hidden: 16}]}\nproviders: [torch]\n"
OPTIONS = ("--strict-peers", "--sandbox", "--environment", "other", "--wait", "5", "--address", "auto")
#: Not what those options say: what runs, and in which arms.
OF_THE_COMMAND = {"plan", "slots", "command", "argv", "arms", "kernels", "noise", "stop_at_first"}


class _Nothing:
    def close(self) -> None: ...


def requested(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> RunRequest:
    """The request of a command line, which is not executed."""
    (folder / "m.yaml").write_text(MATRIX)
    monkeypatch.chdir(folder)
    return of(monkeypatch, words[0], "m.yaml", *words[1:], *OPTIONS, "--out", str(folder / words[0]))


def of(monkeypatch: pytest.MonkeyPatch, *words: str) -> RunRequest:
    requests: list[RunRequest] = []

    def connect(args: Any, run_id: str, choose: Any, planned: Any, ready: Any) -> Any:
        return _Nothing(), [], planned(["cuda"])

    def go(args: Any, store: Any, writer: Any, cluster: Any, request: RunRequest, *rest: Any) -> int:
        writer.close()
        requests.append(request)
        return 0

    monkeypatch.setattr(run_command, "connect", connect)
    monkeypatch.setattr(run_command, "go", go)
    assert main([*words]) == 0
    return requests[0]


def test_an_option_means_the_same_for_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = requested(tmp_path, monkeypatch, "run", "--sanitize")
    two = requested(tmp_path, monkeypatch, "ab", "--a", "env.X=1", "--b", "env.X=2", "--sanitize")
    for field in dataclasses.fields(RunRequest):
        if field.name not in OF_THE_COMMAND:
            assert getattr(two, field.name) == getattr(one, field.name), field.name
    assert one.strict_peers and one.environment.sandbox is not None and one.environment.tool == "memcheck"
    assert [m.deadlines for m in two.plan.matrices] == [m.deadlines for m in one.plan.matrices]
    assert [arm.environment for arm in two.arms] == [one.environment] * 2


@pytest.mark.parametrize("sandboxed", [False, True])
def test_what_strangers_code_measured_sets_nobodys_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxed: bool
) -> None:
    kind = Kind("executed", "cuda:x", "", "rotating_graph/2", "k")
    record = Record("r", "2026-11-23", True, (CellNoise(kind, "c", 3, 0.01, 2.0, "same"),))
    outcome = RunOutcome([], "passed", 0, False, noise=record)
    monkeypatch.setattr(run_command, "execute", lambda *_: outcome)
    monkeypatch.setattr(run_command, "tell_arms", lambda *_: 0)
    args = argparse.Namespace(command="ab", sandbox=sandboxed, out=None, no_page=True, json=False)
    request: Any = SimpleNamespace(arms=(1, 2), slots=[])
    writer: Any = SimpleNamespace(id="r")
    assert run_command.go(args, Store(tmp_path), writer, None, request, [], 0.0) == 0
    assert (tmp_path / "noise/r.json").exists() != sandboxed


KERNEL = "import triton\n\n@triton.jit\ndef one(x):\n    return x\n\ndef launch(x):\n    one[(1,)](x)\n"


@pytest.mark.parametrize(
    ("change", "only"),
    [
        ({"k.py": KERNEL.replace("return x", "return x + 1")}, True),
        ({"k.py": KERNEL.replace("(1,)", "(2,)")}, False),
        ({"more.py": "x = 1\n"}, False),
        ({"_C.so": "\x7fELF2"}, False),
        ({"k-1.dist-info/METADATA": "Version: 2"}, True),
    ],
)
def test_what_differs_beside_kernels_is_seen(change: dict[str, str], only: bool) -> None:
    base = {"k.py": KERNEL, "_C.so": "\x7fELF", "k-1.dist-info/METADATA": "Version: 1"}
    arms: Any = object.__new__(ab.Arms)
    arms.contents = tuple(
        SimpleNamespace(
            content=lambda files=files: [(name, text.encode()) for name, text in files.items()],
            sources=lambda files=files: {name: text for name, text in files.items() if name.endswith(".py")},
        )
        for files in (base, {**base, **change})
    )
    assert arms.only_kernels() is only


def test_a_plan_file_carries_both_arms_to_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    home = committed(write(tmp_path / "repo"))
    monkeypatch.chdir(home)
    arms = ("--a", "revision=HEAD", "--b", "revision=.,env.X=2")
    assert main(["plan", *arms, "--backend", "cuda,rocm", "--out", "PLAN"]) == 0
    kept = read_plan(Path("PLAN"), "--plan").arms
    assert kept["a"]["source"] == git(home, "rev-parse", "HEAD")[:12], "a branch moves on"
    assert kept["a"]["called"] == "HEAD" and kept["a"]["digest"] == kept["b"]["digest"] != ""
    run = ("run", "--plan", str(home / "PLAN"), "--target", "cuda", "--address", "auto")
    monkeypatch.chdir(tmp_path)
    request = of(monkeypatch, *run, "--repo", str(home), "--out", "st")
    assert {c.cell_id[-2:] for c in request.plan.cells} == {"~a", "~b"}
    assert request.part["part"] == "cuda" and [a.digest for a in request.arms] == [kept["a"]["digest"]] * 2
    (copy,) = Path("st/runs").glob("*/plan.json")
    assert copy.read_text() == (home / "PLAN").read_text()
    (home / "src/mylib/ops/shared.py").write_text("x = 1\n")
    capsys.readouterr()
    differs, more_, stop = "run-plan-arm-differs", "run-plan-with-more", "arm-stop"
    for more, told in (((), differs), (("--wheel", "x.whl"), more_), (("-x",), stop)):
        assert main([*run, "--repo", str(home), *more]) == 2 and f"[{told}]" in capsys.readouterr().err
    assert main(["plan", "--a", "revision=HEAD", "--repo", str(home)]) == 2
    assert "[arm-missing]" in capsys.readouterr().err
