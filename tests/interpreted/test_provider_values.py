"""Every peer's norms against float64, how peers that are not here would be called, and the quantizing norm."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType

import pytest
import torch

EPS = 1e-6
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # relative L2; two roundings pass
PEERS = ("farm", "torch", "huggingface", "liger", "quack")


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


@pytest.mark.parametrize("weight_dtype", ["same", torch.float32, None])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("casting, offset", [("llama", 0.0), ("gemma", 1.0)])
@pytest.mark.parametrize("name", PEERS)
def test_a_peers_fused_norm_and_gradients_are_right(name, casting, offset, dtype, weight_dtype):
    function = loaded(name, "fused_add_rms_norm")
    keywords = {"offset": offset} if offset else {}
    if "casting" in inspect.signature(function).parameters:
        keywords["casting"] = casting
    x, residual = (values(5, 300, dtype=dtype, seed=s).requires_grad_() for s in (1, 4))
    weight_dtype = dtype if weight_dtype == "same" else weight_dtype
    weight = None if weight_dtype is None else values(300, dtype=weight_dtype, seed=2).requires_grad_()
    dy, dsum = values(5, 300, dtype=dtype, seed=3), values(5, 300, dtype=dtype, seed=5)
    if name == "liger" and weight is None:
        with pytest.raises(NotImplementedError, match="always has a weight"):
            function(x, residual, weight, EPS, **keywords)
        return
    y, total = function(x, residual, weight, EPS, **keywords)
    inputs = (x, residual) if weight is None else (x, residual, weight)
    grads = torch.autograd.grad((y, total), inputs, (dy, dsum))

    wide = x.detach().double() + residual.detach().double()
    used = wide if name == "quack" else wide.to(dtype).double()
    rstd = (used.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    factor = 1.0 if weight is None else weight.detach().double() + offset
    m, n = dy.double() * factor, wide.to(dtype).double() * rstd
    dx = rstd * (m - n * (m * n).mean(-1, keepdim=True)) + dsum.double()
    wanted = (used * rstd * factor, wide, dx, dx, (dy.double() * n).sum(0))
    assert y.dtype == total.dtype == dtype
    assert torch.equal(total, wide.to(dtype))  # one rounding leaves no choice
    assert torch.equal(grads[0], grads[1])
    for got, want in zip((y, total, *grads), wanted):
        assert ((got.double() - want).norm() / want.norm()).item() <= TOLERANCE[dtype]


@pytest.fixture
def fake_peer(monkeypatch):
    """A package that is not here, of one module with one name."""

    def install(module: str, **names):
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for name, value in names.items():
            setattr(sys.modules[module], name, value)

    return install


class QuackLike(torch.autograd.Function):
    """y = x + residual or x, and the sum: what matters here is who is called with what."""

    @staticmethod
    def forward(ctx, x, residual):
        return (x * 1, x + residual) if residual is not None else x * 1

    @staticmethod
    def backward(ctx, *upstream):
        return upstream[0], upstream[-1]


def test_quack_is_called_as_it_wants(fake_peer):
    calls = []

    def rmsnorm(x, weight=None, bias=None, residual=None, **keywords):
        calls.append((x, weight, bias, residual, keywords))
        return QuackLike.apply(x, residual)

    fake_peer("quack.rmsnorm", rmsnorm=rmsnorm)
    plain, fused = loaded("quack", "rms_norm"), loaded("quack", "fused_add_rms_norm")
    x, residual, weight = values(2, 8, dtype=torch.bfloat16, seed=1), values(2, 8, dtype=torch.bfloat16, seed=2), None
    plain(x, weight, EPS, offset=1.0)  # without a weight an offset plays no part, and it asserts that there is none
    assert calls.pop() == (x, None, None, None, {"eps": EPS, "weight_offset": 0.0})
    weight = torch.ones(8)
    _, total = fused(x, residual, weight, EPS, offset=1.0)
    got = calls.pop()
    assert got[0] is x and got[1] is weight and got[3] is residual
    assert got[4] == {"eps": EPS, "prenorm": True, "weight_offset": 1.0}
    assert torch.equal(total, x + residual)


def test_quack_refuses_what_it_cannot_do(fake_peer):
    fake_peer("quack.rmsnorm", rmsnorm=lambda x, weight=None, residual=None, **_: QuackLike.apply(x, residual))
    plain, fused = loaded("quack", "rms_norm"), loaded("quack", "fused_add_rms_norm")
    for dtype in (torch.float16, torch.bfloat16):
        odd = values(2, 7, dtype=dtype, seed=1)
        for call in (lambda x: plain(x, None, EPS), lambda x: fused(x, x, None, EPS)):
            with pytest.raises(NotImplementedError, match="4 bytes at a time, but a row has 7 elements of 2 bytes"):
                call(odd)
    assert plain(values(2, 7, dtype=torch.float32, seed=1), None, EPS).shape == (2, 7)
    for hidden, refused in ((131072, False), (131073, True)):
        x = values(1, hidden, dtype=torch.float32, seed=1).requires_grad_()
        y, total = fused(x, x.detach().clone(), None, EPS)  # its forward takes them
        if refused:
            with pytest.raises(NotImplementedError, match="rows of at most 131072 elements, but hidden is 131073"):
                torch.autograd.grad((y, total), x, (x.detach(), x.detach()))
        else:
            torch.autograd.grad((y, total), x, (x.detach(), x.detach()))
        with torch.no_grad():
            plain(x, None, EPS)


def test_liger_is_called_out_of_place(fake_peer):
    calls = []

    class Recorder:
        @staticmethod
        def apply(*arguments):
            calls.append(arguments)

    fake_peer("liger_kernel.ops", LigerRMSNormFunction=Recorder, LigerFusedAddRMSNormFunction=Recorder)
    plain, fused = loaded("liger", "rms_norm"), loaded("liger", "fused_add_rms_norm")
    x, weight = torch.ones(2, 8), torch.ones(8)
    plain(x, weight, EPS, offset=1.0, casting="gemma")
    fused(x, x, weight, EPS, offset=1.0, casting="gemma")
    assert calls == [(x, weight, EPS, 1.0, "gemma", False), (x, x, weight, EPS, 1.0, "gemma", False)]
    for call in (lambda w: plain(w, None, EPS), lambda w: fused(w, w, weight, EPS)):
        with pytest.raises(NotImplementedError, match="one block of at most 65536 elements, but hidden is 65537"):
            call(torch.ones(1, 65537))


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


@pytest.mark.parametrize("group", [0, 128])
@pytest.mark.parametrize(("quantized", "largest"), [("int8", 127), ("float8_e4m3fn", 448)])
def test_the_quantizing_norm_follows_its_definition(quantized, largest, group):
    function = loaded("torch", "rms_norm_quantize")
    x, weight = values(6, 256, dtype=torch.bfloat16, seed=1), values(256, dtype=torch.float32, seed=2)
    x[2] = 0
    q, scale = function(x, weight, None, None, EPS, quantized=quantized, group=group)
    groups = 256 // (group or 256)
    assert q.dtype == getattr(torch, quantized) and q.shape == (6, 256)
    assert scale.dtype == torch.float32 and scale.shape == (6, groups)
    q = q.float().unflatten(-1, (groups, -1))
    wide = x.double()
    y = wide * (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    y = y.unflatten(-1, (groups, -1))
    torch.testing.assert_close(scale.double(), y.abs().amax(-1) / largest, rtol=1e-6, atol=0)
    assert not scale[2].any() and not q[2].any()
    others = [i for i in range(6) if i != 2]
    assert (q[others].abs().amax(-1) == largest).all()
    half_a_step = 0.5 if quantized == "int8" else 16  # of the largest values, which are 32 apart
    assert ((q * scale.unsqueeze(-1)).double() - y)[others].abs().max() <= 1.001 * half_a_step * scale.max()


def test_compile_forgets_a_shape_before_the_next(monkeypatch):
    """Dynamo's limit of 8 variants would leave the rest of a matrix eager, without a word."""
    from types import SimpleNamespace

    from farm.providers import torch_compile

    log: list[str] = []
    asked: list[object] = []
    inductor = SimpleNamespace(emulate_precision_casts=False)
    monkeypatch.setattr(torch_compile, "_configure", lambda: log.append("configure") or inductor)
    monkeypatch.setattr(torch, "_dynamo", SimpleNamespace(reset=lambda: log.append("reset")), raising=False)
    monkeypatch.setattr(
        torch, "compile", lambda f, dynamic, options: (log.append("compile"), asked.append(options), f)[-1]
    )
    norm = torch_compile.load("rms_norm")
    x, weight = values(2, 8, dtype=torch.float32, seed=1), torch.ones(8)
    assert norm(x, weight, EPS, offset=1.0).shape == (2, 8)
    norm(x.clone(), weight, EPS, offset=1.0)
    assert log == ["configure", "reset", "compile"]
    norm(x.requires_grad_(), weight, EPS, offset=1.0)
    norm(values(3, 8, dtype=torch.float32, seed=1), weight, EPS)
    assert log.count("compile") == log.count("reset") == 3
    assert asked == [None] * 3
    fused = torch_compile.load("fused_add_rms_norm")
    _, total = fused(x.detach(), x.detach(), weight, EPS)
    assert torch.equal(total, 2 * x.detach())
    assert asked.pop() == {"emulate_precision_casts": True}  # else which sum y is of depends on the shape
    del inductor.emulate_precision_casts  # an older torch
    torch_compile.load("fused_add_rms_norm")(x.detach(), x.detach(), weight, EPS)
    assert asked.pop() is None


def test_liger_leaves_the_upstream_gradient_alone():
    function = loaded("liger", "rms_norm")
    x, dy = values(4, 64, dtype=torch.float32, seed=1).requires_grad_(), values(4, 64, dtype=torch.float32, seed=2)
    kept = dy.clone()
    torch.autograd.grad(function(x, torch.ones(64), EPS), x, dy)
    assert torch.equal(dy, kept)


class LigerLike(torch.autograd.Function):
    """Notes what it is called with, and overwrites its first input, as Liger's functions do."""

    calls: list[tuple[int, torch.Size, tuple[object, ...]]] = []

    @staticmethod
    def forward(ctx, first, *rest):
        LigerLike.calls.append((first.data_ptr(), first.shape, rest))
        first.zero_()
        second = rest[0] if rest and isinstance(rest[0], torch.Tensor) else None
        return first.sum(-1) * 1 if len(rest) > 3 else first * 1, second


def test_liger_is_called_as_it_wants_and_overwrites_only_copies(fake_peer):
    names = ("CrossEntropy", "SiLUMul", "Rope")
    fake_peer("liger_kernel.ops", **{f"Liger{name}Function": LigerLike for name in names})
    x, target = values(3, 8, dtype=torch.float32, seed=1), torch.tensor([0, 1, -100])
    loaded("liger", "cross_entropy")(x, target, ignore=-7, smoothing=0.25)
    where, shape, rest = LigerLike.calls.pop()
    assert where != x.data_ptr() and shape == x.shape and rest == (target, None, -7, 0.0, 0.25, "none")
    loaded("liger", "swiglu")(x, x)
    where, _, (up,) = LigerLike.calls.pop()
    assert x.data_ptr() not in (where, up.data_ptr())
    heads, angles = values(2, 3, 5, 8, dtype=torch.float32, seed=2), values(5, 4, dtype=torch.float32, seed=3)
    turned = loaded("liger", "rope")(heads, angles, 2 * angles)
    where, shape, (keys, cos, sin) = LigerLike.calls.pop()
    assert where != heads.data_ptr() and shape == heads.shape == turned.shape and keys.shape == (2, 1, 5, 8)
    assert torch.equal(cos[0], torch.cat((angles, angles), -1)) and torch.equal(sin, 2 * cos)
    assert not torch.any(x == 0) and not torch.any(heads == 0)


@pytest.mark.parametrize("name, op", [("layer_norm", "LayerNorm"), ("rms_norm", "RMSNorm"), ("swiglu", "SiLUMul")])
def test_liger_refuses_rows_wider_than_its_block(fake_peer, name, op):
    fake_peer("liger_kernel.ops", **{f"Liger{op}Function": LigerLike})
    wide = torch.zeros(1, 65537)
    with pytest.raises(NotImplementedError, match="at most 65536 elements, but hidden is 65537"):
        loaded("liger", name)(*(wide, wide) if name == "swiglu" else (wide, wide, wide))
