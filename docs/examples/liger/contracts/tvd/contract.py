"""The op tvd: half of the sum of |p - q|, divided by the rows; at p = q the gradient is 0."""

from typing import Any

from farm.contracts import Spec, from_torch


def tvd(p: Any, q: Any) -> Any:
    """p, q [rows, classes] -> loss [1] float32."""
    return (0.5 * (p - q).abs().sum() / len(p)).reshape(1)


CONTRACT = from_torch(
    tvd,
    inputs={"p": Spec("rows classes", kind="normal"), "q": Spec("rows classes", kind="normal")},
    outputs={"loss": Spec("1", dtype="float32")},
    gradients=("p",),
    families={"equal": {"p": 0.25, "q": 0.25}},
)
