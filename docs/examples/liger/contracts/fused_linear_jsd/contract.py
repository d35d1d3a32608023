"""The op fused_linear_jsd: the Jensen-Shannon divergence of two linear heads over the rows that are not ignored."""

from typing import Any

from farm.contracts import Spec, from_torch, integers, wide

IGNORED = 0  # one of the classes, so that some of every cell's rows are ignored


def fused_linear_jsd(student: Any, student_weight: Any, teacher: Any, teacher_weight: Any, label: Any) -> Any:
    """student, teacher [rows, hidden], weights [classes, hidden], label int64 [rows] -> loss [1] float32."""
    import math

    import torch

    q = wide(student @ student_weight.T).log_softmax(-1)
    p = wide(teacher @ teacher_weight.T).log_softmax(-1)
    mean = torch.logaddexp(p, q) - math.log(2.0)
    loss = 0.5 * (p.exp() * (p - mean) + q.exp() * (q - mean)).sum(-1)
    kept = label != IGNORED
    return (loss[kept].sum() / kept.sum().clamp(min=1)).reshape(1)


CONTRACT = from_torch(
    fused_linear_jsd,
    inputs={
        "student": Spec("rows hidden", kind="normal"),
        "student_weight": Spec("classes hidden", kind="normal"),
        "teacher": Spec("rows hidden", kind="normal"),
        "teacher_weight": Spec("classes hidden", kind="normal"),
        "label": integers("rows", 0, 5),
    },
    outputs={"loss": Spec("1", dtype="float32")},
    gradients=("student", "student_weight"),
    dtypes=("float32", "bfloat16"),
)
