"""The op layer_norm: y = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension.

Ba, Kiros and Hinton, arXiv:1607.06450; the variance is that of the row, not an estimate.
"""

from typing import Any

from farm.contracts import from_torch


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """x [rows, hidden], weight and bias [hidden] -> y like x."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


CONTRACT = from_torch(
    layer_norm,
    inputs={"x": "rows hidden", "weight": "hidden", "bias": "hidden"},
    outputs={"y": "rows hidden"},
    rows="rows",
    positional=("eps",),
    more_families=("shifted",),
    operations_per_element=8,
)
