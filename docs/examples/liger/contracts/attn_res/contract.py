"""The op attn_res: blocks of a residual stream, weighted by softmax over their depth."""

from typing import Any

from farm.contracts import Spec, from_torch


def attn_res(blocks: Any, query: Any, weight: Any, eps: float = 1e-6) -> Any:
    """blocks [depth, rows, hidden], query and weight [hidden] -> h [rows, hidden].

    Keys are the RMS-normed blocks times weight; a block's score is its key times query; h is the sum of the blocks by
    softmax of the scores over depth.
    """
    rstd = (blocks.square().mean(-1, keepdim=True) + eps).rsqrt()
    scores = (blocks * rstd * weight * query).sum(-1)
    return (scores.softmax(0).unsqueeze(-1) * blocks).sum(0)


CONTRACT = from_torch(
    attn_res,
    inputs={
        "blocks": Spec("depth rows hidden", kind="normal"),
        "query": Spec("hidden", kind="normal"),
        "weight": "hidden",
    },
    outputs={"h": "rows hidden"},
)
