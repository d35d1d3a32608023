"""The op attention: softmax(q k^T / sqrt(width)) v for each head, causal or not; several heads of q may share one of k
and v (Ainslie et al., arXiv:2305.13245).  With fewer queries than keys the last query sees all keys.
"""

from typing import Any

from farm.contracts import Spec, Work, from_torch, nbytes

#: Scores that the reference has at a time.
SCORES = 1 << 25


def attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    """q [batch, shared * kv_heads, queries, width], k and v [batch, kv_heads, keys, width] -> o like q."""
    import torch
    import torch.utils.checkpoint

    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    queries, keys = q.shape[-2], k.shape[-2]

    def block(q: Any, k: Any, v: Any, first: int) -> Any:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if causal:
            seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(first + keys - queries)
            scores = scores.masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ v

    step = max(1, SCORES // max(1, q.shape[0] * q.shape[1] * keys))
    if step >= queries:
        return block(q, k, v, 0)
    found = []
    for at in range(0, queries, step):
        # the scores of these queries alone exist, in a backward too; keys that none of them sees are left out
        last = min(keys, at + step + keys - queries) if causal and queries <= keys else keys
        given = (q[:, :, at : at + step], k[:, :, :last], v[:, :, :last], at)
        found.append(torch.utils.checkpoint.checkpoint(block, *given, use_reentrant=False))
    return torch.cat(found, dim=-2)


def work(cell: Any) -> Work:
    """Each tensor once; two products, half of them where attention is causal and queries are keys."""
    d = cell.dims
    heads, item = d["batch"] * d["shared"] * d["kv_heads"], nbytes(cell.dtypes["q"])
    q, kv = heads * d["queries"] * d["width"], d["batch"] * d["kv_heads"] * d["keys"] * d["width"]
    seen = d["queries"] * d["keys"]
    if cell.params["causal"]:
        seen -= min(d["queries"], d["keys"]) * (min(d["queries"], d["keys"]) - 1) // 2
    passes = {"forward": 1, "no-grad-forward": 1, "backward": 2.5}.get(cell.operation, 3.5)
    moved = {"forward": (1, 1), "no-grad-forward": (1, 1), "backward": (2, 1)}.get(cell.operation, (2, 2))
    return Work(
        (q * moved[0] + 2 * kv) * item,
        (q * moved[1] + (2 * kv if moved[0] > 1 else 0)) * item,
        {"tensor": int(passes * 4 * heads * seen * d["width"])},
    )


CONTRACT = from_torch(
    attention,
    inputs={
        "q": Spec("batch shared*kv_heads queries width", kind="normal"),
        "k": Spec("batch kv_heads keys width", kind="normal"),
        "v": Spec("batch kv_heads keys width", kind="normal"),
    },
    outputs={"o": "batch shared*kv_heads queries width"},
    rows="batch",
    determinism="tolerance",
    work=work,
    check_sizes={"batch": 3, "shared": 2, "kv_heads": 2, "queries": 16, "keys": 24, "width": 32},
)
