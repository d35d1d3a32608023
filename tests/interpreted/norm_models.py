"""A small Llama and a small Qwen3 of transformers, with their norms as they are and replaced by ours.

Right is the same model in float64 with torch's own norm.  A model with our norms may be as far from it as the model
that transformers makes, in the same dtype and as eagerly: `FACTOR` times that, parameter by parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kernels import FusedAddRMSNorm, RMSNorm

KINDS = ("llama", "qwen3")
#: Times the eager model's error that ours may have: two results of equal quality differ by such a factor.
FACTOR = 2.0


def small(kind: str, dtype: torch.dtype, device: str, hidden: int = 64, layers: int = 2) -> nn.Module:
    """A causal language model with random weights, those of its norms too."""
    import transformers

    name = {"llama": "Llama", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, f"{name}Config")(
        hidden_size=hidden,
        intermediate_size=3 * hidden // 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        vocab_size=96,
        max_position_embeddings=128,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.to(device, dtype)


def batch(device: str, sequences: int = 2, length: int = 24) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 96, (sequences, length), generator=torch.Generator().manual_seed(1)).to(device)
    return {"input_ids": ids, "labels": ids}


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")}


def _put(model: nn.Module, name: str, norm: nn.Module, weight: torch.Tensor) -> None:
    norm.weight = nn.Parameter(weight.detach().clone())  # type: ignore[assignment]
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, norm)


def in_float64(model: nn.Module) -> nn.Module:
    """The model to be held against: transformers' own norm computes in float32, whatever x is."""
    model = copy.deepcopy(model).double()
    for name, old in norms_of(model).items():
        _put(model, name, nn.RMSNorm(old.weight.shape[0], old.variance_epsilon), old.weight)
    return model


def with_ours(model: nn.Module, fused: bool = False, **options: Any) -> nn.Module:
    """A copy with our norms; `fused`: with the addition before the second norm of each layer in that norm."""
    model = copy.deepcopy(model)
    for name, old in norms_of(model).items():
        kind = FusedAddRMSNorm if fused and name.endswith("post_attention_layernorm") else RMSNorm
        _put(model, name, kind(old.weight.shape[0], old.variance_epsilon, **options), old.weight)
    for layer in model.model.layers if fused else ():
        layer.__class__ = type("Fused" + type(layer).__name__, (type(layer),), {"forward": _fused_layer})
    return model


def _fused_layer(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    names = ("attention_mask", "position_ids", "past_key_values", "use_cache", "position_embeddings")
    kwargs |= dict(zip(names, args, strict=False))
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, residual = self.post_attention_layernorm(attended, hidden_states)
    return residual + self.mlp(normed)


def trained(model: nn.Module, call: Callable[..., Any] | None = None, **inputs: Any) -> dict[str, torch.Tensor]:
    """The loss and every parameter's gradient, in float64 on the CPU."""
    model.zero_grad()
    loss = (model if call is None else call)(**inputs).loss
    loss.backward()
    found = {"loss": loss} | {name: p.grad for name, p in model.named_parameters()}
    return {name: t.detach().double().cpu() for name, t in found.items()}


def too_far(found: dict[str, Any], eager: dict[str, Any], right: dict[str, Any], dtype: torch.dtype) -> list[str]:
    """The loss and the gradients that are farther from right than the eager model allows."""
    assert found.keys() == eager.keys() == right.keys()
    faults = []
    for name, wanted in right.items():
        ours, theirs = ((found[name] - wanted).norm(), (eager[name] - wanted).norm())
        limit = FACTOR * theirs + 4 * torch.finfo(dtype).eps * wanted.norm() / wanted.numel() ** 0.5
        if not ours <= limit:
            faults.append(f"{name}: {ours:.2e}, the eager model {theirs:.2e}, of {wanted.norm():.2e}")
    return faults
