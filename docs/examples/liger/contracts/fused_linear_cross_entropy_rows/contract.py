"""The op fused_linear_cross_entropy_rows: each row's cross entropy of x @ weight^T, not reduced."""

from typing import Any

from farm.contracts import Spec, from_torch, integers, wide


def fused_linear_cross_entropy_rows(x: Any, weight: Any, target: Any) -> Any:
    """x [rows, hidden], weight [classes, hidden], target int64 [rows] -> loss [rows] float32."""
    import torch

    return torch.nn.functional.cross_entropy(wide(x @ weight.T), target, reduction="none")


CONTRACT = from_torch(
    fused_linear_cross_entropy_rows,
    inputs={
        "x": Spec("rows hidden", kind="normal"),
        "weight": Spec("classes hidden", kind="normal"),
        "target": integers("rows", 0, "classes"),
    },
    outputs={"loss": Spec("rows", dtype="float32")},
    dtypes=("float32", "bfloat16"),
)
