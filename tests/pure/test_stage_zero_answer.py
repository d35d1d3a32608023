"""What stage 0 says: of each target, of the interpreted cells, and all together."""

from __future__ import annotations

import json
from typing import Any

import compile_rows
import pytest
from compile_rows import kernel

from farm.compare.built_files import BuiltChange
from farm.compare.kernel_changes import changes
from farm.stage_zero import pins
from farm.stage_zero.answer import Answer, Side, answer

HEAD = "import triton\nimport triton.language as tl\n\n"
BEFORE = {"lib.py": HEAD + "@triton.jit\ndef norm(p):\n    tl.store(p, 1)\n"}
AFTER = {"lib.py": HEAD + "@triton.jit\ndef norm(p):\n    tl.store(p, 2)\n"}
Rows = list[dict[str, Any]]


def built(index: int, **given: Any) -> dict[str, Any]:
    return {**compile_rows.built(index, **given), "cell_id": f"cuda/norm/{index}@sm_90"}


def interpreted(index: int, **given: Any) -> dict[str, Any]:
    row = built(index, kernels=[], status="passed", evidence="interpreted")
    row |= {"cell_id": f"cpu/norm/{index}", "backend": "cpu", "output_hash": "aa", "input_hash": "in"}
    row |= {"bytes_counted": 100, "worst_ratio": 0.1}
    return {**row, "launch": json.dumps({"kernels": [], "variants": [{"kernel": "norm", "module": "lib"}]}), **given}


def said(
    a: Rows, b: Rows, cpu: tuple[Rows, Rows] | None = None, trees: Any = (BEFORE, BEFORE), named: bool = False
) -> Answer:
    sides = [Side(f"arm {i}", "r", "d", rows, cpu[i] if cpu else None) for i, rows in enumerate((a, b))]
    return answer(sides[0], sides[1], changes(*trees), [], [], ["sm_90"], named=named)


def test_a_backend_is_not_touched_where_all_cells_have_the_same_machine_code() -> None:
    rows = [built(0), built(1)]
    found = said(rows, [built(0), built(1)])
    assert found.targets[0].state == "not touched" and found.exit_code == 0
    assert any("sm_90 not touched: the same kernels and machine code in all 2 cells" in line for line in found.lines())


@pytest.mark.parametrize(
    "other", [{"code_digest": "bb"}, {"registers": 50}, {"grid": [128, 1, 1]}, {"launches": 2}, {"rivals": ["cc"]}]
)
def test_other_code_or_another_grid_or_another_variant_for_tuning_touches_it(other: dict[str, Any]) -> None:
    found = said([built(0), built(1)], [built(0), built(1, kernels=[kernel(**other)])])
    assert found.targets[0].state == "touched" and found.targets[0].same == 1


@pytest.mark.parametrize("status", ["unsupported", "crashed", "compile_error", "infra_error"])
def test_what_was_not_built_in_both_is_unknown_and_never_untouched(status: str) -> None:
    bad = built(1, kernels=[], status=status, reason="why not")
    found = said([built(0), bad], [built(0), bad])
    (target,) = found.targets
    assert target.state == "unknown" and target.unread == {f"{status}: why not": 1}
    assert "could not be read" in target.statement


def test_built_files_are_told_by_function_and_do_not_decide() -> None:
    rows = [built(0)]
    one = BuiltChange("overlay/p/_C.so", ("f",), (), (), 3, ("device code for sm_90 is compressed",))
    sides = [Side(f"arm {i}", "r", "d", rows, None) for i in range(2)]
    found = answer(sides[0], sides[1], changes(BEFORE, BEFORE), [], [], ["sm_90"], built=[one])
    text = "  p/_C.so: 1 of 4 functions differ (f); unknown: device code for sm_90 is compressed"
    assert text in list(found.lines()) and found.exit_code == 0
    assert json.loads(json.dumps(found.to_dict()))["built_files"][0]["changed"] == ["f"]


def test_a_skipped_cell_is_no_part_of_it_and_one_that_one_arm_lacks_is_unknown() -> None:
    skipped = built(1, kernels=[], status="skipped", reason="excluded")
    assert said([built(0), skipped], [built(0), skipped]).targets[0].state == "not touched"
    (target,) = said([built(0)], [built(0), built(1)]).targets
    assert target.state == "unknown" and target.unread == {"planned in one arm only": 1}


def test_no_cell_at_all_proves_nothing() -> None:
    found = said([], [])
    assert found.targets[0].state == "unknown" and found.exit_code == 4


def test_bits_bytes_and_errors_of_interpreted_cells() -> None:
    a = [interpreted(i) for i in range(4)]
    b = [
        interpreted(0),
        interpreted(1, output_hash="bb", worst_ratio=0.4),
        interpreted(2, bytes_counted=150),
        interpreted(3, input_hash="other"),
    ]
    found = said([], [], (a, b))
    cpu = found.cpu
    assert cpu and (cpu.compared, cpu.equal, cpu.unknown) == (3, 2, 1) and (cpu.bytes_same, cpu.bytes_known) == (2, 3)
    assert [(m.cell, m.what, m.before, m.after) for m in cpu.moved] == [
        ("cpu/norm/1", "bits", "aa", "bb"),
        ("cpu/norm/1", "error", 0.1, 0.4),
        ("cpu/norm/2", "bytes", 100, 150),
    ]
    text = "\n".join(found.lines())
    assert "bits are equal in 2 of 3 cells, bytes moved are equal in 2 of 3, 1 had other inputs" in text


def test_a_changed_kernel_that_no_cell_launched_is_exit_1() -> None:
    rows = [built(0, kernels=[kernel("other")])]
    found = said(rows, rows, trees=(BEFORE, AFTER))
    assert found.exit_code == 1 and "norm (lib.py)" in found.summary.why[0]
    assert said(rows, rows, trees=(BEFORE, AFTER), named=True).exit_code == 0  # a repeated cell answers for itself
    rows = [built(0, kernels=[kernel("norm")])]
    assert said(rows, rows, trees=(BEFORE, AFTER)).exit_code == 0


def test_a_cell_that_b_breaks_is_exit_1_one_that_fails_in_both_is_not_bs() -> None:
    bad = built(1, kernels=[], status="compile_error", reason="no")
    found = said([built(0), built(1)], [built(0), bad])
    assert found.exit_code == 1 and found.targets[0].state == "touched" and not found.targets[0].unread
    assert said([built(0), bad], [built(0), bad]).exit_code == 0
    found = said([bad], [bad])
    assert found.exit_code == 4 and "fail in both arms" in found.summary.why[0]


def test_a_result_that_the_farm_kept_back_is_exit_3() -> None:
    assert said([built(0)], [built(0, kernels=[], status="infra_error", reason="disk")]).exit_code == 3


def test_a_changed_kernel_of_a_language_that_is_not_seen_is_undecided() -> None:
    text = "import cuda.tile as ct\n\n@ct.kernel\ndef k(x):\n    ct.store(x, {})\n"
    trees = ({"lib.py": text.format(1)}, {"lib.py": text.format(2)})
    found = said([built(0)], [built(0)], trees=trees)
    assert found.exit_code == 4 and "cutile" in found.summary.why[0]


def test_the_answer_is_complete_as_data() -> None:
    found = said([built(0)], [built(0, kernels=[kernel(registers=50)])], ([interpreted(0)], [interpreted(0)]))
    told = json.loads(json.dumps(found.to_dict()))
    assert told["targets"]["sm_90"]["difference"]["changes"][0]["measures"]["registers"] == [40, 50]
    assert told["cpu"]["equal_bits"] == 1 and told["verdict"] == "not worse"


def test_pins_are_read_where_a_repository_says_them() -> None:
    texts = {"setup.py": 'return ["torch==2.6.0", "triton-ascend==3.2.2"]', "pyproject.toml": 'x = ["triton>=3.0, <4"]'}
    asked = pins.pins(texts)
    assert asked == {"triton-ascend": ("==3.2.2", "setup.py"), "triton": (">=3.0,<4", "pyproject.toml")}
    told = pins.unlike({"triton-ascend": "3.2.0", "torch": "2.13.0"}, asked)
    assert told == "compiled by triton-ascend 3.2.0, but setup.py asks for triton-ascend==3.2.2"
    assert pins.unlike({"triton": "3.7.1"}, asked) == "" and pins.unlike({"triton": "4.0"}, asked)
    assert pins.pins({"setup.py": "triton-ascend"}) == {} and pins.says("a/METADATA") and not pins.says("a.py")
