"""The op attn_res: blocks of a residual stream, weighted by softmax over their depth."""

from typing import Any

from farm.contracts import Spec, from_torch, wide


def attn_res(blocks: Any, query: Any, weight: Any, eps: float = 1e-6) -> Any:
    """blocks [depth, rows, hidden], query and weight [hidden] -> h [rows, hidden].

    Keys are the RMS-normed blocks times weight; a block's score is its key times query; h is the sum of the blocks by
    softmax of the scores over depth.  Only the keys are rounded on the way.
    """
    values = wide(blocks)
    rstd = (values.square().mean(-1, keepdim=True) + eps).rsqrt()
    keys = (values * rstd).to(blocks.dtype) * weight
    scores = (wide(keys) * wide(query)).sum(-1)
    return (scores.softmax(0).unsqueeze(-1) * values).sum(0).to(blocks.dtype)


CONTRACT = from_torch(
    attn_res,
    inputs={
        "blocks": Spec("depth rows hidden", kind="rows"),
        "query": Spec("hidden", kind="normal"),
        "weight": "hidden",
    },
    outputs={"h": "rows hidden"},
    check_sizes={"depth": 10, "rows": 8, "hidden": 72},
)
