"""rms_norm against a float64 reference: modes, directions, castings, dtypes and odd shapes, in ULP."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import launches, rms_norm

MODES = ("multi_wave_cached", "multi_wave_reload", "static_persistent", "auto")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HIDDEN = (1, 7, 127, 128, 129, 1000, 4095, 4096, 4097, 16385)
ROWS = (0, 1, 3, 17)
VARIANTS = (("llama", 0.0), ("gemma", 1.0), ("none", 0.0), ("llama", 1.0), ("gemma", 0.0))
EPS = 1e-6

#: Bits after the point, and the smallest normal number.
MANTISSA = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
TINY = {torch.float32: 2.0**-126, torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126}


def ulp(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of `dtype` at |scale|, float64."""
    at = scale.abs().clamp_min(TINY[dtype])
    return 2.0 ** (torch.floor(torch.log2(at)) - MANTISSA[dtype])


def limit(dtype: torch.dtype, casting: str) -> float:
    """ULP allowed: one rounding and float32's own error, or the two roundings of llama and none; float32: its sums."""
    if dtype == torch.float32:
        return 64.0
    return 1.0 if casting == "gemma" else 2.0


def problem(rows: int, hidden: int, dtype: torch.dtype, weight_dtype: torch.dtype | None, seed: int = 0):
    """x, weight and dy; row i of x takes kind i mod 5: unit, small, large, zero, constant.  The last is never zero."""
    make = torch.Generator().manual_seed(seed * 1000 + rows * 131 + hidden)
    x = torch.randn(rows, hidden, generator=make)
    for i in range(rows):
        kind = i % 5 if i < rows - 1 else 0
        if kind == 1:
            x[i] *= 1e-3
        elif kind == 2:
            x[i] *= 1e3 if dtype == torch.float16 else 1e6
        elif kind == 3:
            x[i] = 0
        elif kind == 4:
            x[i] = 0.75
    weight = None if weight_dtype is None else (1 + 0.25 * torch.randn(hidden, generator=make)).to(weight_dtype)
    return x.to(dtype), weight, torch.randn(rows, hidden, generator=make).to(dtype)


def reference(x, weight, dy, offset):
    """float64: y, dx, dw, and the sizes of the terms that dx and dw sum."""
    x, dy = x.double(), dy.double()
    rstd = (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    xhat = x * rstd
    w = torch.ones(x.shape[-1], dtype=torch.float64) if weight is None else weight.double() + offset
    m = dy * w
    dx = rstd * (m - xhat * (m * xhat).mean(-1, keepdim=True))
    terms = dy * xhat
    return {
        "y": (xhat * w, xhat * w),
        "dx": (dx, torch.maximum(dx.abs(), (rstd * m).pow(2).mean(-1, keepdim=True).sqrt())),
        "dw": (terms.sum(0), torch.maximum(terms.sum(0).abs(), terms.pow(2).sum(0).sqrt())),
    }


def worst_ulp(got: torch.Tensor, want: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> float:
    if not got.numel():
        return 0.0
    assert torch.isfinite(got).all()
    return ((got.double() - want).abs() / ulp(scale, dtype)).max().item()


def run(x, weight, dy, **kw):
    """y, dx and (with a weight) dw by our kernels."""
    x = x.clone().requires_grad_()
    weight = None if weight is None else weight.clone().requires_grad_()
    y = rms_norm(x, weight, EPS, **kw)
    wrt = (x,) if weight is None else (x, weight)
    return dict(zip(("y", "dx", "dw"), (y.detach(), *torch.autograd.grad(y, wrt, dy))))


def cases():
    """Every mode with every dtype and every hidden; castings, rows and weight dtypes go round beside them."""
    variants, rows = itertools.cycle(VARIANTS), itertools.cycle(ROWS)
    kinds = itertools.cycle(("same", "same", "float32", "none"))
    for mode, dtype, hidden in itertools.product(MODES, DTYPES, HIDDEN):
        kind = next(kinds)
        weight_dtype = {"same": dtype, "float32": torch.float32, "none": None}[kind]
        yield pytest.param(
            mode, dtype, weight_dtype, *next(variants), next(rows), hidden,
            id=f"{mode}-{str(dtype)[6:]}-weight_{kind}-{hidden}",
        )  # fmt: skip


@pytest.mark.parametrize("mode, dtype, weight_dtype, casting, offset, rows, hidden", list(cases()))
def test_every_value_lies_within_its_rounding_class(mode, dtype, weight_dtype, casting, offset, rows, hidden):
    x, weight, dy = problem(rows, hidden, dtype, weight_dtype)
    got = run(x, weight, dy, offset=offset, casting=casting, mode=mode)
    want = reference(x, weight, dy, offset)
    assert got["y"].dtype == got["dx"].dtype == dtype and got["y"].shape == got["dx"].shape == x.shape
    # A rounding to x's dtype inside dw stays when dw itself is wider.
    coarse = max(dtype, weight_dtype or dtype, key=lambda d: -MANTISSA[d]) if casting != "gemma" else weight_dtype
    allowed = {
        "y": (limit(dtype, casting), dtype),
        "dx": (limit(dtype, casting), dtype),
        "dw": (limit(coarse, casting) if coarse else 0.0, coarse),
    }
    for name, value in got.items():
        bound, unit = allowed[name]
        assert worst_ulp(value, *want[name], unit) <= bound, name


def test_the_comparison_rejects_wrong_norms():
    """The gate above has teeth: a norm that is off by half a percent, forgets eps or a column, does not pass it."""
    for dtype in DTYPES:
        x, weight, dy = problem(5, 1000, dtype, dtype)
        want = reference(x, weight, dy, 0.0)["y"]
        right = run(x, weight, dy)["y"].double()
        no_eps = (x.double() * x.double().pow(2).mean(-1, keepdim=True).clamp_min(1e-30).rsqrt()) * weight.double()
        cut = torch.cat([right[:, :-1], torch.zeros(5, 1)], dim=1)
        for wrong in (right * 1.005, no_eps, cut):
            assert worst_ulp(wrong.to(dtype), *want, dtype) > limit(dtype, "llama")


@pytest.mark.parametrize("mode", MODES)
def test_an_absent_weight_leaves_the_normalised_row(mode):
    x, _, dy = problem(3, 129, torch.bfloat16, None)
    assert torch.equal(run(x, None, dy, mode=mode)["y"], run(x, None, dy, mode=mode, offset=1.0)["y"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows_give_empty_outputs_and_a_zero_weight_gradient(mode, dtype):
    x, weight, dy = problem(0, 16, dtype, torch.float32)
    got = run(x, weight, dy, mode=mode)
    assert got["y"].shape == got["dx"].shape == (0, 16)
    assert torch.equal(got["dw"], torch.zeros(16)) and got["dw"].dtype == torch.float32


def test_llama_and_gemma_round_differently():
    """Else the castings test nothing: in bfloat16 a second rounding moves elements."""
    x, weight, dy = problem(3, 1000, torch.bfloat16, torch.bfloat16)
    llama, gemma, none = (run(x, weight, dy, casting=c)["y"] for c in ("llama", "gemma", "none"))
    assert not torch.equal(llama, gemma)
    assert torch.equal(llama, none)


def test_every_mode_launches_the_kernel_that_it_names():
    expected = {
        "multi_wave_cached": ["forward_cached", "backward_block"],
        "static_persistent": ["forward_persistent", "backward_block"],
        "multi_wave_reload": ["forward_reload", "backward_weight", "backward_reload"],
    }
    for mode, kernels in expected.items():
        launches.enable()
        run(*problem(5, 300, torch.float32, torch.float32), mode=mode)
        records = launches.drain()
        assert [r["kernel"] for r in records] == kernels
        assert {r["mode"] for r in records} == {mode}
        assert {r["direction"] for r in records} == {"forward", "backward"}
