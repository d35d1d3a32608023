"""What is launched on Ascend: pure, total, every choice within the Unified Buffer and the grid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ops.rms_norm.ascend import choose
from kernels.ops.rms_norm.choice import MODES, OPERATIONS, Choice, divide_up

REPOSITORY = Path(choose.__file__).parents[4]
TARGET = "npu:Ascend910B3"
targets = st.sampled_from([TARGET, "npu:Ascend910B1", "interpreter"])
rows = st.one_of(st.integers(0, 300), st.integers(1, 2**40))
hidden = st.one_of(
    st.integers(1, 300), st.integers(1, 2**30), st.sampled_from([2**k + d for k in range(1, 30) for d in (-1, 0, 1)])
)
dtypes = st.sampled_from(["float32", "float16", "bfloat16"])
operations = st.sampled_from(OPERATIONS)
ops = st.sampled_from(["rms_norm", "fused_add_rms_norm"])
cores = st.sampled_from([1, 4, 20, 40, 48])
modes = st.sampled_from(MODES)


def power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@given(targets, rows, hidden, dtypes, operations, cores, ops, modes)
def test_auto_serves_everything_and_others_serve_or_say_why(
    target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int, op: str, mode: str
) -> None:
    reason = choose.refusal(target, mode, rows, hidden, dtype, operation, op)
    if reason:
        assert mode != "auto"
        with pytest.raises(NotImplementedError, match=f"mode {mode} .* on Ascend; (hidden|rows) is"):
            choose.choose(target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode)
        return
    choice = choose.choose(target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode)
    assert choice.mode in MODES and choice.mode == (mode if mode != "auto" else choice.mode) != "auto"
    assert choose.refusal(target, choice.mode, rows, hidden, dtype, operation, op) is None
    launchable(choice, rows, hidden, operation, cores)


def launchable(choice: Choice, rows: int, hidden: int, operation: str, cores: int) -> None:
    assert power(choice.rows) and power(choice.block) and choice.block >= choose.MIN_BLOCK
    assert choice.rows * choice.block * choose.BYTES_PER_ELEMENT[operation] <= choose.UNIFIED_BUFFER
    if choice.mode in choose.WHOLE_ROW:
        assert hidden <= choice.block < max(2 * hidden, choose.MIN_BLOCK + 1)
    tiles = divide_up(rows, choice.rows)
    assert 1 <= choice.programs <= min(max(tiles, 1), choose.MAX_PROGRAMS)
    if not choice.mode.startswith("multi_wave"):
        assert choice.programs == max(1, min(tiles, cores))  # persistent: no core has two programs, none is idle
    assert (choice.rows > 1) >= (choice.mode == "row_packed")
    assert (choice.num_warps, choice.num_stages) == (0, 1)
    options = dict(choice.options)
    assert list(options) == sorted(options) and bool(options) == (operation == "backward")
    if options:
        assert options["partials"] == (choice.programs if choice.mode in choose.WHOLE_ROW else tiles)
        assert power(options["sum_rows"]) and power(options["sum_block"])
        assert options["sum_rows"] * options["sum_block"] * choose.BYTES_PER_ELEMENT["sum"] <= choose.UNIFIED_BUFFER
        assert 1 <= options["sum_programs"] <= min(cores, divide_up(hidden, options["sum_block"]))


@given(targets, rows, hidden, dtypes, operations, cores)
def test_equal_questions_have_equal_answers(
    target: str, rows: int, hidden: int, dtype: str, operation: str, cores: int
) -> None:
    first = choose.choose(target, rows, hidden, dtype, operation, cores=cores)
    choose.choose.cache_clear()
    assert choose.choose(target, rows, hidden, dtype, operation, cores=cores) == first


@given(rows, hidden, operations, cores)
def test_the_partial_sums_of_dw_stay_smaller_than_what_they_sum(
    rows: int, hidden: int, operation: str, cores: int
) -> None:
    """Float32 rows: one a program, or one a tile of chunks, of which many rows make few."""
    choice = choose.choose(TARGET, rows, hidden, "bfloat16", "backward", cores=cores)
    partials = dict(choice.options)["partials"]
    assert partials <= max(cores, divide_up(rows, choice.rows))
    if rows > 100 * cores and hidden > 8192:
        assert choice.rows == choose.MAX_CHUNK_ROWS


@pytest.mark.parametrize(
    "rows, hidden, operation, mode, tile, programs",
    [
        (32768, 128, "forward", "row_packed", (64, 128), 40),
        (32768, 128, "backward", "row_packed", (32, 128), 40),
        (2048, 512, "forward", "row_packed", (16, 512), 40),
        (4096, 1024, "backward", "row_packed", (4, 1024), 40),
        (4096, 4096, "backward", "static_persistent", (1, 4096), 40),
        (4096, 8192, "forward", "static_persistent", (1, 8192), 40),
        (4096, 8192, "backward", "column_tiled", (8, 512), 40),
        (4096, 16384, "forward", "column_tiled", (8, 1024), 40),
        (3, 262144, "forward", "column_tiled", (1, 8192), 3),  # as many cores at work as there are rows
        (17, 128, "forward", "static_persistent", (1, 128), 17),
    ],
)
def test_auto_on_a_910b3(
    rows: int, hidden: int, operation: str, mode: str, tile: tuple[int, int], programs: int
) -> None:
    choice = choose.choose(TARGET, rows, hidden, "bfloat16", operation, cores=40)
    assert (choice.mode, (choice.rows, choice.block), choice.programs) == (mode, tile, programs)


@pytest.mark.parametrize(
    "mode, rows, hidden, operation, reason",
    [
        ("static_persistent", 1, 8193, "forward", "at most 8192 elements in a forward on Ascend; hidden is 8193"),
        ("multi_wave_cached", 1, 4097, "backward", "at most 4096 elements in a backward on Ascend; hidden is 4097"),
        ("row_packed", 1, 4097, "forward", "two rows .* at most 4096 elements each in a forward .*; hidden is 4097"),
        ("multi_wave_cached", 65536, 8, "forward", "a program a row, at most 65535 on Ascend; rows is 65536"),
    ],
)
def test_refusals_give_the_reason(mode: str, rows: int, hidden: int, operation: str, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        choose.choose(TARGET, rows, hidden, "float32", operation, cores=40, mode=mode)


def test_what_is_unknown_is_an_error_not_unsupported() -> None:
    with pytest.raises(ValueError, match="rms_norm has no mode 'fast'; it has auto, "):
        choose.refusal(TARGET, "fast", 1, 1, "float32", "forward")
    with pytest.raises(ValueError, match="no operation 'full'; it has forward, backward"):
        choose.refusal(TARGET, "auto", 1, 1, "float32", "full")


def test_a_choice_is_plain_data() -> None:
    choice = choose.choose(TARGET, 4096, 8192, "bfloat16", "backward", cores=40)
    assert choice.to_dict() == {
        "mode": "column_tiled",
        "rows": 8,
        "block": 512,
        "num_warps": 0,
        "num_stages": 1,
        "programs": 40,
        "options": {"partials": 512, "sum_block": 128, "sum_programs": 40, "sum_rows": 64},
    }


def test_it_needs_neither_torch_nor_triton() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from kernels.ops.rms_norm.ascend import choose\n"
        "print(choose.choose('npu:Ascend910B3', 8, 8, 'float32', 'forward', cores=40).mode)"
    )
    env = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=60)
    assert done.stdout.split() == ["static_persistent"]
