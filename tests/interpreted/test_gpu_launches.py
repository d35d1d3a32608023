"""The GPU family's launch functions with choices that dispatch does not make here: every configuration of the shipped
table, each two options of each kernel, grids of fewer programs than tiles, many partial sums, and tiles in the order of
dimensions that other versions of Triton want."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from gpu_cases import (
    FACTORS,
    OPS,
    SPACES,
    call,
    launched,
    many_partials,
    on_small_grids,
    option_entries,
    swap_axes,
    tuned_entries,
)
from judged import Launch, norm_cell

from farm.child.launch_recorder import LaunchRecorder
from kernels import launches, rms_norm
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.choice import MODES, OPERATIONS
from kernels.ops.rms_norm.gpu import backward, choose, launch, tuned


def some(count: int) -> list[Any]:
    """Numbers below `count`, of which `make test` has each tenth."""
    return [pytest.param(n, marks=[pytest.mark.long] if n % 10 else []) for n in range(count)]


@pytest.mark.parametrize("number", some(len(tuned_entries())), ids=lambda n: f"{n}-{tuned_entries()[n].id}")
def test_a_tuned_configuration_is_right(number: int) -> None:
    tuned_entries()[number].launch.check(again=number % 7 == 0)


def test_the_entries_hold_every_configuration_of_the_table() -> None:
    table = {
        (op, operation, dtype == "float32", json.dumps(config, sort_keys=True))
        for (op, operation, dtype), measured in tuned.TABLE.items()
        for _, _, config in measured
        if config["kernel"] not in (*choose.RINGS, *choose.SPLITS)
    }
    held = {(e.op, e.operation, e.dtype == "float32", e.config) for e in tuned_entries()}
    assert table and held == table


def test_rings_of_the_table_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted for every target: `dispatch.can_ring` keeps them from this one, and the tests above leave them out."""
    config = {"mode": "static_persistent", "block": 256, "num_warps": 4, "per_core": 1}
    rings = [(operation, {**config, "kernel": f"{operation}_ring"}) for operation in OPERATIONS]
    asked = []

    def find(target: str, op: str, operation: str, *shape: Any) -> Any:
        *_, serves, _ = shape
        asked.append(operation)
        return (256, dict(rings)[operation]) if serves(f"{operation}_ring", 256) else None

    monkeypatch.setattr(tuned, "find", find)
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", o, "float32"): ((8, 256, c),) for o, c in rings})
    dispatch.choose.cache_clear()
    assert tuned_entries.__wrapped__() == ()
    chosen = choose.choose("cuda:90", 3, 256, "float32", "forward", cores=4, op="rms_norm", mode="auto", ring=True)
    assert dict(chosen.options)["kernel"] == "forward_ring"  # the plant works
    x = torch.randn(3, 256, requires_grad=True)
    launches.enable()
    rms_norm(x, torch.ones(256)).sum().backward()
    names = [record["kernel"] for record in launches.drain()]
    dispatch.choose.cache_clear()
    assert set(asked) == set(OPERATIONS)
    assert len(names) == 2 and not any("ring" in name for name in names)


@pytest.mark.parametrize("number", some(len(option_entries())), ids=lambda n: option_entries()[n].id)
def test_any_two_options_together_are_right(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both orders of a tile's dimensions."""
    entry = option_entries()[number]
    entry.launch.check(again=False)
    swap_axes(monkeypatch)
    entry.launch.check(again=False)


def test_the_options_are_all_there() -> None:
    """A new option of a kernel, or one that the table has, must be added to what is tried."""
    given_by_shape = {"mode", "kernel", "num_warps", "num_stages", "rows", "block", "per_core"}
    # Gluon cannot be interpreted, and test_gpu_split and test_gpu_few have their own.
    assert set(SPACES) == set(choose.DEFAULTS) - {*choose.RINGS, *choose.SPLITS, *choose.FEW}
    for kernel, (_, options, _) in SPACES.items():
        beyond = {"pdl", "ahead"}  # instructions of a device
        assert set(choose.DEFAULTS[kernel]) - beyond <= set(options)
    for measured in tuned.TABLE.values():
        for _, _, config in measured:
            assert set(config) <= given_by_shape | set(choose.DEFAULTS[config["kernel"]])


def test_the_order_of_dimensions_is_really_another(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"mode": "row_packed", "kernel": "backward_rows", "span": "warp", "rows": 4, "num_warps": 4}
    chosen = choose.build("backward", {**config, "per_core": 1}, 9, 1000, 4, 1, "interpreter")
    case = Launch(norm_cell("rms_norm", "row_packed", "backward", "float32", "same", 9, 1000), chosen, launch)
    stock, shapes = backward._sum_of_rows, []

    def spy(values: Any) -> Any:
        shapes.append(tuple(int(n) for n in values.shape))
        return stock(values)

    monkeypatch.setattr(backward, "_sum_of_rows", spy)
    case.check(again=False)
    swap_axes(monkeypatch)
    case.check(again=False)
    assert set(shapes) == {(8, 4, 128), (4, 8, 128)} and shapes[0] != shapes[-1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("op", OPS)
def test_programs_that_walk_over_many_tiles_are_right(op: str, operation: str, mode: str) -> None:
    launched(op, operation, 41, 129, "bfloat16", mode, cores=1).check()


def test_a_grid_that_ends_before_the_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = on_small_grids(monkeypatch)
    assert {case.choice.mode for case in cases} >= {"static_persistent", "multi_wave_reload", "column_tiled"}
    for case in cases:
        case.check(again=False)


def test_many_partial_sums_are_added_up() -> None:
    case = many_partials()
    assert case.choice.programs == 300 > choose.reduction(300, 40).rows
    case.check(again=False)


@pytest.mark.parametrize("mode", MODES)
def test_the_farm_is_told_the_mode_that_served_the_call(mode: str) -> None:
    """It takes the last launch's: the small kernels after the main one must not name a mode of their own."""
    case = {name: values[-1] for name, values in FACTORS.items()}
    subject = call({**case, "mode": mode, "operation": "backward", "hidden": 1000, "weight": "same"})
    noted = LaunchRecorder()
    with noted:
        subject.run()
    chosen = dispatch.choose(
        "interpreter", 17, 1000, "bfloat16", "backward", cores=dispatch.INTERPRETED_CORES, op=subject.cell.op, mode=mode
    )
    facts = noted.facts(mode)
    assert facts["mode_resolved"] == chosen.mode and facts["launch"]["kernels"][-1]["kernel"] == "sum_partials"
    assert {r["mode"] for r in facts["launch"]["kernels"] if r["direction"] == "backward"} == {chosen.mode}


@pytest.mark.device_sums
@pytest.mark.parametrize("count, hidden", [(1, 1), (3, 7), (5, 129), (264, 40), (300, 33), (17, 4097), (130, 4097)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_sums_are_added_up_as_on_a_device(count: int, hidden: int, dtype: torch.dtype) -> None:
    """Elsewhere in these tests they are, in fewer and wider programs."""
    draw = torch.Generator().manual_seed(hidden)
    partial = torch.randn(count, hidden, generator=draw)
    got = torch.full((hidden,), float("nan"), dtype=dtype)
    launches.enable()
    launch._sum_partials(partial, got, False, "row_packed")
    (record,) = launches.drain()
    assert record["grid"] == [-(-hidden // (16 if hidden <= 4096 else 32))]
    want = partial.double().sum(0)
    size = partial.double().abs().sum(0)
    assert (
        (got.double() - want).abs() <= 1e-6 * size + (0.0 if dtype is torch.float32 else 2.0**-8) * want.abs()
    ).all()


@pytest.mark.device_sums
@pytest.mark.parametrize("op", OPS)
def test_a_backward_with_a_devices_sums_is_right(op: str) -> None:
    launched(op, "backward", 5, 4097, "bfloat16", "auto", cores=4).check()


def test_other_tests_sum_in_few_programs() -> None:
    assert choose.reduction(17, 4097).programs == 3 and choose.reduction(256, 262144).programs <= 64
