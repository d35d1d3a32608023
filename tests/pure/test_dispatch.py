"""rms_norm's dispatch: pure, total, and every choice can be launched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ops.rms_norm import dispatch

REPOSITORY = Path(dispatch.__file__).parents[3]
targets = st.sampled_from(["cuda:90", "cuda:100", "hip:gfx942", "interpreter", "somebody's:1"])
rows = st.one_of(st.integers(1, 300), st.integers(1, 2**40))
hidden = st.one_of(
    st.integers(1, 300), st.integers(1, 2**30), st.sampled_from([2**k + d for k in range(1, 30) for d in (-1, 0, 1)])
)
dtypes = st.sampled_from(["float32", "float16", "bfloat16"])
operations = st.sampled_from(["forward", "backward"])
sms = st.integers(1, 400)
modes = st.sampled_from(dispatch.MODES)


@given(targets, rows, hidden, dtypes, operations, sms, modes)
def test_auto_serves_everything_and_others_serve_or_say_why(target, rows, hidden, dtype, operation, sms, mode):
    reason = dispatch.refusal(mode, rows, hidden)
    if reason:
        assert mode != "auto"
        with pytest.raises(NotImplementedError, match=mode):
            dispatch.choose(target, rows, hidden, dtype, operation, sms, mode)
        return
    choice = dispatch.choose(target, rows, hidden, dtype, operation, sms, mode)
    assert choice.mode in dispatch.MODES and choice.mode not in ("auto", *dispatch.LATER)
    if mode != "auto":
        assert choice.mode == mode
    assert dispatch.refusal(choice.mode, rows, hidden) is None
    assert 1 <= choice.programs <= min(rows, dispatch.MAX_PROGRAMS)
    assert choice.programs * choice.rows_per_program >= rows  # no row is left out
    assert choice.block & (choice.block - 1) == 0 and 1 <= choice.block <= dispatch.MAX_BLOCK
    if choice.mode in dispatch.WHOLE_ROW:
        assert hidden <= choice.block < 2 * hidden
    assert choice.num_warps in (1, 2, 4, 8, 16, 32) and choice.num_stages >= 1
    assert choice.num_warps * (64 if target.startswith("hip") else 32) <= 1024  # threads of a block


@given(rows, hidden, sms)
def test_the_columns_of_dw_are_covered_and_the_grid_can_be_launched(rows, hidden, sms):
    choice, blocks = dispatch.choose_columns(rows, hidden, sms)
    assert (blocks - 1) * choice.block < hidden <= blocks * choice.block
    assert 1 <= choice.programs <= min(rows, 65535)  # the second dimension of a CUDA grid
    assert blocks <= dispatch.MAX_PROGRAMS
    # float32 partial rows stay a small part of what 8 programs a multiprocessor hold
    assert choice.programs == 1 or choice.programs * hidden <= 8 * sms * 2 * choice.block


@given(targets, rows, hidden, dtypes, operations, sms)
def test_equal_questions_have_equal_answers(target, rows, hidden, dtype, operation, sms):
    question = (target, rows, hidden, dtype, operation, sms)
    first = dispatch.choose(*question)
    dispatch.choose.cache_clear()
    assert dispatch.choose(*question) == first


@pytest.mark.parametrize(
    "rows, hidden, operation, mode",
    [
        (4096, 4096, "forward", "multi_wave_cached"),
        (32768, 128, "forward", "static_persistent"),
        (16, 128, "forward", "multi_wave_cached"),
        (2**32, 4096, "forward", "static_persistent"),  # more rows than a grid has programs
        (1024, 131072, "forward", "multi_wave_reload"),
        (4096, 16384, "backward", "static_persistent"),
        (4096, 32768, "backward", "multi_wave_reload"),
    ],
)
def test_auto_on_an_h200(rows, hidden, operation, mode):
    assert dispatch.choose("cuda:90", rows, hidden, "bfloat16", operation, 132).mode == mode


def test_a_choice_is_plain_data():
    choice = dispatch.choose("cuda:90", 4096, 4096, "bfloat16", "forward", 132)
    assert choice.to_dict() == {
        "mode": "multi_wave_cached",
        "block": 4096,
        "num_warps": 8,
        "num_stages": 1,
        "programs": 4096,
        "rows_per_program": 1,
    }


@pytest.mark.parametrize(
    "mode, rows, hidden, reason",
    [
        ("multi_wave_cached", 1, 65537, "at most 65536 elements; hidden is 65537"),
        ("static_persistent", 1, 65537, "at most 65536 elements; hidden is 65537"),
        ("multi_wave_cached", 2**31, 8, "at most 2147483647; rows is 2147483648"),
        ("row_packed", 1, 8, "comes with a later version"),
        ("column_tiled", 1, 8, "comes with a later version"),
    ],
)
def test_refusals_give_the_reason(mode, rows, hidden, reason):
    assert reason in str(dispatch.refusal(mode, rows, hidden))


def test_an_unknown_mode_is_an_error_not_unsupported():
    with pytest.raises(ValueError, match="no mode 'fast'; it has auto, "):
        dispatch.refusal("fast", 1, 1)


def test_it_needs_neither_torch_nor_triton():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from kernels.ops.rms_norm import dispatch\n"
        "print(dispatch.choose('cuda:90', 8, 8, 'float32', 'forward', 132).mode, dispatch.target())"
    )
    env = {"PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["multi_wave_cached", "interpreter"]
