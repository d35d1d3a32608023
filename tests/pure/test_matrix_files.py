"""The matrices of this repository, and the schema that editors get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from matrix_fakes import BASE, WORLD, load_text

from farm.matrix import json_schema, load_all, plan
from farm.ops import contract

MATRICES = Path(__file__).resolve().parents[2] / "matrices"
FILES = sorted(MATRICES.glob("*.yaml"))


def test_there_are_matrices() -> None:
    assert {"smoke", "rms_norm", "matmul", "rms_norm_quantize"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
@pytest.mark.parametrize("backend", ["cpu", "cuda", "sim"])
def test_every_matrix_loads_and_plans(path: Path, backend: str) -> None:
    found = plan(load_all(path), [backend])
    assert found.cells
    for cell in found.cells:  # a contract can say what each cell's tensors are
        assert contract(cell.op).tensors(cell)


def test_names_are_unique_over_all_matrices() -> None:
    names = [m.name for path in FILES for m in load_all(path)]
    assert len(names) == len(set(names))


def test_smoke_is_about_100_cells_and_light() -> None:
    found = plan(load_all(MATRICES / "smoke.yaml"), ["cpu"])
    assert 90 <= len(found.cells) <= 115
    assert {c.op for c in found.cells} == {"rms_norm", "matmul", "rms_norm_quantize"}
    assert {c.provider for c in found.cells} == {"farm", "torch", "huggingface"}
    assert {c.operation for c in found.cells} == {"forward", "backward"}
    assert {c.dtype for c in found.cells} == {"float32", "float16", "bfloat16"}
    assert 0 < found.backends["cpu"].skipped < 20
    assert found.backends["cpu"].seconds < 30


def test_rms_norm_holds_the_shapes_of_four_pull_requests() -> None:
    found = plan(load_all(MATRICES / "rms_norm.yaml"), ["cuda"])
    asked = [c for c in found.cells if c.provider in ("farm", "torch", "torch_compile", "liger")]
    assert 200 <= len(asked) <= len(found.cells) <= 600
    assert {p: sum(c.provider == p for c in asked) > 20 for p in ("farm", "torch", "torch_compile", "liger")} == (
        dict.fromkeys(("farm", "torch", "torch_compile", "liger"), True)
    )
    tags = {part for c in found.cells for part in c.tag.split("+")}
    assert tags == {"tilegym-113", "te-rocm-615", "liger-1100", "liger-1153"}
    shapes = {c.shape for c in found.cells}
    assert {f"4096x{1024 << i}" for i in range(6)} | {f"2048x{512 << i}" for i in range(3)} <= shapes
    assert {"32768x128", "32767x128", "8192x4096"} <= shapes


# Schema


def errors(document: Any, **how: Any) -> list[str]:
    schema = json_schema(**how)
    jsonschema.Draft202012Validator.check_schema(schema)
    return [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(document)]


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
    assert errors(document(**change), **KNOWN)
    with pytest.raises(Exception, match=r"m\.yaml:"):
        load_text(tmp_path, yaml.safe_dump(document(**change)))


RIGHT = [
    {"timing": [{"method": "events", "cache": "warm"}, {"method": "host"}]},
    {"backends": {"ascend": {"dtype": ["float32"], "providers": {"farm": {"mode": ["auto"]}}}}},
    {"providers": {"torch": {}, "farm": {"mode": "auto"}}},
    {"axes": {"shape": [{"rows": [1, 2], "hidden": 1, "tag": "t"}], "dtype": [{"x": "bf16", "weight": "fp32"}]}},
    {"exclude": [{"hidden": "<=64", "provider": ["torch"], "reason": "why"}]},
    {"sim": {"anything": [1, "x", {"y": 2.5}]}, "require": ["sim"], "deadlines": {"timing": 5}},
]


@pytest.mark.parametrize("change", RIGHT, ids=repr)
def test_the_schema_takes_what_the_loader_takes(tmp_path: Path, change: dict[str, Any]) -> None:
    assert errors(document(**change), **KNOWN) == []
    assert load_text(tmp_path, yaml.safe_dump(document(**change)))


def test_every_key_is_explained() -> None:
    assert all(key["description"] for key in json_schema(**KNOWN)["properties"].values())
