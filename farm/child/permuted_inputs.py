"""Other values at the same addresses: how an answer that is remembered, not computed, is told from a right one.

The cheapest other values are the cell's own in another place: rows moved round by `shift`, upstream gradients negated.
A contract promises that a row's result depends on that row and on whole tensors, never on where the row stands, and a
gradient is linear in its upstream; so what must come out is known without a reference: the checked outputs, moved
round and negated alike (farm/contracts/base.py).  What differs from that by a bit goes to the judge, moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farm.child.findings import RETURNED_AGAIN

Plan = dict[str, Any]  # a protocol.TensorPlan as it travels
#: Elements compared at once, so that a comparison takes no more memory than a few such pieces.
_PIECE = 1 << 24


@dataclass(frozen=True)
class InputChange:
    """How other values come from the cell's own: rows moved on by `shift`, upstream gradients times `sign`."""

    shift: int
    sign: int

    @property
    def any(self) -> bool:
        return bool(self.shift) or self.sign != 1

    def sign_of(self, plan: Plan) -> int:
        """What the change does to an output (nothing) or a gradient (what it does to the upstream ones)."""
        return self.sign if plan["role"] == "gradient" else 1

    def shift_of(self, plan: Plan) -> int:
        return self.shift if plan.get("blocked", True) and plan["shape"] else 0


SAME = InputChange(0, 1)


def change(plans: Iterable[Plan], number: int) -> InputChange:
    """The `number`-th other values of a cell (from 1 on; neighbours differ); `SAME` where it has no others: one row
    and no upstream gradient."""
    plans = list(plans)
    rows = max((p["shape"][0] for p in plans if p.get("file") and p.get("blocked", True) and p["shape"]), default=0)
    shift = 1 + (number * 7919 - 1) % (rows - 1) if rows > 1 else 0
    negated = any(p["role"] == "upstream" for p in plans) and number % 2 == 1
    return InputChange(shift, -1 if negated else 1)


def refill(
    pairs: Iterable[tuple[Plan, torch.Tensor | None]], source: Callable[[Plan], torch.Tensor], how: InputChange
) -> None:
    """Write the cell's values, changed, over `pairs` in place: the addresses stay.  `source` gives a tensor's own
    values, which are only read."""
    with torch.no_grad():
        for plan, target in pairs:
            if target is None:
                continue
            own, shift = source(plan), how.shift_of(plan)
            if plan.get("leading"):
                target.copy_((own.roll(shift, 0) if shift else own).reshape(target.shape))
            elif shift:
                target[shift:].copy_(own[:-shift])
                target[:shift].copy_(own[-shift:])
            else:
                target.copy_(own)
            if plan["role"] == "upstream" and how.sign < 0:
                target.neg_()


def restored(plan: Plan, output: torch.Tensor, how: InputChange) -> torch.Tensor:
    """An output of the changed values as it would be of the cell's own.  A NaN keeps its bits, by which the judge knows
    what was never written."""
    moved = torch.roll(output, -how.shift_of(plan), 0) if how.shift_of(plan) else output
    return torch.where(moved != moved, moved, moved.neg()) if how.sign_of(plan) < 0 else moved


def as_expected(plan: Plan, first: torch.Tensor, second: torch.Tensor, how: InputChange) -> bool:
    """Whether `second`, of changed values, is what `first`, of the cell's own, lets expect.

    Rows have to be equal, NaN to NaN.  A sum over rows adds up in another order, so it may differ by rounding.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    sign = how.sign_of(plan)
    if not plan.get("blocked", True):
        return not how.any or _near(first, second, sign)
    shift = how.shift_of(plan)
    parts = [(first[:-shift], second[shift:]), (first[-shift:], second[:shift])] if shift else [(first, second)]
    return all(_equal(a, b, sign) for a, b in parts)


def _equal(a: torch.Tensor, b: torch.Tensor, sign: int) -> bool:
    unequal = torch.zeros((), dtype=torch.bool, device=a.device)
    for x, y in _pieces(a, b):
        y = y.neg() if sign < 0 else y
        unequal |= ((x != y) & ~((x != x) & (y != y))).any()
    return not bool(unequal)


def _near(a: torch.Tensor, b: torch.Tensor, sign: int) -> bool:
    """Relative L2 within a rounding of the dtype, and within 4e-6: float32 sums of a million terms stay below."""
    if not a.dtype.is_floating_point:
        return bool(torch.equal(a, b))
    difference = torch.zeros((), dtype=torch.float64, device=a.device)
    size = torch.zeros((), dtype=torch.float64, device=a.device)
    for x, y in _pieces(a, b):
        x, y = x.double(), y.double() * sign
        finite = torch.isfinite(x)
        if not torch.equal(finite, torch.isfinite(y)):
            return False
        x, y = torch.where(finite, x, 0.0), torch.where(finite, y, 0.0)
        difference += (x - y).square().sum()
        size += x.square().sum()
    return float(difference) <= max(torch.finfo(a.dtype).eps, 4e-6) ** 2 * float(size)


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two answers to the same question are the same but for how they were summed: 2 % in L2, what is not finite
    left out.  An answer to another question is not."""
    if a.shape != b.shape:
        return False
    difference = torch.zeros((), dtype=torch.float64, device=a.device)
    size = torch.zeros((), dtype=torch.float64, device=a.device)
    for x, y in _pieces(a, b):
        x, y = (torch.nan_to_num(t.double(), 0.0, 0.0, 0.0) for t in (x, y))
        difference += (x - y).square().sum()
        size += x.square().sum()
    return float(difference) <= 0.02**2 * float(size)


def _pieces(a: torch.Tensor, b: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    if a.dim() == 0 or a.numel() == 0:
        return [(a, b)] if a.numel() else []
    step = max(1, _PIECE * a.shape[0] // a.numel())
    return [(a[i : i + step], b[i : i + step]) for i in range(0, a.shape[0], step)]


def memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one without memory."""
    return int(tensor.untyped_storage().data_ptr()) if tensor.numel() else 0


def shared(outputs: Sequence[tuple[str, torch.Tensor]], inputs: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """Findings: outputs that lie in an input's memory."""
    where = {memory(t): name for name, t in inputs if t.numel()}
    return [f"returned memory of input {where[memory(t)]} as {name}" for name, t in outputs if memory(t) in where]


def returned_again(outputs: Iterable[torch.Tensor], earlier: Iterable[torch.Tensor]) -> list[str]:
    """A finding where a call's outputs lie in memory of an earlier call's, which are still alive."""
    taken = {memory(t) for t in earlier} - {0}
    again = any(memory(t) in taken for t in outputs)
    return [RETURNED_AGAIN] if again else []
