"""`farm contract check`: each way in which a contract can be wrong, in one sentence; the score of planted faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.accuracy import contract_check, contract_score, evaluate, low_precision, plants
from farm.cli.main import main
from farm.contracts import discovery
from tests.pure.outside_contracts import known, write, write_text
from tests.pure.planted_contracts import cell_of
from tests.pure.torch_contracts import evaluated_here

SOUND = """
def gates(self, cell):
    return {"y": {"max_ulp": 1.0, "rel_l2": 1e-3}}
"""
ADD_GRADIENT = """
operations = ("forward", "backward")

def tensors(self, cell):
    t, d = self.shape(cell), cell.dtypes["x"]
    out = [Tensor("x", d, t, "input")]
    if cell.operation == "forward":
        return (*out, Tensor("y", d, t, "output"))
    return (*out, Tensor("dy", d, t, "upstream"), Tensor("dx", d, t, "gradient", of="x"))

def inputs(self, cell, family, block):
    made = {"x": self.x(cell, family, block)}
    if cell.operation == "backward":
        made["dy"] = family.upstream("dy", block, cell.dims["columns"], cell.dtypes["x"], total=cell.dims["rows"])
    return made

def reference(self, inputs, cell, block):
    x = inputs["x"].astype(np.float64)
    if cell.operation == "forward":
        return {"y": x**3}
    return {"dx": FACTOR * x**2 * inputs["dy"]}

def gates(self, cell):
    return {"y" if cell.operation == "forward" else "dx": {"max_ulp": 4.0}}
"""


def check(folder: Path, op: str) -> str:
    with known(folder):
        return contract_check.problem(discovery.contract(op), op)


def test_a_sound_contract_has_no_problem(tmp_path: Path) -> None:
    assert check(write(tmp_path, "sound", SOUND), "sound") == ""
    assert check(write(tmp_path, "grad", ADD_GRADIENT, "FACTOR = 3"), "grad") == ""


@pytest.mark.parametrize(
    "body, says",
    [
        ('op = "softmx"', 'op is "softmx", but its folder is wrong'),
        ('dimensions = Dimension("rows", 0, 9)', "write a comma behind it"),
        ('dimensions = (Dimension("rows", 9, 0),)', "0 <= low <= high"),
        ("typed = ()", "typed is ()"),
        ('dtypes = ("float31",)', "not a dtype"),
        ('operations = ("forwards",)', "operations has forwards"),
        ('families = ("normal", "ties")', "own_families"),
        ('parameters = (Parameter("k", int, "1"),)', "the parameter k"),
        ('parameters = (Parameter("k", int, 1), Parameter("k", int, 1))', "k names two"),
        ('typed = ("x", "z")', "typed has z"),
        (
            'def tensors(self, cell):\n    return (Tensor("x", "float32", (4, 8), "inptu"),)',
            'the role "inptu"; known roles',
        ),
        ('def tensors(self, cell):\n    return (Tensor("x", "f32", self.shape(cell), "input"),)', 'the dtype "f32"'),
        ("def tensors(self, cell):\n    return [1]", "a tuple of Tensor"),
        ("def tensors(self, cell):\n    return undefined", "tensors() raises NameError"),
        ('def tensors(self, cell):\n    return (Tensor("x", "float32", (7,), "input"),)', "write blocked=False"),
        (
            'def tensors(self, cell):\n    t = Tensor("x", "float32", self.shape(cell), "input")\n    return (t, t)',
            "gives x twice",
        ),
        (
            'def tensors(self, cell):\n    return (Tensor("x", cell.dtypes["x"], self.shape(cell), "input"),)',
            "gives no output",
        ),
        ("def inputs(self, cell, family, block):\n    return {'z': 1}", "inputs() makes z"),
        ("def inputs(self, cell, family, block):\n    return undefined", "inputs() raises NameError"),
        ("def inputs(self, cell, family, block):\n    return {'x': np.zeros((3, 3))}", "inputs() makes x with sizes"),
        (
            "def inputs(self, cell, family, block):\n    return {'x': self.x(cell, family, block) + np.float32(1e-7)}",
            "cannot hold",
        ),
        (
            "def inputs(self, cell, family, block):\n    return {'x': family.normal('x', (0, block[1] - block[0]), 72, "
            "cell.dtypes['x'])}",
            "other rows of x in a block",
        ),
        ("def reference(self, inputs, cell, block):\n    return {'z': inputs['x']}", "but not y"),
        ("def reference(self, inputs, cell, block):\n    return None", "reference() raises TypeError"),
        ("def reference(self, inputs, cell, block):\n    return undefined", "reference() raises NameError"),
        ("def reference(self, inputs, cell, block):\n    return {'y': inputs['x'][:, :-1]}", "gives y with sizes"),
        (
            "def reference(self, inputs, cell, block):\n    return {'y': inputs['x'].astype(np.float32)}",
            "compute it in float64",
        ),
        (
            "def reference(self, inputs, cell, block):\n    return {'y': inputs['x'] + 1e-3 * block[0]}",
            "a row depends on the rows around it",
        ),
        (
            "def reference(self, inputs, cell, block):\n    return {'y': np.cumsum(inputs['x'].astype(np.float64), 0)}",
            "rows_independent = False",
        ),
        (
            "def reference(self, inputs, cell, block):\n    n = np.arange(len(inputs['x']))[:, None] + block[0]\n"
            "    return {'y': inputs['x'] * (1.0 + n)}",
            "depends on where a row stands",
        ),
        ("def gates(self, cell):\n    return {'z': {'max_ulp': 1.0}}", "a tolerance is for z"),
        ("def gates(self, cell):\n    return {'y': {'max_upl': 1.0}}", "not a metric"),
        ("def gates(self, cell):\n    return {'y': {'max_ulp': float('nan')}}", "must be a number"),
        ("def gates(self, cell):\n    return {}", "no tolerance limits y"),
        (
            "def gates(self, cell):\n    return {'y': {'max_ulp': 0.01}}\n"
            "def reference(self, inputs, cell, block):\n    return {'y': inputs['x'] / 3.0}",
            "reference itself",
        ),
        ("def work(self, cell):\n    return Work(-1, 0, {})", "work() gives"),
        ("def supports(self, cell, target=None):\n    return 'never'", "check_sizes"),
    ],
)
def test_a_wrong_contract_is_told_in_one_sentence(tmp_path: Path, body: str, says: str) -> None:
    found = check(write(tmp_path, "wrong", body), "wrong")
    assert says in found and "\n" not in found


def test_a_wrong_gradient_is_found_by_differences(tmp_path: Path) -> None:
    found = check(write(tmp_path, "grad", ADD_GRADIENT, "FACTOR = 3.2"), "grad")
    assert "the gradient dx does not fit the reference" in found


#: What the contracts themselves plant.
OWN_FAULTS = {
    "rms_norm_quantize": {
        *("rounded towards zero", "not saturated", "multiplied by the scale", "norm rounded first", "scale inverted"),
        *("the scale of the row before", "q with the scale of the row before", "q with the scale of the group before"),
        *("groups one column off", "one scale a row", "maximum without abs", "maximum without the last column"),
        "largest value one too large",
    }
}


@pytest.mark.parametrize(
    "op", [pytest.param("fused_add_rms_norm", marks=pytest.mark.long), "matmul", "rms_norm", "rms_norm_quantize"]
)
def test_the_built_in_contracts_find_every_plant_and_reject_nothing_correct(op: str) -> None:
    contract = discovery.contract(op)
    assert contract_check.problem(contract, op) == ""
    score = contract_score.score(contract)
    assert not score.accused
    assert score.share >= 0.95, [f"{dtype}: {plant}" for dtype, plant in score.escaped]
    own = {plant.name for _, plant in score.found if plant.where == "own"}
    assert own >= OWN_FAULTS.get(op, set()) and not [p for _, p in (*score.escaped, *score.same) if p.where == "own"]


def test_loose_tolerances_let_faults_escape_and_too_tight_ones_reject_what_is_right(tmp_path: Path) -> None:
    loose = write(tmp_path / "a", "loose", "def gates(self, cell):\n    return {'y': {'rel_l2': 0.5}}")
    with known(loose):
        score = contract_score.score(discovery.contract("loose"))
    assert {"scale 1.005", "unwritten element"} <= {plant.name for _, plant in score.escaped}
    body = "def gates(self, cell):\n    return {'y': {'rel_l2': 1e-9}}\n"
    body += "def reference(self, inputs, cell, block):\n    return {'y': inputs['x'] / 3.0}"
    with known(write(tmp_path / "b", "tight", body)):
        assert contract_score.score(discovery.contract("tight")).accused


def test_a_plant_that_changes_nothing_is_left_out(tmp_path: Path) -> None:
    body = (
        SOUND + "\ndef reference(self, inputs, cell, block):\n    return {'y': np.abs(inputs['x'].astype(np.float64))}"
    )
    with known(write(tmp_path, "absolute", body)):
        score = contract_score.score(discovery.contract("absolute"))
    assert {("float32", plants.Plant("y", "abs")), ("float32", plants.Plant("x", "sign"))} <= set(score.same)
    assert not score.escaped


def test_an_ignored_parameter_and_a_missing_epsilon_are_planted() -> None:
    found = contract_score.score(discovery.contract("rms_norm"), ["mixed"]).found
    names = {(plant.where, plant.name) for _, plant in found}
    assert {
        ("offset", "ignored"),
        ("eps", "missing"),
        ("eps", "ignored"),
        ("dx", "without terms across columns"),
    } <= names
    assert ("casting", "ignored") not in names, "a rounding class does not change the result"


def test_arithmetic_in_the_storage_dtype_rounds_every_step() -> None:
    ones = np.full((1, 1000), 1.0)

    def total(cell: object, values: object) -> dict[str, np.ndarray]:
        x = values["x"]  # type: ignore[index]
        wide = x.astype(np.float64)
        return {
            "sum": wide.sum(axis=1),
            "mean": wide.mean(axis=1),
            "einsum": np.einsum("ij,ij->i", wide, wide),
            "dot": wide @ np.ones((1000, 1)),
            "third": wide[:, :1] / 3,
        }

    names = ["sum", "mean", "einsum", "dot", "third"]
    found = low_precision.evaluated(total, cell_of("x"), {"x": ones}, "bfloat16", names)
    assert [float(found[n].reshape(-1)[0]) for n in names[:4]] == [256.0, 0.255859375, 256.0, 256.0]
    assert float(found["third"][0, 0]) == 0.333984375
    exact = low_precision.evaluated(total, cell_of("x"), {"x": ones}, "float64", names)
    assert [float(exact[n].reshape(-1)[0]) for n in names[:4]] == [1000.0, 1.0, 1000.0, 1000.0]


@pytest.fixture
def forgotten() -> Iterator[None]:
    yield
    discovery.forget()


def test_the_command_prints_a_score_and_fails_for_a_wrong_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forgotten: None
) -> None:
    assert main(["contract", "check", "matmul", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["op"] == "matmul" and told["share"] == 1.0 and not told["accused"]
    folder = write(tmp_path, "wrong", "typed = ()")
    write_text(folder, "broken", "import nothing_of_this_name\n")
    write(folder, "loose", "def gates(self, cell):\n    return {'y': {'rel_l2': 0.5}}")
    for op, id in (("wrong", "contract-wrong"), ("broken", "contract-import"), ("matmull", "contracts-op-unknown")):
        assert main(["contract", "check", op, "--contracts", str(folder)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and f"[{id}]" in err
    assert main(["contract", "check", "loose", "--contracts", str(folder)]) == 1
    assert "escaped: float32: y: scale 1.005" in capsys.readouterr().out


def test_a_check_ends_in_time_and_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    assert main(["contract", "check", "matmul", "--seconds", "1e-9"]) == 4
    assert "the time was over after 0 of 6 cells" in capsys.readouterr().out
    assert main(["contract", "check", "matmul", "--seconds", "0"]) == 2
    assert "[contract-seconds]" in capsys.readouterr().err
    monkeypatch.setattr("farm.cli.contract.EVERY", 0.0)
    assert main(["contract", "check", "matmul", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["done"] == 6
    assert told.err.splitlines()[-1] == "  matmul: 6 of 6 cells, 71 faults found, 0 not yet"


def test_what_a_later_cell_may_find_is_undecided_when_the_time_is_over(tmp_path: Path) -> None:
    with known(write(tmp_path, "loose", "def gates(self, cell):\n    return {'y': {'rel_l2': 0.5}}")):
        contract = discovery.contract("loose")
        whole, asked = contract_score.score(contract), iter([True] * 30)
        part = contract_score.score(contract, go_on=lambda: next(asked, False))
    assert 0 < part.done < part.cells == whole.cells == whole.done
    assert part.undecided and not part.escaped and whole.escaped and set(part.found) <= set(whole.found)


MEAN = """
from farm.contracts import from_torch


def mean(x):
    return x.mean(dim=(0, 1))


CONTRACT = from_torch(mean, inputs={"x": "rows hidden"}, outputs={"y": ""}, rows="rows")
"""


def test_advice_about_rows_is_such_as_ten_lines_can_follow(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mean").mkdir()
    file = tmp_path / "mean" / "contract.py"
    file.write_text(MEAN)
    with evaluated_here():
        assert "leave out rows=" in check(tmp_path, "mean")
        file.write_text(MEAN.replace(', rows="rows"', ""))
        assert check(tmp_path, "mean") == ""


@pytest.mark.parametrize(
    "body, says",
    [
        ('op = "softmx"', 'op is "softmx"'),
        ('dimensions = Dimension("rows", 0, 9)', "dimensions is"),
        ("typed = ()", "typed is ()"),
        ('def tensors(self, cell):\n    return (Tensor("x", "float32", self.shape(cell), "inptu"),)', '"inptu"'),
    ],
)
def test_a_plan_refuses_a_contract_that_is_wrong_on_its_face(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forgotten: None, body: str, says: str
) -> None:
    folder = write(tmp_path / "c", "wrong", body)
    file = tmp_path / "m.yaml"
    file.write_text("name: m\nop: wrong\naxes: {shape: [{rows: 4, columns: 8}]}\n")
    words = ["plan", str(file), "--contracts", str(folder), "--provider", "mine=os:getcwd"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=pytest.mark.long)
        for op in ("cross_entropy", "rope", "swiglu", "softmax", "layer_norm", "attention")
    ],
)
def test_the_catalogues_contracts_find_every_plant_and_reject_nothing_correct(op: str) -> None:
    pytest.importorskip("torch")
    with evaluated_here():
        contract = discovery.contract(op)
        assert contract_check.problem(contract, op) == ""
        score = contract_score.score(contract)
    assert not score.accused
    assert score.share >= 0.95, [f"{dtype}: {plant}" for dtype, plant in score.escaped]


MUTATED = """
operations = ("forward", "no-grad-forward")

def tensors(self, cell):
    return (Tensor("x", cell.dtypes["x"], self.shape(cell), "mutated"),)

def reference(self, inputs, cell, block):
    return {"x": 2 * inputs["x"].astype(np.float64)}

def gates(self, cell):
    return {"x": {"max_ulp": 1.0}}
"""


def test_an_overwritten_input_is_judged_by_its_value_after_the_call(tmp_path: Path) -> None:
    with known(write(tmp_path, "doubled", MUTATED)):
        contract = discovery.contract("doubled")
        assert contract_check.problem(contract, "doubled") == ""
        cell = cell_of("doubled")
        inputs = evaluate.fill_inputs(cell, contract)
        assert evaluate.evaluate(cell, contract, {"x": inputs["x"] * 2}, inputs).ok
        assert not evaluate.evaluate(cell, contract, {"x": inputs["x"]}, inputs).ok


OWN_JUDGE = """
def tensors(self, cell):
    one = Tensor("y", "float32", (1,), "output", blocked=False)
    return (Tensor("x", cell.dtypes["x"], self.shape(cell), "input"), one)

def reference(self, inputs, cell, block):
    return {"y": np.array([inputs["x"].astype(np.float64).sum()])}

def judge(self, cell, outputs, reference, block):
    return {"y": {"off": float(abs(outputs["y"] - reference["y"]).max())}} if "y" in outputs else None

def gates(self, cell):
    return {"y": {"off": 1e-3}}
"""


def test_a_contracts_own_judge_serves_reductions_and_nonfinite_is_filled_in(tmp_path: Path) -> None:
    with known(write(tmp_path, "total", OWN_JUDGE)):
        contract = discovery.contract("total")
        cell = cell_of("total")
        inputs = evaluate.fill_inputs(cell, contract)
        right = np.array([inputs["x"].astype(np.float64).sum()], dtype=np.float32)
        found = evaluate.evaluate(cell, contract, {"y": right}, inputs)
        assert found.ok and set(found.metrics["y"]) == {"off", "nonfinite"}
        assert not evaluate.evaluate(cell, contract, {"y": right + 1}, inputs).ok
        assert not evaluate.evaluate(cell, contract, {"y": right * np.nan}, inputs).ok


def test_the_document_has_the_score_of_every_op() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    examples = (f.parent.name for f in docs.glob("examples/*/contracts/*/contract.py"))
    found = [*examples, *discovery.known_ops()]
    assert [op for op in found if f"| {op} |" not in (docs / "contracts.md").read_text()] == []
