"""`farm contract check`: which planted faults a contract finds, and which correct results it rejects.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.accuracy import evaluate, plants
from farm.accuracy.contract_check import cells, decoded, reference, where
from farm.accuracy.dtypes import encode, is_float
from farm.cell import Cell
from farm.contracts.base import Contract
from farm.contracts.torch_contract import TorchContract

Array = Any  # numpy.ndarray
Key = tuple[str, plants.Plant]  # a dtype and what is planted


@dataclass(frozen=True)
class Score:
    """`found` and `escaped`: plants, by dtype and fault; `same`: those that change nothing on any family; `accused`:
    correct results that are outside the tolerances, with the reason.  Where there was no time for all `cells`, `done`
    is less, and `undecided` are the plants that a later cell may still find."""

    op: str
    found: tuple[Key, ...] = ()
    escaped: tuple[Key, ...] = ()
    same: tuple[Key, ...] = ()
    accused: tuple[str, ...] = ()
    undecided: tuple[Key, ...] = ()
    done: int = 0
    cells: int = 0

    @property
    def share(self) -> float:
        """Of the plants that change something, those that are found."""
        total = len(self.found) + len(self.escaped)
        return len(self.found) / total if total else 1.0


def score(
    contract: Contract,
    families: Iterable[str] | None = None,
    told: Callable[[int, int, int, int], None] = lambda done, cells, found, open: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Score:
    """Plant every fault in every dtype; each is found if a cell of one of the `families` (left out: of all) is judged
    inaccurate.  `told(done, cells, found, not found so far)` after each cell; `go_on` is asked before each fault."""
    state: dict[Key, str] = {}
    accused: list[str] = []
    todo = list(cells(contract, contract.dtypes, families or contract.families))
    done = 0
    for cell in todo:
        for key, found in _planted(contract, cell, state, accused):
            state[key] = found
            if not go_on():
                break
        else:
            done += 1
            told(done, len(todo), *(sum(v == kind for v in state.values()) for kind in ("found", "escaped")))
            continue
        break

    def of(*kinds: str) -> tuple[Key, ...]:
        return tuple(key for key, found in state.items() if found in kinds)

    if done < len(todo):
        open_ = of("escaped", "same")
        return Score(contract.op, of("found"), (), (), tuple(accused), open_, done, len(todo))
    return Score(contract.op, of("found"), of("escaped"), of("same"), tuple(accused), (), done, len(todo))


def _planted(contract: Contract, cell: Cell, state: Mapping[Key, str], accused: list[str]) -> Iterator[tuple[Key, str]]:
    """Each fault that was not found before, and what came of it in this cell.  Correct results first."""
    inputs = evaluate.fill_inputs(cell, contract)
    whole = evaluate.fill_reference(cell, contract, inputs)
    case = plants.Case(
        cell, contract, evaluate.tensors_of(cell, contract), decoded(cell, contract, inputs), whole, reference(contract)
    )
    judged = {t.name: t for t in case.judged}

    def verdict(values: Mapping[str, Array]) -> evaluate.Judgement:
        stored = {
            name: encode(a if is_float(t.dtype) else np.rint(a), t.dtype)
            for name, t in judged.items()
            for a in [np.asarray(values[name])]
        }
        return evaluate.evaluate(cell, contract, stored, inputs, reference=whole)

    for what, values in correct(case).items():
        found = verdict(values)
        if not found.ok:
            accused.append(f"{where(cell)}, family {cell.family}: {what}: {found.reason}")
    for plant, make in plants.planted(case):
        key = (cell.dtype, plant)
        if state.get(key) == "found":
            continue
        with np.errstate(all="ignore"):
            made = make()
        if made is None:
            continue
        if all(_same(made[n], whole[n]) for n in judged):
            yield key, state.get(key, "same")
        else:
            yield key, "escaped" if verdict(made).ok else "found"


def correct(case: plants.Case) -> dict[str, Mapping[str, Array]]:
    """Results that no contract may reject, unrounded, by what they are."""
    cell, contract, whole = case.cell, case.contract, case.correct
    right: dict[str, Mapping[str, Array]] = {"the rounded reference": whole}
    if isinstance(contract, TorchContract):
        seen = evaluate.reference_view(cell, contract)
        right["the function at the cell's dtypes"] = {
            t.name: whole.get(f"{t.name}.own", whole[t.name]) for t in case.judged
        }
        right["the function in float32"] = contract.in_float32(case.values, seen, (0, evaluate.row_count(cell)))
    else:
        right["the reference in float32 arithmetic"] = plants.accumulated(case, "float32")
    return right


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64), equal_nan=True)
