"""The matrix that must accuse nobody covers what it says: every provider, family and dtype, three seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.contracts.discovery import contract, known_ops
from farm.matrix import builtin_providers, load_all

FILE = Path(__file__).resolve().parents[2] / "matrices" / "no_false_accusation.yaml"
LAYOUTS = {m.op: m for m in load_all(FILE) if m.name.endswith("-layouts")}
MATRICES = {m.op: m for m in load_all(FILE) if m not in LAYOUTS.values()}


def test_every_op_is_in_it() -> None:
    assert set(MATRICES) == set(LAYOUTS) == set(known_ops())


@pytest.mark.parametrize("op", list(LAYOUTS))
def test_every_tensor_that_may_have_a_layout_has_one(op: str) -> None:
    view, c = LAYOUTS[op].view("cuda"), contract(op)
    assert view is not None and {t for layout in view.layouts for t in layout} == set(c.layouts)
    used = {name for layout in view.layouts for name in layout.values()}
    assert len(used) >= 4 and (op != "rms_norm" or used == set(c.layouts["x"]))
    if "weight" in c.typed:
        assert any(d["x"] != d["weight"] for d in view.dtypes)


@pytest.mark.parametrize("op", list(MATRICES))
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_family_dtype_operation_and_three_seeds(op: str, backend: str) -> None:
    view, c = MATRICES[op].view(backend), contract(op)
    assert view is not None and set(view.families) == set(c.families) and len(view.seeds) >= 3
    assert {next(iter(d.values())) for d in view.dtypes} == set(c.dtypes)
    wanted = {"forward", "backward"} & set(c.operations)
    if op == "rms_norm_quantize":  # has no gradient, and ours refuses inputs that ask for one
        wanted = {"no-grad-forward"}
    assert set(view.operations) == wanted
    castings = next((p.allowed for p in c.parameters if p.name == "casting"), None)
    assert castings is None or {p["casting"] for p in view.params} == set(castings)
    assert [t.method for t in view.timings_on(backend)] == ["none"]


@pytest.mark.parametrize("op", list(MATRICES))
def test_every_provider_that_has_the_op_is_in_it(op: str) -> None:
    from importlib import import_module

    able = {n for n in builtin_providers() if op in import_module(f"farm.providers.{n}").OPS}
    able -= {"aiter", "torch_npu"}  # peers of one vendor, which these backends never have
    view = MATRICES[op].view("cuda")
    assert view is not None and {p.name for p in view.providers} == able
    cpu = MATRICES[op].view("cpu")
    of_gpus = {"flashinfer", "vllm", "apex", "transformer_engine", "tilegym"}
    assert cpu is not None and {p.name for p in cpu.providers} == able - {"torch_compile"} - of_gpus
