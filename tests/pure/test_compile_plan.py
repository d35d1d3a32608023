"""Targets, the cells that are planned for them, and what a worker is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.compile import targets
from farm.compile.planning import plan_for, target_of, told
from farm.compile.targets import TARGETS, parse
from farm.contracts.discovery import contract
from farm.errors import UsageError
from farm.matrix import plan
from farm.matrix.load import load_files

MATRIX = """
name: m
op: rms_norm
axes:
  shape: [{rows: 4, hidden: [64, 100]}]
  dtype: [float32, {x: bfloat16, weight: float32}]
  operation: [forward, backward]
  weight: [true, false]
providers:
  farm: {mode: [auto, multi_wave_reload]}
  torch: {}
exclude:
  - {provider: farm, hidden: 64, mode: multi_wave_reload, reason: planted}
"""


@pytest.fixture
def matrices(tmp_path: Path):
    (tmp_path / "m.yaml").write_text(MATRIX)
    return load_files([tmp_path / "m.yaml"])


def test_the_targets_of_the_design() -> None:
    nvidia = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]
    assert list(TARGETS) == [*nvidia, "gfx942", "gfx950", "ascend910b"]
    assert targets.backends(TARGETS.values()) == ["cuda", "rocm", "ascend"]
    assert TARGETS["sm_100"].target == "cuda:sm_100"


def test_targets_are_parsed_once_each_in_order() -> None:
    assert [t.name for t in parse("gfx942, sm_90,gfx942")] == ["gfx942", "sm_90"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("sm_91", 'did you mean "sm_90"?'), ("", "names no target"), (",", "names no target"), ("tpu", "sm_90, sm_100")],
)
def test_a_wrong_target_is_refused_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--target") as error:
        parse(text)
    assert said in str(error.value)


def test_each_cell_of_a_subject_is_planned_for_each_target(matrices) -> None:
    found = plan_for(matrices, parse("sm_90,sm_100,gfx942"))
    ordinary = [c for c in plan(matrices, ["cuda"]).cells if c.role == "subject"]
    assert len(found.cells) == 3 * len(ordinary) == 3 * 2 * 2 * 2 * 2 * 2
    assert [c.index for c in found.cells] == list(range(len(found.cells)))
    assert len({c.cell_id for c in found.cells}) == len(found.cells)
    mine = [c for c in found.cells if target_of(c) == "sm_100"]
    assert [c.cell_id for c in mine] == [f"{c.cell_id}@sm_100" for c in ordinary]
    assert [c.cell_key for c in mine] == [c.cell_key for c in ordinary]
    assert {c.target for c in mine} == {"cuda:sm_100"}
    assert {c.provider for c in found.cells} == {"farm"}
    assert found.backends["gfx942"].skipped == len([c for c in ordinary if c.skip_reason]) > 0


def test_a_plan_of_other_targets_is_another_plan(matrices) -> None:
    one, other = (plan_for(matrices, parse(t)).plan_hash for t in ("sm_90", "sm_100"))
    assert one != other


def test_a_target_may_be_left_without_cells_where_another_is_not(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX + "backends: {ascend: {providers: {farm: {mode: [auto]}}}}\n")
    found = plan_for(load_files([tmp_path / "m.yaml"]), parse("sm_90,ascend910b"), "mode=multi_wave_reload")
    assert {target_of(c) for c in found.cells} == {"sm_90"}
    assert found.backends["ascend910b"].cells == 0


def test_select_narrows_and_peers_alone_are_refused(matrices) -> None:
    assert {c.mode for c in plan_for(matrices, parse("sm_90"), "mode=auto").cells} == {"auto"}
    with pytest.raises(UsageError, match="keeps only peers"):
        plan_for(matrices, parse("sm_90"), "provider=torch")


def test_what_a_worker_is_told_of_a_cell(matrices) -> None:
    found = plan_for(matrices, parse("sm_90"), "operation=backward,mode=multi_wave_reload,hidden=100").cells
    whole, bare = (
        next(
            c
            for c in found
            if c.params["weight"] is w and c.dtypes["weight"] == "float32" and c.dtypes["x"] == "bfloat16"
        )
        for w in (True, False)
    )
    said = told(whole, {"name": "farm"})
    tensors = {t["name"]: t for t in said["tensors"]}
    assert tensors["x"]["dtype"] == "bfloat16" and tensors["weight"]["dtype"] == "float32"
    assert tensors["x"]["shape"] == [4, 100] and not any(t["absent"] for t in said["tensors"])
    assert [t["of"] for t in said["tensors"] if t["role"] == "gradient"] == ["x", "weight"]
    assert said["call"]["keywords"] == {"mode": "multi_wave_reload"}
    without = told(bare, {"name": "farm"})["tensors"]
    assert [t["name"] for t in without if t["absent"] and t["role"] == "input"] == ["weight"]
    kept = [t["name"] for t in without if not t["absent"]]
    assert kept == [t.name for t in contract("rms_norm").tensors(bare)]
