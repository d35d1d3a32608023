"""Contracts from folders outside the farm: found, named by content, sent, kept, refused in one sentence."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from farm.accuracy import evaluate
from farm.cell import Cell, cell_key
from farm.cli.main import main
from farm.contracts import discovery, folders
from farm.errors import ContractError, FarmError, InfraError, UsageError
from farm.judge import rejudge
from farm.matrix import plan
from farm.matrix.load import load_files
from farm.shipping import contracts as shipping
from farm.sites import planfile
from farm.store import Store
from tests.pure.outside_contracts import known, write, write_text
from tests.pure.planted_contracts import cell_of

HELPED = "def reference(self, inputs, cell, block):\n    return {'y': inputs['x'] * FACTOR}"
MATRIX = "name: m\nop: OP\naxes: {shape: [{rows: 4, columns: 8}], dtype: [float32]}\nproviders: [torch]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "contracts"
    write(made, "doubled", HELPED, "from ..shared import FACTOR")
    write(made, "same")
    (made / "shared.py").write_text("FACTOR = 2.0\n")
    return made


def test_ops_of_a_folder_are_known_until_they_are_forgotten(folder: Path) -> None:
    with known(folder):
        assert {"doubled", "same", "rms_norm"} <= set(discovery.known_ops())
        assert discovery.contract("doubled").op == "doubled"
        assert len(discovery.contract("doubled").content) == 16
        assert discovery.contract("rms_norm").content == ""
    assert "doubled" not in discovery.known_ops()


def test_content_is_that_of_the_contract_and_what_it_imports_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    def contents(place: Path) -> tuple[str, str]:
        with known(place):
            return discovery.content("doubled"), discovery.content("same")

    doubled, same = contents(folder)
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    assert contents(copy) == (doubled, same)
    (copy / "shared.py").write_text("FACTOR = 3.0\n")
    assert contents(copy) != (doubled, same)
    assert contents(copy)[1] == same, "an edit of what it does not import leaves its keys"
    (copy / "same" / "table.txt").write_text("data")
    assert contents(copy)[1] != same


def test_content_stands_in_the_key_of_outside_cells_alone(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MATRIX.replace("OP", "doubled"))
    with known(folder):
        (cell,) = _planned(file)
        assert cell.contract_content == discovery.content("doubled")
        assert cell.cell_key == cell_key(cell)
        assert Cell.from_dict(cell.to_dict()) == cell
        assert Cell.from_dict({**cell.to_dict(), "contract_content": "", "cell_key": ""}).cell_key != cell.cell_key
    assert "contract_content" not in cell_of("rms_norm").to_dict()


def _planned(file: Path) -> tuple[Cell, ...]:
    text = file.read_text().replace("providers: [torch]\n", "")
    file.write_text(text)
    return plan(load_files([file], extra_providers={"mine": "module:function"}), ["cpu"]).cells


def test_what_is_sent_gives_the_same_ops_and_contents_elsewhere(folder: Path, tmp_path: Path) -> None:
    with known(folder):
        packed = shipping.pack()
        before = {op: discovery.content(op) for op in ("doubled", "same")}
    assert packed is not None
    try:
        shipping.install(shipping.parse(shipping.text(packed), "here"), tmp_path / "node")
        assert {op: discovery.content(op) for op in ("doubled", "same")} == before
        assert (tmp_path / "node") in discovery.file_of("doubled").parents
    finally:
        discovery.forget()


def test_nothing_is_sent_where_every_op_is_built_in(tmp_path: Path) -> None:
    assert shipping.pack() is None
    shipping.leave(tmp_path)
    assert not (tmp_path / shipping.NAME).exists()
    shipping.take(tmp_path)


def test_damaged_contracts_are_refused(folder: Path, tmp_path: Path) -> None:
    with known(folder):
        packed = shipping.pack()
        assert packed is not None
    files = packed["folders"][0]["files"]
    files["shared.py"] = files["same/contract.py"]
    with pytest.raises(InfraError) as refused:
        shipping.install(packed, tmp_path)
    assert refused.value.id == "shipping-contracts-damaged"
    with pytest.raises(InfraError):
        shipping.parse("{", "there")


def test_a_package_of_another_version_at_the_judge_is_refused(folder: Path, tmp_path: Path) -> None:
    write(folder, "yamled", "pass", "import yaml")
    with known(folder):
        packed = shipping.pack()
        assert packed is not None and set(packed["folders"][0]["requires"]["yamled"]) == {"yaml"}
    packed["folders"][0]["requires"]["yamled"]["yaml"] = "0.0"
    try:
        shipping.install(packed, tmp_path)
        discovery.contract("same")
        with pytest.raises(ContractError) as refused:
            discovery.contract("yamled")
        assert refused.value.id == "contract-distribution"
    finally:
        discovery.forget()


def _clash_with_built_in(folder: Path) -> None:
    write(folder, "rms_norm")


def _no_contract(folder: Path) -> None:
    write_text(folder, "same", "X = 1\n")


def _computed(folder: Path) -> None:
    write(folder, "same", "pass", "import importlib\nM = importlib.import_module('js' + 'on')")


def _calls_torch(folder: Path) -> None:
    write(folder, "same", "pass", "import torch\nONE = torch.ones(1)")


def _odd_name(folder: Path) -> None:
    write(folder, "Same-Op")


@pytest.mark.parametrize(
    "break_it, id",
    [
        (_clash_with_built_in, "contracts-op-clash"),
        (_no_contract, "contract-missing"),
        (_computed, "contract-computed-import"),
        (_calls_torch, "contract-torch-at-import"),
        (_odd_name, "contracts-op-name"),
    ],
)
def test_a_wrong_folder_is_refused_in_one_sentence(folder: Path, break_it: object, id: str) -> None:
    break_it(folder)  # type: ignore[operator]
    with pytest.raises(FarmError) as refused, known(folder):
        discovery.contract("same")
    assert refused.value.id == id and "\n" not in str(refused.value) and refused.value.exit_code == 2


def test_a_folder_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, id in (
        (tmp_path / "absent", "contracts-no-folder"),
        (tmp_path / "empty", "contracts-folder-empty"),
        (folder / "same", "contracts-folder-of-one"),
    ):
        with pytest.raises(UsageError) as refused:
            discovery.add(path)
        assert refused.value.id == id
    with known(folder), pytest.raises(UsageError) as refused:
        other = tmp_path / "other"
        write(other, "same")
        discovery.add(other)
    assert refused.value.id == "contracts-op-clash"


def test_a_folder_that_is_named_twice_counts_once(folder: Path) -> None:
    with known(folder, folder):
        assert len(discovery.outside()) == 1


def test_links_are_followed_once(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "same").symlink_to(folder / "same")
    (linked / "same" / "loop").symlink_to(linked)
    found = folders.read(linked, "here")
    assert found.ops == ("same",)
    (folder / "same" / "loop").unlink()


def test_an_entry_point_names_a_package_that_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_contracts"
    write(package / "ops", "theirs")
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = metadata.EntryPoint("theirs", "their_contracts.ops", folders.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == folders.GROUP else [])
    with known():
        discovery.add_installed()
        assert discovery.contract("theirs").op == "theirs"
    bad = metadata.EntryPoint("theirs", "nowhere.ops", folders.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [bad])
    with pytest.raises(UsageError) as refused:
        discovery.add_installed()
    assert refused.value.id == "contracts-entry-point"


def test_a_plan_of_other_contracts_does_not_fit(folder: Path) -> None:
    with known(folder):
        cell = Cell.from_dict(
            {**cell_of("same").to_dict(), "contract_content": discovery.content("same"), "cell_key": ""}
        )
        same, other = (lambda op: 1), (lambda op: "other")
        assert planfile.unfit((cell,), same, discovery.content) == ""
        assert "uses the contract" in planfile.unfit((cell,), same, other)
        assert "--contracts" in planfile.unfit((cell,), lambda op: None, other)


def test_stored_metrics_of_another_content_are_not_judged_again(folder: Path) -> None:
    row = {"status": "passed", "metrics": '{"y": {"max_ulp": 0.5, "nonfinite": 0}}', "gates": '{"y": {"max_ulp": 1.0}}'}
    with known(folder):
        found = discovery.contract("same")
        for content, status in ((found.content, "passed"), ("0" * 16, "infra_error")):
            cell = Cell.from_dict({**cell_of("same").to_dict(), "contract_content": content, "cell_key": ""})
            assert rejudge.judge_again(row, cell, found, [])["status"] == status


def test_a_run_keeps_its_contracts(folder: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with known(folder):
        packed = shipping.pack()
        assert packed is not None
        writer = store.create("one")
        writer.keep_contracts(shipping.text(packed))
        writer.append({"event": "run", "schema": 6, "run_id": "one"})
        writer.close()
    kept = store.run("one").contracts()
    assert shipping.parse(kept, "one") == packed
    assert store.run("one").contracts() == shipping.text(packed)


def test_plan_with_contracts_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MATRIX.replace("OP", "same").replace("providers: [torch]\n", ""))
    (tmp_path / "mine_kernels.py").write_text("def same(x):\n    return x\n")
    words = ["plan", str(file), "--provider", "mine=os:getcwd", "--backend", "cpu"]
    try:
        assert main([*words, "--contracts", str(folder)]) == 0
        assert "cpu/same/mine/auto/forward/fp32/4x8" in capsys.readouterr().out
        assert main(words) == 2, "what one command was given does not last"
    finally:
        discovery.forget()


POSITION = """rows_independent = False

def reference(self, inputs, cell, block):
    return {"y": np.cumsum(inputs["x"].astype(np.float64), axis=0)}
"""


def test_an_op_whose_rows_depend_on_their_place_is_made_and_compared_in_one_block(tmp_path: Path) -> None:
    write(tmp_path / "c", "scan", POSITION)
    with known(tmp_path / "c"):
        found = discovery.contract("scan")
        cell = cell_of("scan", rows=1 << 10, columns=1 << 8)
        assert evaluate.default_rows(cell, found) == 1 << 10
        assert evaluate.unsupported(cell, found) is None
        inputs = evaluate.fill_inputs(cell, found)
        right = np.cumsum(inputs["x"].astype(np.float64), axis=0).astype(np.float32)
        assert evaluate.evaluate(cell, found, {"y": right}, inputs).ok
        right[-1] *= 1.01
        assert not evaluate.evaluate(cell, found, {"y": right}, inputs).ok
        large = cell_of("scan", rows=1 << 17, columns=1 << 10)
        assert "one piece" in str(evaluate.unsupported(large, found))
