"""The op qwen2vl_mrope: rotary positions in three sections: time, height and width (arXiv:2409.12191)."""

from typing import Any

from farm.contracts import Spec, from_torch


def qwen2vl_mrope(q: Any, k: Any, cos: Any, sin: Any, first: int = 4, second: int = 6) -> Any:
    """q [batch, 4, positions, 2 * half], k [batch, 2, ...], cos and sin [3, batch, positions, half] -> both rotated.

    The first `first` angles are those of time, the next `second` those of height, and the others those of width.
    """
    import torch

    def angles(x: Any) -> Any:
        parts = x[0, ..., :first], x[1, ..., first : first + second], x[2, ..., first + second :]
        return torch.cat(parts, dim=-1).unsqueeze(1)

    def rotated(x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        c, s = angles(cos), angles(sin)
        return torch.cat((a * c - b * s, b * c + a * s), dim=-1)

    return rotated(q), rotated(k)


CONTRACT = from_torch(
    qwen2vl_mrope,
    inputs={
        "q": Spec("batch 4 positions 2*half", kind="normal"),
        "k": Spec("batch 2 positions 2*half", kind="normal"),
        "cos": Spec("3 batch positions half", kind="normal"),
        "sin": Spec("3 batch positions half", kind="normal"),
    },
    outputs={"turned_q": "batch 4 positions 2*half", "turned_k": "batch 2 positions 2*half"},
    gradients=("q", "k"),
    check_sizes={"batch": 3, "positions": 8, "half": 16},
)
