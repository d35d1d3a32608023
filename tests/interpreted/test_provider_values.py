"""Every peer's rms_norm against float64, and the quantizing norm against its definition."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch

EPS = 1e-6
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # relative L2; two roundings pass
PEERS = ("farm", "torch", "huggingface", "liger")


def loaded(name: str, op: str):
    try:
        return importlib.import_module(f"farm.providers.{name}").load(op)
    except ImportError as error:
        pytest.skip(str(error))


def values(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("weight_dtype", ["same", torch.float32, None])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("casting, offset", [("llama", 0.0), ("gemma", 1.0), ("none", 0.0)])
@pytest.mark.parametrize("name", PEERS)
def test_a_peers_norm_and_gradients_are_right(name, casting, offset, dtype, weight_dtype):
    function = loaded(name, "rms_norm")
    keywords = {"offset": offset} if offset else {}
    if "casting" in inspect.signature(function).parameters:
        keywords["casting"] = casting
    x = values(5, 300, dtype=dtype, seed=1).requires_grad_()
    weight_dtype = dtype if weight_dtype == "same" else weight_dtype
    weight = None if weight_dtype is None else values(300, dtype=weight_dtype, seed=2).requires_grad_()
    dy = values(5, 300, dtype=dtype, seed=3)
    if name == "huggingface" and casting == "none":
        with pytest.raises(NotImplementedError, match="no norm with casting none"):
            function(x, weight, EPS, **keywords)
        return
    y = function(x, weight, EPS, **keywords)
    grads = torch.autograd.grad(y, (x,) if weight is None else (x, weight), dy)

    wide, up = x.detach().double(), dy.double()
    rstd = (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    factor = 1.0 if weight is None else weight.detach().double() + offset
    m = up * factor
    dx = rstd * (m - wide * rstd * (m * wide * rstd).mean(-1, keepdim=True))
    wanted = (wide * rstd * factor, dx, (up * wide * rstd).sum(0))
    assert y.dtype == dtype
    for got, want in zip((y, *grads), wanted):
        assert ((got.double() - want).norm() / want.norm()).item() <= TOLERANCE[dtype]


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("weight_dtype", ["same", torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torch_rounds_once(dtype, weight_dtype, offset):
    """It is judged by the gates of single rounding; two roundings would reach 1.5 ULP."""
    function = loaded("torch", "rms_norm")
    weight_dtype = dtype if weight_dtype == "same" else weight_dtype
    x, weight = values(8, 1000, dtype=dtype, seed=1), values(1000, dtype=weight_dtype, seed=2)
    wide = x.double()
    want = wide * (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (weight.double() + offset)
    bits, tiny = (10, 2.0**-14) if dtype == torch.float16 else (7, 2.0**-126)
    spacing = 2.0 ** (torch.floor(torch.log2(want.abs().clamp_min(tiny))) - bits)
    assert ((function(x, weight, EPS, offset=offset).double() - want).abs() / spacing).max().item() < 0.51


def test_the_quantizing_norm_follows_its_definition():
    function = loaded("torch", "rms_norm_quantize")
    x, weight = values(6, 129, dtype=torch.bfloat16, seed=1), values(129, dtype=torch.float32, seed=2)
    x[2] = 0
    q, scale = function(x, weight, EPS)
    assert q.dtype == torch.int8 and q.shape == (6, 129) and scale.dtype == torch.float32 and scale.shape == (6, 1)
    wide = x.double()
    y = wide * (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    torch.testing.assert_close(scale.double(), y.abs().amax(-1, keepdim=True) / 127, rtol=1e-6, atol=0)
    assert scale[2] == 0 and not q[2].any()
    others = [i for i in range(6) if i != 2]
    assert (q[others].abs().amax(-1) == 127).all()
    assert ((q * scale).double() - y)[others].abs().max() <= 0.5001 * scale.max()


def test_compile_forgets_a_shape_before_the_next(monkeypatch):
    """Dynamo's limit of 8 variants would leave the rest of a matrix eager, without a word."""
    from types import SimpleNamespace

    from farm.providers import torch_compile

    log: list[str] = []
    monkeypatch.setattr(torch_compile, "_configure", lambda: log.append("configure"))
    monkeypatch.setattr(torch, "_dynamo", SimpleNamespace(reset=lambda: log.append("reset")), raising=False)
    monkeypatch.setattr(torch, "compile", lambda f, dynamic: log.append("compile") or f)
    norm = torch_compile.load("rms_norm")
    x, weight = values(2, 8, dtype=torch.float32, seed=1), torch.ones(8)
    assert norm(x, weight, EPS, offset=1.0).shape == (2, 8)
    norm(x.clone(), weight, EPS, offset=1.0)
    assert log == ["configure", "reset", "compile"]
    norm(x.requires_grad_(), weight, EPS, offset=1.0)
    norm(values(3, 8, dtype=torch.float32, seed=1), weight, EPS)
    assert log.count("compile") == log.count("reset") == 3


def test_liger_leaves_the_upstream_gradient_alone():
    function = loaded("liger", "rms_norm")
    x, dy = values(4, 64, dtype=torch.float32, seed=1).requires_grad_(), values(4, 64, dtype=torch.float32, seed=2)
    kept = dy.clone()
    torch.autograd.grad(function(x, torch.ones(64), EPS), x, dy)
    assert torch.equal(dy, kept)
