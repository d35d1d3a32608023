"""PyTorch as a user would call it: eager, its fused operators where they exist.  Rounding class: single (gemma).

rms_norm is `torch.nn.functional.rms_norm`: float32 inside, one cast at the end, in its fused kernel as in the composite
that it falls back to where x and weight differ in dtype (and so where an offset makes the weight float32).

fused_add_rms_norm is two operators: the addition, which rounds, and that norm of what it stored.  Autograd rounds the
norm's gradient before it adds the sum's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "torch"
ROLE = "peer"
MODES = ("auto",)
OPS = (
    *("rms_norm", "fused_add_rms_norm", "matmul", "block_scaled_matmul", "rms_norm_quantize"),
    *("softmax", "layer_norm", "swiglu", "rope", "cross_entropy", "attention"),
)
DISTRIBUTION = "torch"
SETTINGS = {"auto": "eager, fused operators where torch has them"}


def load(op: str) -> Callable[..., Any]:
    """The function of `op`; ImportError where torch is missing."""
    import torch

    if op == "matmul":
        return torch.matmul
    if op in _FUNCTIONS:
        return _FUNCTIONS[op]
    raise NotImplementedError(f"provider {NAME} has no {op}; available ops: {', '.join(OPS)}")


def _rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0) -> Any:
    """x [..., hidden], weight [hidden] or None -> y like x."""
    from torch.nn.functional import rms_norm

    if weight is not None and offset != 0.0:
        weight = weight.float() + offset
    return rms_norm(x, (x.shape[-1],), weight, eps)


def _fused_add_rms_norm(
    x: Any, residual: Any, weight: Any, eps: float = 1e-6, *, offset: float = 0.0
) -> tuple[Any, Any]:
    """x, residual [..., hidden], weight [hidden] or None -> (y, sum) like x; sum = x + residual, y its norm."""
    total = x + residual
    return _rms_norm(total, weight, eps, offset=offset), total


def rms_norm_quantize(
    x: Any,
    weight: Any,
    residual: Any = None,
    static_scale: Any = None,
    eps: float = 1e-6,
    *,
    quantized: str = "int8",
    group: int = 0,
) -> Any:
    """x [..., hidden] -> q like x, of the dtype `quantized`; scale float32 [..., groups] unless `static_scale` gives
    it; and with a residual the sum, like x.  Symmetric, with a scale per `group` columns (0: per row).

    y = x / sqrt(mean(x^2) + eps) * weight in float32; scale = max|y| / the dtype's largest value; q = y / scale rounded
    half to even, and 0 where the scale is 0 or not finite.  With a given scale q saturates, and a NaN is 0 in int8.
    """
    import torch

    dtype = getattr(torch, quantized)
    whole = quantized == "int8"
    largest = 127.0 if whole else torch.finfo(dtype).max
    total = None if residual is None else x + residual
    wide = (x if total is None else total).float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    if static_scale is not None:
        ratio = y / static_scale
        ratio = ratio.round().nan_to_num(0.0) if whole else ratio
        q = ratio.clamp(-128.0 if whole else -largest, largest).to(dtype)
        return q if total is None else (q, total)
    y = y.unflatten(-1, (-1, group or x.shape[-1]))
    scale = y.abs().amax(-1, keepdim=True) / largest
    ratio = torch.where((scale > 0) & scale.isfinite(), y / scale, 0.0).flatten(-2)
    ratio = ratio.round() if whole else ratio
    q = ratio.clamp(-largest, largest).to(dtype)
    return (q, scale.squeeze(-1)) if total is None else (q, scale.squeeze(-1), total)


def _block_scaled_matmul(a: Any, a_scale: Any, b: Any, b_scale: Any) -> Any:
    """a [m, k] and b [n, k] of 8 bits, a_scale [m, k / 128], b_scale [ceil(n / 128), k / 128] -> c bfloat16 [m, n];
    both operands are widened to float32 first."""
    import torch

    wide_a = a.float() * a_scale.repeat_interleave(128, 1)
    wide_b = b.float() * b_scale.repeat_interleave(128, 0)[: len(b)].repeat_interleave(128, 1)
    return (wide_a @ wide_b.t()).to(torch.bfloat16)


def _softmax(x: Any) -> Any:
    """x [..., columns] -> y like x."""
    return x.softmax(-1)


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """x [..., hidden], weight and bias [hidden] -> y like x.  Where these have another dtype, all of it in theirs, as
    autocast does: torch's backward on a GPU takes one dtype."""
    from torch.nn.functional import layer_norm

    return layer_norm(x.to(weight.dtype), (x.shape[-1],), weight, bias, eps).to(x.dtype)


def _swiglu(gate: Any, up: Any) -> Any:
    """gate, up [..., hidden] -> y like gate; silu rounds before the product."""
    from torch.nn.functional import silu

    return silu(gate) * up


def _rope(x: Any, cos: Any, sin: Any) -> Any:
    """x [batch, heads, positions, width], cos and sin [positions, width / 2] -> y like x; each product rounds."""
    import torch

    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _cross_entropy(x: Any, target: Any, *, ignore: int = -100, smoothing: float = 0.0) -> Any:
    """x [rows, classes], target [rows] -> loss [rows]."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(x, target, ignore_index=ignore, label_smoothing=smoothing, reduction="none")


def _attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> Any:
    """q [batch, heads, queries, width], k and v [batch, kv_heads, keys, width] -> o like q, by the vendor's fused
    kernel where it has one.  Its own causal mask is that of the first keys, so only for as many keys as queries."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    queries, keys = q.shape[-2], k.shape[-2]
    if causal and queries != keys:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "block_scaled_matmul": _block_scaled_matmul,
    "rms_norm_quantize": rms_norm_quantize,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "swiglu": _swiglu,
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "attention": _attention,
}
