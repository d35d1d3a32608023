"""Are the ring kernels (`kernels/ops/rms_norm/gpu/ring.py`) right on the GPU of this host, and how fast are they?

    python -m benchmarks.ring_check [--seconds 540] [--only check|time] [--sample N] [--out report.json]

First each case is held against a float64 reference on the device, row for row and with guard rows around what is
written, and run twice for the same bits; a child process a group of cases, with a deadline, so that a crash or a hang
costs its group and is told.  Then the seeds of `benchmarks.tune_space` for these kernels are timed as `benchmarks.tune`
does, beside what `auto` chooses today and the copy roof.  The last lines are the tables.

Exit codes: 0 all right, 1 a case is wrong, differs, crashed or was not reached, 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from benchmarks import ring_cases
from benchmarks.ring_cases import Case, groups
from benchmarks.tune_space import SIZE, Config, Task, key_of, options, seeds
from farm.process.command import run
from kernels.ops.rms_norm.gpu.options import RINGS

#: Seconds for the cases of one child, of which the import of torch takes up to 10 and each compilation about 2.
GROUP_SECONDS = 150.0
#: Children at a time: the device is shared by their checks, the cores by their compilers.
WORKERS = 4
RING_CHECK = "benchmarks.ring_check"
#: Where cases are checked: elsewhere for a test alone.
DEVICE = "cuda"
#: What is timed: the most interesting first.
TASKS = (
    ("rms_norm", "backward", "bfloat16", 8192, 32768),
    ("fused_add_rms_norm", "backward", "bfloat16", 8192, 32768),
    ("rms_norm", "forward", "bfloat16", 8192, 131072),
    ("rms_norm", "forward", "bfloat16", 8192, 32768),
    ("rms_norm", "backward", "bfloat16", 4096, 16384),
    ("fused_add_rms_norm", "backward", "float32", 4096, 16384),
    ("fused_add_rms_norm", "forward", "bfloat16", 8192, 131072),
    ("rms_norm", "forward", "bfloat16", 8192, 65536),
    ("fused_add_rms_norm", "backward", "bfloat16", 4096, 16384),
    ("rms_norm", "backward", "float32", 4096, 16384),
    ("rms_norm", "forward", "float32", 8192, 65536),
    ("fused_add_rms_norm", "forward", "bfloat16", 8192, 32768),
    ("rms_norm", "backward", "bfloat16", 8192, 8192),
    ("rms_norm", "forward", "bfloat16", 4096, 16384),
)


# What follows runs in a child, on the device.


def choice_of(case: Case, family: str = "ring") -> Any:
    from kernels.ops.rms_norm import dispatch
    from kernels.ops.rms_norm.gpu import choose

    target, cores = dispatch.machine()
    kernel = f"{case.operation}_{family}"
    config = {"mode": "static_persistent", "per_core": 1, **options(kernel), **case.config, "kernel": kernel}
    return choose.build(case.operation, config, case.rows, case.hidden, SIZE[case.dtype], cores, target)


def _guarded(rows: int, hidden: int, dtype: Any) -> tuple[Any, Any]:
    """(everything, the rows between two guard rows), filled with NaN."""
    import torch

    everything = torch.full((rows + 2, hidden), float("nan"), dtype=dtype, device=DEVICE)
    return everything, everything[1:-1]


def _untouched(everything: Any) -> bool:
    return bool(everything[0].isnan().all() and everything[-1].isnan().all())


def check(case: Case, choose: Callable[[Case], Any] = choice_of, before: Callable[[], None] = lambda: None) -> str:
    """What is wrong with a case, or ""; `before` is called before each launch."""
    import torch

    from kernels.ops.rms_norm.gpu import launch

    make = torch.Generator(device=DEVICE).manual_seed(case.rows * 31 + case.hidden)
    dtype = getattr(torch, case.dtype)

    def matrix() -> Any:
        scale = 10.0 ** (torch.arange(case.rows, device=DEVICE) % 5 - 2).float()[:, None]
        values = torch.randn(case.rows, case.hidden + case.gap, generator=make, device=DEVICE) * scale
        return values.to(dtype)[:, : case.hidden]

    x = matrix()
    weight = None
    if case.weight != "none":
        kind = dtype if case.weight in ("same", "shifted") else getattr(torch, case.weight)
        shift = int(case.weight == "shifted")
        weight = (1 + 0.1 * torch.randn(case.hidden + shift, generator=make, device=DEVICE)).to(kind)[shift:]
    choice = choose(case)
    problems = []
    if case.operation == "forward":
        residual = matrix() if case.fused else None
        results: list[tuple[Any, ...]] = []
        for _ in range(2):
            all_y, y = _guarded(case.rows, case.hidden, dtype)
            all_s, total = _guarded(case.rows, case.hidden, dtype) if case.fused else (None, None)
            rstd = torch.full((case.rows,), float("nan"), device=DEVICE)
            before()
            launch.forward(choice, x, residual, weight, 1e-6, case.offset, case.rounds, y, total, rstd)
            torch.get_device_module(DEVICE).synchronize()
            if not _untouched(all_y) or (all_s is not None and not _untouched(all_s)):
                problems.append("wrote outside its rows")
            results.append((y, total, rstd))
        problems += ring_cases.differences(results)
        problems += ring_cases.wrong_forward(case, x, residual, weight, *results[0])
    else:
        dy, dsum = matrix(), matrix() if case.fused else None
        rstd = torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6)
        results = []
        for _ in range(2):
            given = dy.clone(memory_format=torch.contiguous_format) if case.in_place else dy
            all_dx, dx = _guarded(case.rows, case.hidden, dtype)
            dx = given if case.in_place else dx
            dw = None if weight is None else torch.full_like(weight, float("nan"))
            used = torch.full((choice.programs, case.hidden), float("nan"), device=DEVICE)
            del used  # the partial sums' memory, most likely
            before()
            launch.backward(choice, given, dsum, x, weight, rstd, case.offset, case.rounds, dx, dw)
            torch.get_device_module(DEVICE).synchronize()
            if not _untouched(all_dx):
                problems.append("wrote outside its rows")
            results.append((dx, dw))
        problems += ring_cases.differences(results)
        problems += ring_cases.wrong_backward(case, dy, dsum, x, weight, rstd, *results[0])
    return "; ".join(dict.fromkeys(problems))


def child_check(cases: list[dict[str, Any]], check: Callable[[Case], str] = check) -> None:
    """Checks, a line of JSON before and after each."""
    for index, fields in enumerate(cases):
        print(json.dumps({"begin": index}), flush=True)
        try:
            problem = check(Case(**fields))
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        print(json.dumps({"end": index, "problem": problem}), flush=True)
        if "CUDA error" in problem:
            return


def child_time(
    seconds: float,
    workers: int,
    tasks: Sequence[tuple[str, str, str, int, int]] = TASKS,
    kernels: Collection[str] = RINGS,
    ring: bool = False,
) -> None:
    """Times the `kernels` at each task, beside what `auto` chooses, with `ring` among the ring kernels too: a line of
    JSON each."""
    import multiprocessing

    import torch

    from benchmarks import tune
    from kernels.ops.rms_norm import dispatch

    begun = time.monotonic()
    target, cores = dispatch.machine()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for place, shape in enumerate(tasks):
            task = Task(*shape)
            left = seconds - (time.monotonic() - begun)
            if left < 20:
                print(json.dumps({"task": task.name, "skipped": "no time left"}), flush=True)
                continue
            configs = [c for c in seeds(task) if c["kernel"] in kernels]
            tune.compile_all([(task, c) for c in configs], pool, workers)
            timer = tune.Timer(task)
            chosen = dispatch.choose(
                target, task.rows, task.hidden, task.dtype, task.operation, cores=cores, op=task.op, ring=ring
            )
            timer.bench.function = chosen  # type: ignore[assignment]
            timer.sets[0].run(chosen)
            today = timer.sample(15, 30.0)
            share = (seconds - (time.monotonic() - begun)) / (len(tasks) - place) * 1.5
            stop = time.monotonic() + max(10.0, share)
            tried: list[tuple[float, Config]] = []
            failed: dict[str, int] = {}
            for config in configs:
                if time.monotonic() > stop:
                    failed["not reached"] = failed.get("not reached", 0) + 1
                    continue
                us, why = timer.time(config)
                if us is None:
                    failed[why] = failed.get(why, 0) + 1
                else:
                    tried.append((us, config))
            tried.sort(key=lambda tc: tc[0])
            again = [(timer.time(c, 15, 30.0)[0] or us, c) for us, c in tried[:4]]
            tried = sorted(again + tried[4:], key=lambda tc: tc[0])
            timer.bench.function = chosen  # type: ignore[assignment]
            today = min(today, timer.sample(15, 30.0))
            del timer
            torch.cuda.empty_cache()
            roof_us, _ = tune.copy_roof(task)
            found = {
                "task": task.name,
                "bytes": task.bytes,
                "roof_us": roof_us,
                "today_us": today,
                "today": dict(chosen.options)["kernel"],
                "tried": tried,
                "failed": failed,
            }
            print(json.dumps(found), flush=True)


# What follows runs in the parent, which never touches the device.


def child(words: list[str], seconds: float, module: str = RING_CHECK) -> tuple[list[dict[str, Any]], str]:
    """(the lines of JSON that a child printed, how it ended: "" or why not well)."""
    done = run([sys.executable, "-m", module, *words], seconds)
    ended = f"not done after {seconds:.0f} s" if done.code is None else ""
    if done.code:
        ended = f"exit code {done.code}: " + " | ".join(done.err.strip().splitlines()[-3:])[-300:]
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")], ended


def judged(cases: list[Case], lines: list[dict[str, Any]], ended: str) -> list[tuple[Case, str]]:
    """(case, problem or "") of a child's cases: a case that began and did not end is why the child did not end well."""
    problems = {line["end"]: str(line["problem"]) for line in lines if "end" in line}
    begun = [line["begin"] for line in lines if "begin" in line]
    found = []
    for index, case in enumerate(cases):
        if index in problems:
            found.append((case, problems[index]))
        elif begun and index == begun[-1]:
            found.append((case, ended or "its process ended"))
        else:
            found.append((case, "not reached" + (f" ({ended})" if ended and not begun else "")))
    return found


def run_checks(
    seconds: float, workers: int, together: list[list[Case]], module: str = RING_CHECK
) -> list[tuple[Case, str]]:
    """Each child of `module` has the cases of one group."""
    begun = time.monotonic()

    def one(cases: list[Case]) -> list[tuple[Case, str]]:
        left = seconds - (time.monotonic() - begun)
        if left < 15:
            return judged(cases, [], "no time left")
        lines, ended = child(
            ["--child-check", json.dumps([asdict(c) for c in cases])], min(left, GROUP_SECONDS), module
        )
        return judged(cases, lines, ended)

    with ThreadPoolExecutor(workers) as pool:
        return [found for group in pool.map(one, together) for found in group]


def table_of_times(found: list[dict[str, Any]], ended: str) -> list[str]:
    """The best three configurations of each task, against today's choice and the roof."""
    lines = []
    for task in found:
        if "skipped" in task:
            lines.append(f"{task['task']}: {task['skipped']}")
            continue
        roof, today = task["roof_us"], task["today_us"]
        lines.append(
            f"{task['task']}: roof {roof:.1f} us; today {task['today']} {today:.1f} us, {roof / today:.3f} of it"
            + "".join(f"; {n} x {why}" for why, n in task["failed"].items())
        )
        for us, config in task["tried"][:3]:
            plain = {k: v for k, v in config.items() if k != "kernel" and v != options(config["kernel"]).get(k)}
            lines.append(f"    {us:9.1f} us  {roof / us:.3f} of roof  {today / us:.3f} x today  {key_of(plain)}")
    return lines + ([f"timing: {ended}"] if ended else [])


def above_0(text: str) -> int:
    if not (text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"needs a number, 1 or more; got {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ring_check", description=(__doc__ or "").split("\n")[0])
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
        child_time(given.child_time, given.workers)
        return 0
    begun = time.monotonic()
    report: dict[str, Any] = {}
    bad = 0
    if given.only != "time":
        share = given.seconds if given.only == "check" else 0.4 * given.seconds
        checked = run_checks(share, min(WORKERS, given.workers), groups(given.sample))
        report["checked"] = [{"case": asdict(c), "name": c.name, "problem": p} for c, p in checked]
        bad = sum(1 for _, problem in checked if problem)
        for case, problem in [cp for cp in checked if cp[1]][:40]:
            print(f"WRONG {case.name}: {problem}", flush=True)
        print(f"checked {len(checked)} cases, {bad} not right, {time.monotonic() - begun:.0f} s", flush=True)
    if given.only != "check":
        left = max(60.0, given.seconds - (time.monotonic() - begun))
        lines, ended = child(["--child-time", str(left - 25), "--workers", str(given.workers)], left)
        report["timed"] = lines
        print("\n".join(table_of_times(lines, ended)), flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump(report, file)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
