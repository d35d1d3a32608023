"""The op group_norm: channels normed in groups (Wu and He, arXiv:1803.08494), biased variance."""

from typing import Any

from farm.contracts import from_torch


def group_norm(x: Any, weight: Any, bias: Any, groups: int = 2, eps: float = 1e-5) -> Any:
    """x [batch, 2 * half, length], weight and bias [2 * half] -> y like x."""
    import torch

    return torch.nn.functional.group_norm(x, groups, weight, bias, eps)


CONTRACT = from_torch(
    group_norm,
    inputs={"x": "batch 2*half length", "weight": "2*half", "bias": "2*half"},
    outputs={"y": "batch 2*half length"},
    rows="batch",
    allowed={"groups": (1, 2)},
)
