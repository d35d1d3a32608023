"""Kernels called, or launched, on a cell's own inputs, and judged by its contract, for the tests of both families.

`Call` goes the farm's way, through the public function and autograd; `Launch` takes a choice to a family's launch
functions.  What a kernel has to write is NaN before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.child import poison, provider_call
from farm.contracts.call import call_for
from farm.contracts.discovery import contract
from farm.providers import farm as ours
from kernels.ops.rms_norm.choice import Choice

LAYOUTS = ("dense", "apart", "transposed")
_GAP = 3  # columns between rows that lie apart


def norm_cell(
    op: str,
    mode: str,
    operation: str,
    dtype: str,
    weight: str,
    rows: int,
    hidden: int,
    *,
    casting: str = "llama",
    offset: float = 0.0,
    in_place: bool = False,
) -> Cell:
    """A cell of one of our norms; `weight` is a dtype, "same" as x, or "none"."""
    params = {p.name: p.default for p in contract(op).parameters}
    params |= {"casting": casting, "offset": offset, "weight": weight != "none"}
    if in_place:
        params["in_place"] = True
    dtypes = {"x": dtype, "weight": dtype if weight in ("same", "none") else weight}
    return Cell("cpu", op, "farm", mode, operation, dtypes, {"rows": rows, "hidden": hidden}, params)


def tensor(stored: np.ndarray, dtype: str, layout: str = "dense") -> torch.Tensor:
    """A storage array as a tensor; a matrix is dense, its rows lie apart with NaN between them, or its columns are the
    contiguous dimension."""
    made = torch.from_numpy(np.array(stored))
    made = made.view(torch.bfloat16) if dtype == "bfloat16" else made
    if made.dim() == 1 or layout == "dense":
        return made
    if layout == "transposed":
        return made.t().contiguous().t()
    wide = torch.full((made.shape[0], made.shape[1] + _GAP), float("nan"), dtype=made.dtype)
    wide[:, : made.shape[1]] = made
    return wide[:, : made.shape[1]]


def storage(made: torch.Tensor) -> np.ndarray:
    """A tensor as the array that the judge reads."""
    made = made.detach().contiguous()
    return (made.view(torch.uint16) if made.dtype == torch.bfloat16 else made).numpy()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes: a NaN is itself."""
    return storage(a).tobytes() == storage(b).tobytes()


def unwritten(like: torch.Tensor) -> torch.Tensor:
    return torch.full(like.shape, float("nan"), dtype=like.dtype)


class Subject:
    """The inputs of a cell as tensors, and what its contract says of outputs."""

    def __init__(self, cell: Cell, layout: str = "dense") -> None:
        self.cell, self.contract = cell, contract(cell.op)
        self.inputs = evaluate.make_inputs(cell, self.contract, (0, cell.dims["rows"]))
        self.dtypes = {t.name: t.dtype for t in self.contract.tensors(cell)}
        self.given = {name: tensor(a, self.dtypes[name], layout) for name, a in self.inputs.items()}

    def judge(self, made: Mapping[str, torch.Tensor | None]) -> None:
        """AssertionError with the judge's sentence, where an output is not within its gates.  A weight gradient that is
        None was not asked for, and is judged as if it were right."""
        names = [t.name for t in evaluate.judged_tensors(self.cell, self.contract)]
        outputs = {n: storage(t) for n in names if (t := made[n]) is not None}
        if "dw" in names and "dw" not in outputs:
            reference = evaluate.fill_reference(self.cell, self.contract, self.inputs)
            outputs["dw"] = storage(torch.from_numpy(reference["dw"]).to(self.given["weight"].dtype))
        found = evaluate.evaluate(self.cell, self.contract, outputs, self.inputs)
        assert found.ok, found.reason


class Call(Subject):
    """A cell through our public function, as the farm's child calls it."""

    def run(self) -> dict[str, torch.Tensor]:
        """The cell's outputs and gradients by name.  AssertionError where something was changed that had to stay, or
        written outside an allocation."""
        cell, tensors = self.cell, self.contract.tensors(self.cell)
        function = provider_call.bind(ours.load(cell.op), call_for(cell, self.contract, {"name": "farm"}))
        learns = cell.operation != "no-grad-forward"
        by_name = {t.name: self.given[t.name] for t in tensors if t.role == "input"}
        for given in by_name.values():
            given.requires_grad_(learns)
        inputs = list(by_name.values()) + ([] if cell.params["weight"] else [None])
        upstream = [self.given[t.name] for t in tensors if t.role == "upstream"]
        wrt = [by_name[t.of] for t in tensors if t.role == "gradient"]
        kept = {t.name: self.given[t.name].detach().clone() for t in tensors if t.name in self.given}
        poisoned = poison.Poisoned(torch.device("cpu"))
        with poisoned:
            got = provider_call.Problem(inputs, upstream, wrt, cell.operation).run(function)
        assert poisoned.broken() == []
        free = {t.name for t in tensors if t.may_overwrite}
        changed = [n for n, was in kept.items() if n not in free and not same_bits(self.given[n], was)]
        assert changed == []
        judged = evaluate.judged_tensors(cell, self.contract)
        assert len(got) == len(judged)
        for t, value in zip(judged, got):
            wrong = evaluate.check_layout(t, str(value.dtype).removeprefix("torch."), value.shape)
            assert wrong is None, wrong
        return {t.name: value.detach() for t, value in zip(judged, got)}


class Launch(Subject):
    """A cell through a family's launch functions, with a choice that need not be its dispatch's.

    `wants`: rstd of a forward, dw of a backward.
    """

    def __init__(
        self, cell: Cell, choice: Choice, module: ModuleType, *, wants: bool = True, layout: str = "apart"
    ) -> None:
        super().__init__(cell, layout)
        self.choice, self.module, self.wants = choice, module, wants
        self.eps, self.offset = cell.params["eps"], cell.params["offset"]
        self.rounds = cell.params["casting"] != "gemma"

    def run(self) -> dict[str, torch.Tensor | None]:
        return self.backward() if self.cell.operation == "backward" else self.forward()

    def forward(self) -> dict[str, torch.Tensor | None]:
        x, residual = self.given["x"], self.given.get("residual")
        y, total = unwritten(x), None if residual is None else unwritten(x)
        rstd = torch.full((len(x),), float("nan")) if self.wants else None
        weight = self.given.get("weight")
        self.module.forward(self.choice, x, residual, weight, self.eps, self.offset, self.rounds, y, total, rstd)
        return {"y": y, "sum": total, "rstd": rstd}

    def total(self) -> torch.Tensor:
        """What was normed: x, or the sum as a forward stored it."""
        if "residual" not in self.given:
            return self.given["x"]
        return (self.given["x"].float() + self.given["residual"].float()).to(self.given["x"].dtype)

    def backward(self, in_place: bool = False) -> dict[str, torch.Tensor | None]:
        given, total, weight = self.given, self.total(), self.given.get("weight")
        rstd = (total.double().pow(2).mean(-1) + self.eps).rsqrt().float()
        dw = unwritten(weight) if weight is not None and self.wants else None
        dy = given["dy"].clone(memory_format=torch.contiguous_format) if in_place else given["dy"]
        dx = dy if in_place else unwritten(total)
        self.module.backward(self.choice, dy, given.get("dsum"), total, weight, rstd, self.offset, self.rounds, dx, dw)
        return {"dx": dx, "dresidual": dx, "dw": dw}

    def check(self, *, again: bool = True) -> None:
        """One run judged, rstd too; with `again` the same bits once more, and with dx in dy's storage."""
        made = self.run()
        self.judge(made)
        if self.cell.operation == "forward" and self.wants:
            want = (self.total().double().pow(2).mean(-1) + self.eps).rsqrt()
            torch.testing.assert_close(made["rstd"].double(), want, rtol=2e-6, atol=0)
        if again:
            assert same(made, self.run())
            assert self.cell.operation == "forward" or same(made, self.backward(in_place=True))


def same(a: Mapping[str, torch.Tensor | None], b: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether two runs gave the same values."""
    return all(
        x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in zip(a.values(), b.values())
    )
