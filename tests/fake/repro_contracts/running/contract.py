"""The running sum over the steps of [batch, heads, steps, width], from a PyTorch function."""

from typing import Any

from farm.contracts import from_torch


def running(x: Any) -> Any:
    return x.cumsum(dim=-2)


CONTRACT = from_torch(
    running, inputs={"x": "batch heads steps width"}, outputs={"y": "batch heads steps width"}, rows="batch"
)
