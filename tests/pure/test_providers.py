"""Providers: what a matrix reads of them, without torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import farm.providers

FOLDER = Path(farm.providers.__file__).parent
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__")
HEAVY = ("torch", "triton", "numpy", "liger_kernel", "quack", "cutlass", "transformers", "kernels")


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
    assert all(d == {"fused_add_rms_norm": {"sum": "unrounded"}} for d in declared.values())


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
@pytest.mark.parametrize(("name", "package"), [("liger", "liger_kernel"), ("quack", "quack")])
def test_a_peer_that_is_missing_is_an_import_error(name, package, op):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    with pytest.raises(ImportError, match=package):
        importlib.import_module(f"farm.providers.{name}").load(op)


class _Missing(Exception):
    pass


def test_a_missing_tool_chain_is_found_anywhere_in_the_chain():
    from farm.providers.torch_compile import _missing_tool

    inner = _Missing("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')")
    outer = RuntimeError("backend='inductor' raised")
    outer.__cause__ = inner
    assert "No working C++ compiler" in str(_missing_tool(outer))
    assert _missing_tool(RuntimeError("wrong shape")) is None
