"""Run by the Ascend tool chain's own Python: compiles what is asked for, and says what each kernel takes.

Standard input: a JSON list of requests, {"planted": name} or a cell of our norms with "op", "operation", "rows",
"hidden", "dtype", "weight" and "mode", or with "tile" instead of what would be chosen.  Standard output: a JSON list of
answers in the same order, each a list of [kernel, grid, resources], or the text of an error.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import triton
import triton.language as tl

from farm.compile import ascend
from kernels.ops.rms_norm import dispatch
from kernels.ops.rms_norm.ascend import launch


@triton.jit
def planted_overflow(X, Y, BLOCK: tl.constexpr):
    """Two float32 tiles of 256 KiB live at once."""
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols)
    tl.store(Y + cols, x / tl.sum(x))


@triton.jit
def planted_gather(X, WHERE, Y, BLOCK: tl.constexpr):
    """Addresses from a tensor: element by element."""
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + tl.load(WHERE + cols)))


@triton.jit
def planted_int64(X, Y, BLOCK: tl.constexpr):
    """The vector unit does not compare 64-bit integers."""
    cols = tl.arange(0, BLOCK)
    x, y = tl.load(X + cols), tl.load(Y + cols)
    tl.store(Y + cols, tl.where(x < y, x, y))


@triton.jit
def planted_float64(X, Y, BLOCK: tl.constexpr):
    """There is no float64: the compiler aborts."""
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, (tl.load(X + cols).to(tl.float64) * 2).to(tl.float32))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def planted(name: str) -> None:
    x, whole, wide = meta(65536), meta(65536, dtype=torch.int32), meta(65536, dtype=torch.int64)
    if name == "overflow":
        planted_overflow[(1,)](x, x, 65536)
    elif name == "gather":
        planted_gather[(1,)](x, whole, x, 1024)
    elif name == "int64":
        planted_int64[(1,)](wide, wide, 1024)
    else:
        planted_float64[(1,)](x, x, 1024)


def norm(op: str, operation: str, rows: int, hidden: int, dtype: str, weight: str, mode: str, tile: list[int]) -> None:
    x, rstd = meta(rows, hidden, dtype=getattr(torch, dtype)), meta(rows)
    w = None if weight == "none" else meta(hidden, dtype=getattr(torch, weight))
    other = x if op == "fused_add_rms_norm" else None
    target, cores = dispatch.machine()
    choice = dispatch.choose(target, rows, hidden, dtype, operation, cores=cores, op=op, mode=mode)
    if tile:
        choice = replace(choice, rows=tile[0], block=tile[1])
    if operation == "forward":
        launch.forward(choice, x, other, w, 1e-6, 0.0, True, x, other, rstd)
    else:
        launch.backward(choice, x, other, x, w, rstd, 0.0, True, x, w)


def main() -> None:
    answers: list[Any] = []
    with ascend.offline() as driver:
        for request in json.load(sys.stdin):
            driver.launches.clear()
            try:
                if "planted" in request:
                    planted(request["planted"])
                else:
                    norm(**{"mode": "auto", "tile": [], **request})
            except Exception as error:
                answers.append(f"{type(error).__name__}: {error}")
                continue
            answers.append(
                [[one.kernel, one.grid, ascend.resources(driver.kernels[one.hash])] for one in driver.launches]
            )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
