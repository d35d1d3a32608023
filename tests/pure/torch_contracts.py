"""Contracts from PyTorch functions, evaluated in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.contracts import discovery
from farm.contracts.base import Contract
from farm.contracts.torch_contract import Job, TorchContract, evaluate_with


@contextmanager
def evaluated_here() -> Iterator[None]:
    """References are evaluated by the torch of this process."""
    import torch

    from farm.child import reference

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small cells

    def here(contract: TorchContract, job: Job) -> dict[str, Any]:
        folder = discovery.folder_of(job.op) if job.op in discovery.known_ops() else None
        if job.op not in discovery.known_ops():
            return reference.evaluate(contract, job)
        return reference.evaluate(reference.load(str(folder.path) if folder else "", job.op), job)

    evaluate_with(here)
    try:
        yield
    finally:
        evaluate_with(None)
        torch.set_num_threads(threads)


def cell_of(contract: Contract, operation: str = "forward", dtype: str = "float32", **rest: Any) -> Cell:
    """A cell of small sizes; `rest`: dimensions, parameters, `family`."""
    family = rest.pop("family", contract.families[0])
    sizes = {d.name: int(rest.pop(d.name, 6)) for d in contract.dimensions}
    params = {p.name: rest.pop(p.name, p.default) for p in contract.parameters}
    assert not rest
    dtypes = dict.fromkeys(contract.typed, dtype)
    return Cell("cpu", contract.op, "p", "auto", operation, dtypes, sizes, params, family=family)


def judged(contract: Contract, cell: Cell, outputs: dict[str, Any], inputs: Any) -> evaluate.Judgement:
    return evaluate.evaluate(cell, contract, outputs, inputs)


def imported(folder: Path, op: str) -> Contract:
    discovery.add(folder)
    return discovery.contract(op)
