"""The op cross_entropy: each row's loss log(sum(exp(x))) - x[target], with smoothing.

A row whose target is `ignore` has loss 0 and no gradient.  Nothing is summed over rows: a mean is an op of its own.
"""

from typing import Any

from farm.contracts import Work, from_torch, integers, nbytes

IGNORED = -100


def cross_entropy(x: Any, target: Any, ignore: int = IGNORED, smoothing: float = 0.0) -> Any:
    """x [rows, classes], target int64 [rows] -> loss [rows] like x."""
    import torch

    return torch.nn.functional.cross_entropy(
        x, target, ignore_index=ignore, label_smoothing=smoothing, reduction="none"
    )


def work(cell: Any, inputs: Any) -> Work:
    """Each tensor once, and of x only the rows that are not ignored: of the others the target says all."""
    d, item = cell.dims, nbytes(cell.dtypes["x"])
    live = int((inputs["target"] != cell.params["ignore"]).sum()) * d["classes"]
    forward, backward = cell.operation != "backward", cell.operation in ("backward", "full")
    read = live * item + d["rows"] * 8 + backward * d["rows"] * item
    written = forward * d["rows"] * item + backward * d["rows"] * d["classes"] * item
    return Work(read, written, {"vector": 5 * live})


CONTRACT = from_torch(
    cross_entropy,
    inputs={"x": "rows classes", "target": integers("rows", 0, "classes")},
    outputs={"loss": "rows"},
    rows="rows",
    dtypes=("float32", "bfloat16"),  # in float16 the sum over classes overflows, also in torch
    values={"ignore": (IGNORED,), "smoothing": (0.0, 0.1)},
    families={"ignored": {"target": IGNORED}, "first": {"target": 0}},
    operations_per_element=5,
    work=work,
)
