"""Every wrong kernel is caught in each op, operation and dtype in which it is wrong; none of the right ones is accused.

The same suite in every cell, on a GPU too: `python -m benchmarks.mutants`.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import mutant_suite as suite
import norm_steps
import numpy as np
import pytest
import tolerances
import torch
import wrong_triton
from mutant_registry import EVERY, FLOAT16, FUSED, NARROW, RMS, Mutant

from farm.accuracy.dtypes import decode, encode
from farm.cell import Cell

CPU = torch.device("cpu")
MUTANTS, CONTROLS = suite.every(), suite.controls()
Outcomes = dict[str, list[suite.Outcome]]


def cells() -> list[Cell]:
    """The matrix, but float16 for the kernels' source: it is bfloat16's code there, and interpreting takes time."""
    return [c for c in suite.planned("cpu") if not (c.matrix.startswith("triton-") and c.dtype == FLOAT16)]


CELLS = cells()


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    found: Outcomes = defaultdict(list)
    for outcome in suite.run([*MUTANTS, *CONTROLS], CELLS, CPU, until_caught=True):
        found[outcome.mutant].append(outcome)
    return found


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_wrong_kernel_is_caught_wherever_it_is_wrong(mutant: Mutant, outcomes: Outcomes) -> None:
    assert suite.places(mutant, CELLS)
    assert suite.missed(mutant, CELLS, outcomes[mutant.name]) == []


@pytest.mark.long
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.right_in], ids=lambda m: m.name)
def test_no_mutation_is_accused_where_it_is_no_fault(mutant: Mutant, outcomes: Outcomes) -> None:
    right = [o for o in outcomes[mutant.name] if o.cell.dtype in mutant.right_in]
    assert right
    assert [f"{o.cell.cell_id}: {o.reason}" for o in right if o.caught] == []


@pytest.mark.long
@pytest.mark.parametrize("control", CONTROLS, ids=lambda m: m.name)
def test_the_same_code_without_a_mutation_passes_everywhere(control: Mutant, outcomes: Outcomes) -> None:
    planned = [c for c in CELLS if suite.is_for(control, c)]
    assert len(outcomes[control.name]) == len(planned) >= 16
    assert [f"{o.cell.cell_id}: {o.reason}" for o in outcomes[control.name] if o.caught] == []


def test_there_are_enough_mutants_and_each_is_told_apart() -> None:
    assert len(MUTANTS) >= 40
    assert len([m for m in MUTANTS if m.made == "triton"]) >= 8
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({(m.made, m.wrong) for m in MUTANTS}) == len(MUTANTS)
    assert all(m.wrong and m.places for m in MUTANTS)
    for op in (RMS, FUSED):
        for operation in ("forward", "backward"):
            assert len([m for m in MUTANTS if op in m.ops and operation in m.operations]) >= 20
    assert [m.name for m in MUTANTS if (m.right_in or m.unseen_in) and not m.note] == []


def test_each_torch_mutant_replaces_steps_that_there_are() -> None:
    """A step renamed in `Norm` would leave a mutant right, and another one's name would stand in for it."""
    steps = {n for n, f in vars(norm_steps.Norm).items() if inspect.isfunction(f)} | {"__init__"}
    for module in suite.MODULES:
        for made in classes(module):
            replaced = {n.name for n in made.body if isinstance(n, ast.FunctionDef)}
            assert replaced and replaced <= steps, made.name


def classes(module: ModuleType) -> list[ast.ClassDef]:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    return [n for n in tree.body if isinstance(n, ast.ClassDef)]


def test_every_class_is_registered() -> None:
    written = sum(len(classes(module)) for module in suite.MODULES)
    assert written == len([m for m in MUTANTS if m.made == "torch"])


def test_a_mutant_that_is_not_wrong_is_missed() -> None:
    """The suite can fail: a control that calls itself a mutant is caught nowhere."""
    control = replace(CONTROLS[0], name="not-wrong")
    some = [c for c in CELLS if suite.is_for(control, c) and c.dims["rows"] == 33]
    found: Outcomes = defaultdict(list)
    for outcome in suite.run([control], some, CPU, until_caught=True):
        found[outcome.mutant].append(outcome)
    assert suite.missed(control, some, found[control.name]) == control.places and len(control.places) == 12


def test_what_raises_writes_outside_or_changes_inputs_is_a_finding() -> None:
    def raises(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        raise RuntimeError("out of luck")

    def changes(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y: torch.Tensor = norm_steps.Norm().function(RMS)(x, weight, eps)
        weight.data[0] += 1
        return y

    trial = suite.Trial(next(c for c in CELLS if c.op == RMS and c.operation == "forward"), CPU)
    right = trial.judge("right", trial.call(norm_steps.Norm().function(RMS)))
    assert (right.status, right.reason, right.caught) == ("passed", "", False)
    crashed = trial.judge("raises", trial.call(raises))
    assert (crashed.status, crashed.reason, crashed.by) == ("crashed", "RuntimeError: out of luck", "RuntimeError")
    changed = trial.judge("changes", trial.call(changes))
    assert (changed.status, changed.by) == ("inaccurate", "changed its inputs")


def test_a_line_that_changed_in_the_kernels_is_told() -> None:
    rewrite = wrong_triton.REWRITES[0]._replace(old="not in the source")
    with pytest.raises(ValueError, match=r"column-mask-short: tiles.py holds 'not in the source' 0 times, not once"):
        wrong_triton.rewritten(wrong_triton.sources(), rewrite)


def test_a_rewrite_changes_one_file_and_one_place() -> None:
    files = wrong_triton.sources()
    for rewrite in wrong_triton.REWRITES:
        changed = wrong_triton.rewritten(files, rewrite)
        assert [name for name in files if files[name] != changed[name]] == [rewrite.file]
        assert changed[rewrite.file] == rewrite.new.join(files[rewrite.file].split(rewrite.old))
        ast.parse(changed[rewrite.file])


def test_tolerances_are_those_of_the_same_elements() -> None:
    """A control is within each; what is 5 % too large only Liger's 0.2 allows, what is 0.03 off TileGym's 0.05 too."""
    cell = next(c for c in CELLS if c.op == RMS and c.operation == "forward" and c.dtype == "bfloat16")
    trial = suite.Trial(replace(cell, family="normal", cell_key=""), CPU)
    right = trial.call(norm_steps.Norm().function(RMS))
    assert set(tolerances.allowed_by(trial, right)) == {r.name for r in tolerances.RULES}
    y = decode(encode(trial.reference["y"], "bfloat16"), "bfloat16")

    def allowed(values: np.ndarray) -> set[str]:
        return set(tolerances.allowed_by(trial, replace(right, outputs={"y": encode(values, "bfloat16")})))

    assert allowed(y * 1.05) == {"Liger"}
    assert allowed(y + 0.03) == {"TileGym", "Liger"}
    assert allowed(np.where(y == y.max(), np.nan, y)) == set()
    assert allowed(-y) == set()
    crashed = tolerances.allowed_by(trial, suite.Called({}, status="crashed"))
    assert crashed == ()


def test_each_kind_of_data_is_what_it_says() -> None:
    cell = replace(next(c for c in CELLS if c.op == RMS and c.dtype == "float32"), family="normal", cell_key="")
    ours, far, unit = (make(cell) for make in (tolerances.own, tolerances.far_from_zero, tolerances.unit_weight))
    assert -2.3 <= far["x"].min() < -2.29 and -1.81 < far["x"].max() <= -1.8
    assert np.array_equal(far["weight"], ours["weight"]) and abs(float(ours["x"].mean())) < 0.1
    assert np.array_equal(unit["x"], ours["x"]) and set(unit["weight"]) == {1.0} and len(set(ours["weight"])) > 50


def test_truncation_drops_bits() -> None:
    from wrong_outputs import truncated

    values = torch.tensor([1.0, 1.00390625, 1.0078124, -1.0078124, 0.3, -0.3, 0.0])
    for dtype in (torch.bfloat16, torch.float16):
        low = truncated(values, dtype).float()
        assert bool((low.abs() <= values.abs()).all()) and bool((low.sign() == values.sign()).all())
        step = 2.0 ** -(7 if dtype == torch.bfloat16 else 10)
        assert bool(((values - low).abs() < step * values.abs().clamp_min(1e-30)).logical_or(values == 0).all())


def test_the_matrix_meets_every_dtype_casting_and_kind_of_row() -> None:
    planned = suite.planned("cpu")
    assert [m.name for m in MUTANTS if suite.places(m, planned) != m.places] == []
    assert {c.dtype for c in planned} == set(EVERY) and set(NARROW) < set(EVERY)
    assert {c.params["casting"] for c in planned} == {"llama", "gemma"}
    assert {c.family for c in planned} == {"mixed", "nan", "inf"}
    assert np.all([c.dims["rows"] > 5 for c in planned])
    on_device = suite.planned("cuda")
    assert [m.name for m in MUTANTS if not suite.places(m, on_device)] == []
    assert max(c.dims["rows"] * c.dims["hidden"] for c in on_device) == 4096 * 4096
