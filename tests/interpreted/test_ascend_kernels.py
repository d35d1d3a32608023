"""Ascend's kernels in the interpreter, through their own launch functions: values within the contracts' gates, strides,
aliasing, the same bits every time, every kernel reached."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from branches import Recorder
from judged import Launch, norm_cell
from pairwise import all_meetings, cover, meetings_of

from farm.cell import Cell
from farm.child import interpreter
from kernels import launches
from kernels.ops.rms_norm.ascend import choose, kernels, launch
from kernels.ops.rms_norm.choice import MODES

CORES = 2  # few, so that programs walk more than one tile
EPS = 1e-6
FACTORS: dict[str, tuple[Any, ...]] = {
    "hidden": (1, 7, 127, 128, 129, 1000, 4095, 4096, 4097, 16385),
    "mode": MODES,
    "op": ("rms_norm", "fused_add_rms_norm"),
    "operation": ("forward", "backward"),
    "dtype": ("float32", "float16", "bfloat16"),
    "weight": ("same", "float32", "none"),
    "variant": (("llama", 0.0), ("gemma", 1.0), ("none", 0.0), ("llama", 1.0), ("gemma", 0.0)),
    "rows": (1, 3, 17),
    "wants": (True, False),  # rstd of a forward, dw of a backward
}


class Case(NamedTuple):
    hidden: int
    mode: str
    op: str
    operation: str
    dtype: str
    weight: str
    variant: tuple[str, float]
    rows: int
    wants: bool

    @property
    def refused(self) -> str | None:
        return choose.refusal("interpreter", self.mode, self.rows, self.hidden, self.dtype, self.operation, self.op)

    @property
    def id(self) -> str:
        return "-".join(str(v) for v in (self.op[:5], *self[1:2], *self[3:6], *self.variant, self.rows, self.hidden))

    @property
    def choice(self) -> choose.Choice:
        return choose.choose(
            "interpreter", self.rows, self.hidden, self.dtype, self.operation, cores=CORES, op=self.op, mode=self.mode
        )

    @property
    def cell(self) -> Cell:
        casting, offset = self.variant
        return norm_cell(
            self.op,
            self.mode,
            self.operation,
            self.dtype,
            self.weight,
            self.rows,
            self.hidden,
            casting=casting,
            offset=offset,
        )


#: What decides the kernel and its tile meets in threes, everything else in twos.
TRIPLE = ("hidden", "mode", "operation")


@functools.cache
def pairwise() -> tuple[Case, ...]:
    """Cases in which all values meet that should and can: some modes refuse some shapes."""
    return tuple(Case(**case) for case in cover(FACTORS, [TRIPLE], allowed=lambda c: not Case(**c).refused, seed=3)[0])


def problem(case: Case) -> Launch:
    """The inputs of a case, and how they are launched."""
    return Launch(case.cell, case.choice, launch, wants=case.wants)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.long] if n % 4 else []) for n, c in enumerate(pairwise())],
    ids=lambda case: case.id,
)
def test_values_lie_within_the_contracts_gates(case: Case) -> None:
    problem(case).check()


def many_partials() -> Launch:
    """More programs, each with its share of dw, than one turn of `sum_rows` takes."""
    case = Case(129, "static_persistent", "rms_norm", "backward", "float32", "same", ("llama", 0.0), 90, True)
    return Launch(
        case.cell, choose.choose("interpreter", 90, 129, "float32", "backward", cores=90, mode=case.mode), launch
    )


def test_many_partial_sums_are_added_up() -> None:
    case = many_partials()
    options = dict(case.choice.options)
    assert options["partials"] == 90 > options["sum_rows"]
    case.check()


def branches(case: Case) -> set[tuple[str, str, bool]]:
    """(kernel, branch, taken) of what a case compiles or skips at compile time, and of both kinds of ragged tiles."""
    choice, whole = case.choice, case.choice.mode in choose.WHOLE_ROW
    kernel = f"{case.operation}_{'rows' if whole else 'columns'}"
    affine = case.weight != "none"
    taken = {
        "residual or dsum": case.op == "fused_add_rms_norm",
        "weight": affine,
        "rounded": case.variant[0] != "gemma",
        "rstd or dw": case.wants and (affine or case.operation == "forward"),
        "several rows a tile": choice.rows > 1,
        "rows missing in the last tile": case.rows % choice.rows > 0,
        "columns missing in the last chunk": case.hidden % choice.block > 0,
        "more tiles than programs": case.rows > choice.rows * choice.programs,
    }
    return {(kernel, name, value) for name, value in taken.items()}


def test_the_selection_is_small_and_takes_every_branch_of_every_kernel_both_ways() -> None:
    cases = pairwise()
    assert len(cases) <= 150
    launched = [f"{operation}_{kind}" for operation in ("forward", "backward") for kind in ("rows", "columns")]
    names = {name for _, name, _ in branches(cases[0])}
    assert set().union(*map(branches, cases)) == set(itertools.product(launched, names, (True, False)))


def test_every_branch_in_the_code_is_taken_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a counting copy of the kernels; of the selection, as much as it takes."""
    recorder = Recorder(tmp_path, Path(kernels.__file__))
    monkeypatch.setattr(launch, "kernels", recorder.modules[0])
    for case in (many_partials(), *map(problem, pairwise())):
        case.run()
        if recorder.taken >= recorder.ways:
            break
    assert sorted(recorder.ways - recorder.taken) == []


def test_the_selection_holds_every_meeting_that_is_not_refused() -> None:
    groups = [TRIPLE, *itertools.combinations(FACTORS, 2)]
    met = {m for case in pairwise() for m in meetings_of(case._asdict(), groups)}
    missing = set(all_meetings(FACTORS, groups)) - met
    assert all({"hidden", "mode"} <= set(dict(m)) for m in missing)
    for meeting in missing:  # two that never meet, or three of which two, with one operation or with both, do not
        fixed = dict(meeting)
        operations = (fixed["operation"],) if "operation" in fixed else FACTORS["operation"]
        assert all(
            choose.refusal("interpreter", fixed["mode"], 1, fixed["hidden"], "float32", operation)
            for operation in operations
        )


def test_each_kernel_is_reached_by_the_choice_that_says_so() -> None:
    launches.enable()
    for hidden, operation in itertools.product((129, 16385), ("forward", "backward")):
        subject = problem(Case(hidden, "auto", "rms_norm", operation, "float32", "same", ("llama", 0.0), 3, True))
        subject.forward() if operation == "forward" else subject.backward()
    seen = [record["kernel"] for record in launches.drain()]
    assert seen == ["forward_rows", "backward_rows", "sum_rows", "forward_columns", "backward_columns", "sum_rows"]


def test_the_judgement_rejects_wrong_values() -> None:
    """The gate has teeth: a norm off by half a percent, a lost column, a gradient without its second term."""
    case = Case(1000, "auto", "fused_add_rms_norm", "forward", "float32", "same", ("llama", 0.0), 17, True)
    subject = problem(case)
    for name, wrong in (
        ("y", lambda t: t * 1.005),
        ("y", lambda t: t * (torch.arange(1000) != 999)),
        ("sum", lambda t: t * 1.0001),
    ):
        made = subject.forward()
        subject.judge(made)
        with pytest.raises(AssertionError, match=name):
            subject.judge({**made, name: wrong(made[name])})
    subject = problem(case._replace(operation="backward"))
    made = subject.backward()
    with pytest.raises(AssertionError, match="dx"):
        subject.judge({**made, "dx": made["dx"] - subject.given["dsum"]})


@pytest.mark.parametrize("mode", MODES)
def test_no_rows_launch_nothing_and_give_a_zero_weight_gradient(mode: str) -> None:
    x, rstd, dw = torch.empty(0, 16), torch.empty(0), torch.full((16,), float("nan"))
    forward = choose.choose("interpreter", 0, 16, "float32", "forward", cores=CORES, mode=mode)
    backward = choose.choose("interpreter", 0, 16, "float32", "backward", cores=CORES, mode=mode)
    launches.enable()
    launch.forward(forward, x, None, dw, EPS, 0.0, True, x, None, rstd)
    launch.backward(backward, x, None, x, dw, rstd, 0.0, True, x, dw)
    assert launches.drain() == [] and torch.equal(dw, torch.zeros(16))


def test_a_launch_says_what_it_did() -> None:
    launches.enable()
    problem(Case(129, "auto", "rms_norm", "backward", "float32", "same", ("llama", 0.0), 17, True)).backward()
    first, second = launches.drain()
    assert (first["kernel"], second["kernel"]) == ("backward_rows", "sum_rows")
    assert first["grid"] == [first["programs"]] and first["options"]["partials"] == first["programs"]
    assert {r["direction"] for r in (first, second)} == {"backward"}
    assert {r["mode"] for r in (first, second)} == {"row_packed"}


def test_a_residual_needs_a_place_for_the_sum() -> None:
    x = torch.ones(2, 8)
    choice = choose.choose("interpreter", 2, 8, "float32", "forward", cores=CORES)
    with pytest.raises(ValueError, match="total=None"):
        launch.forward(choice, x, x, None, EPS, 0.0, True, x.clone(), None, None)


@pytest.mark.parametrize("hidden, passes", [(1000, 1), (16385, 2)])
def test_traffic_is_once_for_whole_rows_and_twice_for_chunks(hidden: int, passes: int) -> None:
    """Reads of x by forward and backward, and what the fused forward's second walk reads: the sum, not its terms."""
    x = torch.ones(8, hidden)
    y, total, rstd = x.clone(), x.clone(), torch.ones(8)
    size = x.numel() * 4

    def loaded(residual: torch.Tensor | None) -> int:
        choice = choose.choose("interpreter", 8, hidden, "float32", "forward", cores=CORES)
        interpreter.traffic(reset=True)
        launch.forward(choice, x, residual, None, EPS, 0.0, True, y, None if residual is None else total, rstd)
        return interpreter.traffic()["loaded"]

    assert loaded(None) == passes * size
    assert loaded(x) == 2 * size + (passes - 1) * size
    choice = choose.choose("interpreter", 8, hidden, "float32", "backward", cores=CORES)
    interpreter.traffic(reset=True)
    launch.backward(choice, x, None, x, None, rstd, 0.0, True, y, None)
    assert interpreter.traffic()["loaded"] == 2 * passes * size + 8 * 4
