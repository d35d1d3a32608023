"""The op softmax: y = exp(x - max(x)) / sum(exp(x - max(x))), over the last dimension."""

from typing import Any

from farm.contracts import from_torch


def softmax(x: Any) -> Any:
    """x [rows, columns] -> y like x."""
    return x.softmax(-1)


CONTRACT = from_torch(
    softmax,
    inputs={"x": "rows columns"},
    outputs={"y": "rows columns"},
    rows="rows",
    roundings={"dx": 2},  # torch's own kernels on a GPU store dy * y before they subtract
)
