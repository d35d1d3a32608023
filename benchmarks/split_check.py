"""Are the kernels of rows that programs share (`kernels/ops/rms_norm/gpu/split.py`) right on this GPU, and how fast?

    python -m benchmarks.split_check [--seconds 540] [--only check|time] [--sample N] [--out report.json]

First each case is held against a float64 reference on the device, row for row and with guard rows around what is
written, and run twice for the same bits; every second one while another stream, of a higher priority, keeps the device
busy, so that programs start late.  In some cases programs ask once for the sums of others and give up (bits may then
differ, which is counted); and once, of each kernel, the last program of the grid is never started: the others must end,
and be right.  A child process a group of cases, with a deadline, so that a crash or a hang costs its group and is told.
Then the seeds of `benchmarks.tune_space` for these kernels are timed as `benchmarks.tune` does, each checked before,
beside what `auto` chooses today and the copy roof.  The last lines are the tables.

Exit codes: 0 all right, 1 a case is wrong, differs, crashed or was not reached, 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from benchmarks import ring_check, split_cases
from benchmarks.ring_cases import Case
from benchmarks.ring_check import WORKERS, above_0, choice_of, table_of_times
from kernels.ops.rms_norm.gpu.options import SPLITS

NAME = "benchmarks.split_check"
DIFFERS = "not the same bits twice"
#: What is timed: the most interesting first.
TASKS = (
    ("rms_norm", "forward", "bfloat16", 8192, 131072),
    ("rms_norm", "backward", "bfloat16", 8192, 131072),
    ("fused_add_rms_norm", "forward", "bfloat16", 8192, 131072),
    ("fused_add_rms_norm", "backward", "bfloat16", 8192, 131072),
    ("rms_norm", "forward", "bfloat16", 8192, 65536),
    ("rms_norm", "backward", "bfloat16", 8192, 65536),
    ("rms_norm", "forward", "bfloat16", 16384, 32768),
    ("rms_norm", "forward", "float32", 8192, 65536),
    ("rms_norm", "backward", "float32", 8192, 65536),
    ("fused_add_rms_norm", "forward", "bfloat16", 16384, 32768),
)
#: The two cases in which the last program is never started; with few questions, since in vain.
LONELY = tuple(
    Case(operation, True, "bfloat16", 5, 131072, {"parts": 16, "num_warps": 16, "polls": 1000}, rounds=False)
    for operation in ("forward", "backward")
)


# What follows runs in a child, on the device.


def busy() -> Callable[[], None]:
    """Gives a function that keeps the device busy for some milliseconds, on a stream of its own."""
    import torch

    stream = torch.cuda.Stream(priority=-1)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    torch.cuda.synchronize()

    def keep() -> None:
        with torch.cuda.stream(stream):
            for _ in range(4):
                torch.mm(a, a, out=out)

    return keep


def check(case: Case, before: Callable[[], None] = lambda: None) -> str:
    """What is wrong with a case, or ""."""
    if case in LONELY:
        return lonely(case)
    return ring_check.check(case, lambda c: choice_of(c, "split"), before)


def lonely(case: Case) -> str:
    """What is wrong where the last program of the grid is never started, or ""."""
    import torch

    from kernels.ops.rms_norm.gpu import launch

    device = ring_check.DEVICE
    make = torch.Generator(device=device).manual_seed(case.hidden)
    dtype = getattr(torch, case.dtype)
    x, dy, other = (torch.randn(case.rows, case.hidden, generator=make, device=device).to(dtype) for _ in range(3))
    weight = (1 + 0.1 * torch.randn(case.hidden, generator=make, device=device)).to(dtype)
    choice = choice_of(case, "split")
    options = dict(choice.options)
    stock = launch._launch

    def all_but_one(kernel: Any, grid: tuple[int, ...], *args: Any, **extra: Any) -> None:
        alone = kernel.__name__ in SPLITS
        stock(kernel, (grid[0] - 1,) if alone else grid, *args, **extra)

    out, total = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    dw = torch.full_like(weight, float("nan"))
    rstd = torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6)
    begun = time.perf_counter()
    launch._launch = all_but_one
    try:
        if case.operation == "forward":
            rstd.fill_(float("nan"))
            launch.forward(choice, x, other, weight, 1e-6, 0.0, False, out, total, rstd)
        else:
            launch.backward(choice, dy, other, x, weight, rstd, 0.0, False, out, dw)
        torch.get_device_module(device).synchronize()
    finally:
        launch._launch = stock
    seconds = time.perf_counter() - begun
    start = (options["parts"] - 1) * options["width"]  # what the missing program has of its rows
    groups = choice.programs // options["parts"]
    absent = range(case.rows)[groups - 1 :: groups] if case.operation == "backward" else range(case.rows)[-1:]
    found = []
    if not all(bool(out[row, start:].isnan().all()) for row in absent):
        found.append("the program that was not to start wrote")
    whole = replace(case, config={**case.config, "polls": 0})
    for row in absent:  # its columns from a right run
        given = slice(row, row + 1)
        filled, sums = torch.empty_like(x[given]), torch.empty_like(x[given])
        right = choice_of(replace(whole, rows=1), "split")
        if case.operation == "forward":
            launch.forward(right, x[given], other[given], weight, 1e-6, 0.0, False, filled, sums, rstd[given].clone())
            total[row, start:] = sums[0, start:]
        else:
            parts = torch.empty_like(weight)
            launch.backward(right, dy[given], other[given], x[given], weight, rstd[given], 0.0, False, filled, parts)
        out[row, start:] = filled[0, start:]
    if case.operation == "forward":
        found += ring_check.ring_cases.wrong_forward(case, x, other, weight, out, total, rstd)
    else:
        found += ring_check.ring_cases.wrong_backward(case, dy, other, x, weight, rstd, out, None)
    return "; ".join(found + ([f"took {seconds:.1f} s"] if seconds > 20 else []))


def child_check(cases: list[dict[str, Any]]) -> None:
    """Every second case with a busy device."""
    keep = busy()
    count = 0

    def one(case: Case) -> str:
        nonlocal count
        count += 1
        return check(case, keep if count % 2 else lambda: None)

    ring_check.child_check(cases, one)


# What follows runs in the parent, which never touches the device.


def excused(case: Case, problem: str) -> str:
    """The problem without what a case whose programs give up may do: have other bits."""
    return "; ".join(p for p in problem.split("; ") if not (p == DIFFERS and split_cases.gives_up(case)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {NAME}", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=540.0, help="for everything; checks get two fifths")
    parser.add_argument("--only", choices=("check", "time"))
    parser.add_argument("--sample", type=above_0, default=1, metavar="N", help="check every N-th case (all)")
    parser.add_argument("--out", help="a JSON file for everything that was found")
    parser.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 1) - 2)))
    parser.add_argument("--child-check", help=argparse.SUPPRESS)
    parser.add_argument("--child-time", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child_check:
        child_check(json.loads(given.child_check))
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU")
    if given.child_time:
        ring_check.child_time(given.child_time, given.workers, TASKS, SPLITS, ring=True)
        return 0
    begun = time.monotonic()
    report: dict[str, Any] = {}
    bad = 0
    if given.only != "time":
        share = given.seconds if given.only == "check" else 0.4 * given.seconds
        together = [list(LONELY), *split_cases.groups(given.sample)]
        raw = ring_check.run_checks(share, min(WORKERS, given.workers), together, NAME)
        checked = [(case, excused(case, problem)) for case, problem in raw]
        report["checked"] = [{"case": asdict(c), "name": c.name, "problem": p} for c, p in raw]
        bad = sum(1 for _, problem in checked if problem)
        for case, problem in [cp for cp in checked if cp[1]][:40]:
            print(f"WRONG {case.name}: {problem}", flush=True)
        alone = [(c, p) for c, p in raw if split_cases.gives_up(c)]
        other = sum(DIFFERS in p for _, p in alone)
        print(
            f"checked {len(checked)} cases, {bad} not right, {time.monotonic() - begun:.0f} s; of {len(alone)} in "
            f"which programs give up {other} had other bits",
            flush=True,
        )
    if given.only != "check":
        left = max(60.0, given.seconds - (time.monotonic() - begun))
        words = ["--child-time", str(left - 25), "--workers", str(given.workers)]
        lines, ended = ring_check.child(words, left, NAME)
        report["timed"] = lines
        bad += bool(ended)
        print("\n".join(table_of_times(lines, ended)), flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump(report, file)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
