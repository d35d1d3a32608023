"""The op rope_of_batch: rotary positions of queries and keys, each batch with its own angles."""

from typing import Any

from farm.contracts import Spec, from_torch


def rope_of_batch(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """q [batch, 4, positions, 2 * half], k [batch, 2, ...], cos and sin [batch, positions, half] -> both rotated."""
    import torch

    def rotated(x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat((a * c - b * s, b * c + a * s), dim=-1)

    return rotated(q), rotated(k)


CONTRACT = from_torch(
    rope_of_batch,
    inputs={
        "q": Spec("batch 4 positions 2*half", kind="normal"),
        "k": Spec("batch 2 positions 2*half", kind="normal"),
        "cos": Spec("batch positions half", kind="normal"),
        "sin": Spec("batch positions half", kind="normal"),
    },
    outputs={"turned_q": "batch 4 positions 2*half", "turned_k": "batch 2 positions 2*half"},
    rows="batch",
    gradients=("q", "k"),
    check_sizes={"batch": 5, "positions": 8, "half": 16},
)
