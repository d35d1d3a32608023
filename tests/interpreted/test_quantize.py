"""rms_norm_quantize: each kernel of both families judged by its contract, the bits of each format, and its use."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import library

from farm.accuracy import evaluate
from farm.cell import Cell
from farm.contracts.discovery import contract
from farm.providers.torch import rms_norm_quantize as plain
from kernels import launches, rms_norm_quantize
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.choice import MODES
from kernels.ops.rms_norm_quantize import formats, function, operators
from kernels.ops.rms_norm_quantize.ascend import launch as ascend
from kernels.ops.rms_norm_quantize.gpu import kernels
from tests.interpreted.judged import storage, tensor

OP = "rms_norm_quantize"
FORMATS = tuple(formats.FORMATS)
#: group, residual, static
SCHEMES = [
    (0, False, False),
    (128, False, False),
    (0, False, True),
    (0, True, False),
    (128, True, False),
    (0, True, True),
]


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def bits(made: torch.Tensor) -> torch.Tensor:
    return made.view(torch.uint8) if made.is_floating_point() and made.dtype.itemsize == 1 else made


def judged(cell: Cell) -> str:
    """The reason for which the judge refuses what our function makes of a cell's inputs; "" if it does not."""
    op = contract(OP)
    stored = evaluate.fill_inputs(cell, op)
    dtypes = {t.name: t.dtype for t in op.tensors(cell)}
    given = {name: tensor(a, dtypes[name]) for name, a in stored.items()}
    found = rms_norm_quantize(
        given["x"],
        given["weight"],
        given.get("residual"),
        given.get("static_scale"),
        cell.params["eps"],
        quantized=cell.params["quantized"],
        group=cell.params["group"],
        mode=cell.mode,
    )
    names = [t.name for t in op.tensors(cell) if t.role == "output"]
    made = (found,) if isinstance(found, torch.Tensor) else found
    outputs = {n: storage(bits(t)) for n, t in zip(names, made, strict=True)}
    judgement = evaluate.evaluate(cell, op, outputs, stored)
    return "" if judgement.ok else f"{cell}: {judgement.reason}"


def quantized_cell(rows, hidden, scheme, *, to="int8", dtype="bfloat16", mode="auto", family="mixed", seed=0) -> Cell:
    group, residual, static = scheme
    params = {p.name: p.default for p in contract(OP).parameters}
    params |= {"quantized": to, "group": group, "residual": residual, "static": static}
    dtypes = {"x": dtype, "weight": "float32" if seed % 2 else dtype}
    dims = {"rows": rows, "hidden": hidden}
    return Cell("cpu", OP, "farm", mode, "no-grad-forward", dtypes, dims, params, family=family, seed=seed)


def launched() -> set[str]:
    return {r["kernel"] for r in launches.drain()}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("to", FORMATS)
def test_every_kernel_gives_what_the_contract_says(scheme, to):
    launches.enable()
    shapes = [(6, 640, mode) for mode in MODES] + [(1, 16512, "auto"), (2, 33024, "multi_wave_reload")]
    if to != "int8":
        shapes = shapes[:1]
    for rows, hidden, mode in shapes:
        assert not judged(quantized_cell(rows, hidden, scheme, to=to, mode=mode))
    found = launched()
    assert found == {"quantize_rows"} if to != "int8" else len(found) == 5


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 300) | st.sampled_from([384, 640, 1024]),
    st.sampled_from(SCHEMES),
    st.sampled_from(FORMATS),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.sampled_from(MODES),
    st.sampled_from(contract(OP).families),
    st.integers(0, 9),
)
def test_random_cells_pass_the_judge(rows, hidden, scheme, to, dtype, mode, family, seed):
    if scheme[0] and hidden % 128:
        hidden = 128 * (1 + hidden % 3)
    assert not judged(quantized_cell(rows, hidden, scheme, to=to, dtype=dtype, mode=mode, family=family, seed=seed))


@triton.jit
def _store_bits(V, Q, N: tl.constexpr, CODE: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Q + at, kernels._stored(tl.load(V + at), CODE))


@pytest.mark.parametrize("to", FORMATS)
def test_bits_are_those_of_torchs_own_cast(to):
    """Every bfloat16 in range, and each midpoint of neighbours and its float32 neighbours."""
    low, high = formats.FORMATS[to].lowest, formats.FORMATS[to].largest
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()
    every = every[every.isfinite() & (every >= low) & (every <= high)]
    if to == "int8":
        whole = torch.arange(-128, 128).float()
    else:
        whole = torch.arange(256, dtype=torch.uint8).view(getattr(torch, to)).float()
        whole = whole[whole.isfinite()].sort().values
    middle = (whole[1:] + whole[:-1]) / 2
    near = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-1e9, 1e9)]
    v = torch.cat([every, whole, middle, *near])
    wanted = v.round().to(torch.int8) if to == "int8" else v.to(getattr(torch, to))
    size = triton.next_power_of_2(len(v))
    padded = torch.zeros(size)
    padded[: len(v)] = v
    q = torch.empty(size, dtype=torch.int8 if to == "int8" else torch.uint8)
    _store_bits[(1,)](padded, q, size, formats.FORMATS[to].code)
    assert torch.equal(q[: len(v)], bits(wanted))


@pytest.mark.parametrize("to", FORMATS)
def test_a_row_that_is_not_finite_or_zero_is_as_defined(to):
    x, w = values(6, 256), values(256, seed=1)
    x[1], x[2, 5], x[3, 200] = 0, float("nan"), float("inf")
    x[4] *= 1e-30  # 1/rms is that of eps, and max|t| times 2^64 keeps its digits
    for group in (0, 128):
        q, scale = rms_norm_quantize(x, w, quantized=to, group=group)
        right, s = plain(x, w, quantized=to, group=group)
        torch.testing.assert_close(scale, s, equal_nan=True, rtol=1e-5, atol=0)
        assert not q[1:4].float().any() and not right[1:4].float().any() and not scale[1].any()
        assert scale[2].isnan().all() and q[4].float().abs().max() == formats.FORMATS[to].largest
    given = torch.tensor([1e-3])
    q, right = (f(x, w, None, given, quantized=to) for f in (rms_norm_quantize, plain))
    torch.testing.assert_close(q.float(), right.float(), equal_nan=True, rtol=0, atol=0)
    ends = q[0].float()
    assert (ends.min(), ends.max()) == (formats.FORMATS[to].lowest, formats.FORMATS[to].largest)
    assert not q[2].float().nan_to_num().any() and bool(q[2].float().isnan().all()) == (to != "int8")


def test_rows_far_apart_more_dimensions_and_no_rows():
    wide = values(4, 3, 400, dtype=torch.bfloat16)
    x, residual = wide[..., :256], wide[..., 100:356]
    for group in (0, 128):
        found = rms_norm_quantize(x, None, residual, group=group)
        dense = rms_norm_quantize(x.reshape(12, 256).contiguous(), None, residual.reshape(12, 256), group=group)
        assert [t.shape for t in found] == [(4, 3, 256), (4, 3, 256 // (group or 256)), (4, 3, 256)]
        assert all(torch.equal(a.reshape(b.shape), b) for a, b in zip(found, dense, strict=True))
    q, scale = rms_norm_quantize(x[:0], None)
    assert q.shape == (0, 3, 256) and scale.shape == (0, 3, 1)


@pytest.mark.parametrize("scheme", [(128, True, False), (0, False, True)])
def test_compiled_and_fake_calls_are_the_eager_one(scheme):
    group, residual, static = scheme

    def use(x, w):
        given = torch.full((1,), 0.01) if static else None
        return rms_norm_quantize(x, w, x if residual else None, given, group=group)

    torch._dynamo.reset()
    x, w = values(2, 3, 128), values(128, seed=1)
    wanted = use(x, w)
    found = torch.compile(use, fullgraph=True, backend="aot_eager")(x, w)
    with torch._subclasses.FakeTensorMode():
        fake = use(torch.empty(2, 3, 128), torch.empty(128))
    for a, b, c in zip(*(t if isinstance(t, tuple) else (t,) for t in (wanted, found, fake)), strict=True):
        assert torch.equal(a, b) and (a.shape, a.dtype) == (c.shape, c.dtype)


def test_the_operator_is_what_torch_expects_of_one():
    args = values(2, 3, 128), values(128, seed=1), None, None, 1e-6, "int8", 128, "auto"
    library.opcheck(operators._quantize, args, test_utils=("test_schema", "test_faketensor"))


X = torch.ones(2, 256)
SCALE = torch.ones(1)


@pytest.mark.parametrize(
    "kind, sentence, arguments",
    [
        (TypeError, "quantises to int8, float8_e4m3fn, float8_e4m3fnuz; got uint8", {"quantized": torch.uint8}),
        (ValueError, "a scale per row .group=0. or per 128 columns .group=128.; got group=64", {"group": 64}),
        (ValueError, "needs whole groups of 128 columns; hidden is 200", {"x": X[:, :200].contiguous(), "group": 128}),
        (ValueError, "has one scale where static_scale gives it; got group=128", {"group": 128, "static_scale": SCALE}),
        (ValueError, "static_scale of one float32 element on cpu; got torch.float16", {"static_scale": SCALE.half()}),
        (ValueError, "x and residual of one shape, dtype and device", {"residual": X[:1]}),
        (ValueError, "weight of shape .256., or None", {"weight": X[0, :3]}),
        (TypeError, "takes x of float32, float16 or bfloat16; got torch.float64", {"x": X.double()}),
        (NotImplementedError, "has no backward; call it under torch.no_gr", {"weight": X[0].clone().requires_grad_()}),
        (NotImplementedError, "mode row_packed of rms_norm_quantize", {"x": torch.ones(1, 9000), "mode": "row_packed"}),
        (ValueError, "has no mode 'fast'", {"mode": "fast"}),
    ],
)
def test_what_it_cannot_do_is_one_sentence(kind, sentence, arguments):
    with pytest.raises(kind, match=sentence):
        rms_norm_quantize(**{"x": X, "weight": None, **arguments})
    assert rms_norm_quantize(X, None)[0].shape == X.shape


def test_what_requires_grad_is_taken_where_grad_is_off_and_other_devices_are_asked(monkeypatch):
    x = X.clone().requires_grad_()
    with torch.no_grad():
        rms_norm_quantize(x, None)
    monkeypatch.setattr(dispatch, "machine", lambda device=None: ("cuda:90", 132))
    with pytest.raises(ValueError, match="needs tensors on a device of cuda:90; x is on the CPU"):
        rms_norm_quantize(X, None)
    monkeypatch.setattr(dispatch, "machine", lambda device=None: ("npu:Ascend910B3", 48))
    with pytest.raises(NotImplementedError, match="writes int8 alone on Ascend"):
        function.check(torch.empty(2, 256, device="meta"), "float8_e4m3fn", "auto")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows, hidden", [(19, 256), (3, 16512)])
def test_ascends_kernels_give_what_the_contract_says(rows, hidden, scheme, monkeypatch):
    """In the interpreter, on four cores."""

    def choose(target, rows, hidden, dtype, *, cores, mode, group):
        return ascend.choose("npu:Ascend910B3", rows, hidden, dtype, cores=cores, mode=mode, group=group)

    monkeypatch.setattr(function, "choose", choose)
    monkeypatch.setattr(function, "import_module", lambda *path: ascend)
    launches.enable()
    for mode, family in [("auto", "mixed"), ("column_tiled", "inf")] if hidden < 8192 else [("auto", "mixed")]:
        assert not judged(quantized_cell(rows, hidden, scheme, mode=mode, family=family, dtype="float16"))
    assert launched() <= {"quantize_rows", "quantize_columns"}
