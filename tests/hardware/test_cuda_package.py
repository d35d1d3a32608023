"""On a real NVIDIA GPU: our norms as a model author uses them, and in a Llama and a Qwen3 of transformers.

The tests of tests/interpreted/test_package.py and test_norm_models.py, on the device, and what only a device has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nvidia_gpus
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.cuda

nvidia_gpus.need()
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets in this process: run tests/hardware in one of its own", allow_module_level=True)

sys.path.append(str(Path(__file__).resolve().parents[1] / "interpreted"))

import norm_models as models  # noqa: E402
import test_norm_models  # noqa: E402
import test_package  # noqa: E402
from test_norm_models import (  # noqa: E402, F401
    test_a_model_with_our_norms_is_as_right_as_the_eager_one,
    test_a_wrong_norm_is_too_far,
    test_state_dicts_go_both_ways,
)
from test_package import (  # noqa: E402, F401
    fused,
    gradients,
    same,
    test_a_compiled_call_has_autocast_as_an_eager_one,
    test_a_gradient_that_nobody_wants_is_not_written_over_the_upstream_one,
    test_a_tensor_of_one_part_is_refused,
    test_a_tensor_without_memory_has_a_shape,
    test_an_exported_module_takes_any_batch,
    test_compiled_without_a_break_the_bits_are_those_of_eager,
    test_deterministic_algorithms_and_checkpoints_change_no_bits,
    test_forward_mode_is_refused_and_not_dropped,
    test_gemmas_weight_begins_at_zero,
    test_outputs_may_be_written_in_place_as_those_of_torch,
    test_the_module_stands_in_for_torchs,
    test_the_operators_are_what_torch_expects_of_one,
    test_torch_func_takes_gradients_and_batches,
    values,
)

from kernels import RMSNorm, fused_add_rms_norm, rms_norm  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_package, "DEVICE", "cuda")
    monkeypatch.setattr(test_norm_models, "DEVICE", "cuda")
    monkeypatch.setattr(test_norm_models, "BACKEND", "inductor")
    monkeypatch.setattr(test_norm_models, "SIZES", {"hidden": 512})


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_by_inductor(mode):
    torch._dynamo.reset()
    compiled = torch.compile(fused, fullgraph=True, dynamic=False, mode=mode)
    for _ in range(3):  # reduce-overhead: a plain call, one that is captured, one that is replayed
        for found, wanted in zip(gradients(compiled, (64, 1024)), gradients(fused, (64, 1024)), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_captured_graph_gives_the_bits_of_eager_calls():
    x, r = values(64, 1024).requires_grad_(), values(64, 1024, seed=1).requires_grad_()
    w, upstream = values(1024, seed=2).requires_grad_(), values(64, 1024, seed=3)

    def step():
        y, total = fused_add_rms_norm(x, r, w)
        z = rms_norm(total, w)
        return y, z, *torch.autograd.grad((y, z), (x, r, w), (upstream, upstream))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in (5, 6):
        with torch.no_grad():
            for tensor in (x, r, w):
                tensor.copy_(values(*tensor.shape, seed=seed))
        graph.replay()
        replayed = [t.clone() for t in captured]
        assert same(replayed, step())


def test_a_second_derivative_and_a_tensor_of_the_processor_are_refused():
    x, w = values(3, 40).requires_grad_(), values(40, seed=1).requires_grad_()
    (dx,) = torch.autograd.grad((rms_norm(x, w) ** 2).sum(), x, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"second derivative|once_differentiable"):
        dx.sum().backward()
    for call in (lambda x: rms_norm(x, None), lambda x: fused_add_rms_norm(x, x, None)):
        with pytest.raises(ValueError, match=r"needs tensors on a device of cuda:\d+; x is on the CPU"):
            call(torch.ones(3, 40))


def test_a_sharded_model_of_one_rank(tmp_path):
    """FSDP gathers each weight before its module's forward, so that no DTensor reaches the norm."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), RMSNorm(64), nn.Linear(64, 64), RMSNorm(64)).cuda()

    x = values(8, 64)
    whole = model()
    whole(x).sum().backward()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        sharded = model()
        for layer in sharded:
            fully_shard(layer)
        fully_shard(sharded)(x).sum().backward()
        for one, other in zip(whole.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(other.grad.full_tensor(), one.grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_checkpointed_model_has_the_gradients_of_a_plain_one(kind):
    pytest.importorskip("transformers")
    ours = models.with_ours(models.small(kind, torch.float32, "cuda", hidden=256), True, device="cuda")
    inputs = models.batch("cuda")
    plain = models.trained(ours, **inputs)
    ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ours.train()
    again = models.trained(ours, **inputs)
    for name, wanted in plain.items():
        torch.testing.assert_close(again[name], wanted, rtol=1e-5, atol=1e-7)
