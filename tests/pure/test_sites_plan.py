"""The file of a plan and its parts: what a site is given, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from farm.cell import Cell
from farm.cli import run_command
from farm.cli.main import main, parser
from farm.cli.run import Matrices
from farm.cli.run_command import contract_version
from farm.errors import BackendError, UsageError
from farm.matrix import Plan, load_all, plan
from farm.sites import planfile

MATRIX = """
name: m
op: rms_norm
axes: {shape: [{rows: 2, hidden: [64, 128]}], dtype: float32}
providers: [farm, torch]
deadlines: {check: 7}
exclude: [{provider: torch, hidden: 128, reason: twice}]
tolerances: [{match: {provider: farm}, output: y, metric: max_ulp, limit: 9, reason: r, date: 2026-11-21}]
sim: {default: {time_us: 10}}
targets: {cuda: [GB200, "H200:mig-1g.18gb"]}
"""
BACKENDS = ["cuda", "rocm", "ascend"]


@pytest.fixture
def whole(tmp_path: Path) -> Plan:
    (tmp_path / "m.yaml").write_text(MATRIX)
    return plan(load_all(tmp_path / "m.yaml"), BACKENDS)


def ids(cells: Any) -> list[str]:
    return [c.cell_id for c in cells]


def test_a_plan_is_the_same_after_the_journey(whole: Plan) -> None:
    text = planfile.write(whole, {"mine": {"path": "k:f", "sha256": "ab"}})
    assert text == planfile.write(whole, {"mine": {"path": "k:f", "sha256": "ab"}})
    file = planfile.read(text, "PLAN")
    assert file.plan == whole and file.text == text
    assert file.providers == {"mine": {"path": "k:f", "sha256": "ab"}}
    (info,) = file.plan.matrices
    assert info.deadlines["check"] == 7 and info.sim == {"default": {"time_us": 10}}
    assert [t.limit for t in info.tolerances] == [9]
    assert sum(bool(c.skip_reason) for c in file.plan.cells) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["cells"].pop(),
        lambda d: d["cells"][0].update(skip_reason="not here"),
        lambda d: d["matrices"][0]["deadlines"].update(check=1e9),
        lambda d: d["matrices"][0]["tolerances"].clear(),
        lambda d: d["matrices"][0]["sim"].clear(),
        lambda d: d.update(providers={"mine": {"path": "k:f", "sha256": ""}}),
        lambda d: d.update(plan_hash="0" * 64),
    ],
)
def test_an_edited_plan_is_refused(whole: Plan, change: Any) -> None:
    data = json.loads(planfile.write(whole, {}))
    change(data)
    with pytest.raises(UsageError, match=r"^PLAN: ") as refused:
        planfile.read(json.dumps(data), "PLAN")
    assert refused.value.id == "plan-damaged"


def test_every_cut_of_a_plan_is_refused(whole: Plan) -> None:
    text = planfile.write(whole, {})
    for length in range(0, len(text.rstrip()), 97):
        with pytest.raises(UsageError) as refused:
            planfile.read(text[:length], "PLAN")
        assert refused.value.id == "plan-invalid"


@pytest.mark.parametrize("text", ["[]", "7", '"x"', '{"sha256": "x"}', "[" * 100_000])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        planfile.read(text, "PLAN")
    assert refused.value.id == "plan-invalid"


def test_parts_are_backends_and_the_targets_that_are_named(whole: Plan) -> None:
    assert planfile.parts(whole) == {"cuda": 8, "cuda:GB200": 4, "cuda:H200:mig-1g.18gb": 4, "rocm": 4, "ascend": 4}


@pytest.mark.parametrize(
    ("target", "cells"),
    [
        ("cuda", 8),
        ("rocm", 4),
        ("cuda:GB200", 4),
        ("cuda:H200:mig-1g.18gb", 4),
        ("cuda:NVIDIA-GB200:1200W", 4),
        ("cuda:NVIDIA-H200:mig-1g.18gb:600W", 4),
    ],
)
def test_a_part_is_numbered_anew_and_is_a_plan_of_its_own(whole: Plan, target: str, cells: int) -> None:
    part = planfile.part(whole, target)
    assert [c.index for c in part.cells] == list(range(cells))
    assert set(ids(part.cells)) <= set(ids(whole.cells))
    assert {c.backend for c in part.cells} == {target.partition(":")[0]} == set(part.backends)
    assert part.backends[target.partition(":")[0]].skipped == cells // 4
    assert [c.index for c in whole.cells] == list(range(len(whole.cells)))  # the whole is as it was
    assert Plan.from_json(part.to_json()) == part


def test_the_backends_together_are_the_plan(whole: Plan) -> None:
    found = [i for b in BACKENDS for i in ids(planfile.part(whole, b).cells)]
    assert sorted(found) == sorted(ids(whole.cells))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("cda", 'did you mean "cuda"?'),
        ("cuda:GB2000", 'did you mean "cuda:GB200"?'),
        ("cuda:H200", "cuda (8 cells), cuda:GB200 (4 cells)"),  # a whole H200 is no slice of one
        ("rocm:MI300X", "rocm (4 cells)"),  # the plan names no target of rocm
        ("cuda:", "cuda (8 cells)"),
        ("", "cuda (8 cells)"),
    ],
)
def test_a_part_that_the_plan_has_not_is_refused_with_those_it_has(whole: Plan, target: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        planfile.part(whole, target)
    assert told in str(refused.value) and refused.value.id == "plan-part-unknown"


def test_a_farm_that_would_measure_something_else_says_so(whole: Plan) -> None:
    cells = whole.cells
    assert planfile.unfit(cells, contract_version) == ""
    assert "an op that this farm does not have" in planfile.unfit(cells, lambda op: None)
    assert "version 1 of rms_norm's contract" in planfile.unfit(cells, lambda op: 2)
    older = Cell.from_dict({**cells[0].to_dict(), "timing": {**cells[0].timing.to_dict(), "version": 99}})
    assert "version 99 of rotating_graph" in planfile.unfit((older,), contract_version)
    odd = Cell.from_dict({**cells[0].to_dict(), "cell_key": "0" * 64})
    assert odd.cell_id in planfile.unfit((odd,), contract_version)


# The command line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MATRIX.replace("targets:", "#"))
    (tmp_path / "mine.py").write_text("def norm(x, weight, eps): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["plan", "m.yaml", "--backend", "sim,cpu", "--provider", "own=mine:norm", "--out", "PLAN"]) == 0
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    return said


RUN = ("run", "--plan", "PLAN", "--address", "inline", "--out", "store")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            ("--target", "sim", "m.yaml"),
            "MATRIX would change the plan; omit MATRIX, or plan again [run-plan-with-more]",
        ),
        (("--target", "sim", "--select", "hidden=64"), "--select would change the plan"),
        (("--target", "sim", "--backend", "sim"), "--backend would change the plan"),
        (("--target", "sim", "--set", "name=x"), "--set would change the plan"),
        (("--target", "sim", "--provider", "own=mine:norm"), "--provider would change the plan"),
        ((), "sim, cpu [run-plan-target-missing]"),
        (("--target", "simm"), 'did you mean "sim"?'),
        (("--target", "cuda"), "the plan has no such part"),
        (("--target", "sim", "--wait-for-devices", "-1"), "[option-wait-range]"),
        (("--target", "sim", "--wait-for-devices", "nan"), "[option-wait-range]"),
        (("--target", "sim", "--environment", "../x"), "[option-environment-invalid]"),
    ],
)
def test_what_would_change_a_plan_is_refused(
    capsys: pytest.CaptureFixture[str], here: Path, more: tuple[str, ...], told: str
) -> None:
    assert told in refused(capsys, *RUN, *more)
    assert not (here / "store").exists()


def test_a_run_of_nothing_is_refused(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert "[run-nothing-named]" in refused(capsys, "run")
    assert "[run-target-without-plan]" in refused(capsys, "run", "m.yaml", "--target", "sim")
    assert "cannot be read (No such file" in refused(capsys, "run", "--plan", "nowhere", "--target", "sim")
    (here / "bytes").write_bytes(b"\xff\xfe")
    assert "[plan-unreadable]" in refused(capsys, "run", "--plan", "bytes", "--target", "sim")


def test_an_own_provider_is_held_to_its_content(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    told = json.loads((here / "PLAN").read_text())["providers"]["own"]
    assert told["path"] == "mine:norm" and len(told["sha256"]) == 16
    (here / "mine.py").write_text("def norm(x, weight, eps): return 1.001 * x\n")
    said = refused(capsys, *RUN, "--target", "sim")
    assert "provider own (mine:norm)" in said and "[run-plan-provider-differs]" in said
    (here / "mine.py").unlink()
    assert 'there is no module "mine"' in refused(capsys, *RUN, "--target", "sim")


def test_a_plan_is_json_either_way(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    capsys.readouterr()
    assert main(["plan", "m.yaml", "--backend", "sim,cpu", "--provider", "own=mine:norm", "--json"]) == 0
    assert capsys.readouterr().out == (here / "PLAN").read_text()


# Devices that are not there yet


class _Joined:
    """A cluster that was joined and has one GPU."""

    absent: list[bool] = []

    def __init__(self, address: str, devices: int | None, run_id: str, wanted: list[str] | None):
        assert (address, wanted) == ("host:1", None)

    def available(self) -> dict[str, int]:
        return {"cuda": 1}

    def slots(self, wanted: list[str], *, absent: bool = False) -> list[Any]:
        self.absent.append(absent)
        if not absent:
            raise BackendError(f"{wanted}: the cluster has cuda", id="cluster-backend-absent")
        return [*wanted]

    def close(self) -> None:
        self.absent.append(False)


@pytest.mark.parametrize("seconds", [None, 0.0, 60.0])
def test_a_target_that_is_not_there_yet_is_waited_for_where_that_is_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    monkeypatch.setattr("farm.cluster.ray_cluster.RayCluster", _Joined)
    monkeypatch.setattr("farm.cluster.address.check", lambda address: None)
    monkeypatch.setattr(_Joined, "absent", [])
    args = parser().parse_args(["run", "m.yaml", "--backend", "rocm", "--address", "host:1"])
    args.wait_for_devices = seconds
    work = Matrices(args)
    if seconds:
        _, slots, planned = run_command.connect(args, "r", work.choose, work.planned)
        assert slots == ["rocm"] and {c.backend for c in planned.cells} == {"rocm"}
        assert _Joined.absent == [True]
    else:
        with pytest.raises(BackendError) as refused:
            run_command.connect(args, "r", work.choose, work.planned)
        assert refused.value.id == "cluster-backend-absent"  # by the cluster, which knows what is drained
        assert _Joined.absent == [False, False]  # the latter: closed


def test_the_commands_of_the_guide_are_commands() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/sites.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("farm ")]
    words = [shlex.split(line, comments=True)[1:] for line in lines]
    assert {parser().parse_args(w).command for w in words} == {"plan", "run", "merge", "kit"}
