"""The op sparsemax: the projection onto the probability simplex (Martins and Astudillo, arXiv:1602.02068)."""

from typing import Any

from farm.contracts import Spec, from_torch


def sparsemax(x: Any) -> Any:
    """x [rows, columns] -> y like x: max(x - tau, 0), where tau makes the row's sum 1."""
    import torch

    ordered = x.sort(dim=-1, descending=True).values
    place = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    total = ordered.cumsum(-1)
    support = (1 + place * ordered > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, support - 1) - 1) / support
    return (x - tau).clamp(min=0)


CONTRACT = from_torch(
    sparsemax,
    inputs={"x": Spec("rows columns", kind="normal")},
    outputs={"y": "rows columns"},
    rows="rows",
    dtypes=("float32",),  # below float32 the support itself depends on how x is rounded
)
