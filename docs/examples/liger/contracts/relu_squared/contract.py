"""The op relu_squared: y = max(x, 0)^2 (So et al., arXiv:2109.08668)."""

from typing import Any

from farm.contracts import from_torch


def relu_squared(x: Any) -> Any:
    """x [rows, hidden] -> y like x."""
    return x.relu().square()


CONTRACT = from_torch(relu_squared, inputs={"x": "rows hidden"}, outputs={"y": "rows hidden"}, rows="rows")
