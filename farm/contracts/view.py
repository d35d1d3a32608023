"""What a contract's methods see of a cell: the part that is in the key of what they make.  Pure.

Inputs and references are cached and shared between cells.  A method that makes them gets a view of the cell, the key is
made of the same view, and anything else that the method reads is a ContractError.  So a key cannot lack what made the
thing.  Provider, mode and backend are in no view.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from farm.contracts.base import CellLike, Contract, Tensor
from farm.errors import ContractError


class CellView:
    """A cell as a method of its contract sees it: `op`, `operation`, `dtypes`, `dims`, and some of `params`."""

    def __init__(self, cell: CellLike, method: str, names: Container[str] | None = None, cure: str = "") -> None:
        """`names`: the parameters that `method` may read, None for all; `cure`: what to do to read another."""
        self.op, self.operation = cell.op, cell.operation
        self.dtypes, self.dims = cell.dtypes, cell.dims
        self.method = method
        self.params: Mapping[str, Any] = cell.params
        if names is not None:
            self.params = _Params(cell, method, names, cure)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ContractError(
            f"the contract of {self.op} reads cell.{name} in {self.method}(), but what it makes is shared by cells "
            "that differ in it; read only cell.op, operation, dtypes, dims and params",
            id="contract-reads-cell",
        )

    def parts(self) -> list[Any]:
        """All that it shows, as JSON-able data.  The order of dimensions counts: the first is the row dimension."""
        return [self.op, self.operation, [*self.dims.items()], [*self.dtypes.items()], [*self.params.items()]]


class _Params(Mapping[str, Any]):
    """The parameters that a method may read."""

    def __init__(self, cell: CellLike, method: str, names: Container[str], cure: str) -> None:
        self._shown = {name: value for name, value in cell.params.items() if name in names}
        self._hidden = frozenset(cell.params) - frozenset(self._shown)
        self._op, self._method, self._cure = cell.op, method, cure

    def __getitem__(self, name: str) -> Any:
        if name in self._hidden:
            raise ContractError(
                f"the contract of {self._op} reads the parameter {name} in {self._method}(), but what it makes is "
                f"shared by cells that differ in it; {self._cure.format(name=name)}, or do not read it there",
                id="contract-reads-parameter",
            )
        return self._shown[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown)

    def __len__(self) -> int:
        return len(self._shown)


#: The roles of tensors that a provider is given.
GIVEN = ("input", "upstream", "mutated")


@dataclass(frozen=True)
class Views:
    """One cell as its contract's methods see it, and its tensors.

    `every`: for `tensors` and `work`, every parameter.  `inputs`: for `inputs`, what the contract lets the inputs
    depend on.  `reference`: for `reference`, `scales` and `spread`, what changes the inputs or the unrounded result.
    Operations with the same tensors share what is made, so the last two show the first of them as `operation`.
    """

    every: CellView
    inputs: CellView
    reference: CellView
    tensors: tuple[Tensor, ...]

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The inputs and upstream gradients."""
        return given(self.tensors)


def given(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t for t in tensors if t.role in GIVEN)


def layout(tensors: tuple[Tensor, ...]) -> list[list[Any]]:
    """Tensors as JSON-able data; without `may_overwrite`, which does not affect what is in them."""
    return [[t.name, t.dtype, list(t.dims), t.role, t.blocked, t.of] for t in tensors]


def of(cell: CellLike, contract: Contract) -> Views:
    every = CellView(cell, "tensors")
    tensors = contract.tensors(every)
    made = {p.name for p in contract.parameters if p.inputs or p.nullifies}
    result = {p.name for p in contract.parameters if p.semantic and p.changes_result}
    inputs = CellView(cell, "inputs", made, 'declare it as Parameter("{name}", ..., inputs=True)')
    reference = CellView(cell, "reference", made | result, "declare it without semantic=False and changes_result=False")
    for operation in reversed(_before(cell.operation, contract.operations)):
        other = CellView(cell, "tensors")
        other.operation = operation
        with suppress(Exception):  # a combination that the contract does not support
            found = contract.tensors(other)
            if layout(found) == layout(tensors):
                reference.operation = operation
            if layout(given(found)) == layout(given(tensors)):
                inputs.operation = operation
    return Views(every, inputs, reference, tensors)


def _before(operation: str, operations: tuple[str, ...]) -> tuple[str, ...]:
    return operations[: operations.index(operation)] if operation in operations else operations
