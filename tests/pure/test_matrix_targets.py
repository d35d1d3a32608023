"""A matrix that names targets, or requests isolation: what is planned, and what is refused."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from matrix_fakes import BASE, CONTRACTS, WORLD, check, load_text, refusal, sentence

from farm.cell import Cell, cell_key
from farm.compile import targets
from farm.compile.planning import plan_for
from farm.errors import UsageError
from farm.matrix import Matrix, Plan, cell_id, cells, default_timing, plan, quiet_of, tolerances_for
from farm.matrix import load as load_real
from farm.matrix.model import MAX_CELLS, MatrixInfo
from farm.matrix.schema import json_schema
from farm.matrix.sim_script import script_for

TARGETS = 'targets: {cuda: [GB200, "H200:mig-1g.18gb"], rocm: MI300X}\n'
WIDE = BASE.replace("{rows: 8, hidden: 64}", "{rows: 8, hidden: [64, 128]}")


def load(folder: Path, more: str, name: str = "m") -> Matrix:
    return load_text(folder, WIDE.replace("name: m", f"name: {name}") + more)[0]


def test_each_cell_of_the_backend_is_planned_once_for_each_target(tmp_path: Path) -> None:
    found = plan([load(tmp_path, TARGETS)], ["cuda", "rocm", "cpu"])
    plain = plan([load(tmp_path, "")], ["cuda", "rocm", "cpu"])
    by_target = {t: [c for c in found.cells if c.target == t] for t in dict.fromkeys(c.target for c in found.cells)}
    assert list(by_target) == ["cuda:GB200", "cuda:H200:mig-1g.18gb", "rocm:MI300X", ""]
    keys = [c.cell_key for c in plain.cells if c.backend == "cuda"]
    assert [c.cell_key for c in by_target["cuda:GB200"]] == keys  # where it runs is not in the key
    assert [c.cell_key for c in by_target["cuda:H200:mig-1g.18gb"]] == keys
    assert {c.backend for c in by_target[""]} == {"cpu"}
    assert all(c.cell_id.endswith("@H200:mig-1g.18gb") for c in by_target["cuda:H200:mig-1g.18gb"])
    assert len({c.cell_id for c in found.cells}) == len(found.cells)
    for cell in found.cells:
        assert cell.cell_key == cell_key(cell)
        assert cell.cell_id == cell_id(cell, CONTRACTS[cell.op], default_timing(cell.backend))


def test_backends_and_targets_are_counted(tmp_path: Path) -> None:
    found = plan([load(tmp_path, TARGETS)], ["cuda", "cpu"])
    assert found.backends["cuda"].cells == 2 * found.backends["cpu"].cells == 4
    assert {name: count.cells for name, count in found.targets.items()} == {"cuda:GB200": 2, "cuda:H200:mig-1g.18gb": 2}
    assert sum(c.seconds for c in found.targets.values()) == pytest.approx(found.backends["cuda"].seconds, abs=1e-2)
    assert plan([load(tmp_path, "")], ["cuda"]).targets == {}


def test_a_plan_with_targets_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = plan([load(tmp_path, TARGETS + "quiet: module\n")], ["cuda", "cpu"])
    again = Plan.from_json(found.to_json())
    assert again == found
    assert again.matrices[0].targets == {"cuda": ("GB200", "H200:mig-1g.18gb"), "rocm": ("MI300X",)}
    assert again.matrices[0].quiet == "module"


def test_a_matrix_of_before_is_read(tmp_path: Path) -> None:
    data = load(tmp_path, "").info.to_dict()
    del data["targets"], data["quiet"]
    assert MatrixInfo.from_dict(data) == load(tmp_path, "").info


def test_targets_can_be_left_out_for_what_runs_nowhere(tmp_path: Path) -> None:
    matrix = load(tmp_path, TARGETS + "exclude: [{target: GB200, hidden: 64, reason: too narrow}]\n")
    made = plan([matrix], ["cuda"], named_targets=False)
    assert {c.target for c in made.cells} == {""}
    assert not any("@" in c.cell_id or c.skip_reason for c in made.cells)
    assert next(cells(matrix, ["cuda"], named_targets=False)).cell_id == made.cells[0].cell_id


def test_compilation_plans_its_own_targets_instead(tmp_path: Path) -> None:
    text = "name: m\nop: rms_norm\nproviders: [farm]\naxes: {shape: [{rows: 1, hidden: 64}]}\n"
    (tmp_path / "plain.yaml").write_text(text)
    (tmp_path / "named.yaml").write_text(text + TARGETS)
    built = [
        [c.cell_id for c in plan_for([load_real(tmp_path / name)], targets.parse("sm_90,sm_100")).cells]
        for name in ("plain.yaml", "named.yaml")
    ]
    assert built[0] == built[1]
    assert [c.rpartition("@")[2] for c in built[1]] == ["sm_90", "sm_100"]


def test_a_script_may_be_a_targets_own(tmp_path: Path) -> None:
    section = {"rules": [{"when": {"target": "GB200"}, "time_us": 5}]}
    found = plan([load(tmp_path, TARGETS)], ["cuda"]).cells
    assert [script_for(section, c) for c in found] == [{"time_us": 5}] * 2 + [{}] * 2


def test_two_matrices_share_a_cell_on_one_target_only(tmp_path: Path) -> None:
    first = load(tmp_path, "targets: {cuda: [GB200]}\n")
    second = load(tmp_path, "targets: {cuda: [GB200, H200]}\n", "n")
    third = load(tmp_path, "", "o")
    found = plan([first, second, third], ["cuda"])
    assert [(c.matrix, c.target) for c in found.cells] == (
        [("m", "cuda:GB200")] * 2 + [("n", "cuda:H200")] * 2 + [("o", "")] * 2
    )


def test_rules_and_selections_may_name_a_target(tmp_path: Path) -> None:
    rules = 'exclude: [{target: "H200:mig-1g.18gb", hidden: ">64", reason: too big for a slice}]\n'
    matrix = load(tmp_path, TARGETS + rules)
    skipped = [c for c in plan([matrix], ["cuda", "rocm", "cpu"]).cells if c.skip_reason]
    assert [(c.target, c.dims["hidden"]) for c in skipped] == [("cuda:H200:mig-1g.18gb", 128)]
    assert "target=H200:mig-1g.18gb" in skipped[0].skip_reason
    chosen = plan([matrix], ["cuda", "cpu"], select="target=GB200").cells
    assert {c.target for c in chosen} == {"cuda:GB200"}
    others = plan([matrix], ["cuda", "cpu"], select="target=!=GB200").cells
    assert {c.target for c in others} == {"cuda:H200:mig-1g.18gb", ""}
    with pytest.raises(UsageError) as caught:
        plan([matrix], ["cuda"], select="target=GB20")
    check(sentence(caught.value), "matrix-rule-value", "--select target=GB20: target ", '"GB200"')


def test_a_tolerance_may_be_a_targets_own(tmp_path: Path) -> None:
    own = "tolerances: [{match: {target: GB200}, output: y, metric: rel_l2, limit: 1.0, reason: r, date: 2026-01-31}]\n"
    found = plan([load(tmp_path, TARGETS + own)], ["cuda"])
    assert [bool(tolerances_for(found.matrix(c).tolerances, c)) for c in found.cells] == [True, True, False, False]


def test_quiet_is_for_what_is_timed(tmp_path: Path) -> None:
    info = load(tmp_path, "quiet: host\n").info
    quiet = {c.backend: quiet_of(info, c) for c in plan([load(tmp_path, "quiet: host\n")], ["cuda", "cpu"]).cells}
    assert quiet == {"cuda": "host", "cpu": "none"}
    assert {quiet_of(load(tmp_path, "").info, c) for c in plan([load(tmp_path, "")], ["cuda"]).cells} == {"none"}


def test_targets_count_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 10_000  # as the real one, in a hundredth of its time
    assert limit < MAX_CELLS
    for module in ("axes", "load"):
        monkeypatch.setattr(sys.modules[f"farm.matrix.{module}"], "MAX_CELLS", limit)
    side = int((limit // 4) ** 0.5)
    rows, hidden = (f"[{', '.join(map(str, range(1, side + 1)))}]" for _ in range(2))
    big = BASE.replace("{rows: 8, hidden: 64}", f"{{rows: {rows}, hidden: {hidden}}}")
    load_text(tmp_path, big)
    names = ", ".join(f"P{i}" for i in range(5))
    found = refusal(tmp_path, big + f"targets: {{cuda: [{names}]}}\n")
    check(found, "matrix-too-many-cells", "m.yaml:1: ", "cuda", f"{limit:,}")


WRONG: dict[str, tuple[str, ...]] = {
    "no backend": ("targets: {cdua: [GB200]}\n", "matrix-target-backend", "m.yaml:7: targets.cdua ", '"cuda"'),
    "a list": ("targets: [GB200]\n", "matrix-wrong-kind", "m.yaml:7: targets ", "(cuda: [GB200])"),
    "empty": ("targets: {}\n", "matrix-empty-value", "m.yaml:7: targets "),
    "no pattern": ("targets: {cuda: []}\n", "matrix-empty-value", "m.yaml:7: targets.cuda "),
    "a number": ("targets: {cuda: [200]}\n", "matrix-not-text", "m.yaml:7: targets.cuda[0] ", "200"),
    "spaces": (
        "targets: {rocm: [AMD Instinct MI300X]}\n",
        "matrix-target-spaces",
        "m.yaml:7: targets.rocm[0] ",
        '"AMD Instinct MI300X"',
        '"AMD-Instinct-MI300X"',
    ),
    "backend in it": (
        'targets: {cuda: ["cuda:GB200"]}\n',
        "matrix-target-prefix",
        "m.yaml:7: targets.cuda[0] ",
        '"cuda:GB200"',
        '"GB200"',
    ),
    "an at sign": ('targets: {cuda: ["GB@200"]}\n', "matrix-target-form", "m.yaml:7: targets.cuda[0] ", '"GB@200"'),
    "quiet": ("quiet: hots\n", "matrix-unknown-quiet", "m.yaml:7: quiet ", '"hots"', '"host"'),
    "quiet unlike any": ("quiet: true\n", "matrix-unknown-quiet", "m.yaml:7: quiet ", "none, module, host"),
    "a rule's target": (
        TARGETS + "exclude: [{target: GB20, reason: r}]\n",
        "matrix-rule-value",
        "m.yaml:8: exclude[0].target ",
        '"GB20"',
        '"GB200"',
    ),
    "a rule without targets": (
        "exclude: [{target: GB200, reason: r}]\n",
        "matrix-rule-matches-nothing",
        "m.yaml:7: exclude[0] ",
        "(target=GB200)",
    ),
    "a rule of another backend": (
        TARGETS + "exclude: [{target: MI300X, backend: cuda, reason: r}]\n",
        "matrix-rule-matches-nothing",
        "m.yaml:8: exclude[0] ",
        "(backend=cuda, target=MI300X)",
    ),
    "near miss of the key": ("target: {cuda: [GB200]}\n", "matrix-unknown-key", "m.yaml:7: target ", '"targets"'),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    text, *expected = WRONG[name]
    check(refusal(tmp_path, BASE + text), *expected)


def test_a_target_given_twice_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path, BASE + "targets: {cuda: [GB200, GB200]}\n")
    check(found, "matrix-value-twice", "m.yaml:7: targets.cuda[1] ", '"GB200"')


def test_targets_of_a_backend_without_axes_are_refused(tmp_path: Path) -> None:
    only = "name: m\nop: norm\nproviders: [torch]\nbackends: {cpu: {shape: [{rows: 1, hidden: 1}]}}\n"
    found = refusal(tmp_path, only + "targets: {cuda: [GB200]}\n")
    check(found, "matrix-target-no-axes", "m.yaml:5: targets.cuda ", "cpu")


def test_the_schema_knows_both() -> None:
    made = json_schema(**{k: WORLD[k] for k in ("contracts", "ops", "registry", "backends")})
    assert set(made["properties"]["targets"]["properties"]) == set(WORLD["backends"])
    assert made["properties"]["quiet"]["enum"] == ["none", "module", "host"]


def test_cells_of_all_targets_come_in_the_plans_order(tmp_path: Path) -> None:
    found = plan([load(tmp_path, TARGETS)], ["cuda"]).cells
    groups: list[list[Cell]] = [list(g) for _, g in itertools.groupby(found, key=lambda c: c.target)]
    assert [len(g) for g in groups] == [2, 2]
    assert [c.index for c in found] == [0, 1, 2, 3]
