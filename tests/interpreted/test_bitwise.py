"""Two runs of any of our kernels give the same bits: in this process, and in others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import kernels
from benchmarks import bitwise
from benchmarks.bitwise import Cell
from benchmarks.cases import MODES, available_ops

OPS = [op for op in available_ops() if op in kernels.__all__]
SHAPES = [(5, 40), (3, 129)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["auto", *MODES])
@pytest.mark.parametrize("op", OPS)
def test_two_runs_give_the_same_bits(op, mode, dtype):
    for shape in SHAPES:
        found = bitwise.run(Cell(op, mode, dtype, *shape), getattr(kernels, op), "cpu", 2)
        assert set(found) == set(bitwise.DIRECTIONS)
        for direction, hashes in found.items():
            if isinstance(hashes, str):
                assert hashes.startswith("unsupported: ") and mode != "auto", hashes
            else:
                assert len(hashes) == 2 and len(set(hashes)) == 1, (direction, hashes)


@pytest.mark.long
def test_a_fresh_process_gives_the_same_bits_too():
    """The whole command on a few cells: two processes of its own."""
    command = [sys.executable, "-m", "benchmarks.bitwise", "--shapes", "3x40", "--modes", "auto", "--dtypes", "bf16"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False
    )
    count = 2 * len(OPS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} of {count} (cell, direction) are the same bits in three runs" in done.stdout


def planted(noise: float, backward: bool = False):
    """torch's norm with a result that is another one in each call."""
    calls = [0]

    def function(x, weight, eps, mode):
        calls[0] += 1
        y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
        spoiled = y * (1 + noise * calls[0])
        return y + (spoiled - spoiled.detach()) if backward else spoiled

    return function


def states(function, dtype: str = "float32") -> dict[str, str]:
    cell = Cell("rms_norm", "auto", dtype, 4, 16)
    first, second = ({cell.id: bitwise.run(cell, function, "cpu", n)} for n in bitwise.RUNS)
    return {r["direction"]: r["state"] for r in bitwise.compare([cell], first, second)}


def test_planted_differences_are_seen():
    assert states(planted(0.0)) == {"forward": "same", "backward": "same"}
    assert states(planted(1e-3)) == {"forward": "differs", "backward": "differs"}
    assert states(planted(1e-3, backward=True)) == {"forward": "same", "backward": "differs"}


def test_one_bit_is_a_difference():
    a = torch.ones(8, dtype=torch.bfloat16)
    b = a.clone()
    b.view(torch.int16)[3] += 1
    assert bitwise.digest([a]) == bitwise.digest([a.clone()]) != bitwise.digest([b])
    assert bitwise.digest([a]) != bitwise.digest([a.view(2, 4)])
    zero = torch.zeros(2)
    assert bitwise.digest([zero]) != bitwise.digest([-zero])


def test_what_raises_is_no_difference_but_a_crash():
    def fails(x, weight, eps, mode):
        raise ValueError("no")

    def refuses(x, weight, eps, mode):
        raise NotImplementedError("too wide")

    assert set(states(fails).values()) == {"crashed"}
    assert set(states(refuses).values()) == {"unsupported"}
