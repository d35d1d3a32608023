"""Providers: what a matrix reads of them, without torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import farm.providers

FOLDER = Path(farm.providers.__file__).parent
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__")
HEAVY = ("torch", "triton", "numpy", "liger_kernel", "quack", "cutlass", "transformers", "kernels")
HEAVY += ("flashinfer", "vllm", "apex", "tilegym", "transformer_engine", "transformer_engine_torch", "aiter")


def test_the_six_of_this_version_are_there():
    assert {"farm", "torch", "torch_compile", "huggingface", "liger", "quack"} <= set(NAMES)


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
def test_all_of_them_have_both_norms(op):
    assert [n for n in NAMES if op not in importlib.import_module(f"farm.providers.{n}").OPS] == []


@pytest.mark.parametrize("name", NAMES)
def test_its_constants_say_what_it_is(name):
    module = importlib.import_module(f"farm.providers.{name}")
    assert name == module.NAME
    assert module.ROLE in ("subject", "peer")
    assert module.MODES and all(isinstance(m, str) for m in module.MODES) and "auto" in module.MODES
    assert module.OPS and len(set(module.OPS)) == len(module.OPS)
    assert module.DISTRIBUTION is None or isinstance(module.DISTRIBUTION, str)
    assert callable(module.load)
    assert "ounding" in module.__doc__ or "round" in module.__doc__ or module.ROLE == "subject"


def test_only_ours_is_a_subject():
    roles = {name: importlib.import_module(f"farm.providers.{name}").ROLE for name in NAMES}
    assert [name for name, role in roles.items() if role == "subject"] == ["farm"]


def test_our_modes_are_the_kernels_modes():
    from farm.providers import farm as ours
    from kernels.ops.rms_norm import dispatch

    assert ours.MODES == dispatch.MODES


@pytest.mark.parametrize("name", NAMES)
def test_its_ops_exist(name):
    from farm.contracts.discovery import known_ops

    assert set(importlib.import_module(f"farm.providers.{name}").OPS) <= set(known_ops())


@pytest.mark.parametrize("name", NAMES)
def test_it_declares_only_what_its_ops_ask_for(name):
    from farm.contracts.discovery import contract

    module = importlib.import_module(f"farm.providers.{name}")
    for op, declared in getattr(module, "DECLARES", {}).items():
        assert op in module.OPS
        asked = {p.name: p.allowed for p in contract(op).parameters if p.declared}
        for parameter, value in declared.items():
            assert value in asked[parameter]


def test_peers_that_norm_the_unrounded_sum_are_planned_so():
    from farm.matrix.registry import builtin_providers

    declared = {name: info.declares for name, info in builtin_providers().items() if info.declares}
    assert {"quack", "aiter"} <= set(declared)
    assert all(of == {"sum": "unrounded"} for d in declared.values() for of in d.values())


def test_reading_them_all_imports_nothing_heavy():
    code = "import sys, importlib\n" + "".join(f"importlib.import_module('farm.providers.{name}')\n" for name in NAMES)
    code += f"print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(FOLDER.parents[1])},
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_its_source_imports_nothing_heavy_at_the_top(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {i.split(".")[0] for i in imported} & set(HEAVY)


@pytest.mark.parametrize("name", NAMES)
def test_an_op_that_it_lacks_is_refused_with_the_reason(name):
    with pytest.raises((NotImplementedError, ImportError), match=f"provider {name} has no sort|No module named"):
        importlib.import_module(f"farm.providers.{name}").load("sort")


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize(
    ("name", "package"),
    [("liger", "liger_kernel"), ("quack", "quack"), ("flashinfer", "flashinfer"), ("vllm", "vllm"),
     ("apex", "apex"), ("transformer_engine", "transformer_engine"), ("tilegym", "tilegym")],
)  # fmt: skip
def test_a_peer_that_is_missing_is_an_import_error(name, package, op):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    with pytest.raises((ImportError, NotImplementedError), match=rf"{package}|has no norm that adds|have no norm that"):
        importlib.import_module(f"farm.providers.{name}").load(op)


@pytest.mark.parametrize("name", NAMES)
def test_a_peers_settings_are_told_for_every_mode(name):
    module = importlib.import_module(f"farm.providers.{name}")
    told = getattr(module, "SETTINGS", {})
    assert set(told) <= set(module.MODES) and all(told.values())
    if module.ROLE == "peer":
        assert set(told) == set(module.MODES)
        assert farm.providers.settings(name, "auto") == told["auto"]
    assert farm.providers.settings(name, "no-such-mode") == farm.providers.settings("../x", "auto") == ""
    assert farm.providers.settings("nobody", "auto") == ""


class _Lent:
    """Modules that a test lends under the names of packages that are not installed."""

    def __init__(self, monkeypatch, **modules):
        for name, attributes in modules.items():
            module = types.ModuleType(name.replace("__", "."))
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def _expected(torch, x, weight, eps=1e-6):
    wide = x.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def test_adapters_that_copy_give_up_no_input(torch, monkeypatch):
    """FlashInfer's and vLLM's fused norms overwrite their inputs; as the farm calls them they get copies."""

    def overwriting(y, total, weight, eps):
        total += y
        y.copy_(_expected(torch, total, weight, eps))

    _Lent(monkeypatch, flashinfer={"norm": types.SimpleNamespace(fused_add_rmsnorm=overwriting)})
    _Lent(monkeypatch, vllm={"_custom_ops": types.SimpleNamespace(fused_add_rms_norm=overwriting)})
    monkeypatch.setattr(torch.ops, "_C", types.SimpleNamespace(fused_add_rms_norm=1), raising=False)
    x, residual, weight = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    before = x.clone(), residual.clone()
    for name in ("flashinfer", "vllm"):
        y, total = importlib.import_module(f"farm.providers.{name}").load("fused_add_rms_norm")(x, residual, weight)
        assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
        assert torch.equal(total, x + residual)
        torch.testing.assert_close(y.double(), _expected(torch, total, weight), rtol=1e-5, atol=1e-5)
        with pytest.raises(NotImplementedError, match="same dtype"):
            importlib.import_module(f"farm.providers.{name}").load("fused_add_rms_norm")(x, residual, weight.half())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("weighted", [True, False])
def test_quacks_tuned_entries_get_what_they_take(torch, monkeypatch, fused, weighted):
    """Stand-ins with the signatures of 0.6.5 compute by torch; forward and both gradients are then autograd's own."""

    def forward(x, weight, out, bias=None, rstd=None, mean=None, residual=None, residual_out=None, eps=1e-6,
                is_layernorm=False, per_head=False, weight_offset=0.0, config=None):  # fmt: skip
        total = x if residual is None else x + residual
        inverse = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
        out.copy_(total * inverse * (1 if weight is None else weight + weight_offset))
        if residual_out is not None:
            residual_out.copy_(total)
        if rstd is not None:
            rstd.copy_(inverse.squeeze(-1))

    def backward(x, weight, dout, rstd, dx, dw_partial=None, db_partial=None, dresidual_out=None, dresidual=None,
                 sm_count=None, per_head=False, has_dw_partial=False, has_db_partial=False, mean=None,
                 is_layernorm=False, weight_offset=0.0, config=None):  # fmt: skip
        assert has_dw_partial == (dw_partial is not None) and sm_count == 2
        scaled, unit = dout * (1 if weight is None else weight + weight_offset), x * rstd[:, None]
        dx.copy_((scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd[:, None])
        if dresidual_out is not None:
            dx.add_(dresidual_out)
        if dw_partial is not None:
            dw_partial.zero_()[0] = (dout * unit).sum(0)

    entries = {"rmsnorm": None, "rmsnorm_fwd_tuned": forward, "rmsnorm_bwd_tuned": backward}
    _Lent(monkeypatch, quack={}, quack__rmsnorm={**entries, "get_sm_count": lambda n, device: 2})
    from farm.providers import quack

    quack._tuned.cache_clear()
    x, residual = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 3, 8, requires_grad=True)
    weight = torch.randn(8, requires_grad=True) if weighted else None
    wrt = [t for t in (x, residual if fused else None, weight) if t is not None]
    offset = 1.0 if weighted else 0.0
    total = x + residual if fused else x
    y = torch.nn.functional.rms_norm(total, (8,), None if weight is None else weight + offset, 1e-6)
    wanted = [y, total] if fused else [y]
    if fused:
        got = list(quack.load("fused_add_rms_norm")(x, residual, weight, 1e-6, offset=offset, mode="tuned"))
    else:
        got = [quack.load("rms_norm")(x, weight, 1e-6, offset=offset, mode="tuned")]
    upstream = [torch.randn_like(t) for t in wanted]
    for found, want in zip(got, wanted):
        torch.testing.assert_close(found, want)
    for found, want in zip(torch.autograd.grad(got, wrt, upstream), torch.autograd.grad(wanted, wrt, upstream)):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    quack._tuned.cache_clear()


def test_transformer_engine_and_apex_get_what_they_take(torch, monkeypatch):
    def forward(x, weight, eps, out, quantizer, dtype, margin, centred):
        rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
        return x * rstd[:, None] * (weight + centred), None, rstd

    def backward(dy, x, rstd, weight, margin, centred):
        scaled, unit = dy * (weight + centred), x * rstd[:, None]
        return (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd[:, None], (dy * unit).sum(0)

    _Lent(monkeypatch, transformer_engine={}, transformer_engine__pytorch={}, fused_layer_norm_cuda={})
    _Lent(monkeypatch, transformer_engine__pytorch__constants={"TE_DType": {torch.float32: 0}})
    _Lent(monkeypatch, transformer_engine_torch={"rmsnorm_fwd": forward, "rmsnorm_bwd": backward})
    own = torch.nn.functional.rms_norm
    norms = {"fused_rms_norm": lambda x, shape, eps: own(x, shape, None, eps)}
    norms["fused_rms_norm_affine"] = lambda x, weight, shape, eps: own(x, shape, weight, eps)
    _Lent(monkeypatch, apex={}, apex__normalization={}, apex__normalization__fused_layer_norm=norms)
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    dy = torch.randn(2, 3, 8)
    for name, offset in (("transformer_engine", 1.0), ("transformer_engine", 0.0), ("apex", 0.0)):
        function = importlib.import_module(f"farm.providers.{name}").load("rms_norm")
        got, want = (
            function(x, weight, 1e-6, **({"offset": offset} if offset else {})),
            own(x, (8,), weight + offset, 1e-6),
        )
        torch.testing.assert_close(got, want)
        pairs = zip(torch.autograd.grad(got, (x, weight), dy), torch.autograd.grad(want, (x, weight), dy))
        for found, right in pairs:
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    for name in ("transformer_engine", "apex"):
        with pytest.raises(NotImplementedError, match=r"weight is torch\.float16"):
            importlib.import_module(f"farm.providers.{name}").load("rms_norm")(x, weight.half())


def test_tilegym_is_asked_for_one_backend_and_mode(torch, monkeypatch):
    seen = []
    monkeypatch.setenv("DISABLE_FALLBACK", "")
    ops = types.SimpleNamespace(rms_norm=lambda *a, **k: seen.append(k) or a[0])
    _Lent(monkeypatch, tilegym={"ops": ops})
    function = importlib.import_module("farm.providers.tilegym").load("rms_norm")
    x = torch.randn(2, 8)
    function(x, x[0]), function(x, x[0], offset=1.0, mode="static_persistent")
    assert seen == [
        {"mode": None, "backend": "cutile"},
        {"mode": "static_persistent", "backend": "cutile", "offset": 1.0},
    ]


def test_max_autotune_is_a_mode_whose_switches_inductor_knows(torch, monkeypatch):
    from farm.providers import torch_compile

    known = torch._inductor.list_mode_options("max-autotune-no-cudagraphs", dynamic=False)
    assert known == dict.fromkeys(torch_compile._MAX_AUTOTUNE, True)
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **k: asked.append(k["options"]) or f)
    norm = torch_compile.load("rms_norm")
    x, weight = torch.randn(2, 8), torch.randn(8)
    torch.testing.assert_close(norm(x, weight), norm(x, weight, mode="max-autotune"))
    torch_compile.load("fused_add_rms_norm")(x, x, weight, mode="max-autotune")
    assert asked[:2] == [None, known] and asked[2].items() >= known.items()


class _Missing(Exception):
    pass


def test_a_missing_tool_chain_is_found_anywhere_in_the_chain():
    from farm.providers.torch_compile import _missing_tool

    inner = _Missing("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')")
    outer = RuntimeError("backend='inductor' raised")
    outer.__cause__ = inner
    assert "No working C++ compiler" in str(_missing_tool(outer))
    assert _missing_tool(RuntimeError("wrong shape")) is None
