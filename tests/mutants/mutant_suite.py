"""Every mutant in every cell of the matrix that it is for, called and judged as the farm's child and judge do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wrong_backward
import wrong_outputs
import wrong_statistics
import wrong_triton
from mutant_registry import TORCH, Mutant
from norm_steps import Norm

from farm import matrix
from farm.accuracy import evaluate
from farm.cell import Cell
from farm.child import placing, poison, provider_call, tensor_files
from farm.contracts import layouts
from farm.contracts.call import call_for
from farm.contracts.discovery import contract

MATRIX = Path(__file__).resolve().parent / "mutants.yaml"
#: Modules that register torch mutants.
MODULES = (wrong_statistics, wrong_outputs, wrong_backward)


def every() -> list[Mutant]:
    """All mutants, those in torch first."""
    return [*TORCH, *wrong_triton.mutants()]


def controls() -> list[Mutant]:
    """The same code without a mutation: right.  Of the kernels' source, one for each mode."""
    right = Mutant("torch-control", "Nothing", lambda op: Norm().function(op), operations=("forward", "backward"))
    return [right, *wrong_triton.controls()]


def planned(backend: str, path: Path = MATRIX) -> list[Cell]:
    """The matrix's cells, as `farm plan` plans them, without those that it excludes."""
    return [cell for cell in matrix.plan(matrix.load_all(path), [backend]).cells if not cell.skip_reason]


def is_for(mutant: Mutant, cell: Cell) -> bool:
    """Whether the mutant is called in this cell."""
    return (
        cell.matrix.startswith(f"{mutant.made}-")
        and cell.op in mutant.ops
        and cell.operation in mutant.operations
        and cell.mode in mutant.modes
    )


def places(mutant: Mutant, cells: Iterable[Cell]) -> list[tuple[str, str, str]]:
    """The mutant's places that these cells reach: in each of them it must be caught."""
    reached = {(c.op, c.operation, c.dtype) for c in cells if is_for(mutant, c)}
    return [place for place in mutant.places if place in reached]


def missed(mutant: Mutant, cells: Iterable[Cell], outcomes: Iterable[Outcome]) -> list[tuple[str, str, str]]:
    """The places where it should have been caught and was not."""
    caught = {(o.cell.op, o.cell.operation, o.cell.dtype) for o in outcomes if o.mutant == mutant.name and o.caught}
    return [place for place in places(mutant, cells) if place not in caught]


@dataclass(frozen=True)
class Outcome:
    """How a cell of a mutant ended: the status that the farm would give it, and what told it from a right one."""

    mutant: str
    cell: Cell
    status: str  # passed, inaccurate, crashed
    reason: str = ""
    output: str = ""
    metric: str = ""
    ratio: float = 0.0
    allowed_by: tuple[str, ...] = ()  # rules that find nothing wrong, where rules were asked

    @property
    def caught(self) -> bool:
        return self.status != "passed"

    @property
    def by(self) -> str:
        """`y.gain_max`, or the finding where no metric made it."""
        if self.metric:
            return f"{self.output}.{self.metric}"
        return "wrote outside" if "wrote outside" in self.reason else self.reason.split(":")[0]


@dataclass(frozen=True)
class Called:
    """What a call gave: storage arrays by name, or a status and why there are none; `flag` disqualifies it."""

    outputs: dict[str, np.ndarray]
    flag: str = ""
    status: str = ""
    reason: str = ""


class Trial:
    """One cell's inputs and reference, made once for all mutants.  `inputs` stand in for the family's own."""

    def __init__(self, cell: Cell, device: torch.device, inputs: dict[str, Any] | None = None) -> None:
        self.cell, self.device, self.contract = cell, device, contract(cell.op)
        whole = (0, evaluate.row_count(cell))
        self.inputs = evaluate.make_inputs(cell, self.contract, whole) if inputs is None else inputs
        self.reference = evaluate.fill_reference(cell, self.contract, self.inputs)
        self.tensors = self.contract.tensors(cell)
        self.judged = evaluate.judged_tensors(cell, self.contract)
        rows = evaluate.row_count(cell)
        self.plans = {
            t.name: layouts.described({"name": t.name, "shape": list(t.dims), "blocked": t.blocked}, cell.layout, rows)
            for t in self.tensors
        }
        self.given = {t.name: self._tensor(t.name, t.dtype) for t in self.tensors if t.name in self.inputs}

    def _tensor(self, name: str, dtype: str) -> torch.Tensor:
        made = torch.from_numpy(np.array(self.inputs[name]))
        made = (made.view(torch.bfloat16) if dtype == "bfloat16" else made).to(self.device)
        return placing.placed(made, self.plans[name])

    def call(self, function: Callable[..., Any]) -> Called:
        """The cell's operation once, in poisoned memory, inputs compared before and after."""
        given = {name: placing.copied(value) for name, value in self.given.items()}
        by_name = {t.name: given[t.name] for t in self.tensors if t.role == "input"}
        for value in by_name.values():
            value.requires_grad_(True)
        problem = provider_call.Problem(
            list(by_name.values()),
            [given[t.name] for t in self.tensors if t.role == "upstream"],
            [by_name[t.of] for t in self.tensors if t.role == "gradient" and t.of],
            self.cell.operation,
        )
        bound = provider_call.bind(function, call_for(self.cell, self.contract, {"name": "mutant"}))
        before = {name: tensor_files.checksum(value) for name, value in given.items()}
        poisoned = poison.Poisoned(self.device)
        try:
            with poisoned:
                got = problem.run(bound)
            outputs = {t.name: _storage(placing.with_rows(self.plans[t.name], v)) for t, v in zip(self.judged, got)}
        except Exception as error:
            if "CUDA error" in str(error):
                raise  # the device's context is lost, and with it every later cell
            return Called({}, status="crashed", reason=f"{type(error).__name__}: {error}")
        flags = poisoned.broken()
        changed = [name for name, sum_ in before.items() if tensor_files.checksum(given[name]) != sum_]
        flags += ["changed its inputs"] if changed else []
        return Called(outputs, flag=flags[0] if flags else "")

    def judge(self, mutant: str, called: Called) -> Outcome:
        """The farm's verdict."""
        if called.status:
            return Outcome(mutant, self.cell, called.status, called.reason)
        found = evaluate.evaluate(self.cell, self.contract, called.outputs, self.inputs, reference=self.reference)
        status = "inaccurate" if called.flag or not found.ok else "passed"
        if called.flag and found.ok:
            return Outcome(mutant, self.cell, status, called.flag)
        worst = (found.worst_output, found.worst_metric, found.worst_ratio or 0.0)
        return Outcome(mutant, self.cell, status, found.reason, *worst)


def _storage(value: torch.Tensor) -> np.ndarray:
    host = value.detach().cpu().contiguous()
    found: np.ndarray = host.view(torch.int16).numpy().view(np.uint16) if host.dtype == torch.bfloat16 else host.numpy()
    return found


Rules = Callable[[Trial, Called], tuple[str, ...]]


def run(
    mutants: Sequence[Mutant],
    cells: Iterable[Cell],
    device: torch.device,
    *,
    until_caught: bool = False,
    make: Callable[[Cell], dict[str, Any]] | None = None,
    rules: Rules | None = None,
) -> Iterator[Outcome]:
    """The outcome of every mutant in every cell that it is for, cell by cell, so that calls keep the cells' order.

    With `until_caught` a mutant is not called again in a place (op, operation, dtype) where it was caught.  `make`
    gives a cell's inputs instead of its family; `rules` names those that find nothing wrong with a call.
    """
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    done: set[tuple[str, ...]] = set()
    for cell in cells:
        place = (cell.op, cell.operation, cell.dtype)
        some = [m for m in mutants if is_for(m, cell) and (m.name, *place) not in done]
        if not some:
            continue
        trial = Trial(cell, device, None if make is None else make(cell))
        for mutant in some:
            key = (mutant.name, cell.op)
            if key not in functions:
                functions[key] = mutant.functions(cell.op)
            called = trial.call(functions[key])
            outcome = trial.judge(mutant.name, called)
            if rules is not None:
                outcome = replace(outcome, allowed_by=rules(trial, called))
            if until_caught and outcome.caught:
                done.add((mutant.name, *place))
            yield outcome
