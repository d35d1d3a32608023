"""How a tensor lies in memory: named layouts, and the sizes, strides and offset that each gives.  Pure.

A layout changes no value, so it is in no key of an input or reference: the child places the same values differently
(farm/child/placing.py), and outputs are judged as [rows, ...].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.errors import Message

DENSE = "dense"
#: What an op may declare for any tensor.  Each needs at least two dimensions, but for the last two.
STRIDES = ("row_strided", "transposed", "packed", "strided", "offset")
#: What it may declare for its first tensor: the rows are several leading dimensions, for every tensor with rows.
LEADING: Mapping[str, int] = {"3d": 2, "4d": 3, "heads": 3}
LAYOUTS = (DENSE, *STRIDES, *LEADING)
#: Elements between two rows of `row_strided`: 16-byte alignment is kept.
_PAD = 16


@dataclass(frozen=True)
class Placement:
    """Sizes and strides of a tensor, its first element's place, and how many elements its memory needs from there."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    span: int


def placement(layout: str, dims: Sequence[int], leading: Sequence[int] = ()) -> Placement:
    """Where a tensor of `dims` lies; `leading`: the sizes that its rows are split into, () for none.

    row_strided   rows apart, as a slice x[:, :n] of a wider matrix
    transposed    columns contiguous, as x.t()
    packed        the middle third of each row, as k of a packed qkv
    strided       every second element
    offset        dense, but one element after an aligned address
    heads         4-D, as x.transpose(1, 2) of a dense 4-D tensor
    """
    shape = (*leading, *dims[1:]) if leading else tuple(dims)
    width = shape[-1] if shape else 1
    dense = _dense(shape)
    strides, offset = dense, 0
    if layout == "row_strided":
        strides = _dense(shape, width + _PAD)
    elif layout == "packed":
        strides, offset = _dense(shape, 3 * width), width
    elif layout == "transposed":
        rows = math.prod(shape[:-1])
        strides = (*(s // max(width, 1) for s in dense[:-1]), max(rows, 1))
    elif layout == "strided":
        strides = tuple(2 * s for s in dense)
    elif layout == "offset":
        offset = 1
    elif layout == "heads":
        _, b, c, n = shape
        strides = (b * c * n, n, b * n, 1)
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    return Placement(shape, strides, offset, span)


def _dense(shape: Sequence[int], row: int | None = None) -> tuple[int, ...]:
    """Row-major strides; `row`: elements from one row of the last dimension to the next."""
    strides: list[int] = []
    step = 1
    for place, size in enumerate(reversed(shape)):
        strides.insert(0, step)
        step = row if place == 0 and row is not None else step * max(size, 1)
    return tuple(strides)


def leading_of(layout: Mapping[str, str], rows: int) -> tuple[int, ...]:
    """The sizes that a cell's rows are split into, as even as whole numbers allow; () if they are one dimension."""
    count = max((LEADING.get(name, 0) for name in layout.values()), default=0)
    sizes: list[int] = []
    for left in range(count, 1, -1):
        root = round(rows ** (1 / left)) + 1
        size = next((n for n in range(min(root, rows), 1, -1) if rows % n == 0 and n**left <= rows), 1)
        sizes.append(size)
        rows //= size
    return (*sizes, rows) if count else ()


def described(plan: dict[str, Any], layout: Mapping[str, str], rows: int) -> dict[str, Any]:
    """A tensor's description for a child, with its layout and leading sizes where they are not the default."""
    leading = leading_of(layout, rows)
    if plan["name"] in layout:
        plan["layout"] = layout[plan["name"]]
    if leading and plan.get("blocked", True) and plan["shape"]:
        plan["leading"] = list(leading)
    return plan


def clash(layout: Mapping[str, str]) -> Message | None:
    """Why the layouts of one cell do not go together, or None."""
    counts = {tensor: LEADING[name] for tensor, name in layout.items() if name in LEADING}
    if len(set(counts.values())) > 1:
        first, second, *_ = counts
        return Message(
            f"splits the rows of {first} and {second} into different numbers of dimensions; give both the same",
            id="matrix-layouts-clash",
        )
    return None
