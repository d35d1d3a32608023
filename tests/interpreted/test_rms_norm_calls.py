"""rms_norm as a function: layouts, errors, aliasing, determinism, what it tells of its launches."""

from __future__ import annotations

import pytest
import torch

from farm.child import interpreter
from kernels import launches, rms_norm


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("mode", ["multi_wave_cached", "multi_wave_reload", "static_persistent"])
@pytest.mark.parametrize(
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
    ],
)
def test_any_strides_give_what_a_dense_copy_gives(layout, mode):
    x, weight = layout(values(8, 40)), None
    weight = values(x.shape[-1], seed=1)
    dense = rms_norm(x.contiguous(), weight, mode=mode)
    got = rms_norm(x, weight, mode=mode)
    assert torch.equal(got, dense) and got.is_contiguous()


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


@pytest.mark.parametrize("mode", ["multi_wave_cached", "multi_wave_reload"])
def test_the_weight_gradient_is_the_same_bits_every_time(mode):
    x, weight = values(37, 130, dtype=torch.bfloat16).requires_grad_(), values(130, seed=1).requires_grad_()
    dy = values(37, 130, dtype=torch.bfloat16, seed=2)
    first, second = (torch.autograd.grad(rms_norm(x, weight, mode=mode), weight, dy)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_only_asked_gradients_are_made():
    x, weight = values(5, 64), values(64, seed=1)
    launches.enable()
    rms_norm(x.requires_grad_(), weight, mode="multi_wave_reload").sum().backward()
    assert [r["kernel"] for r in launches.drain()] == ["forward_reload", "backward_reload"]
    with torch.no_grad():
        assert not rms_norm(x, weight).requires_grad
    assert rms_norm(x.detach(), weight.requires_grad_()).requires_grad


def test_higher_derivatives_are_refused():
    x = values(2, 8).requires_grad_()
    dy = values(2, 8, seed=1).requires_grad_()
    (dx,) = torch.autograd.grad(rms_norm(x, None), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("mode", ["row_packed", "column_tiled"])
def test_later_modes_say_so(mode):
    with pytest.raises(NotImplementedError, match="comes with a later version"):
        rms_norm(values(2, 8), None, mode=mode)


@pytest.mark.parametrize("mode", ["multi_wave_cached", "static_persistent"])
def test_a_row_too_wide_for_a_block_is_refused_but_auto_serves_it(mode):
    x = values(1, 65537)
    with pytest.raises(NotImplementedError, match="at most 65536 elements; hidden is 65537"):
        rms_norm(x, None, mode=mode)
    launches.enable()
    y = rms_norm(x, None)
    assert launches.drain()[0]["mode"] == "multi_wave_reload"
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (65537,), None, 1e-6))


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
    assert launches.drain() == [
        {
            "kernel": "forward_cached",
            "grid": [2],
            "num_warps": 1,
            "num_stages": 1,
            "block": 8,
            "mode": "multi_wave_cached",
            "direction": "forward",
        }
    ]
