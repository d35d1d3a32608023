"""The op jsd: the generalised Jensen-Shannon divergence of two distributions in log space, divided by the rows."""

from typing import Any

from farm.contracts import Spec, from_torch, wide


def jsd(x: Any, target: Any, beta: float = 0.5, tail: int = 0) -> Any:
    """x, target [rows, classes]: log-probabilities; those of the last `tail` classes are smaller by 200 -> loss [1].

    With Q = exp(x), P = exp(target), M = beta P + (1 - beta) Q: the sum of beta P log(P / M) + (1 - beta) Q log(Q / M).
    Neither needs to sum to 1: the value and the gradient are defined all the same.
    """
    import math

    import torch

    cold = torch.arange(x.shape[-1]) >= x.shape[-1] - tail
    q, p = (wide(t) - 200.0 * cold for t in (x, target))
    if beta in (0.0, 1.0):  # the KL divergence, forward or reverse
        loss = p.exp() * (p - q) if beta == 0.0 else q.exp() * (q - p)
    else:
        mean = torch.logaddexp(p + math.log(beta), q + math.log(1 - beta))
        loss = beta * p.exp() * (p - mean) + (1 - beta) * q.exp() * (q - mean)
    return (loss.sum() / len(x)).reshape(1)


CONTRACT = from_torch(
    jsd,
    inputs={"x": Spec("rows classes", kind="normal"), "target": Spec("rows classes", kind="normal")},
    outputs={"loss": "1"},
    gradients=("x",),
    roundings={"dx": 2},  # a loss that stores its gradient rounds it again when it is multiplied by the upstream one
    allowed={"beta": (0.0, 0.5, 1.0)},
    values={"tail": (0, 8)},
)
