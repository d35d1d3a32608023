"""What the kernel benchmarks plan: every shape that they shall have, the contract's bytes, shares of the time."""

from __future__ import annotations

import pytest

from benchmarks import cases, roof
from benchmarks.cases import Case
from farm.contracts.discovery import known_ops

MIB = 1 << 20
FUSED = pytest.param(
    "fused_add_rms_norm", marks=pytest.mark.skipif("fused_add_rms_norm" not in known_ops(), reason="no contract yet")
)


def test_bytes_are_the_units_of_the_model_and_the_weight() -> None:
    unit, weight = 4096 * 4096 * 2, 4096 * 2
    assert Case("rms_norm", "forward", "bfloat16", 4096, 4096).bytes_moved == 2 * unit + weight
    assert Case("rms_norm", "no-grad-forward", "bfloat16", 4096, 4096).bytes_moved == 2 * unit + weight
    assert Case("rms_norm", "backward", "bfloat16", 4096, 4096).bytes_moved == 3 * unit + 2 * weight
    assert Case("rms_norm", "forward", "float32", 4096, 4096).bytes_moved == 4 * unit + 2 * weight


@pytest.mark.parametrize("op", [FUSED])
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_a_fused_norm_moves_four_units(op: str, operation: str) -> None:
    weights = 1 if operation == "forward" else 2
    assert Case(op, operation, "bfloat16", 64, 128).bytes_moved == 4 * 64 * 128 * 2 + weights * 128 * 2


def test_the_plan_has_every_shape_and_what_matters_most_first() -> None:
    planned = cases.plan("rms_norm", "forward")
    assert [c.dtype for c in planned] == ["bfloat16"] * 20 + ["float16"] * 6 + ["float32"] * 6
    shapes = [(c.rows, c.hidden) for c in planned]
    assert shapes[:14] == list(cases.SHAPES) and shapes[14:20] == list(cases.ODD_SHAPES)
    assert len({c.id for c in planned}) == len(planned)
    assert {c.hidden for c in planned} >= {128, 1024, 131072, 1000, 3584, 4095, 4097, 5120, 7168}
    for c in planned[14:20]:
        assert 64 * MIB <= c.bytes_moved <= 128 * MIB, c


def test_named_shapes_replace_the_list() -> None:
    planned = cases.plan("rms_norm", "backward", ["fp32", "bf16"], [(3, 5)])
    assert [c.id for c in planned] == ["rms_norm/backward/fp32/3x5", "rms_norm/backward/bf16/3x5"]
    assert cases.parse_shape("3x5") == (3, 5)
    for wrong in ("3", "3x", "ax5", "0x5", "3x5x7", "-3x5"):
        with pytest.raises(ValueError, match="ROWSxHIDDEN"):
            cases.parse_shape(wrong)


def test_a_case_survives_json_and_names_its_cell() -> None:
    case = Case("rms_norm", "backward", "float16", 12, 34)
    assert cases.case_of({**case.to_dict(), "more": 1}) == case
    cell = case.cell("farm:row_packed")
    assert (cell.provider, cell.mode, cell.operation, cell.shape) == ("farm", "row_packed", "backward", "12x34")
    assert dict(cell.dtypes) == {"x": "float16", "weight": "float16"} and cell.params["casting"] == "llama"
    assert case.cell("nobody").mode == "auto"


def test_subjects_and_their_order() -> None:
    names = cases.subjects(["torch"], ["auto", "row_packed"])
    assert names == ["farm", "farm:row_packed", "torch"]
    assert [cases.rotated(names, n)[0] for n in range(4)] == ["farm", "farm:row_packed", "torch", "farm"]
    assert sorted(cases.rotated(names, 5)) == sorted(names) and cases.rotated([], 3) == []


def test_what_one_process_leaves_of_the_time_goes_to_the_rest() -> None:
    assert cases.share(400.0, 4) == 100.0
    assert cases.share(400.0 - 40.0, 3) == 120.0
    assert cases.share(-5.0, 2) == 0.0 and cases.share(10.0, 0) == 10.0


def test_warming_compiles_everything_once() -> None:
    planned = [c for o in ("forward", "backward") for c in cases.plan("rms_norm", o, shapes=[(3, 5), (7, 9)])]
    shares = cases.warm_shares(planned, ["farm", "torch"], 4)
    pairs = [(cases.case_of(i["case"]).id, *i["subjects"]) for share in shares for i in share]
    assert len(shares) == 4 and len(pairs) == len(set(pairs)) == 12  # six backwards, each with its forward in it
    assert all("/backward/" in p[0] for p in pairs)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    alone = cases.warm_shares(cases.plan("rms_norm", "forward", shapes=[(3, 5)]), ["farm"], 8)
    assert len(alone) == 3


@pytest.mark.parametrize("nbytes", [1, 4096, 5000, 64 * MIB, 64 * MIB + 8192, 96 * MIB + 12345, (8 << 30) + 77])
def test_a_roofs_bytes_are_within_a_part_in_five_hundred(nbytes: int) -> None:
    moved = roof.bucket(nbytes)
    assert moved % roof.GRAIN == 0 and moved > 0
    assert abs(moved - nbytes) <= max(roof.GRAIN, nbytes / 500)
    assert roof.bucket(moved) == moved


def test_a_weight_does_not_ask_for_a_roof_of_its_own() -> None:
    for operation in ("forward", "backward"):
        a, b = (Case("rms_norm", operation, "bfloat16", *s) for s in ((8192, 4096), (32768, 1024)))
        assert a.bytes_moved != b.bytes_moved and roof.bucket(a.bytes_moved) == roof.bucket(b.bytes_moved)
