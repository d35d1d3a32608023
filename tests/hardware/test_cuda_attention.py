"""On a real NVIDIA GPU: which of torch's attention kernels gives wrong gradients for tensors off alignment.

Seen on an H200 (docs/facts/2026-11-23-open-on-h200.md).  It prints a table and fails for nothing but torch's plain
kernels, which are what the farm trusts.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

pytestmark = pytest.mark.cuda

if not torch.cuda.is_available():
    pytest.skip("no GPU that torch sees on this host", allow_module_level=True)

KERNELS = {
    "torch's choice": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
LAYOUTS = ("dense", "q off by one element", "upstream with rows 3 elements apart")


def off_by_one(value: torch.Tensor) -> torch.Tensor:
    room = torch.full((value.numel() + 1,), float("nan"), dtype=value.dtype, device=value.device)
    room[1:] = value.flatten()
    return room[1:].view(value.shape)


def apart(value: torch.Tensor) -> torch.Tensor:
    room = torch.full((*value.shape[:-1], value.shape[-1] + 3), float("nan"), dtype=value.dtype, device=value.device)
    room[..., : value.shape[-1]] = value
    return room[..., : value.shape[-1]]


def gradients(layout: str, kernel: Any, masked: bool) -> list[torch.Tensor]:
    drawn = torch.Generator(device="cuda").manual_seed(1)

    def values(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, device="cuda", generator=drawn).bfloat16()

    q, k, v, do = values(2, 4, 9, 24), values(2, 2, 12, 24), values(2, 2, 12, 24), values(2, 4, 9, 24)
    q = off_by_one(q) if layout == LAYOUTS[1] else q
    do = apart(do) if layout == LAYOUTS[2] else do
    leaves = [t.detach().requires_grad_(True) for t in (q, k, v)]
    mask = torch.ones(9, 12, dtype=torch.bool, device="cuda").tril(3) if masked else None

    def call() -> torch.Tensor:
        return scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=True)

    if kernel is None:
        out = call()
    else:
        with sdpa_kernel(kernel):
            out = call()
    out.backward(do)
    return [t.grad.float() for t in leaves if t.grad is not None]


@pytest.mark.filterwarnings("ignore")
def test_gradients_of_each_kernel_and_layout() -> None:
    for masked in (True, False):
        right = gradients("dense", SDPBackend.MATH, masked)
        for name, kernel in KERNELS.items():
            for layout in LAYOUTS:
                try:
                    found = gradients(layout, kernel, masked)
                except RuntimeError as error:
                    print(f"{name:15} {layout:36} mask {masked!s:6} {str(error).splitlines()[0][:60]}")
                    continue
                worst = max(float((a - b).abs().max()) for a, b in zip(found, right))
                print(f"{name:15} {layout:36} mask {masked!s:6} off by {worst:.3g}")
                assert name != "math" or (math.isfinite(worst) and worst < 0.05)
