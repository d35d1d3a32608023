"""Our norms as a model author uses them: as modules, under torch.compile, export, torch.func, checkpoints, in place.

tests/hardware/test_cuda_package.py runs the same tests on a GPU.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import library
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from kernels import FusedAddRMSNorm, RMSNorm, fused_add_rms_norm, rms_norm
from kernels.ops.rms_norm import dispatch, function, operators

EPS = 1e-6
DEVICE = "cpu"


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def plain(x, residual, weight):
    return rms_norm(x, weight) + 0 * residual.sum()


def fused(x, residual, weight):
    y, total = fused_add_rms_norm(x, residual, weight)
    return y + 3 * total


def fused_without_y(x, residual, weight):
    return fused_add_rms_norm(x, residual, weight)[1].sum(-1)


def rectified(x, residual, weight):
    """What F.rms_norm lets one do with its output."""
    y, total = fused_add_rms_norm(x, residual, weight)
    z = rms_norm(x, weight)
    z += 1
    return F.dropout(z, 0.0, inplace=True) * F.relu(y.mul_(2), inplace=True) + total


USES = pytest.mark.parametrize("use", [plain, fused, fused_without_y, rectified])
SHAPES = pytest.mark.parametrize("shape", [(3, 40), (2, 3, 40), (40,)])


def gradients(use, shape, call=lambda f, *args: f(*args)):
    """The output and the gradients of x, residual and weight."""
    args = [values(*shape), values(*shape, seed=1), values(shape[-1], seed=2)]
    for a in args:
        a.requires_grad_()
    out = call(use, *args)
    upstream = values(*out.shape, seed=3)
    return [out.detach(), *torch.autograd.grad(out, args, upstream, allow_unused=True)]


def close(a, b):
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(*(torch.zeros(()) if t is None or not t.any() else t.cpu() for t in (one, other)))


def same(a, b):
    return all(x is y is None or torch.equal(x, y) for x, y in zip(a, b, strict=True))


@USES
@SHAPES
def test_outputs_may_be_written_in_place_as_those_of_torch(use, shape, monkeypatch):
    ours = gradients(use, shape)
    monkeypatch.setitem(use.__globals__, "rms_norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, EPS))
    monkeypatch.setitem(
        use.__globals__, "fused_add_rms_norm", lambda x, r, w: (F.rms_norm(x + r, x.shape[-1:], w, EPS), x + r)
    )
    close(ours, gradients(use, shape))


@USES
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.long), True])
def test_compiled_without_a_break_the_bits_are_those_of_eager(use, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(use, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 3, 40), (5, 3, 40)):
        assert same(gradients(compiled, shape), gradients(use, shape))
    args = [values(4, 40, seed=n) for n in range(2)] + [values(40, seed=5)]
    with torch.no_grad():
        assert torch.equal(compiled(*args), use(*args))


def test_a_compiled_call_has_autocast_as_an_eager_one():
    def use(x, w):
        return rms_norm(x, w), rms_norm(x.to(torch.bfloat16), w)

    compiled = torch.compile(use, fullgraph=True, backend="aot_eager")
    args = values(3, 40), values(40, seed=1)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found, wanted = compiled(*args), use(*args)
    assert [y.dtype for y in found] == [y.dtype for y in wanted] == [torch.float32, torch.bfloat16]
    assert same(found, wanted)


def test_an_exported_module_takes_any_batch():
    norm = FusedAddRMSNorm(40, device=DEVICE)
    batch = torch.export.Dim("batch")
    args = values(3, 40), values(3, 40, seed=1)
    exported = torch.export.export(norm, args, dynamic_shapes={"x": {0: batch}, "residual": {0: batch}}).module()
    args = values(7, 40, seed=2), values(7, 40, seed=3)
    assert same(exported(*args), norm(*args))


def test_torch_func_takes_gradients_and_batches():
    x, w = values(3, 4, 40), values(40, seed=1)

    def loss(w, x):
        return (rms_norm(x, w) ** 2).sum()

    wanted = [torch.func.grad(loss)(w, row) for row in x]
    assert torch.equal(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x), torch.stack(wanted))
    leaf = w.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(loss(leaf, x), leaf)[0], torch.func.grad(loss)(w, x))
    found = torch.func.vmap(fused_add_rms_norm, in_dims=(0, None, None))(x, x[0], w)
    alone = zip(*(fused_add_rms_norm(rows, x[0], w) for rows in x))
    assert same(found, tuple(torch.stack(parts) for parts in alone))
    at_once = fused_add_rms_norm(x, x[0].expand_as(x), w)
    close(found, at_once)
    if DEVICE == "cpu":  # on a GPU, a launch chosen for 12 rows may add a row's squares in another order than one for 4
        assert same(found, at_once)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(loss, argnums=1)(w, x).sum())(x)


def test_forward_mode_is_refused_and_not_dropped():
    x, w = values(3, 40), values(40, seed=1)
    for learns in (False, True):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            rms_norm(forward_ad.make_dual(x, x).requires_grad_(learns), w)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="fused_add_rms_norm has no forward"):
            fused_add_rms_norm(x, x, forward_ad.make_dual(w, w))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: rms_norm(x, w), (x,), (x,))


def test_a_tensor_of_one_part_is_refused(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        x = DTensor.from_local(values(3, 40), DeviceMesh(DEVICE, [0]), [Replicate()])
        with pytest.raises(TypeError, match=r"rms_norm takes no DTensor: call it on x.to_local\(\)"):
            rms_norm(x, None)
        with pytest.raises(TypeError, match="fused_add_rms_norm takes no DTensor"):
            fused_add_rms_norm(values(3, 40), x, None)
    finally:
        dist.destroy_process_group()


def test_a_tensor_of_the_processor_is_refused_where_kernels_run_on_a_device(monkeypatch):
    monkeypatch.setattr(dispatch, "machine", lambda device=None: ("cuda:90", 132))
    for call in (lambda x: rms_norm(x, None), lambda x: fused_add_rms_norm(x, x, None)):
        with pytest.raises(ValueError, match="needs tensors on a device of cuda:90; x is on the CPU"):
            call(values(3, 40))


def test_a_tensor_without_memory_has_a_shape():
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, 40, dtype=torch.bfloat16, device=DEVICE)
        y, total = fused_add_rms_norm(x, x, torch.empty(40, device=DEVICE))
    assert (y.shape, y.dtype, total.shape) == (x.shape, x.dtype, x.shape)


def test_a_gradient_that_nobody_wants_is_not_written_over_the_upstream_one():
    x, w = values(3, 40), values(40, seed=1).requires_grad_()
    dy = values(3, 40, seed=2)
    kept = dy.clone()
    y = rms_norm(x, w, in_place=True)
    y.backward(dy)
    assert torch.equal(dy, kept) and x.grad is None and w.grad is not None


def test_deterministic_algorithms_and_checkpoints_change_no_bits():
    eager = gradients(fused, (2, 3, 40))
    assert same(gradients(fused, (2, 3, 40), lambda f, *a: checkpoint(f, *a, use_reentrant=False)), eager)
    torch.use_deterministic_algorithms(True)
    try:
        assert same(gradients(fused, (2, 3, 40)), eager)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("affine", [True, False])
def test_the_module_stands_in_for_torchs(eps, affine):
    torchs, ours = (kind(40, eps, affine, DEVICE) for kind in (torch.nn.RMSNorm, RMSNorm))
    if affine:
        torch.nn.init.normal_(torchs.weight)
    assert ours.load_state_dict(torchs.state_dict()) == torchs.load_state_dict(ours.state_dict())
    x = values(2, 3, 40)
    torch.testing.assert_close(ours(x), torchs(x))
    assert isinstance(copy.deepcopy(ours), torch.nn.RMSNorm) and repr(ours) == repr(torchs)
    y, total = FusedAddRMSNorm(40, eps, False, DEVICE)(x, x)
    torch.testing.assert_close(y, F.rms_norm(2 * x, (40,), None, eps))
    assert torch.equal(total, 2 * x)


def test_gemmas_weight_begins_at_zero():
    norm = RMSNorm(40, device=DEVICE, offset=1.0, casting="gemma")
    assert norm.weight.abs().max() == 0 and "offset=1.0, casting='gemma'" in repr(norm)
    x = values(3, 40)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (40,), None, torch.finfo(x.dtype).eps))


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: RMSNorm((3, 40)), r"norms the last dimension alone; got normalized_shape \(3, 40\)"),
        (lambda: RMSNorm(40, casting="lama"), "has no casting 'lama'; it has llama, gemma, none"),
        (lambda: RMSNorm(40)(values(3, 41)), r"RMSNorm of 40 columns; got x of shape \[3, 41\]"),
    ],
)
def test_what_a_module_cannot_do_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.long
def test_the_operators_are_what_torch_expects_of_one():
    w = values(40, seed=1).requires_grad_()
    for shape in ((2, 40), (2, 3, 40), (0, 40)):
        x = values(*shape).requires_grad_()
        rest = (w, EPS, 0.0, True, "auto", True)
        library.opcheck(operators._norm, ("rms_norm", x, None, *rest))
        library.opcheck(operators._norm, ("fused_add_rms_norm", x, x.detach().clone(), *rest))
    rstd = torch.ones(2, device=DEVICE)
    args = ("rms_norm", values(2, 40), None, values(2, 40, seed=1), values(40), rstd, 0.0, True, "auto", True)
    library.opcheck(operators._backward, args)


def test_a_call_asks_about_the_device_of_its_tensors(monkeypatch):
    asked = []
    monkeypatch.setattr(dispatch, "machine", lambda device=None: asked.append(device) or ("interpreter", 4))
    function.check_mode("rms_norm", torch.empty(3, 40, device="meta"), "auto")
    function.check_mode("rms_norm", values(3, 40), "auto")
    assert asked == [None, None]
