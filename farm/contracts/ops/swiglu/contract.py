"""The op swiglu: y = gate * sigmoid(gate) * up (Shazeer, arXiv:2002.05202, with the projections left to a matmul)."""

from typing import Any

from farm.contracts import Spec, from_torch


def swiglu(gate: Any, up: Any) -> Any:
    """gate, up [rows, hidden] -> y like gate."""
    import torch

    return torch.nn.functional.silu(gate) * up


CONTRACT = from_torch(
    swiglu,
    inputs={"gate": Spec("rows hidden", kind="normal"), "up": "rows hidden"},
    outputs={"y": "rows hidden"},
    rows="rows",
    operations_per_element=5,
)
