"""The tensors of one benchmarked case on the device, and a checked call on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import OURS, Case
from benchmarks.check import Reference
from farm.cell import canonical_json
from farm.child import poison, provider_call
from farm.child.tensor_files import DTYPES
from farm.contracts.discovery import contract
from farm.errors import WrongAnswer
from kernels import launches

#: Row i of a matrix is scaled by SCALES[i mod 4]: one kind so small that eps is seen.
SCALES = (1.0, 1.0, 1e-3, 4.0)


class Work:
    """A case's tensors on the device, pristine: every call gets clones."""

    def __init__(self, case: Case, device: torch.device, check: bool):
        self.case, self.device = case, device
        found = contract(case.op).tensors(case.cell(OURS))
        generator = torch.Generator(device=device).manual_seed(zlib.crc32(case.id.encode()))
        self.tensors: dict[str, torch.Tensor] = {}
        for t in found:
            if t.role in ("input", "upstream"):
                self.tensors[t.name] = _values(t.name, t.dtype, t.dims, generator, device)
        self.inputs = [t.name for t in found if t.role == "input"]
        self.upstream = [t.name for t in found if t.role == "upstream"]
        self.wrt = [str(t.of) for t in found if t.role == "gradient"]
        self.sizes = [t.size * DTYPES[t.dtype].itemsize for t in found if t.role in ("output", "gradient")]
        self.check = check
        self.references: dict[str, Reference] = {}  # by what a provider declares
        if check:
            self.reference(OURS)

    def make(self) -> provider_call.Problem:
        """A fresh set of buffers with the case's values."""
        grad = self.case.operation != "no-grad-forward"
        made = {n: self.tensors[n].clone().requires_grad_(grad) for n in self.inputs}
        return provider_call.Problem(
            [made[n] for n in self.inputs],
            [self.tensors[n].clone() for n in self.upstream],
            [made[n] for n in self.wrt],
            self.case.operation,
        )

    def call(self, function: Callable[..., Any]) -> tuple[tuple[Any, ...], list[dict[str, Any]]]:
        """The outputs of one call into memory that held NaN, and the launches that our own kernels told of.
        `WrongAnswer` where it changes its inputs: the second call of a timed loop would see other data."""
        self.make().run(function)  # compiles; apart, so that the recorded call is a plain one
        problem = self.make()
        poison.poison_freed(self.device, self.sizes)
        launches.enable()
        launches.drain()
        try:
            outputs = problem.run(function)
            if self.device.type != "cpu":
                torch.get_device_module(self.device.type).synchronize(self.device)
        finally:
            launches.disable()
        told = launches.drain()
        given = zip([*self.inputs, *self.upstream], [*problem.inputs, *problem.upstream])
        changed = [n for n, t in given if not torch.equal(t, self.tensors[n])]
        if changed:
            raise WrongAnswer(f"it changed its inputs: {', '.join(changed)}")
        return tuple(o.detach() if isinstance(o, torch.Tensor) else o for o in outputs), told

    def reference(self, subject: str) -> Reference:
        cell = self.case.cell(subject)
        key = canonical_json(dict(cell.params))
        if key not in self.references:
            self.references[key] = Reference(self.case, self.tensors, cell)
        return self.references[key]

    def problem_with(self, outputs: tuple[Any, ...], subject: str) -> str:
        """Why these outputs of a subject are wrong; empty where they are right, or not asked for."""
        return self.reference(subject).problem(outputs) if self.check else ""


def _values(
    name: str, dtype: str, dims: tuple[int, ...], generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Random values, never equal from row to row: matrices unit normal in rows of several scales, vectors around 1."""
    made = torch.empty(dims, dtype=DTYPES[dtype], device=device).normal_(generator=generator)
    if len(dims) == 1:
        return made.mul_(0.25).add_(1.0)
    if name in ("x", "residual"):
        scales = torch.tensor(SCALES, dtype=made.dtype, device=device)
        made.mul_(scales[torch.arange(dims[0], device=device) % len(SCALES)][:, None])
    return made
