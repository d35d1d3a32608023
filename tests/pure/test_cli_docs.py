"""The guides say what the code does: their matrices load, their tables have every column, their code runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from farm import limits
from farm.cell import QUIET, Quality, Status
from farm.cli.main import parser
from farm.contracts.base import Contract
from farm.matrix import load_all, plan
from farm.matrix.axes import AXES, TIMING_FIELDS
from farm.matrix.load import KEYS
from farm.matrix.model import METHODS
from farm.store import SAMPLE_COLUMNS
from farm.store.results import COLUMNS, SCHEMA

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("matrix", "run-on-disk", "add-a-kernel", "compile", "kernels", "ascend", "calibrate")
GUIDES += ("test-your-repository", "author-loop")


def guide(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", guide(name), re.M | re.S)


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def section(name: str, title: str) -> str:
    return guide(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_matrix_of_the_guide_loads(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(blocks("matrix", "yaml")[0])
    found = plan(load_all(tmp_path / "m.yaml"), ["cuda", "cpu"])
    assert found.backends["cuda"].cells > found.backends["cpu"].cells > found.backends["cpu"].skipped > 0
    assert found.backends["cuda"].skipped > 0


def test_the_rules_of_the_guide_are_rules(tmp_path: Path) -> None:
    base = (
        "name: m\nop: rms_norm\nproviders: [farm, torch]\naxes:\n  shape: [{rows: 1, hidden: 16384, tag: a+odd}]\n"
        "  dtype: [float32, bfloat16]\n  operation: [forward, backward]\n  seed: [0, 1]\n"
    )
    (tmp_path / "m.yaml").write_text(base + blocks("matrix", "yaml")[1])
    (matrix,) = load_all(tmp_path / "m.yaml")
    (select,) = re.findall(r"--select '([^']+)'", guide("matrix"))
    assert len(matrix.tolerances) == 1
    found = plan([matrix], ["cuda"], select=select).cells
    assert {(c.provider, c.dtype) for c in found} == {("farm", "bfloat16")}
    assert {(c.operation, c.seed) for c in found if c.skip_reason} == {("backward", 1)}


def test_the_targets_of_the_guide_are_targets(tmp_path: Path) -> None:
    base = "name: m\nop: rms_norm\nproviders: [farm]\naxes: {shape: [{rows: 1, hidden: 64}]}\n"
    (tmp_path / "m.yaml").write_text(base + blocks("matrix", "yaml")[2])
    found = plan(load_all(tmp_path / "m.yaml"), ["cuda", "rocm", "cpu"])
    assert list(found.targets) == ["cuda:GB200", "cuda:H200:mig-1g.18gb", "rocm:MI300X"]
    assert set(QUIET) <= words(section("matrix", "Keys"))


def test_the_guide_of_the_matrix_names_everything() -> None:
    assert set(KEYS) <= words(section("matrix", "Keys"))
    assert set(AXES) <= words(section("matrix", "Axes"))
    assert set(TIMING_FIELDS) | set(METHODS) <= words(section("matrix", "Timing"))
    table = section("matrix", "Deadlines")
    assert set(limits.TABLE) <= words(table)
    row = ", ".join(f"`{name}`" for name in list(limits.PHASES)[1:5])
    assert row in table and ", ".join(f"{s:g}" for s in list(limits.PHASES.values())[1:5]) in table


def test_every_column_is_documented_with_its_kind_and_no_other() -> None:
    kinds = {"text": "text", "JSON": "text", "int": "int", "float": "float"}
    found = {}
    for names, kind in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section("run-on-disk", "cells.parquet"), re.M):
        columns, told = re.findall(r"`(\w+)`", names), kind.split(", ")
        found.update(zip(columns, (kinds[k.strip()] for k in (told if len(told) > 1 else told * len(columns)))))
    assert found == COLUMNS
    assert set(SAMPLE_COLUMNS) <= words(section("run-on-disk", "samples.parquet"))
    assert {s.value for s in Status} | {q.value for q in Quality} <= words(section("run-on-disk", "cells.parquet"))
    assert max(int(n) for n in re.findall(r"^\| (\d+) \|", section("run-on-disk", "Schema history"), re.M)) == SCHEMA


def test_every_event_of_the_journal_is_documented() -> None:
    told = words(section("run-on-disk", "journal.jsonl"))
    sources = "".join(
        p.read_text() for p in (ROOT / "farm/store/run_writer.py", *(ROOT / "farm/coordinator").glob("*.py"))
    )
    written = set(re.findall(r'_journal\("(\w+)"|append\(\{"event": "(\w+)"', sources))
    assert {a or b for a, b in written} <= told


def test_the_kernel_of_the_guide_is_right() -> None:
    torch = pytest.importorskip("torch")
    code: dict[str, object] = {}
    exec(blocks("add-a-kernel", "python")[0], code)
    x, weight = torch.randn(4, 64), torch.randn(64)
    want = torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    torch.testing.assert_close(code["rms_norm"](x, weight, 1e-6), want)  # type: ignore[operator]


def test_the_provider_of_the_guide_has_what_a_provider_has() -> None:
    code: dict[str, object] = {}
    exec(blocks("add-a-kernel", "python")[1], code)
    assert {"NAME", "ROLE", "MODES", "OPS", "DISTRIBUTION", "load"} <= set(code)


def test_the_contract_of_the_guide_works(tmp_path: Path) -> None:
    """As the farm uses it: through a matrix, then its tensors, inputs, reference and gates."""
    code: dict[str, object] = {}
    exec(blocks("add-a-kernel", "python")[2], code)
    contract = code["CONTRACT"]
    assert isinstance(contract, Contract)
    (tmp_path / "m.yaml").write_text(
        "name: m\nop: scale\nproviders: [mine]\naxes: {shape: [{rows: 3, columns: 64}], dtype: bf16}\n"
    )
    from farm.accuracy.inputs import Family
    from farm.matrix.registry import ProviderInfo

    (cell,) = plan(
        load_all(
            tmp_path / "m.yaml", contracts=lambda op: contract, ops=["scale"], registry={"mine": ProviderInfo("mine")}
        ),
        ["cpu"],
    ).cells
    inputs = contract.inputs(cell, Family(cell.family, cell.seed), (0, 3))
    y = contract.reference(inputs, cell, (0, 3))["y"]
    assert np.array_equal(y, 2.0 * inputs["x"]) and y.any()
    assert [t.name for t in contract.tensors(cell)] == ["x", "y"] and set(contract.gates(cell)) == {"y"}
    assert contract.work(cell).bytes_read == 3 * 64 * 2


@pytest.mark.parametrize("name", GUIDES)
def test_commands_of_the_guides_are_commands(name: str) -> None:
    import shlex

    for line in re.findall(r"^(farm .*)$", guide(name), re.M):
        assert parser().parse_args(shlex.split(line)[1:])


@pytest.mark.parametrize("name", GUIDES)
def test_files_that_the_guides_name_are_there(name: str) -> None:
    for word in words(guide(name)) | set(re.findall(r"\]\(([^)#]+)\)", guide(name))):
        if re.fullmatch(r"(farm|kernels|matrices|tests|benchmarks)/[\w/.-]+\.(py|yaml)", word):
            assert (ROOT / word).is_file(), word
        elif word.endswith(".md"):
            assert (ROOT / "docs" / word).is_file(), word
