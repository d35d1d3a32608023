"""The op rope: rotary position embedding (Su et al., arXiv:2104.09864), the halves of a head rotated, as Llama does.

With x = (a, b), each half of the last dimension: y = (a cos1 - b sin1, b cos2 + a sin2), where cos1 and cos2 are the
halves of cos, as for sin.
"""

from typing import Any

from farm.contracts import Spec, from_torch


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """x [batch, heads, positions, 2 * half], cos and sin [positions, 2 * half] -> y like x."""
    import torch

    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


CONTRACT = from_torch(
    rope,
    inputs={
        "x": "batch heads positions 2*half",
        "cos": Spec("positions 2*half", kind="normal"),
        "sin": Spec("positions 2*half", kind="normal"),
    },
    outputs={"y": "batch heads positions 2*half"},
    rows="batch",
    gradients=("x",),
    check_sizes={"batch": 5, "heads": 3, "positions": 8, "half": 8},
    operations_per_element=3,
)
