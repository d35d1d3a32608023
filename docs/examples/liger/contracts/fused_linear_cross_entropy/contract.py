"""The op fused_linear_cross_entropy: the mean cross entropy of x @ weight^T + bias."""

from typing import Any

from farm.contracts import Spec, from_torch, integers, wide

IGNORED = -100


def fused_linear_cross_entropy(x: Any, weight: Any, bias: Any, target: Any) -> Any:
    """x [rows, hidden], weight [classes, hidden], bias [classes], target int64 [rows] -> loss [1] float32."""
    import torch

    logits = x @ weight.T + bias
    return torch.nn.functional.cross_entropy(wide(logits), target, ignore_index=IGNORED).reshape(1)


CONTRACT = from_torch(
    fused_linear_cross_entropy,
    inputs={
        "x": Spec("rows hidden", kind="normal"),
        "weight": Spec("classes hidden", kind="normal"),
        "bias": Spec("classes", kind="normal"),
        "target": integers("rows", 0, "classes"),
    },
    outputs={"loss": Spec("1", dtype="float32")},
    dtypes=("float32", "bfloat16"),
)
