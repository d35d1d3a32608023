"""The op poly_norm: weighted norms of x^3, x^2 and x, plus a bias (Zhuo et al., arXiv:2411.03884)."""

from typing import Any

from farm.contracts import Spec, from_torch


def poly_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-6) -> Any:
    """x [rows, hidden], weight [3], bias [1] -> y like x; norm(u) = u / sqrt(mean(u^2) + eps)."""

    def norm(u: Any) -> Any:
        return u * (u.square().mean(-1, keepdim=True) + eps).rsqrt()

    return weight[0] * norm(x**3) + weight[1] * norm(x**2) + weight[2] * norm(x) + bias


CONTRACT = from_torch(
    poly_norm,
    inputs={"x": Spec("rows hidden", kind="normal"), "weight": "3", "bias": "1"},
    outputs={"y": "rows hidden"},
    rows="rows",
    dtypes=("float32", "bfloat16"),  # in float16 the sixth power of x overflows
)
