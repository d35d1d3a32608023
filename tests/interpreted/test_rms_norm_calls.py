"""Our norms as functions: layouts, errors, aliasing, which gradients are made, what they tell of their launches.

Values are in test_gpu_cells, repeatability in test_bitwise."""

from __future__ import annotations

import pytest
import torch

from farm.child import interpreter
from kernels import fused_add_rms_norm, launches, rms_norm
from kernels.ops.rms_norm.choice import MODES


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


LAYOUTS = pytest.mark.parametrize(
    "layout",
    [
        lambda x: x[:, :20],  # a row stride wider than the row
        lambda x: x[1:, 3:23],  # a start that is not aligned
        lambda x: x[::2, :20],
        lambda x: x[:, ::2],  # the last dimension is not contiguous
        lambda x: x.t(),
        lambda x: x[0, :20],  # one row
        lambda x: x.view(2, 4, 40)[:, :3, :20],  # leading dimensions that do not fold
        lambda x: x[:1, :20].expand(6, 20),  # one row, read six times
        lambda x: x[:, :1],  # rows of one element
        lambda x: x[:, None, ::40],
    ],
)


@LAYOUTS
@pytest.mark.parametrize("mode", MODES)
def test_any_strides_give_what_a_dense_copy_gives(layout, mode):
    x, weight = layout(values(8, 40)), None
    weight = values(x.shape[-1], seed=1)
    dense = rms_norm(x.contiguous(), weight, mode=mode)
    got = rms_norm(x, weight, mode=mode)
    assert torch.equal(got, dense) and got.is_contiguous()


@LAYOUTS
def test_the_fused_norm_takes_any_strides_too(layout):
    """Of x, of the residual, of both upstream gradients."""
    x, residual, dy, dsum = (layout(values(8, 40, seed=n)) for n in range(4))
    found = []
    for arrange in (lambda t: t, lambda t: t.contiguous()):
        given = [arrange(t).detach().requires_grad_() for t in (x, residual)]
        weight = values(x.shape[-1], seed=5).requires_grad_()
        outputs = fused_add_rms_norm(*given, weight)
        assert all(o.is_contiguous() and o.shape == x.shape for o in outputs)
        found.append((*outputs, *torch.autograd.grad(outputs, (*given, weight), (arrange(dy), arrange(dsum)))))
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert torch.equal(found[0][1], x + residual)


def test_rows_too_far_apart_for_32_bit_addresses_are_copied():
    far = 2**25 + 1
    x = torch.empty(2 * far, dtype=torch.float16).as_strided((2, 8), (far, 1))
    x.copy_(values(2, 8))
    assert torch.equal(rms_norm(x, None), rms_norm(x.contiguous(), None))


def test_strided_gradients_are_read_right():
    x, weight, dy = values(6, 20), values(20, seed=1), values(6, 40, seed=2)[:, ::2]
    grads = []
    for upstream in (dy, dy.contiguous()):
        a, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        grads.append(torch.autograd.grad(rms_norm(a, w), (a, w), upstream))
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    a = x.clone().requires_grad_()
    rms_norm(a, weight).sum().backward()  # an upstream gradient of stride 0
    assert a.grad is not None and torch.isfinite(a.grad).all()


def test_rows_apart_are_read_in_place():
    """Rows with a stride of their own cost no copy: the kernel loads x and weight, nothing moves before."""
    x, weight = values(8, 4096, dtype=torch.bfloat16)[:, :1024], torch.ones(1024, dtype=torch.bfloat16)
    interpreter.traffic(reset=True)
    with torch.no_grad():
        rms_norm(x, weight, mode="multi_wave_cached")
    assert interpreter.traffic() == {"loaded": 8 * 1024 * 2 * 2, "stored": 8 * 1024 * 2}


def test_reload_reads_x_twice_and_cached_once():
    x = values(4, 1000)
    seen = {}
    for mode in ("multi_wave_cached", "multi_wave_reload"):
        interpreter.traffic(reset=True)
        rms_norm(x, None, mode=mode)
        seen[mode] = interpreter.traffic()["loaded"]
    assert seen == {"multi_wave_cached": 4 * 1000 * 4, "multi_wave_reload": 2 * 4 * 1000 * 4}


def test_in_place_writes_dx_into_dy():
    for in_place in (False, True):
        x, weight = values(5, 64).requires_grad_(), values(64, seed=1).requires_grad_()
        dy = values(5, 64, seed=2)
        kept = dy.clone()
        dx, dw = torch.autograd.grad(rms_norm(x, weight, in_place=in_place), (x, weight), dy)
        assert (dx.data_ptr() == dy.data_ptr()) is in_place
        assert torch.equal(dy, kept) is not in_place
        plain = torch.autograd.grad(rms_norm(x, weight), (x, weight), kept)
        assert torch.equal(dx, plain[0]) and torch.equal(dw, plain[1])


@pytest.mark.parametrize("mode", ["multi_wave_cached", "multi_wave_reload"])
def test_in_place_never_touches_a_dy_that_is_not_dense(mode):
    x = values(5, 64).requires_grad_()
    wide = values(5, 128, seed=2)
    kept = wide.clone()
    torch.autograd.grad(rms_norm(x, None, in_place=True, mode=mode), (x,), wide[:, :64])
    assert torch.equal(wide, kept)


@pytest.mark.parametrize("mode", MODES)
def test_an_absent_weight_leaves_offset_no_part(mode):
    x = values(3, 129, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, None, mode=mode), rms_norm(x, None, mode=mode, offset=1.0))


def test_llama_and_gemma_round_differently():
    """Else the castings test nothing: in bfloat16 a second rounding moves elements."""
    x, weight = values(3, 1000, dtype=torch.bfloat16), values(1000, dtype=torch.bfloat16, seed=1)
    llama, gemma, none = (rms_norm(x, weight, casting=c) for c in ("llama", "gemma", "none"))
    assert not torch.equal(llama, gemma)
    assert torch.equal(llama, none)


def test_only_asked_gradients_are_made():
    x, weight = values(5, 64), values(64, seed=1)
    launches.enable()
    rms_norm(x.requires_grad_(), weight, mode="multi_wave_reload").sum().backward()
    assert [r["kernel"] for r in launches.drain()] == ["forward_chunks", "row_means", "backward_columns"]
    with torch.no_grad():
        assert not rms_norm(x, weight).requires_grad
        assert not any(t.requires_grad for t in fused_add_rms_norm(x, x, weight))
    assert rms_norm(x.detach(), weight.requires_grad_()).requires_grad


@pytest.mark.parametrize("used", ["y", "sum"])
def test_an_output_that_is_not_used_has_no_part_in_the_gradients(used):
    x, residual, weight = values(5, 64), values(5, 64, seed=1), values(64, seed=2)
    given = [t.requires_grad_() for t in (x, residual, weight)]
    y, total = fused_add_rms_norm(*given)
    grad = values(5, 64, seed=3)
    launches.enable()
    dx, dresidual, dw = torch.autograd.grad(y if used == "y" else total, given, grad, allow_unused=True)
    assert torch.equal(dx, dresidual)
    if used == "sum":  # nothing to compute: the sum's gradient as it is
        assert launches.drain() == [] and torch.equal(dx, grad) and torch.equal(dw, torch.zeros(64))
    else:
        plain = torch.autograd.grad(rms_norm((x + residual).detach().requires_grad_(), weight), weight, grad)
        assert torch.equal(dw, plain[0])


def test_higher_derivatives_are_refused():
    x = values(2, 8).requires_grad_()
    dy = values(2, 8, seed=1).requires_grad_()
    (dx,) = torch.autograd.grad(rms_norm(x, None), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize(
    "error, match, call",
    [
        (ValueError, r"weight of shape \[8\]", lambda x: rms_norm(x, torch.ones(7))),
        (ValueError, "no casting 'lama'", lambda x: rms_norm(x, None, casting="lama")),
        (ValueError, "no mode 'fast'", lambda x: rms_norm(x, None, mode="fast")),
        (TypeError, "got torch.int32", lambda x: rms_norm(x.int(), None)),
        (TypeError, "got torch.float64", lambda x: rms_norm(x, torch.ones(8).double())),
        (ValueError, "hidden >= 1", lambda x: rms_norm(x[:, :0], None)),
        (ValueError, "hidden >= 1", lambda x: rms_norm(torch.tensor(1.0), None)),
        (ValueError, "residual of one shape", lambda x: fused_add_rms_norm(x, x[:1], None)),
        (ValueError, "torch.float32 cpu and .* torch.float16", lambda x: fused_add_rms_norm(x, x.half(), None)),
        (ValueError, "fused_add_rms_norm has no mode 'fast'", lambda x: fused_add_rms_norm(x, x, None, mode="fast")),
    ],
)
def test_wrong_calls_are_told(error, match, call):
    with pytest.raises(error, match=match):
        call(values(2, 8))


def test_nothing_is_recorded_unless_someone_listens():
    rms_norm(values(2, 8), None)
    assert launches.drain() == []
    launches.enable()
    rms_norm(values(2, 8), None, mode="multi_wave_cached")
    launches.disable()
    rms_norm(values(2, 8), None)
    (record,) = launches.drain()
    assert (record["kernel"], record["grid"], record["direction"]) == ("forward_rows", [2], "forward")
    assert record["mode"] == "multi_wave_cached" and record["block"] == 8 and record["num_warps"] == 1
