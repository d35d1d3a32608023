"""Tensors in the layouts of `farm.contracts.layouts`: the same values elsewhere, in memory that is otherwise NaN.

A kernel that reads by the wrong strides reads NaN (of integers, a sentinel), and one that writes there is seen, since
`whole` is what is compared before and after a call.
"""

from __future__ import annotations

from typing import Any

import torch

from farm.child import poison
from farm.contracts import layouts
from farm.errors import WrongAnswer

Plan = dict[str, Any]  # a tensor as the child is told of it


def placed(values: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Fresh `values` (dense, of the plan's shape) as the plan's layout has them; themselves where that is dense."""
    leading = plan.get("leading") or ()
    if not plan.get("layout"):
        return values.reshape(*leading, *values.shape[1:]) if leading else values
    found = layouts.placement(plan["layout"], plan["shape"], leading)
    room = torch.empty(found.offset + found.span + 2 * poison.GUARD_ELEMENTS, dtype=values.dtype, device=values.device)
    poison.fill(room)
    laid_out = room.as_strided(found.shape, found.strides, poison.GUARD_ELEMENTS + found.offset)
    laid_out.copy_(values.reshape(found.shape))
    return laid_out


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, laid out as they are."""
    if _plain(tensor):
        return tensor.clone()
    return whole(tensor).clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def filled(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Fresh, dense `values` laid out as `tensor` is, of whose shape they are."""
    return values if _plain(tensor) else copied(tensor).copy_(values)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor lies in, as one dimension."""
    plain = tensor.detach()
    count = plain.untyped_storage().nbytes() // plain.element_size()
    return plain.as_strided((count,), (1,), 0)


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def with_rows(plan: Plan, output: torch.Tensor) -> torch.Tensor:
    """An output with its rows as one dimension.  WrongAnswer where they are split otherwise than the inputs' are."""
    leading = plan.get("leading")
    if not leading:
        return output
    wanted = [*leading, *plan["shape"][1:]]
    if list(output.shape) != wanted:
        raise WrongAnswer(f"{plan['name']} has the shape {list(output.shape)}, but {wanted} expected")
    return output.reshape(plan["shape"])
