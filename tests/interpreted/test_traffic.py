"""Bytes really moved, counted by the interpreter: a kernel that reads twice is seen without a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import kernels
from farm.child import interpreter
from farm.child.traffic import Counter, counted

ROWS, HIDDEN = 24, 2048
MATRIX, WEIGHT = ROWS * HIDDEN * 4, HIDDEN * 4


@triton.jit
def once(X, W, Y, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0)
    tl.store(Y + row * hidden + cols, x * tl.load(W + cols, mask=cols < hidden, other=0.0), mask=cols < hidden)


@triton.jit
def twice(X, W, Y, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mean = tl.sum(tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0)) / hidden
    x = tl.load(X + row * hidden + cols, mask=cols < hidden, other=0.0) - mean
    tl.store(Y + row * hidden + cols, x * tl.load(W + cols, mask=cols < hidden, other=0.0), mask=cols < hidden)


def facts_of(call: Any, *inputs: torch.Tensor) -> dict[str, int]:
    """What `counted` says of a call whose first input has the row dimension and whose second has not."""
    found: dict[str, int] = {}
    plans = [{"role": "input", "blocked": i != 1} for i in range(len(inputs))] + [{"role": "output"}]
    with counted(found, plans, inputs):
        call(*inputs)
    return found


def run(kernel: Any, hidden: int = HIDDEN) -> dict[str, int]:
    x, w, y = torch.ones(ROWS, hidden), torch.ones(hidden), torch.empty(ROWS, hidden)
    return facts_of(lambda *_: kernel[(ROWS,)](x, w, y, hidden, BLOCK=triton.next_power_of_2(hidden)), x, w)


def test_a_kernel_that_reads_once_moves_the_models_bytes() -> None:
    assert run(once) == {"bytes_counted": 2 * MATRIX + WEIGHT, "bytes_requested": 3 * MATRIX}


def test_a_kernel_that_reads_twice_is_seen() -> None:
    assert run(twice) == {"bytes_counted": 3 * MATRIX + WEIGHT, "bytes_requested": 4 * MATRIX}


def test_masked_lanes_count_for_nothing() -> None:
    assert run(once, 1030) == {"bytes_counted": (2 * ROWS + 1) * 1030 * 4, "bytes_requested": 3 * ROWS * 1030 * 4}


def test_a_whole_input_counts_once_in_each_launch() -> None:
    x, w, y = torch.ones(ROWS, HIDDEN), torch.ones(HIDDEN), torch.empty(ROWS, HIDDEN)

    def two_launches(*_: torch.Tensor) -> None:
        for _launch in range(2):
            once[(ROWS,)](x, w, y, HIDDEN, BLOCK=HIDDEN)

    assert facts_of(two_launches, x, w)["bytes_counted"] == 2 * (2 * MATRIX + WEIGHT)


def test_what_launches_nothing_says_nothing() -> None:
    assert facts_of(lambda x, w: x * w, torch.ones(4, 8), torch.ones(8)) == {}
    run(once)  # and nobody counts after a call
    assert interpreter._counter is None


def test_nobody_counts_after_a_call_that_failed() -> None:
    with pytest.raises(ValueError, match="broken"):
        facts_of(lambda *_: (_ for _ in ()).throw(ValueError("broken")), torch.ones(4, 8), torch.ones(8))
    assert interpreter._counter is None


def test_a_store_to_a_whole_input_counts_each_time() -> None:
    counter = Counter([(0, 64)])
    counter.launch()
    for _ in range(3):
        counter.access("store", torch.arange(0, 64, 4).numpy(), 4)
        counter.access("load", torch.arange(0, 64, 4).numpy(), 4)
    assert (counter.counted, counter.requested) == (4 * 64, 6 * 64)


@pytest.mark.parametrize(("mode", "matrices"), [("multi_wave_cached", 2), ("multi_wave_reload", 3)])
def test_our_mode_that_reads_again_moves_a_matrix_more(mode: str, matrices: int) -> None:
    x, w = torch.randn(8, 8192).bfloat16(), torch.ones(8192, dtype=torch.bfloat16)
    found = facts_of(lambda x, w: kernels.rms_norm(x, w, mode=mode), x, w)
    bytes_of = x.numel() * 2
    assert matrices * bytes_of <= found["bytes_counted"] < (matrices + 0.2) * bytes_of
