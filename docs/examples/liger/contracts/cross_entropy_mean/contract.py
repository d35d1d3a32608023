"""The op cross_entropy_mean: the mean loss over the rows whose target is not ignored."""

from typing import Any

from farm.contracts import Spec, from_torch, integers

IGNORED = -100


def cross_entropy_mean(x: Any, target: Any, softcap: float = 0.0, smoothing: float = 0.0) -> Any:
    """x [rows, classes], target int64 [rows] -> loss [1]; softcap: x becomes softcap * tanh(x / softcap).

    Where every target is ignored, the loss and its gradient are 0, where torch's are NaN.
    """
    import torch

    if softcap:
        x = softcap * (x / softcap).tanh()
    rows = (target != IGNORED).sum().clamp(min=1)
    loss = torch.nn.functional.cross_entropy(
        x, target, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
    return (loss / rows).reshape(1)


CONTRACT = from_torch(
    cross_entropy_mean,
    inputs={"x": Spec("rows classes", kind="normal"), "target": integers("rows", 0, "classes")},
    outputs={"loss": "1"},
    dtypes=("float32", "bfloat16"),
    allowed={"softcap": (0.0, 2.0, 30.0)},
    values={"smoothing": (0.0, 0.1)},
    families={"ignored": {"target": IGNORED}},
)
