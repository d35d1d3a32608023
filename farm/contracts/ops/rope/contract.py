"""The op rope: rotary position embedding (Su et al., arXiv:2104.09864), the halves of a head rotated, as Llama does.

With x = (a, b), each half of the last dimension: y = (a cos - b sin, b cos + a sin).  An angle turns a pair, so cos and
sin have half of x's width; a model that keeps both halves, which are equal, passes the left one.
"""

from typing import Any

from farm.contracts import Spec, from_torch


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """x [batch, heads, positions, 2 * half], cos and sin [positions, half] -> y like x."""
    import torch

    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


CONTRACT = from_torch(
    rope,
    inputs={
        "x": "batch heads positions 2*half",
        "cos": Spec("positions half", kind="normal"),
        "sin": Spec("positions half", kind="normal"),
    },
    outputs={"y": "batch heads positions 2*half"},
    rows="batch",
    gradients=("x",),
    check_sizes={"batch": 5, "heads": 3, "positions": 8, "half": 8},
    operations_per_element=3,
    version=2,
)
