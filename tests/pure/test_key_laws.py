"""The law of the judges' keys, over random contracts: cells with one key have one content."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.accuracy.evaluate import fill_inputs, fill_reference, input_key, reference_key
from farm.cell import Cell
from farm.contracts.base import Array, CellLike, Contract, Dimension, FamilyLike, Parameter, Tensor
from farm.errors import ContractError

NAMES = ("p", "q", "r")
READS = (*NAMES, "operation", "provider", "mode", "backend")


@dataclass(frozen=True)
class Reads:
    """What each method of a contract reads of a cell."""

    tensors: frozenset[str]
    inputs: frozenset[str]
    reference: frozenset[str]


def number(cell: CellLike, names: frozenset[str]) -> int:
    """A small number that depends on each of these."""
    told = [(n, cell.params[n] if n in NAMES else getattr(cell, n)) for n in sorted(names)]
    return zlib.crc32(repr(told).encode()) % 5 + 1


class Drawn(Contract):
    """A contract that reads what `reads` says, and declares what `parameters` say."""

    op = "any"
    dimensions = (Dimension("rows", 0, 9), Dimension("columns", 1, 9))
    typed = ("x",)

    def __init__(self, reads: Reads, parameters: tuple[Parameter, ...], operations: tuple[str, ...]) -> None:
        self.reads, self.parameters, self.operations = reads, parameters, operations

    def tensors(self, cell: CellLike) -> tuple[Tensor, ...]:
        """x and y, whose dtypes may depend on anything, and of some cells z, rows or whole."""
        kind, shape = number(cell, self.reads.tensors), (cell.dims["rows"], cell.dims["columns"])
        x = Tensor("x", "float16" if kind == 1 else cell.dtypes["x"], shape, "input")
        y = Tensor("y", "float64" if kind == 2 else cell.dtypes["x"], shape, "output")
        z = {1: ((shape[0], 2), True), 2: ((), False), 3: ((3,), False)}.get(number(cell, self.reads.inputs))
        return (x, Tensor("z", "float32", z[0], "upstream", blocked=z[1]), y) if z else (x, y)

    def inputs(self, cell: CellLike, family: FamilyLike, block: tuple[int, int]) -> dict[str, Array]:
        scale = number(cell, self.reads.inputs)
        made = {"x": scale * family.normal("x", block, cell.dims["columns"], "bfloat16")}
        rows = block[1] - block[0]
        z = {1: np.full((rows, 2), scale), 2: np.full((), scale), 3: np.full((3,), scale)}.get(scale)
        return made if z is None else {**made, "z": z.astype(np.float32)}

    def reference(self, inputs: Mapping[str, Array], cell: CellLike, block: tuple[int, int]) -> dict[str, Array]:
        return {"y": inputs["x"].astype(np.float64) * number(cell, self.reads.reference)}


def parameter(name: str, flag: tuple[bool, ...]) -> Parameter:
    inputs, silent, same, null = flag
    nullifies = "z" if null else None
    return Parameter(name, bool, True, inputs=inputs, semantic=not silent, changes_result=not same, nullifies=nullifies)


def every_cell(operations: tuple[str, ...]) -> list[Cell]:
    """All that differ in two places at most from the first."""
    axes: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(NAMES, (True, False)),
        "operation": operations,
        "provider": ("a", "b"),
        "mode": ("auto", "other"),
        "backend": ("cpu", "sim"),
        "seed": (0, 1),
        "rows": (2, 3),
        "dtype": ("float32", "bfloat16"),
    }
    found = []
    for one, other in itertools.combinations(axes, 2):
        for value, second in itertools.product(axes[one], axes[other]):
            a = {**{k: v[0] for k, v in axes.items()}, one: value, other: second}
            dims, params = {"rows": a["rows"], "columns": 5 - a["rows"]}, {n: a[n] for n in NAMES}
            who = (a["backend"], "any", a["provider"], a["mode"], a["operation"])
            found.append(Cell(*who, {"x": a["dtype"]}, dims, params, "normal", a["seed"]))
    return list(dict.fromkeys(found))


def content(arrays: Mapping[str, Any]) -> Any:
    return {name: (a.shape, a.dtype.str, a.tobytes()) for name, a in arrays.items()}


def law(reads: Reads, shown: tuple[tuple[bool, ...], ...], order: tuple[str, ...]) -> int:
    """How many cells had both.  What may not be read ends in a ContractError, whichever cell comes first."""
    contract = Drawn(reads, tuple(map(parameter, NAMES, shown)), order)
    inputs: dict[str, Any] = {}
    references: dict[str, Any] = {}
    seen = 0
    for cell in every_cell(order):
        try:
            made = fill_inputs(cell, contract)
            assert inputs.setdefault(input_key(cell, contract), content(made)) == content(made)
            found = content(fill_reference(cell, contract, made))
            assert references.setdefault(reference_key(cell, contract), found) == found
            seen += 1
        except ContractError as error:
            assert error.id in ("contract-reads-cell", "contract-reads-parameter", "contract-inputs-names")
    return seen


@st.composite
def contracts(draw: st.DrawFn) -> tuple[Reads, tuple[tuple[bool, ...], ...]]:
    """Most of what they read they may read; now and then one thing that they may not."""
    shown = draw(st.tuples(*[st.tuples(*[st.booleans()] * 4)] * len(NAMES)))
    made = [n for n, (inputs, _, _, null) in zip(NAMES, shown) if inputs or null]
    result = [n for n, (_, silent, same, _) in zip(NAMES, shown) if n in made or not (silent or same)]
    stray = draw(st.sampled_from([*[()] * 6, *((name,) for name in READS)]))
    some = [st.frozensets(st.sampled_from([*names, "operation"])) for names in (NAMES, made, result)]
    tensors, inputs, reference = (draw(names) for names in some)
    return Reads(tensors, inputs | frozenset(stray), reference), shown


@given(contracts(), st.permutations(["forward", "backward", "full"]))
@settings(max_examples=80)
def test_one_key_one_content(drawn: tuple[Reads, tuple[tuple[bool, ...], ...]], order: list[str]) -> None:
    law(*drawn, tuple(order))


def test_the_law_compares_something() -> None:
    plain, free = frozenset[str](), (True, False, False, False)
    everything = frozenset((*NAMES, "operation"))
    order = ("forward", "backward", "full")
    cells = len(every_cell(order))
    assert law(Reads(everything, everything, everything), (free,) * 3, order) == cells
    assert law(Reads(everything, plain, plain), ((False, True, True, False),) * 3, order) == cells
    assert law(Reads(plain, frozenset({"p"}), plain), ((False, False, False, False),) * 3, order) == 0
