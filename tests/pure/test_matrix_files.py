"""The matrices of this repository, and the schema that editors get."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from matrix_fakes import BASE, WORLD, load_text

from farm.contracts.discovery import contract
from farm.matrix import json_schema, load_all, plan

MATRICES = Path(__file__).resolve().parents[2] / "matrices"
FILES = sorted(MATRICES.glob("*.yaml"))


def test_there_are_matrices() -> None:
    norms = {"rms_norm", "fused_add_rms_norm", "rms_norm_quantize"}
    tables = {"rms_norm_modes", "rms_norm_qwen3", "rms_norm_float32_wide", "fused_add_rms_norm_float32"}
    assert {"smoke", "matmul", *norms, *tables} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
@pytest.mark.parametrize("backend", ["cpu", "cuda", "ascend", "sim"])
def test_every_matrix_loads_and_plans(path: Path, backend: str) -> None:
    found = plan(load_all(path), [backend])
    assert found.cells
    for cell in found.cells:  # a contract can say what each cell's tensors are
        assert contract(cell.op).tensors(cell)


def test_names_are_unique_over_all_matrices() -> None:
    names = [m.name for path in FILES for m in load_all(path)]
    assert len(names) == len(set(names))


def test_smoke_is_light_and_has_everything() -> None:
    found = plan(load_all(MATRICES / "smoke.yaml"), ["cpu"])
    assert 90 <= len(found.cells) <= 150
    assert {c.op for c in found.cells} == {"rms_norm", "fused_add_rms_norm", "matmul", "rms_norm_quantize"}
    assert {c.provider for c in found.cells} == {"farm", "torch", "huggingface"}
    assert {c.operation for c in found.cells} == {"forward", "backward", "no-grad-forward"}
    assert {c.mode for c in found.cells if c.provider == "farm"} == MODES
    assert {c.dtype for c in found.cells} == {"float32", "float16", "bfloat16"}
    assert 0 < found.backends["cpu"].skipped < 20
    assert found.backends["cpu"].seconds < 30


PROVIDERS = {"farm", "torch", "torch_compile", "liger", "quack", "huggingface"}
MODES = {"auto", "static_persistent", "multi_wave_reload", "multi_wave_cached", "row_packed", "column_tiled"}


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
def test_both_norms_hold_the_shapes_of_four_pull_requests(op: str) -> None:
    found = plan(load_all(MATRICES / f"{op}.yaml"), ["cuda"])
    assert 500 <= len(found.cells) <= 800 and {c.op for c in found.cells} == {op}
    assert {p for p in PROVIDERS if sum(c.provider == p for c in found.cells) > 20} == PROVIDERS
    assert {c.mode for c in found.cells if c.provider == "farm"} == MODES
    assert {c.dtype for c in found.cells} == {"float32", "float16", "bfloat16"}
    tags = {part for c in found.cells for part in c.tag.split("+")}
    assert tags == {"tilegym-113", "te-rocm-615", "liger-1100", "liger-1153"}
    shapes = {c.shape for c in found.cells}
    assert {f"4096x{1024 << i}" for i in range(6)} | {f"2048x{512 << i}" for i in range(3)} <= shapes
    assert {"32768x128", "32767x128", "8192x4096"} <= shapes
    on_ascend = plan(load_all(MATRICES / f"{op}.yaml"), ["ascend"]).cells
    assert {c.mode for c in on_ascend if c.provider == "farm"} == {"auto", "row_packed", "column_tiled"}
    assert {c.shape for c in on_ascend} == shapes


#: File -> op, shapes, dtypes, operations: what the four pull requests show tables of.
TABLES = {
    "rms_norm_modes": ("rms_norm", {f"4096x{1024 << i}" for i in range(5)}, {"float16", "bfloat16"}, {"forward"}),
    "rms_norm_qwen3": ("rms_norm", {"32768x128", "8192x4096"}, {"bfloat16"}, {"forward", "backward"}),
    "rms_norm_float32_wide": (
        "rms_norm",
        {f"4096x{4096 << i}" for i in range(4)},
        {"float32"},
        {"forward", "backward", "full"},
    ),
    "fused_add_rms_norm_float32": (
        "fused_add_rms_norm",
        {f"2048x{512 << i}" for i in range(3)},
        {"float32"},
        {"forward", "backward", "full"},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_a_pull_request_is_whole(name: str) -> None:
    op, shapes, dtypes, operations = TABLES[name]
    first = load_all(MATRICES / f"{name}.yaml")[0].name
    cells = [c for c in plan(load_all(MATRICES / f"{name}.yaml"), ["cuda"]).cells if c.matrix == first]
    timed = {(c.provider, c.mode, c.shape, c.dtype, c.operation) for c in cells if c.timing.method != "none"}
    providers = {c.provider for c in cells}
    assert {"farm", "torch"} <= providers and {c.op for c in cells} == {op}
    assert ("liger" in providers) == (name != "rms_norm_modes")
    wanted = {(p, "auto", s, d, o) for p in providers for s in shapes for d in dtypes for o in operations}
    assert wanted <= timed
    modes = {m for p, m, *_ in timed if p == "farm"}
    assert len(modes) >= 4


def test_the_odd_neighbours_of_packing_are_there() -> None:
    shapes = {c.shape for c in plan(load_all(MATRICES / "rms_norm_qwen3.yaml"), ["cuda"]).cells}
    assert {"32767x128", "32769x128", "32768x127", "32768x129"} <= shapes


def test_the_modes_are_timed_cold_and_warm() -> None:
    cells = plan(load_all(MATRICES / "rms_norm_modes.yaml"), ["cuda"]).cells
    assert {(c.timing.method, c.timing.cache) for c in cells} == {
        ("rotating_graph", "cold"),
        ("rotating_graph", "warm"),
    }


# Schema


@functools.cache
def validator(fakes: bool) -> jsonschema.Draft202012Validator:
    """Of the farm's own ops and providers, or of those of `matrix_fakes`."""
    schema = json_schema(**(KNOWN if fakes else {}))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def errors(document: Any, fakes: bool = False) -> list[str]:
    return [e.message for e in validator(fakes).iter_errors(document)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_matrix_fits_the_schema(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        assert errors(document) == []


def document(**change: Any) -> dict[str, Any]:
    return {**yaml.safe_load(BASE), **change}


WRONG = [
    {"exclud": []},
    {"op": "nrom"},
    {"name": "a b"},
    {"axes": {"shape": []}},
    {"axes": {"shape": [{"rows": -1, "hidden": 1}]}},
    {"axes": {"shape": [{"rows": 1}]}},
    {"axes": {"shape": [{"rows": 1, "hidden": 1, "hiden": 1}]}},
    {"axes": {"shape": [{"rows": 1, "hidden": 1}], "dtype": ["bf61"]}},
    {"axes": {"shape": [{"rows": 1, "hidden": 1}], "weight": 1}},
    {"axes": {"shape": [{"rows": 1, "hidden": 1}], "variant": [{"ofset": 1.0}]}},
    {"backends": {"cdua": {"dtype": "fp16"}}},
    {"backends": {"cuda": {"dtype": "bf61"}}},
    {"exclude": [{"provider": "torch"}]},
    {"timing": {"method": "guess"}},
    {"timing": [{"min_samples": 0}]},
    {"require": ["gpu"]},
    {"deadlines": {"spawn": 0}},
    {"providers": {"farm": {"modes": ["auto"]}}},
    {"tolerances": [{"output": "y", "metric": "rel_l2", "limit": 1}]},
]
KNOWN = {key: WORLD[key] for key in ("contracts", "ops", "registry", "backends")}


@pytest.mark.parametrize("change", WRONG, ids=repr)
def test_the_schema_refuses_what_the_loader_refuses(tmp_path: Path, change: dict[str, Any]) -> None:
    assert errors(document(**change), fakes=True)
    with pytest.raises(Exception, match=r"m\.yaml:"):
        load_text(tmp_path, yaml.safe_dump(document(**change)))


RIGHT = [
    {"timing": [{"method": "events", "cache": "warm"}, {"method": "host"}]},
    {"backends": {"ascend": {"dtype": ["float32"], "providers": {"farm": {"mode": ["auto"]}}}}},
    {"providers": {"torch": {}, "farm": {"mode": "auto"}}},
    {"axes": {"shape": [{"rows": [1, 2], "hidden": 1, "tag": "t"}], "dtype": [{"x": "bf16", "weight": "fp32"}]}},
    {"exclude": [{"hidden": "<=64", "provider": ["torch"], "reason": "why"}]},
    {
        "sim": {
            "default": {"time_us": 10, "telemetry": {"power_w": 7, "throttle": ["thermal"], "xid": [79]}},
            "rules": [
                {"when": {"hidden": ">64", "dtype": ["bf16"]}, "hang": "timing", "lie": True},
                {"status": "out_of_memory", "until_attempt": 2, "cold": True, "reason": "r"},
            ],
        },
        "require": ["sim"],
        "deadlines": {"timing": 5},
    },
]


@pytest.mark.parametrize("change", RIGHT, ids=repr)
def test_the_schema_takes_what_the_loader_takes(tmp_path: Path, change: dict[str, Any]) -> None:
    assert errors(document(**change), fakes=True) == []
    assert load_text(tmp_path, yaml.safe_dump(document(**change)))


def test_every_key_is_explained() -> None:
    assert all(key["description"] for key in json_schema(**KNOWN)["properties"].values())
