"""Searches, on the GPU of this machine, the launch configurations that `kernels/ops/rms_norm/gpu/tuned.py` holds.

    python -m benchmarks.tune --out report.json [--only forward,backward] [--shapes 4096x4096,...]
        [--kernels forward_split,...] [--seconds 500]
    python -m benchmarks.tune --out report.json --tasks rms_norm/forward/bfloat16/8192x131072 ...

A coordinate search per (op, operation, dtype, rows, hidden): a few seeds for each kernel, then the neighbours of the
best ones, which differ in one key.  All that is to be timed in a round is compiled first, in parallel processes that
share Triton's cache folder; then each configuration is checked against a float32 reference and timed by the policy
`rotating_graph`, and the best few are timed again.  Nothing here runs at a user's first call: the outcome is a table.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from benchmarks.tune_space import OPS, SHAPES, SIZE, Config, Task, held, key_of, mode_of, neighbours, seeds, task_of
from benchmarks.tune_table import table
from kernels.ops.rms_norm.gpu.options import DEFAULTS, SPLITS

#: A call of the kernels of split.py that takes so many seconds, and as long as at so many bytes a second, is one in
#: which programs gave up on each other, after some 0.2 s (`split_plan.POLLS`).
GAVE_UP_S, GAVE_UP_RATE = 0.005, 1.5e12


class Buffers:
    """One set of a task's tensors, and the launch of a configuration on it."""

    operation = "forward"  # for the timing policy: one plain call

    def __init__(self, task: Task, rows: int, seed: int):
        import torch

        make = torch.Generator(device="cuda").manual_seed(seed)
        dtype = getattr(torch, task.dtype)

        def matrix() -> Any:
            return torch.randn(rows, task.hidden, generator=make, device="cuda", dtype=torch.float32).to(dtype)

        self.task = task
        self.x = matrix()
        self.weight = (1 + 0.1 * torch.randn(task.hidden, generator=make, device="cuda")).to(dtype)
        fused = task.op.startswith("fused")
        if task.operation == "forward":
            self.residual = matrix() if fused else None
            self.y = torch.empty_like(self.x)
            self.total = torch.empty_like(self.x) if fused else None
            self.rstd = torch.empty(rows, device="cuda")
        else:
            self.dy = matrix()
            self.dsum = matrix() if fused else None
            self.rstd = torch.rsqrt(self.x.float().pow(2).mean(-1) + 1e-6)
            self.dx = torch.empty_like(self.x)
            self.dw = torch.empty_like(self.weight)

    def run(self, choice: Any) -> tuple[Any, ...]:
        from kernels.ops.rms_norm.gpu import launch

        if self.task.operation == "forward":
            launch.forward(choice, self.x, self.residual, self.weight, 1e-6, 0.0, True, self.y, self.total, self.rstd)
        else:
            args = (self.dy, self.dsum, self.x, self.weight, self.rstd, 0.0, True, self.dx, self.dw)
            launch.backward(choice, *args)
        return ()

    def wrong(self) -> str | None:
        """What is not as it should be after a run; coarse, the farm judges properly."""
        import torch

        x = self.x.float()
        if self.task.operation == "forward":
            s = x if self.residual is None else (x + self.residual.float()).to(self.x.dtype).float()
            r = torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6)
            return _far("y", self.y, (s * r).to(self.x.dtype).float() * self.weight.float())
        r = self.rstd[:, None]
        m = self.dy.float() * self.weight.float()
        h = x * r
        dw = (self.dy.float() * h).sum(0)
        dx = r * (m - h * (m * h).mean(-1, keepdim=True))
        if self.dsum is not None:
            dx = dx + self.dsum.float()
        return _far("dx", self.dx, dx) or _far("dw", self.dw, dw)


def _far(name: str, got: Any, want: Any) -> str | None:
    error = ((got.float() - want).norm() / want.norm()).item()
    return None if error < 1e-2 else f"{name} is off by {error:.2g}"


def choice_of(task: Task, config: Config, rows: int | None = None) -> Any:
    from kernels.ops.rms_norm.gpu import choose

    return choose.build(
        task.operation,
        {**config, "mode": mode_of(config, task.hidden)},
        rows or task.rows,
        task.hidden,
        SIZE[task.dtype],
        _cores(),
        _target(),
    )


def _target() -> str:
    from kernels.ops.rms_norm import dispatch

    return dispatch.machine()[0]


def _cores() -> int:
    from kernels.ops.rms_norm import dispatch

    return dispatch.machine()[1]


def _compile(jobs: list[tuple[Task, Config]]) -> int:
    """In a process of its own: launch each once on few rows, which leaves it in Triton's cache folder."""
    import torch

    done = 0
    for task, config in jobs:
        few = 512 if task.unaligned else 64  # unaligned.py's tiles are of every eighth row
        rows = few if task.rows % few == 0 else few + 1
        try:
            buffers = Buffers(task, rows, 0)
            buffers.run(choice_of(task, config, rows))
            torch.cuda.synchronize()
            done += 1
        except Exception as error:
            if "illegal" in str(error):
                raise
    return done


def compile_all(jobs: list[tuple[Task, Config]], pool: Any, workers: int) -> None:
    chunks = [jobs[i :: 4 * workers] for i in range(4 * workers)]
    for _ in pool.imap_unordered(_compile, [c for c in chunks if c]):
        pass


class Timer:
    """Times configurations of one task over its buffer sets."""

    def __init__(self, task: Task, buffers: bool = True):
        import torch

        from farm.child import timing

        self.task = task
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = min(64, max(2, -(-4 * cache // task.bytes)))
        sets: list[Any] = [Buffers(task, task.rows, i) for i in range(count)] if buffers else []
        self.sets = sets
        self.bench = timing.Bench(  # which must not know this timer, or the tensors live on in a cycle
            function=None,
            make=lambda: sets[0],
            device=torch.device("cuda", 0),
            cache_bytes=cache,
            bytes_moved=task.bytes,
            policy={},
        )  # type: ignore[arg-type, return-value]

    def time(self, config: Config, replays: int = 5, warm_ms: float = 6.0) -> tuple[float | None, str]:
        """(microseconds a call, "") or (None, why).  The first milliseconds after an idle time are slower: they are
        spent before the samples."""
        import torch

        try:
            self.bench.function = choice_of(self.task, config)
            self.sets[0].run(self.bench.function)
            torch.cuda.synchronize()
            if config["kernel"] in SPLITS:
                begun = time.perf_counter()
                self.sets[0].run(self.bench.function)
                torch.cuda.synchronize()
                if time.perf_counter() - begun > GAVE_UP_S + self.task.bytes / GAVE_UP_RATE:
                    return None, "programs gave up on each other: they do not run at once"
            wrong = self.sets[0].wrong()
            if wrong:
                return None, wrong
            return self.sample(replays, warm_ms), ""
        except Exception as error:
            if "illegal" in str(error):
                raise
            return None, f"{type(error).__name__}: {str(error)[:100]}"

    def sample(self, replays: int, warm_ms: float = 6.0) -> float:
        """Median microseconds a call of the bench's function over the buffer sets."""
        from farm.child.timing.graph import capture, replay

        graph, _, launches = capture(self.bench, self.sets)
        spent = 0.0
        while spent < warm_ms * 1e3:
            spent += sum(replay(self.bench, graph, 5))
        return statistics.median(replay(self.bench, graph, replays)) / launches


def copy_roof(task: Task) -> tuple[float, str]:
    """Microseconds of the fastest copy kernel over as many bytes, and which one it is."""
    import torch

    from benchmarks import roof

    timer = Timer(task, buffers=False)

    def measure(function: Any, size: int, nbytes: int) -> float:
        count = min(64, max(2, -(-4 * timer.bench.cache_bytes // nbytes)))
        timer.sets = [_Source(torch.randint(0, 100, (size,), dtype=torch.int32, device="cuda")) for _ in range(count)]
        timer.bench.function = function
        timer.sets[0].run(function)
        return timer.sample(15)

    found = roof.envelope(task.bytes, measure, _cores())
    return found.us * task.bytes / found.nbytes, found.best


class _Source:
    operation = "forward"

    def __init__(self, source: Any):
        self.source = source

    def run(self, function: Any) -> tuple[Any, ...]:
        return (function(self.source),)


def search(
    tasks: list[Task],
    seconds: float,
    workers: int,
    kernels: Collection[str] = tuple(DEFAULTS),
    keep: int = 4,
    tell: Callable[[dict[str, list[tuple[float, Config]]]], None] = lambda found: None,
) -> dict[str, list[tuple[float, Config]]]:
    """For each task's name the configurations of `kernels` and those that the table has for it, by time, best first;
    `tell` gets what there is of it after each task of each round."""
    import torch

    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    known: dict[str, dict[str, tuple[float, Config]]] = {t.name: {} for t in tasks}
    tried: dict[str, set[str]] = {t.name: set() for t in tasks}

    def ranked() -> dict[str, list[tuple[float, Config]]]:
        return {name: sorted(found.values(), key=lambda tc: tc[0]) for name, found in known.items()}

    with context.Pool(workers) as pool:
        for round_number in range(4):
            jobs: list[tuple[Task, Config]] = []
            for task in tasks:
                most = keep if round_number < 2 else 2
                best = [tc for tc in ranked()[task.name] if tc[1]["kernel"] in kernels][:most]
                candidates: Iterable[Config] = (
                    [*(c for c in seeds(task) if c["kernel"] in kernels), *held(task)]
                    if round_number == 0
                    else itertools.chain(*(neighbours(task, c) for _, c in best))
                )
                fresh = {key_of(c): c for c in candidates if key_of(c) not in tried[task.name]}
                tried[task.name] |= set(fresh)
                jobs += [(task, c) for c in fresh.values()]
            spent = time.monotonic() - begun
            if not jobs or spent > 0.8 * seconds:
                break
            print(f"round {round_number}: {len(jobs)} configurations, {spent:.0f} s", flush=True)
            compile_all(jobs, pool, workers)
            print(f"  compiled at {time.monotonic() - begun:.0f} s", flush=True)
            failures: dict[str, int] = {}
            for task in tasks:
                mine = [c for t, c in jobs if t is task]
                if not mine or time.monotonic() - begun > seconds:
                    continue
                try:
                    timer = Timer(task)
                except torch.OutOfMemoryError as error:
                    print(f"  {task.name}: {str(error)[:100]}", flush=True)
                    continue
                for config in mine:
                    us, why = timer.time(config)
                    if us is None:
                        failures[why] = failures.get(why, 0) + 1
                    else:
                        known[task.name][key_of(config)] = (us, config)
                best = ranked()[task.name]
                known_before = {key_of(c) for c in held(task)}  # and these as long, or what is new beats them unfairly
                for _, config in best[:6] + [tc for tc in best[6:] if key_of(tc[1]) in known_before]:
                    again, _ = timer.time(config, 15, 30.0)
                    if again is not None:
                        known[task.name][key_of(config)] = (again, config)
                del timer
                gc.collect()
                torch.cuda.empty_cache()
                tell(ranked())
            for why, count in sorted(failures.items(), key=lambda wc: -wc[1])[:8]:
                print(f"  {count} x {why}", flush=True)
    return ranked()


def _write(path: str, report: dict[str, Any]) -> None:
    new = Path(path + ".new")
    new.write_text(json.dumps(report))
    new.replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", help="a JSON file for everything that was timed")
    parser.add_argument("--table", nargs="+", metavar="REPORT", help="print tuned.py for these reports, time nothing")
    parser.add_argument("--keep", action="store_true", help="with --table: and what the table holds already")
    parser.add_argument("--measured", default="", help="with --table: on what and when, for the docstring")
    parser.add_argument("--only", default="forward,backward", help="which operations")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument(
        "--kernels", default="", help="search these alone, and time what the table has beside them; default: all"
    )
    parser.add_argument("--shapes", default="", help="rows x hidden, e.g. 4096x4096,32768x128; default: all")
    parser.add_argument(
        "--tasks", nargs="+", metavar="OP/OPERATION/DTYPE/ROWSxHIDDEN", help="these alone, in this order"
    )
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-roofs", action="store_true", help="times alone, without copies of as many bytes")
    options = parser.parse_args(arguments)
    if options.table:
        try:
            text = table(options.table, options.measured, options.keep)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"--table: no report that --out wrote ({type(error).__name__}: {error})")
        print(text, end="")
        return 0
    if not options.out:
        parser.error("--out REPORT.json is needed")
    known = {"--ops": OPS, "--only": tuple(SHAPES), "--dtypes": tuple(SIZE)}
    for flag, given in (("--ops", options.ops), ("--only", options.only), ("--dtypes", options.dtypes)):
        for name in given.split(","):
            if name not in known[flag]:
                parser.error(f"{flag}: there is no {name!r}, but {', '.join(known[flag])}")
    kernels = options.kernels.split(",") if options.kernels else list(DEFAULTS)
    for name in kernels:
        if name not in DEFAULTS:
            parser.error(f"--kernels: there is no {name!r}, but {', '.join(DEFAULTS)}")
    if not re.fullmatch(r"([1-9]\d*x[1-9]\d*(,[1-9]\d*x[1-9]\d*)*)?", options.shapes):
        parser.error(f"--shapes: {options.shapes!r} is not like 4096x4096,32768x128")
    if options.tasks and (
        options.shapes
        or (options.only, options.ops, options.dtypes)
        != (parser.get_default("only"), parser.get_default("ops"), parser.get_default("dtypes"))
    ):
        parser.error("--tasks: names everything; leave --only, --ops, --dtypes and --shapes out")
    try:
        named = [task_of(name) for name in options.tasks or ()]
    except ValueError as error:
        parser.error(f"--tasks: {error}")
    import torch

    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU; a search needs one")
    wanted = tuple(tuple(int(n) for n in s.split("x")) for s in options.shapes.split(",") if s)
    tasks = named or [
        Task(op, operation, dtype, *shape)
        for op in options.ops.split(",")
        for operation in options.only.split(",")
        for dtype in options.dtypes.split(",")
        for shape in (wanted or SHAPES[operation])
    ]
    report: dict[str, Any] = {}

    def keep(found: dict[str, list[tuple[float, Config]]]) -> None:  # whatever ends the search, what it found stays
        report.update({n: {"tried": [[round(us, 3), c] for us, c in best]} for n, best in found.items() if best})
        _write(options.out, report)

    found = search(tasks, options.seconds, options.workers, kernels, tell=keep)
    keep(found)
    for task in tasks:
        if not found[task.name]:
            print(f"{task.name:60} nothing ran")
            continue
        best_us, best = found[task.name][0]
        by_kernel = {}
        for us, config in found[task.name]:
            by_kernel.setdefault(config["kernel"], us)
        others = " ".join(f"{k.split('_', 1)[1]} {us:.1f}" for k, us in by_kernel.items())
        share = ""
        if not options.no_roofs:
            roof_us, roof_name = copy_roof(task)
            share = f" {roof_us / best_us:.3f} of roof"
            report[task.name].update(roof_us=roof_us, roof=roof_name, bytes=task.bytes)
        print(
            f"{task.name.replace('rms_norm', 'rn'):44} {best_us:8.2f} us {task.bytes / best_us / 1e3:6.0f} GB/s{share} "
            f"[{others}] {key_of(best)}",
            flush=True,
        )
    _write(options.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
