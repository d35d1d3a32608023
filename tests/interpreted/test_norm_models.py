"""Our norms in models of transformers, in the interpreter; tests/hardware/test_cuda_package.py does it on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import norm_models as models
import pytest
import torch

DEVICE, BACKEND = "cpu", "aot_eager"
SIZES = {"hidden": 64}

pytestmark = pytest.mark.long
NEEDS = pytest.mark.skipif(
    not find_spec("transformers"), reason="transformers is not installed: no models to put our norms into"
)
KIND = pytest.mark.parametrize("kind", models.KINDS)


@NEEDS
@KIND
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_with_our_norms_is_as_right_as_the_eager_one(kind, fused, dtype):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, inputs = models.small(kind, dtype, DEVICE, **SIZES), models.batch(DEVICE)
    eager, right = models.trained(model, **inputs), models.trained(models.in_float64(model), **inputs)
    ours = models.with_ours(model, fused, device=DEVICE)
    assert not models.too_far(models.trained(ours, **inputs), eager, right, dtype)
    compiled = torch.compile(ours, fullgraph=True, backend=BACKEND)
    assert not models.too_far(models.trained(ours, compiled, **inputs), eager, right, dtype)
    assert not torch._dynamo.utils.counters["graph_break"]


@NEEDS
@KIND
def test_a_wrong_norm_is_too_far(kind):
    model, inputs = models.small(kind, torch.bfloat16, DEVICE, **SIZES), models.batch(DEVICE)
    eager, right = models.trained(model, **inputs), models.trained(models.in_float64(model), **inputs)
    wrong = models.with_ours(model, device=DEVICE, offset=0.03)
    assert models.too_far(models.trained(wrong, **inputs), eager, right, torch.bfloat16)


@NEEDS
@KIND
@pytest.mark.parametrize("fused", [False, True])
def test_state_dicts_go_both_ways(kind, fused):
    theirs = models.small(kind, torch.float32, DEVICE, **SIZES)
    ours = models.with_ours(models.small(kind, torch.float32, DEVICE, **SIZES), fused, device=DEVICE)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(1.25)
    assert not any(ours.load_state_dict(theirs.state_dict()))
    inputs = models.batch(DEVICE)
    eager, right = models.trained(theirs, **inputs), models.trained(models.in_float64(theirs), **inputs)
    assert not models.too_far(models.trained(ours, **inputs), eager, right, torch.float32)
    again = models.small(kind, torch.float32, DEVICE, **SIZES)
    assert not any(again.load_state_dict(ours.state_dict()))
    assert torch.equal(models.trained(again, **inputs)["loss"], eager["loss"])
