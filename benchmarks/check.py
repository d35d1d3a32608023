"""Is what a subject returns right?  Asked on the device before it is timed, of a sample of rows and all of dw.

The reference of the sampled rows is the op's contract in float64, made on the host from the rows alone; the weight
gradient sums over every row, so its reference is made on the device, in float64, in blocks of rows.  Metrics and gates
are those of the farm's judge, at the gates of casting `llama`, which a kernel that rounds less passes as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.cases import OURS, Case
from farm.accuracy import evaluate, metrics, tolerances
from farm.cell import Cell
from farm.child.tensor_files import NAMES
from farm.contracts.base import Contract, Tensor
from farm.contracts.discovery import contract

#: Elements of the sampled rows of one tensor: a few milliseconds on the host.
SAMPLE_ELEMENTS = 1 << 18
LEAST_ROWS, MOST_ROWS = 4, 64
#: Elements of one block of rows on the device: a quarter of a GiB in float64.
BLOCK_ELEMENTS = 1 << 25


def sample_rows(rows: int, hidden: int) -> list[int]:
    """Rows to compare, ascending: the first, the last, and others at even distances."""
    count = min(rows, max(LEAST_ROWS, min(MOST_ROWS, SAMPLE_ELEMENTS // max(1, hidden))))
    return sorted({round(i * (rows - 1) / max(1, count - 1)) for i in range(count)})


def storage(tensor: torch.Tensor) -> Any:
    """A tensor as the judge's storage array: bfloat16 as its bits."""
    host = tensor.detach().cpu().contiguous()
    return host.view(torch.int16).numpy().view(np.uint16) if host.dtype == torch.bfloat16 else host.numpy()


class Reference:
    """What is right for one case with these tensors (name -> tensor: inputs and upstream gradients), in the view of a
    cell: where implementations may differ, as its provider declares."""

    def __init__(self, case: Case, tensors: dict[str, torch.Tensor], cell: Cell | None = None):
        self.case, self.tensors = case, tensors
        self.contract: Contract = contract(case.op)
        self.cell = cell or case.cell(OURS)
        self.expected: list[Tensor] = evaluate.judged_tensors(self.cell, self.contract)
        self.gates = tolerances.resolve(self.cell, self.contract)
        self.rows = sample_rows(case.rows, case.hidden)
        blocked = {t.name: t.blocked for t in self.contract.tensors(self.cell)}
        at = torch.tensor(self.rows, device=next(iter(tensors.values())).device)
        cut = {n: storage(t.detach()[at] if blocked[n] else t) for n, t in tensors.items()}
        self.sampled = evaluate.make_reference(self.cell, self.contract, cut, (0, len(self.rows)))
        self.reductions = self._reductions()

    def _reductions(self) -> dict[str, tuple[Any, Any]]:
        """dw and the squared size of its terms, over all rows, float64 [hidden].

        dw = sum over rows of dy n, n = s / sqrt(mean(s^2) + eps), s what is normed: x, or x + residual as it is stored
        (`sum: unrounded` takes the root of the sum before it was rounded).
        """
        names = [t.name for t in self.expected if not t.blocked]
        if not names:
            return {}
        if names != ["dw"]:
            raise NotImplementedError(f"no reference on the device for {', '.join(names)} of {self.case.op}")
        x, dy, residual = self.tensors["x"].detach(), self.tensors["dy"], self.tensors.get("residual")
        total = torch.zeros(2, self.case.hidden, dtype=torch.float64, device=x.device)
        step = max(1, BLOCK_ELEMENTS // self.case.hidden)
        for start in range(0, self.case.rows, step):
            block = slice(start, start + step)
            stored = used = x[block].double()
            if residual is not None:
                other = residual.detach()[block]
                stored = (x[block] + other).double()
                used = used + other.double() if self.cell.params.get("sum") == "unrounded" else stored
            rstd = torch.rsqrt(used.square().mean(-1, keepdim=True) + self.cell.params["eps"])
            terms = stored * rstd * dy[block].double()
            total[0] += terms.sum(0)
            total[1] += terms.square().sum(0)
        value, scale = total.cpu().numpy()
        return {"dw": (value[None], scale[None])}

    def problem(self, outputs: Sequence[Any]) -> str:
        """Why these outputs are wrong, in one sentence; empty where they are right."""
        if len(outputs) != len(self.expected):
            return f"returned {len(outputs)} tensors, expected {len(self.expected)}"
        found: dict[str, dict[str, float]] = {}
        for tensor, value in zip(self.expected, outputs):
            if not isinstance(value, torch.Tensor):
                return f"{tensor.name} is a {type(value).__name__}, not a tensor"
            wrong = evaluate.check_layout(tensor, NAMES.get(value.dtype, str(value.dtype)), value.shape)
            if wrong:
                return wrong
            if not bool(torch.isfinite(value).all()):
                return f"{tensor.name} has elements that are not finite"
            found[tensor.name] = self._metrics(tensor, value)
        verdict = tolerances.verdict(found, self.gates)
        if verdict.ok:
            return ""
        output, metric = verdict.worst_output, verdict.worst_metric
        return f"{output}: {metric} is {found[output][metric]:.3g}, tolerance {self.gates[output][metric]:.3g}"

    def _metrics(self, tensor: Tensor, value: torch.Tensor) -> dict[str, float]:
        if not tensor.blocked:
            want, scale = self.reductions[tensor.name]
            return metrics.compare(storage(value)[None], want, tensor.dtype, squared_scale=scale).finish()
        at = torch.tensor(self.rows, device=value.device)
        return metrics.compare(
            storage(value.detach()[at]),
            self.sampled[tensor.name],
            tensor.dtype,
            squared_scale=self.sampled.get(f"{tensor.name}.scale2"),
            spread=self.sampled.get(f"{tensor.name}.spread"),
            row_numbers=np.array(self.rows),
        ).finish()
