"""The op geglu: y = gelu(gate) * up, gelu by tanh (Shazeer, arXiv:2002.05202)."""

from typing import Any

from farm.contracts import Spec, from_torch


def geglu(gate: Any, up: Any) -> Any:
    """gate, up [rows, hidden] -> y like gate."""
    import torch

    return torch.nn.functional.gelu(gate, approximate="tanh") * up


CONTRACT = from_torch(
    geglu,
    inputs={"gate": Spec("rows hidden", kind="normal"), "up": "rows hidden"},
    outputs={"y": "rows hidden"},
    rows="rows",
)
