"""The op dyt: y = tanh(alpha * x) * gamma + beta (Zhu et al., arXiv:2503.10622)."""

from typing import Any

from farm.contracts import from_torch


def dyt(x: Any, alpha: Any, gamma: Any, beta: Any) -> Any:
    """x [rows, hidden], alpha [1], gamma and beta [hidden] -> y like x."""
    return (alpha * x).tanh() * gamma + beta


CONTRACT = from_torch(
    dyt,
    inputs={"x": "rows hidden", "alpha": "1", "gamma": "hidden", "beta": "hidden"},
    outputs={"y": "rows hidden"},
    rows="rows",
)
