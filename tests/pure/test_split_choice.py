"""How rows are divided among programs, and when `auto` may choose a kernel of split.py: only where it was measured, and
only for whom it can serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.choice import OPERATIONS
from kernels.ops.rms_norm.gpu import choose, split_plan, tuned

SPLIT = {"mode": "multi_wave_cached", "kernel": "forward_split", "parts": 8, "num_warps": 16}
BACKWARD = {"mode": "static_persistent", "kernel": "backward_split", "parts": 16, "num_warps": 16, "per_core": 1}
RING = {"mode": "static_persistent", "kernel": "forward_ring", "block": 8192, "num_warps": 8, "per_core": 1, "regs": 6}
OTHER = {"mode": "multi_wave_reload", "kernel": "forward_chunks", "block": 8192, "num_warps": 32}


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 2**20), st.integers(1, 64))
def test_every_column_is_in_one_part_and_no_part_is_empty(hidden: int, parts: int) -> None:
    made = split_plan.plan(hidden, parts)
    assert 1 <= made.parts <= parts and made.width % split_plan.STEP == 0
    assert (made.parts - 1) * made.width < hidden <= made.parts * made.width
    assert made.width <= made.block < 2 * made.width and made.block & (made.block - 1) == 0
    assert made.width - -(-hidden // parts) < split_plan.STEP  # no wider than it must be


def test_groups_fill_what_runs_at_once_and_no_more_than_rows() -> None:
    assert split_plan.groups(8192, 16, 132) == 8
    assert split_plan.groups(8192, 33, 132) == 4
    assert split_plan.groups(3, 16, 264) == 3
    assert split_plan.groups(3, 16, 8) == 1  # more programs than run at once: they give up, and are right


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table in which they were the fastest at one shape, then the ring, then another kernel."""
    table = {
        ("rms_norm", "forward", "bfloat16"): tuple((8192, 131072, c) for c in (SPLIT, RING, OTHER)),
        ("rms_norm", "backward", "bfloat16"): ((8192, 131072, BACKWARD),),
    }
    monkeypatch.setattr(tuned, "TABLE", table)
    dispatch.choose.cache_clear()
    yield
    dispatch.choose.cache_clear()


def chosen(operation: str = "forward", target: str = "cuda:90", split: bool = True, **more: Any) -> Any:
    rows, hidden = more.pop("rows", 8192), more.pop("hidden", 131072)
    return dispatch.choose(target, rows, hidden, "bfloat16", operation, cores=132, split=split, **more)


def test_they_are_chosen_where_they_were_measured_and_may_be() -> None:
    choice = chosen()
    assert (choice.kernel, choice.mode, choice.programs, choice.block) == ("forward_split", SPLIT["mode"], 65536, 16384)
    options = dict(choice.options)
    assert (options["parts"], options["width"], options["lanes"], options["spin"]) == (8, 16384, 512, True)
    assert options["polls"] == split_plan.POLLS and options["pdl"] is True
    choice = chosen("backward")
    assert (choice.kernel, choice.programs, choice.block) == ("backward_split", 128, 8192)
    assert dict(choice.options)["registers"] == 128
    assert chosen(hidden=100_000).kernel == "forward_split" and chosen(target="cuda:100").kernel == "forward_split"


def test_rows_that_are_not_wide_are_divided_in_large_matrices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words that programs meet by are cleared before, by a launch that a small matrix would wait for."""
    entries = ((4096, 16384, {**SPLIT, "parts": 4}), (4096, 16384, OTHER))
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "forward", "bfloat16"): entries})
    dispatch.choose.cache_clear()
    assert chosen(rows=4096, hidden=16384).kernel == "forward_split"  # 128 MiB
    assert chosen(rows=4095, hidden=16384).kernel == "forward_chunks"
    assert chosen(rows=512, hidden=16384).kernel == "forward_chunks"


def test_wide_rows_are_divided_in_smaller_matrices_too() -> None:
    assert chosen(rows=512, hidden=100_000).kernel == "forward_split"  # 98 MiB
    assert chosen(rows=511, hidden=100_000).kernel == "forward_chunks"  # far from the rows that were measured


def test_parts_are_as_wide_as_at_the_measured_width_and_no_row_is_much_narrower() -> None:
    for hidden, parts, width in ((131072, 8, 16384), (100_000, 7, 14288), (98304, 6, 16384)):
        options = dict(chosen(hidden=hidden).options)
        assert (options["parts"], options["width"]) == (parts, width)
    assert chosen(hidden=98303).kernel == "forward_chunks" and chosen(hidden=65544).kernel == "forward_chunks"


def test_backwards_that_would_read_rows_twice_have_parts_of_a_measured_width(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = {"mode": "static_persistent", "kernel": "backward_twice", "chunk": 8192, "num_warps": 16, "per_core": 1}
    ring = {"mode": "static_persistent", "kernel": "backward_ring", "block": 4096, "num_warps": 16, "per_core": 1}
    entries = ((4096, 16384, {**BACKWARD, "parts": 4}), (8192, 65536, ring), (8192, 65536, twice))
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "backward", "bfloat16"): entries})
    dispatch.choose.cache_clear()

    def parts(hidden: int, **more: Any) -> Any:
        choice = chosen("backward", hidden=hidden, **more)
        return dict(choice.options)["parts"] if choice.kernel == "backward_split" else choice.kernel

    assert [parts(h) for h in (65536, 2**17, 2**18, 40_000)] == [16, 32, 64, 10]
    assert parts(65536, ring=True) == "backward_ring"  # reads them once
    assert parts(2**17, split=False) == "backward_columns" and parts(65536, split=False) == "backward_twice"
    assert parts(32768) == "backward_twice"  # 64 KiB: the search had its choice
    assert parts(2**17 + 1) == "backward_columns"  # rows that are not 16-byte aligned
    for target in ("cuda:80", "hip:gfx942"):
        assert parts(2**17, target=target) == "backward_columns"
    assert parts(2**17, op="fused_add_rms_norm") == "backward_columns"  # has no entry of its own
    near = (8192, 131072, {**BACKWARD, "parts": 16})
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "backward", "bfloat16"): (*entries, near)})
    dispatch.choose.cache_clear()
    assert parts(2**18) == 32  # by the nearest of the measured widths: 8,192 columns
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "backward", "bfloat16"): (*entries, (8192, 65536, BACKWARD))})
    dispatch.choose.cache_clear()
    assert parts(65536) == "backward_twice"  # where the table has both
    assert parts(40_000) == 10  # narrower than what that entry serves
    monkeypatch.setattr(tuned, "TABLE", {("rms_norm", "backward", "bfloat16"): entries[1:]})
    dispatch.choose.cache_clear()
    assert parts(2**17) == "backward_columns"  # never measured


def test_programs_of_a_row_that_cannot_run_at_once_are_not_started() -> None:
    """On a slice of a device: each would ask in vain, and compute all rows alone."""

    def on(cores: int, operation: str) -> Any:
        return dispatch.choose("cuda:90", 8192, 131072, "bfloat16", operation, cores=cores, split=True)

    assert (on(32, "backward").kernel, on(32, "backward").programs) == ("backward_split", 32)
    assert on(31, "backward").kernel == "backward_columns"  # one row at a time, and half the device for nothing
    assert on(8, "forward").kernel == "forward_split" and on(7, "forward").kernel == "forward_chunks"


def test_what_fills_no_tile_or_spills_on_blackwell_has_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        ("rms_norm", "backward", "bfloat16"): ((8192, 65536, {**BACKWARD, "num_warps": 8, "per_core": 3}),),
        ("rms_norm", "forward", "bfloat16"): ((8192, 65536, {**SPLIT, "num_warps": 4, "registers": 40}),),
    }
    monkeypatch.setattr(tuned, "TABLE", table)
    dispatch.choose.cache_clear()

    def registers(operation: str, **more: Any) -> int:
        return int(dict(chosen(operation, **more).options)["registers"])

    assert registers("backward", hidden=65536) == 80 and registers("backward", hidden=60_000) == 128
    assert registers("backward", hidden=65536, target="cuda:100") == 128
    assert registers("forward", hidden=65536) == 40 and registers("forward", hidden=65536, target="cuda:103") == 48


def test_else_the_next_best_stands_in() -> None:
    assert chosen(split=False, ring=True).kernel == "forward_ring"
    assert chosen(split=False).kernel == "forward_chunks"
    assert chosen("backward", split=False).kernel == "backward_columns"


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "interpreter"])
def test_other_targets_have_their_rules(target: str) -> None:
    assert not any(chosen(o, target=target).kernel.endswith("_split") for o in OPERATIONS)


def test_no_rule_and_no_mode_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(mode="multi_wave_reload").kernel == "forward_chunks"
    assert chosen("backward", mode="column_tiled").kernel == "backward_columns"
    monkeypatch.setattr(tuned, "TABLE", {})
    dispatch.choose.cache_clear()
    for operation in OPERATIONS:
        for hidden in (128, 4096, 32768, 65536, 131072, 2**20):
            for target in ("cuda:90", "cuda:100", "cuda:80", "hip:gfx942", "interpreter"):
                assert not chosen(operation, target=target, hidden=hidden, ring=True).kernel.endswith("_split")


def test_whose_tensors_they_can_have() -> None:
    x, y = torch.zeros(4, 64), torch.zeros(4, 64)
    assert dispatch.can_split("cuda:90", x, None, y, None) and dispatch.can_split("cuda:100", x)
    assert not dispatch.can_split("hip:gfx942", x) and not dispatch.can_split("interpreter", x)
    assert not dispatch.can_split("cuda:90", x, y, x)
    assert not dispatch.can_split("cuda:90", x, x.view(8, 32))
    assert dispatch.can_split("cuda:90", x[:2], x[2:])
    wide = torch.zeros(4, 65)
    assert not dispatch.can_split("cuda:90", wide[:, :64])  # nothing would be fetched ahead
    assert not dispatch.can_split("cuda:90", x.view(-1)[1:65].view(1, 64))
    a, b = torch.empty(4, 64, device="meta"), torch.empty(4, 64, device="meta")
    assert dispatch.can_split("cuda:90", a, b) and not dispatch.can_split("cuda:90", a, b, a)
    choice = chosen()
    assert dispatch.can_serve(choice, "cuda:90", x, y) and not dispatch.can_serve(choice, "cuda:90", x, x)


def test_on_other_targets_a_configuration_is_built_without_ptx() -> None:
    """`farm compile` may build the table's for any target."""
    for target, lanes, polls in (("hip:gfx942", 1024, split_plan.POLLS), ("interpreter", 16, 2)):
        options = dict(choose.build("backward", BACKWARD, 64, 131072, 2, 304, target).options)
        assert not options["spin"] and not options["pdl"] and options["registers"] == 0
        assert (options["lanes"], options["polls"]) == (lanes, polls)


@pytest.mark.parametrize(("warps", "per_core", "registers"), [(16, 1, 128), (8, 2, 128), (8, 1, 255), (16, 2, 64)])
def test_a_backward_s_programs_have_registers_for_all_of_them_at_once(
    warps: int, per_core: int, registers: int
) -> None:
    config = {**BACKWARD, "num_warps": warps, "per_core": per_core}
    choice = choose.build("backward", config, 8192, 131072, 2, 132, "cuda:90")
    assert dict(choice.options)["registers"] == registers
    assert choice.programs == 132 * per_core // 16 * 16
