"""Tensors on device 1 while device 0 is current: a kernel that is launched on the current one reads another's memory.

No cell can ask for this: the farm shows a child one device only.
"""

from __future__ import annotations

from typing import Any

import nvidia_gpus
import pytest

pytestmark = pytest.mark.cuda

nvidia_gpus.need()
if nvidia_gpus.count() < 2:
    pytest.skip(f"two NVIDIA GPUs are needed, nvidia-smi lists {nvidia_gpus.count()}", allow_module_level=True)

import torch  # noqa: E402

from farm.providers import farm as ours  # noqa: E402

SHAPES = [(1, 128), (64, 4096), (33, 1000), (4096, 1024)]


def answers(op: str, shape: tuple[int, int], device: int, mode: str) -> list[Any]:
    """What a forward and a backward over the same values on `device` give, while 0 is current."""
    torch.cuda.set_device(0)
    generator = torch.Generator().manual_seed(1)
    make = lambda *sizes: torch.randn(sizes, generator=generator).to(f"cuda:{device}", torch.bfloat16)  # noqa: E731
    inputs = [make(*shape).requires_grad_(True) for _ in range(2 if op == "fused_add_rms_norm" else 1)]
    weight = make(shape[1]).requires_grad_(True)
    found = ours.load(op)(*inputs, weight, 1e-6, mode=mode)
    outputs = list(found) if isinstance(found, tuple) else [found]
    gradients = torch.autograd.grad(outputs, [*inputs, weight], [make(*shape) for _ in outputs])
    torch.cuda.synchronize(device)
    assert torch.cuda.current_device() == 0
    return [*(t.detach() for t in outputs), *gradients]


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("mode", ["auto", "multi_wave_reload"])
def test_tensors_on_device_1_while_0_is_current(op: str, shape: tuple[int, int], mode: str) -> None:
    there, here = answers(op, shape, 1, mode), answers(op, shape, 0, mode)
    assert {str(t.device) for t in there} == {"cuda:1"}
    if torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1):
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(there, here))
    else:
        assert all(torch.allclose(a.cpu().float(), b.cpu().float(), rtol=2e-2, atol=2e-2) for a, b in zip(there, here))
