"""Which findings of the compiler make a cell `compile_error`."""

from __future__ import annotations

from typing import Any

import pytest

from farm.cell import Status
from farm.compile import gate
from farm.compile.gate import Launch
from farm.compile.targets import TARGETS
from farm.contracts.discovery import contract

CLEAN = {
    "registers": 40,
    "spill_store_bytes": 0,
    "spill_load_bytes": 0,
    "stack_bytes": 0,
    "blocks_per_core": 6,
    "limiter": "registers",
}
SPILLS = {**CLEAN, "spill_store_bytes": 9904, "spill_load_bytes": 7216, "stack_bytes": 6800}
UB = {"ub_bytes": 90_000, "ub_limit_bytes": 196_608, "ub_share": 0.46, "scalar_accesses": 0}


def launch(resources: dict[str, Any], phase: str = "forward", rivals: tuple[dict[str, Any], ...] = ()) -> Launch:
    return Launch("norm", phase, resources, rivals)


def judge(mode: str, hidden: int | None, launches: list[Launch]) -> gate.BuildJudgement:
    """The verdict on a norm of rows of `hidden` elements; None: on an op whose contract bounds no spills."""
    if hidden is None:
        return gate.judge(mode, {"m": 1}, {}, launches)
    return gate.judge(mode, {"rows": 16, "hidden": hidden}, contract("rms_norm").spill_free, launches)


def test_what_fits_is_built() -> None:
    assert judge("auto", 4096, [launch(CLEAN), launch(CLEAN, "backward")]) == gate.BuildJudgement(Status.BUILT)


@pytest.mark.parametrize(
    ("mode", "hidden", "phase", "binds"),
    [
        ("auto", 16384, "forward", True),
        ("auto", 16385, "forward", False),
        ("auto", 8192, "backward", True),
        ("auto", 8193, "backward", False),
        ("auto", 1, "backward", True),
        ("static_persistent", 128, "forward", False),
        ("auto", None, "forward", False),
    ],
)
def test_a_spill_binds_auto_up_to_its_width(mode: str, hidden: int | None, phase: str, binds: bool) -> None:
    found = judge(mode, hidden, [launch(CLEAN), launch(SPILLS, phase)])
    assert found.status is (Status.COMPILE_ERROR if binds else Status.BUILT)
    text = found.reason if binds else " ".join(found.flags)
    assert text.startswith("norm spills 9,904 bytes (stores) and 7,216 (loads) per thread")
    assert (found.flags == ()) is binds


def test_in_a_full_cell_each_phase_has_its_own_width() -> None:
    assert judge("auto", 10000, [launch(CLEAN), launch(SPILLS, "backward")]).status is Status.BUILT
    assert judge("auto", 10000, [launch(SPILLS), launch(CLEAN, "backward")]).status is Status.COMPILE_ERROR


def test_spilled_registers_alone_are_a_spill() -> None:
    found = judge("auto", 4096, [launch({**CLEAN, "spilled_registers": 3})])
    assert found.status is Status.COMPILE_ERROR
    assert "3 registers" in found.reason


def test_a_stack_without_spills_is_told_and_binds_nothing() -> None:
    found = judge("auto", 4096, [launch({**CLEAN, "stack_bytes": 64})])
    assert found.status is Status.BUILT
    assert found.flags == ("norm keeps 64 bytes per thread on a stack in device memory",)


@pytest.mark.parametrize("mode", ["auto", "column_tiled"])
def test_an_overflow_of_the_unified_buffer_binds_always(mode: str) -> None:
    over = {**UB, "ub_bytes": None, "ub_overflow_bytes": 327_712}
    found = judge(mode, 10**6, [launch(over)])
    assert found.status is Status.COMPILE_ERROR
    assert found.reason == "norm needs 327,712 bytes of Unified Buffer, but only 196,608 are available"


def test_a_scalar_fallback_binds_what_auto_chooses() -> None:
    slow = {**UB, "scalar_accesses": 2048}
    assert judge("auto", 10**6, [launch(slow)]).status is Status.COMPILE_ERROR
    named = judge("column_tiled", 128, [launch(slow)])
    assert named.status is Status.BUILT
    assert "scalar unit (2,048 single-element accesses" in named.flags[0]
    assert judge("auto", 128, [launch({**UB, "scalar_accesses": gate.SCALAR_BOUND})]).flags == ()


def test_a_kernel_that_no_core_can_hold_binds_always() -> None:
    found = judge("row_packed", None, [launch({**CLEAN, "blocks_per_core": 0, "limiter": "shared memory"})])
    assert found.status is Status.COMPILE_ERROR
    assert "no block fits on a core (shared memory)" in found.reason


def test_a_grid_beyond_the_runtimes_limits_binds_always() -> None:
    found = judge("row_packed", None, [Launch("norm", "forward", CLEAN, too_large="65,535 programs")])
    assert (found.status, found.reason) == (
        Status.COMPILE_ERROR,
        "norm cannot be launched: the grid exceeds 65,535 programs",
    )


@pytest.mark.parametrize(
    ("target", "grid", "threads", "fits"),
    [
        ("sm_90", (2**31 - 1, 65535, 1), 1024, True),
        ("sm_90", (2**31, 1, 1), 32, False),
        ("sm_100", (1, 65536, 1), 32, False),
        ("gfx942", (2**22 - 1, 1, 1), 1024, True),
        ("gfx942", (2**22, 1, 1), 1024, False),
        ("ascend910b", (65535, 1, 1), 0, True),
        ("ascend910b", (40, 1639, 1), 0, False),
    ],
)
def test_the_limits_of_grids(target: str, grid: tuple[int, ...], threads: int, fits: bool) -> None:
    assert (TARGETS[target].grid_limit(grid, threads) is None) is fits


def test_what_tuning_would_choose_is_judged_by_the_best_variant() -> None:
    assert judge("auto", 128, [launch(SPILLS, rivals=(SPILLS, CLEAN))]).status is Status.BUILT
    assert judge("auto", 128, [launch(SPILLS, rivals=(SPILLS,))]).status is Status.COMPILE_ERROR


def test_each_complaint_is_told_once() -> None:
    found = judge("auto", 128, [launch(SPILLS), launch(SPILLS)])
    assert found.reason.count("norm spills") == 1
