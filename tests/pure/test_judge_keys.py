"""The caches of the judges cannot lie: a key holds all that made the thing, or the thing cannot be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted_contracts import Asked, cell_of, planted

from farm.cell import Cell
from farm.contracts.discovery import contract
from farm.coordinator.run import _Coordinator
from farm.deadline import Deadline
from farm.errors import ContractError
from farm.judge import cache
from farm.judge.pool import LocalJudges

ROOT = Path(__file__).resolve().parents[2]
Plant = Callable[[str, str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    with planted(tmp_path / "ops", monkeypatch) as made:
        yield made


MASKED = """
parameters = (Parameter("masked", bool, False, inputs=True),)

def tensors(self, cell):
    shape = self.shape(cell)
    return tuple(Tensor(n, "float32", shape, r) for n, r in (("x", "input"), ("mask", "input"), ("y", "output")))

def inputs(self, cell, family, block):
    x = self.x(cell, family, block)
    mask = np.ones_like(x)
    if cell.params["masked"]:
        mask[:, ::2] = 0.0
    return {"x": x, "mask": mask}

def reference(self, inputs, cell, block):
    return {"y": inputs["x"].astype(np.float64) * inputs["mask"]}
"""


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_inputs_that_depend_on_a_parameter_are_those_of_the_cell(
    plant: Plant, tmp_path: Path, order: tuple[bool, bool]
) -> None:
    plant("masked", MASKED)
    asked = Asked(tmp_path)
    seen = {}
    for masked in order:
        cell = cell_of("masked", masked=masked)
        right = asked.verdict(cell, lambda given: given["x"] * given["mask"])
        ignores = asked.verdict(cell, lambda given: given["x"])
        seen[masked] = right, ignores, int((asked.inputs(cell)["mask"] == 0).sum())
    assert seen == {False: ("passed", "passed", 0), True: ("passed", "inaccurate", 16)}


REDUCED = """
parameters = (Parameter("reduction", str, "none", allowed=("none", "mean"), inputs=True),)

def tensors(self, cell):
    whole = cell.params["reduction"] == "mean"
    dims = () if whole else (cell.dims["rows"], 1)
    return (
        Tensor("x", "float32", self.shape(cell), "input"),
        Tensor("dloss", "float32", dims, "upstream", blocked=not whole),
        Tensor("y", "float32", self.shape(cell), "output"),
    )

def inputs(self, cell, family, block):
    dloss = family.normal("dloss", block, 1, "float32")
    if cell.params["reduction"] == "mean":
        dloss = np.float32(0.5)
    return {"x": self.x(cell, family, block), "dloss": dloss}

def reference(self, inputs, cell, block):
    return {"y": inputs["x"].astype(np.float64) * inputs["dloss"]}
"""


@pytest.mark.parametrize("order", [("none", "mean"), ("mean", "none")])
def test_inputs_of_another_shape_are_others(plant: Plant, tmp_path: Path, order: tuple[str, str]) -> None:
    plant("reduced", REDUCED)
    asked = Asked(tmp_path)
    cells = [cell_of("reduced", reduction=r) for r in order]
    assert [asked.verdict(c, lambda given: given["x"] * given["dloss"]) for c in cells] == ["passed", "passed"]


BY_OPERATION = """
def inputs(self, cell, family, block):
    x = self.x(cell, family, block)
    return {"x": 2 * x if cell.operation == "no-grad-forward" else x}
"""


def test_cells_that_share_inputs_have_the_inputs_that_each_would_have_alone(plant: Plant, tmp_path: Path) -> None:
    plant("by_operation", BY_OPERATION)
    together, cells = Asked(tmp_path), [cell_of("by_operation", o) for o in ("no-grad-forward", "forward")]
    for i, cell in enumerate(cells):
        alone = Asked(tmp_path / f"{i}").inputs(cell)["x"]
        assert together.inputs(cell)["x"].tobytes() == alone.tobytes()


ROUNDED = """
parameters = (
    Parameter("casting", str, "llama", allowed=("llama", "gemma"), semantic=False),
    Parameter("in_place", bool, False, changes_result=False),
)

def reference(self, inputs, cell, block):
    return {"y": inputs["x"].astype(np.float64) * (2 if cell.params["%s"] in ("gemma", True) else 1)}
"""


@pytest.mark.parametrize("read", ["casting", "in_place"])
def test_a_reference_cannot_depend_on_what_its_key_leaves_out(plant: Plant, tmp_path: Path, read: str) -> None:
    """Else the second cell gets the first one's: a right kernel was accused, a wrong one passed."""
    plant("rounded", ROUNDED % read)
    asked = Asked(tmp_path)
    one = cell_of("rounded", casting="llama", in_place=False)
    other = cell_of("rounded", casting="gemma", in_place=True)
    seen = asked.verdict(one, lambda given: given["x"]), asked.verdict(other, lambda given: given["x"])
    assert seen == ("infra_error", "infra_error")


UNSEEN = """
def inputs(self, cell, family, block):
    return {"x": self.x(cell, family, block) * (2 if cell.%s == "%s" else 1)}
"""


@pytest.mark.parametrize(("name", "value"), [("provider", "mine"), ("mode", "auto"), ("backend", "cpu")])
def test_inputs_never_depend_on_who_is_judged(plant: Plant, tmp_path: Path, name: str, value: str) -> None:
    plant("unseen", UNSEEN % (name, value))
    with pytest.raises(ContractError, match=f"unseen reads cell.{name} in inputs") as error:
        Asked(tmp_path).inputs(cell_of("unseen"))
    assert error.value.id == "contract-reads-cell"


def test_a_parameter_that_inputs_may_not_read_is_named_with_the_cure(plant: Plant, tmp_path: Path) -> None:
    plant("masked", MASKED.replace(", inputs=True", ""))
    with pytest.raises(
        ContractError, match=r'of masked reads .* masked in inputs.*"masked", ..., inputs=True'
    ) as error:
        Asked(tmp_path).inputs(cell_of("masked", masked=True))
    assert error.value.id == "contract-reads-parameter"


FORGETFUL = """
def inputs(self, cell, family, block):
    return {}
"""


def test_an_input_that_was_not_made_is_not_zeros(plant: Plant, tmp_path: Path) -> None:
    plant("forgetful", FORGETFUL)
    with pytest.raises(ContractError, match="makes nothing, but the tensors are x") as error:
        Asked(tmp_path).inputs(cell_of("forgetful"))
    assert error.value.id == "contract-inputs-names"


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {tree!r}]
import farm.contracts
assert farm.contracts.__file__.startswith({tree!r})
from pathlib import Path
from planted_contracts import Asked, cell_of
asked = Asked(Path({folder!r}), sys.argv[1])
print(*(asked.verdict(cell_of("helped"), lambda given: f * given["x"]) for f in (2, 3)))
"""
HELPED = """
from farm.contracts.ops.helped import helper
from farm.contracts.ops.scale import scaled

class Helped(Base):
    def reference(self, inputs, cell, block):
        return {"y": scaled(inputs["x"].astype(np.float64)) * helper.FACTOR}

CONTRACT = Helped()
"""


def test_a_reference_is_not_older_than_the_module_that_its_contract_imports(tmp_path: Path) -> None:
    """Two runs over one cache; between them the helper's factor was edited from 2 to 3, and the kernel with it."""
    from planted_contracts import BASE

    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "farm", tree / "farm", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    op = tree / "farm" / "contracts" / "ops" / "helped"
    op.mkdir()
    (op / "contract.py").write_text(BASE.format(op="helped") + HELPED)
    (op / "helper.py").write_text("FACTOR = 2\n")
    (op.parent / "scale.py").write_text("def scaled(x):\n    return x\n")
    script = SCRIPT.format(tests=str(Path(__file__).parent), tree=str(tree), folder=str(tmp_path))

    def run(name: str) -> str:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", script, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=clean)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run("first") == "passed inaccurate"
    (op / "helper.py").write_text("FACTOR = 3\n")
    assert run("second") == "inaccurate passed"


def test_two_cells_of_one_index_get_their_own_answers(tmp_path: Path) -> None:
    """A cell that stands in no plan has the index -1."""
    judges = LocalJudges(str(tmp_path / "run"), 1)
    parameters = {p.name: p.default for p in contract("rms_norm").parameters}
    types = dict.fromkeys(("x", "weight"), "float32")
    one, other = (
        Cell("cpu", "rms_norm", "mine", "auto", "forward", types, {"rows": rows, "hidden": 8}, parameters).to_dict()
        for rows in (4, 5)
    )
    try:
        judges.prefetch(one)
        shapes = [judges.prepare(c, Deadline(60.0))["tensors"][0]["shape"] for c in (other, one)]
    finally:
        judges.close()
    assert shapes == [[5, 8], [4, 8]]


def test_a_cache_that_is_deleted_under_a_run_is_made_again(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SMALL_BYTES", 0)
    plant("plain", "version = 1")
    asked = Asked(tmp_path)
    assert asked.verdict(cell_of("plain"), lambda given: given["x"]) == "passed"
    shutil.rmtree(tmp_path / "cache")
    assert asked.verdict(cell_of("plain"), lambda given: given["x"]) == "passed"
    assert asked.verdict(cell_of("plain", rows=5), lambda given: given["x"]) == "passed"


def test_a_cache_that_cannot_be_written_costs_no_cell(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SMALL_BYTES", 0)
    plant("plain", "version = 1")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert Asked(tmp_path).verdict(cell_of("plain"), lambda given: given["x"]) == "passed"


def test_a_contract_that_fails_where_a_cell_is_announced_does_not_end_the_run(plant: Plant) -> None:
    plant("broken", "def tensors(self, cell):\n    raise KeyError(cell.operation)")
    plant("plain", "version = 1")
    run = SimpleNamespace(cells=[cell_of("broken"), cell_of("plain")], announced=set())
    assert [told["op"] for told in _Coordinator._coming(run, (0, 1))] == ["plain"]  # type: ignore[arg-type]
