"""On a real NVIDIA GPU: which of torch's attention kernels gives wrong gradients for tensors off alignment.

Seen on an H200 (docs/facts/2026-11-23-open-on-h200.md).  It prints a table and fails for nothing but torch's plain
kernels, which are what the farm trusts.  Each kernel has a process of its own: a misaligned access ends the others'.
"""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


def show(name: str, masked: bool) -> None:
    right = gradients(LAYOUTS[0], SDPBackend.MATH, masked)
    for layout in LAYOUTS:
        try:
            found = gradients(layout, KERNELS[name], masked)
            text = f"{max(float((a - b).abs().max()) for a, b in zip(found, right)):.3g}"
        except RuntimeError as error:
            text = str(error).splitlines()[0][:60]
        print(f"{name:15} | {layout:36} | mask {masked!s:5} | {text}", flush=True)


def lines_of(name: str, masked: bool) -> str:
    words = [sys.executable, "-W", "ignore", str(Path(__file__)), name, str(int(masked))]
    return subprocess.run(words, capture_output=True, text=True, timeout=120).stdout


def test_gradients_of_each_kernel_and_layout() -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [(name, masked) for masked in (True, False) for name in KERNELS]
        table = "".join(pool.map(lambda pair: lines_of(*pair), asked))
    print("\n" + table)
    plain = [line.rsplit("|", 1)[1] for line in table.splitlines() if line.startswith("math")]
    assert len(plain) == 2 * len(LAYOUTS)
    assert all(math.isfinite(float(worst)) and float(worst) < 0.05 for worst in plain)


if __name__ == "__main__":
    show(sys.argv[1], sys.argv[2] == "1")
