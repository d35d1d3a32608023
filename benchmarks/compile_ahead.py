"""What compiling ahead saves a child, cold: `python -m benchmarks.compile_ahead [--backend cuda] [--limit-s 60]`

Runs the same cells of kernels that no cache has, plain and tuned over 12 settings, on one device: with kernels compiled
ahead and without (FARM_COMPILE_AHEAD=0), each run with an empty Triton cache of its own.  Of each: wall seconds, how
many kernels the child compiled itself, found, and found because they were compiled ahead, seconds of its first calls,
and which cells it still compiled something for.  Each number is printed as it comes.  Exit code 0: ahead, the child
compiled at most a tenth of what it did without; 1: more, or a run was cut by the limit; 2: no such device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.author_loop import KERNEL, ROOT, Limit, TimeIsUp, once

#: Beside the plain kernel, one that is tuned at its first call of each width.
TUNED = (
    KERNEL
    + """

WARPS = (4, 8, 16)
SETTINGS = [triton.Config({"SPLIT": split}, num_warps=warps) for split in (1, 2, 4, 8) for warps in WARPS]


@triton.autotune(SETTINGS, ["hidden"])
@triton.jit
def _tuned(X, W, Y, hidden, eps, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for part in tl.static_range(SPLIT):
        columns = part * (BLOCK // SPLIT) + tl.arange(0, BLOCK // SPLIT)
        x = tl.load(X + row * hidden + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        total += tl.sum(x * x)
    scale = 1.0 / tl.sqrt(total / hidden + eps)
    for part in tl.static_range(SPLIT):
        columns = part * (BLOCK // SPLIT) + tl.arange(0, BLOCK // SPLIT)
        inside = columns < hidden
        x = tl.load(X + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(W + columns, mask=inside, other=0.0).to(tl.float32)
        y = (x * scale).to(Y.dtype.element_ty).to(tl.float32) * w
        tl.store(Y + row * hidden + columns, y.to(Y.dtype.element_ty), mask=inside)


def tuned(x, weight, eps):
    y = torch.empty_like(x)
    _tuned[(x.shape[0],)](x, weight, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""
)
HIDDEN = (1000, 2048, 4096, 5000, 8192)


def matrix(tuned: bool) -> dict[str, Any]:
    """Ten cells of the plain kernel, with a kernel each; or two of the tuned one."""
    return {
        "name": "ahead",
        "op": "rms_norm",
        "axes": {
            "shape": [{"rows": 1024, "hidden": hidden} for hidden in (HIDDEN[1:3] if tuned else HIDDEN)],
            "dtype": ["bfloat16"] if tuned else ["float16", "bfloat16"],
            "operation": "no-grad-forward",
        },
        "providers": ["mine"],
    }


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the children of a run compiled, from its rows."""
    built = [json.loads(row["launch"] or "{}").get("built") or {} for row in rows]
    late = [f"{row['shape']} {row['dtype']}: {b['compiled']}" for row, b in zip(rows, built) if b.get("compiled")]
    return {
        **{name: sum(b.get(name, 0) for b in built) for name in ("compiled", "loaded", "ahead")},
        "first_calls_s": round(sum(row["compile_s"] or 0.0 for row in rows), 2),
        "passed": sum(row["status"] == "passed" for row in rows),
        "cells": len(rows),
        "counted": sum(bool(b) for b in built),
        "compiled_in": late[:6],
    }


def run(folder: Path, backend: str, kind: str, ahead: bool, limit: Limit) -> dict[str, Any]:
    """One run with an empty cache, and what its rows tell."""
    from farm.store import Store

    name = f"{kind}-{'ahead' if ahead else 'alone'}"
    os.environ.update({"TRITON_CACHE_DIR": str(folder / f"cache-{name}"), "FARM_COMPILE_AHEAD": "01"[ahead]})
    function = "tuned" if kind == "tuned" else "rms_norm"
    words = ("run", f"{kind}.yaml", "--backend", backend, "--address", "inline", "--devices", "1", "--no-page")
    own = ("--provider", f"mine=mine:{function}", "--out", "store", "--run-id", name)
    spent = once((sys.executable, "-m", "farm", *words, *own), folder, limit)
    found = {"wall_s": round(spent["wall_s"], 2), **summed(Store(folder / "store").run(name).rows)}
    print(json.dumps({name: found}), flush=True)
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_ahead", description=__doc__)
    parser.add_argument("--backend", choices=("cuda", "rocm"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds that all of it may take")
    args = parser.parse_args(argv)
    tried = subprocess.run(
        [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"], check=False, timeout=60
    )
    if tried.returncode:
        print("benchmarks.compile_ahead: torch sees no GPU; this needs one", file=sys.stderr)
        return 2
    limit, good = Limit(args.limit_s), True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mine.py").write_text(TUNED)
        for kind in ("plain", "tuned"):
            (folder / f"{kind}.yaml").write_text(json.dumps(matrix(kind == "tuned")))
        try:
            for kind in ("plain", "tuned"):
                alone, ahead = (run(folder, args.backend, kind, on, limit) for on in (False, True))
                few = alone["compiled"] > 0 and ahead["compiled"] * 10 <= alone["compiled"]
                good = good and few
                pairs = (("kernels compiled", "compiled"), ("first calls, s", "first_calls_s"), ("wall, s", "wall_s"))
                text = "; ".join(f"{what} {ahead[name]} instead of {alone[name]}" for what, name in pairs)
                print(f"{kind}, by the child: {text}", flush=True)
        except TimeIsUp:
            print(f"the {args.limit_s:g} seconds were over", flush=True)
            return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
