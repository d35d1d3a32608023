"""The op kl_div: sum of target * (log(target) - x) over all elements, divided by the rows; x in log space."""

from typing import Any

from farm.contracts import Spec, from_torch, wide


def kl_div(x: Any, target: Any) -> Any:
    """x [rows, classes] log-probabilities, target [rows, classes], its softmax the distribution -> loss [1] like x.

    The distribution is rounded, and the loss is summed in float32.
    """
    import torch

    loss = torch.nn.functional.kl_div(wide(x), wide(target.softmax(-1)), reduction="batchmean")
    return loss.reshape(1).to(x.dtype)


CONTRACT = from_torch(
    kl_div,
    inputs={"x": Spec("rows classes", kind="normal"), "target": Spec("rows classes", kind="normal")},
    outputs={"loss": "1"},
    gradients=("x",),
    families={"unlikely": {"x": -5.0}},  # where x decides the loss: its sum over normal values is next to nothing
)
