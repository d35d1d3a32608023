"""Times what `auto` chooses for few rows and for widths that nothing was fitted to, beside other configurations and
peers, on the GPU of this machine.

    python -m benchmarks.few_rows --limit-s 150 --json few_rows.jsonl
    python -m benchmarks.few_rows --list                          on any host: what would be timed

For each shape and direction: what the measured table and the modes' rules choose (`table`), what `auto` chooses
(`auto`), and candidates.  Each is compiled first, in parallel processes; then checked against float64, with outputs
that were NaN before, and timed by replays of a CUDA graph over rotating buffer sets.  What time is left goes to peers.
A line of the JSON file is one timing, written as it comes; the table is printed last.

Exit codes: 0 measured, 1 a result was wrong, 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.tune import Buffers, Timer
from benchmarks.tune_space import SIZE, Config, Task
from kernels.ops.rms_norm.gpu import choose, fit

#: rows, hidden, dtype, directions: f forward, s forward of a sum, b backward.
FEW = (
    *((1, n, "bfloat16", "fsb") for n in (1024, 4096, 16384, 32768, 57344)),
    *((4, n, "bfloat16", "fsb") for n in (4096,)),
    *((7, n, "bfloat16", "fsb") for n in (262144,)),
    *((16, n, "bfloat16", "fsb") for n in (4096, 16384, 65536)),
    (48, 131072, "bfloat16", "fsb"),
    (64, 8192, "bfloat16", "fsb"),
    (128, 2048, "bfloat16", "fs"),
    (128, 2048, "float32", "fs"),
    (128, 32768, "bfloat16", "fs"),
    (256, 1024, "bfloat16", "fs"),
    (256, 16384, "bfloat16", "fs"),
)
WIDTHS = (
    (525, 8192, "bfloat16", "fs"),
    (12288, 2560, "bfloat16", "fs"),
    (20000, 1536, "bfloat16", "fs"),
    (8192, 11008, "bfloat16", "fs"),
    (16384, 18432, "bfloat16", "fs"),
    (26424, 19840, "bfloat16", "fs"),
    (1024, 28672, "bfloat16", "fs"),
    (12288, 2560, "float32", "fs"),
)
DIRECTIONS = {"f": ("rms_norm", "forward"), "s": ("fused_add_rms_norm", "forward"), "b": ("rms_norm", "backward")}
PEERS = ("torch", "quack", "liger", "torch_compile")
PEER_TASKS = 0.75  # of the time, before peers begin


def tasks() -> list[Task]:
    """Every shape in every direction, the few rows first."""
    return [Task(*DIRECTIONS[d], dtype, rows, hidden) for rows, hidden, dtype, given in FEW + WIDTHS for d in given]


def candidates(task: Task, target: str, cores: int) -> dict[str, Config]:
    """Name -> configuration as `choose.build` takes it; those that mean the same once."""
    found: dict[str, Config] = {}
    asked = {"cores": cores, "op": task.op, "ring": True, "split": True}
    shape = (target, task.rows, task.hidden, task.dtype, task.operation)
    for name, fitted in (("table", False), ("auto", True)):
        found[name] = choose.configuration(*shape, **asked, fitted=fitted)
    make = _forwards if task.operation == "forward" else _backwards
    seen: set[Any] = set()
    for name, config in make(task, cores):
        found.setdefault(name, config)
    unlike: dict[str, Config] = {}
    for name, config in found.items():
        key = choice_of(task, config, target, cores)
        if key not in seen or name in ("table", "auto"):
            unlike[name] = config
        seen.add(key)
    return unlike


def _forwards(task: Task, cores: int) -> Iterator[tuple[str, Config]]:
    size, hidden, row = SIZE[task.dtype], task.hidden, task.hidden * SIZE[task.dtype]
    if row <= 65536:
        main, tail = fit.tiles(hidden)
        given = {"mode": "multi_wave_cached", "kernel": "forward_rows", "load": "evict_last"}
        for deep in (1, 2, 4, 8):  # loads of 16 bytes a lane
            warps = main * size // (fit.LOAD * deep)
            if 1 <= warps <= 32 and deep * 16 // size <= 64:
                yield f"rows{'+' if tail else ''} w{warps}", {**given, "num_warps": warps}
                if task.rows >= 512 and deep > 1:
                    late = {**given, "num_warps": warps, "weight": "last"}
                    yield f"rows{'+' if tail else ''} w{warps} late", late
            whole = 2 * main * size // (fit.LOAD * deep)
            if hidden <= 4096 and task.rows >= 512 and 1 < deep < 8:
                yield f"two{'+' if tail else ''} w{2 * warps}", {**given, "rows": 2, "num_warps": 2 * warps}
            if tail and 1 < deep < 8 and 1 <= whole <= 32:
                yield f"rows w{whole}", {**given, "num_warps": whole, "tail": False}
    if task.rows <= 264 and row >= 32768:
        for part in (1024, 2048, 4096, 8192, 16384):
            parts = -(-row // part)
            if 2 <= parts <= 1024 and cores // 4 <= parts * task.rows <= 8 * cores:
                for deep in (1, 2, 4):
                    warps = part // (fit.LOAD * deep)
                    if 1 <= warps <= 16 and (deep == 2 or part in (2048, 8192)):
                        config = {"mode": "multi_wave_reload", "kernel": "forward_parts"}
                        yield f"parts {part >> 10}K w{warps}", {**config, "parts": parts, "num_warps": warps}
    if row > 32768:
        for part, warps in ((8192, 4), (16384, 8), (16384, 16)):
            split = {"mode": "multi_wave_cached", "kernel": "forward_split", "num_warps": warps}
            split["parts"] = -(-row // part)
            if split["parts"] <= cores:
                yield f"split {part >> 10}K w{warps}", {**split, "load": "evict_last", "weight": "first"}


def _backwards(task: Task, cores: int) -> Iterator[tuple[str, Config]]:
    size, hidden = SIZE[task.dtype], task.hidden
    given = {"mode": "static_persistent"}
    if task.rows <= 64:
        for block in (256, 512, 1024, 2048, 4096):
            parts = -(-hidden // block)
            if not 4 <= parts <= 2 * cores:
                continue
            for tile in {min(8, 1 << (task.rows - 1).bit_length()), min(16, 1 << (task.rows - 1).bit_length())}:
                for deep in (2, 4) if block * cores // 2 <= hidden <= block * cores else (2,):
                    warps = tile * block * size // (fit.LOAD * deep)
                    if 1 <= warps <= 16:
                        config = {"kernel": "backward_strips", "block": block, "rows": tile, "num_warps": warps}
                        yield f"strips {block} r{tile} w{warps}", {**given, **config}
    if task.rows <= 4 and hidden * size <= 32768:
        for warps in (4, 8, 16, 32):
            config = {"kernel": "backward_rows", "rows": task.rows, "num_warps": warps, "per_core": 1}
            if task.rows * hidden // (32 * warps) <= 64:
                yield f"one w{warps}", {**given, **config}


def choice_of(task: Task, config: Config, target: str, cores: int, rows: int | None = None) -> Any:
    """The choice of a configuration for the task, or for so many of its rows."""
    return choose.build(task.operation, config, rows or task.rows, task.hidden, SIZE[task.dtype], cores, target)


class Checked(Buffers):
    """Buffers whose results are held against float64; `want` is made once."""

    want: dict[str, Any] | None = None

    def wrong(self) -> str | None:
        import torch

        if self.want is None:
            self.want = self._wanted()
        most = 1e-5 if self.task.dtype == "float32" else 8e-3
        for name, want in self.want.items():
            got = getattr(self, name)
            error = far = 0.0
            for i in range(0, len(want), 1024):
                a, b = got[i : i + 1024].double(), want[i : i + 1024].double()
                error += float((a - b).pow(2).sum())
                far += float(b.pow(2).sum())
            if not error <= most**2 * far:
                return f"{name} is off by {(error / far) ** 0.5:.2g}"
        torch.cuda.synchronize()
        return None

    def spoil(self) -> None:
        """NaN in every output."""
        for name in ("y", "total", "dx", "dw"):
            if getattr(self, name, None) is not None:
                getattr(self, name).fill_(float("nan"))

    def _wanted(self) -> dict[str, Any]:
        import torch

        forward = self.task.operation == "forward"
        found: dict[str, list[Any]] = {"y": [], "total": []} if forward else {"dx": []}
        dw = torch.zeros(self.task.hidden, dtype=torch.float64, device="cuda")
        w = self.weight.double()
        for i in range(0, self.task.rows, 1024):
            x = self.x[i : i + 1024]
            if forward:
                s = x if self.residual is None else (x.float() + self.residual[i : i + 1024].float()).to(x.dtype)
                d = s.double()
                found["total"].append(s)
                found["y"].append((d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-6) * w).float())
            else:
                r = self.rstd[i : i + 1024, None].double()
                dy, h = self.dy[i : i + 1024].double(), x.double() * r
                m = dy * w
                dx = r * (m - h * (m * h).mean(-1, keepdim=True))
                found["dx"].append((dx if self.dsum is None else dx + self.dsum[i : i + 1024].double()).float())
                dw += (dy * h).sum(0)
        made = {name: torch.cat(rows) for name, rows in found.items()}
        if not forward:
            made["dw"] = dw
        elif self.residual is None:
            del made["total"]
        return made


def _compile(job: tuple[list[tuple[Task, Config]], str, int]) -> int:
    """In a process of its own: launch each on few rows, which leaves it in Triton's cache folder."""
    import torch

    jobs, target, cores = job
    for task, config in jobs:
        rows = task.rows if task.rows <= 1024 else 512 + task.rows % 512 % 2
        try:
            Buffers(task, rows, 0).run(choice_of(task, config, target, cores, rows))
            torch.cuda.synchronize()
        except Exception as error:
            if "illegal" in str(error):
                raise
    return len(jobs)


def measure(timer: Timer, choice: Any) -> tuple[float | None, str]:
    """(microseconds a call, "") or (None, why)."""
    import torch

    first = timer.sets[0]
    try:
        first.spoil()
        first.run(choice)
        torch.cuda.synchronize()
        wrong = first.wrong()
        if wrong:
            return None, wrong
        timer.bench.function = choice
        return timer.sample(7, 4.0), ""
    except Exception as error:
        if "illegal" in str(error):
            raise
        return None, f"{type(error).__name__}: {str(error)[:100]}"


def made_timer(task: Task) -> Timer:
    """A timer over checked buffers: four times the cache together, at most 32 sets."""
    import torch

    timer = Timer(task, buffers=False)
    count = min(32, max(2, -(-4 * timer.bench.cache_bytes // task.bytes)))
    timer.sets = [Checked(task, task.rows, i) for i in range(count)]
    timer.bench.make = lambda: timer.sets[0]
    torch.cuda.synchronize()
    return timer


def peer(task: Task, name: str) -> tuple[float | None, str]:
    """As `measure`, of a peer, unchecked: the farm judges peers."""
    import torch

    from farm.child.provider_call import Problem

    try:
        function = import_module(f"farm.providers.{name}").load(task.op)
        timer = Timer(task, buffers=False)
        for i in range(min(32, max(2, -(-4 * timer.bench.cache_bytes // task.bytes)))):
            b = Buffers(task, task.rows, i)
            backward = task.operation == "backward"
            inputs = [b.x, b.dsum if backward else b.residual, b.weight]
            given = [t.requires_grad_(True) for t in inputs if t is not None]
            timer.sets.append(Problem(given, [b.dy] if backward else [], given if backward else [], task.operation))
        timer.bench.function = function
        timer.bench.make = lambda: timer.sets[0]
        found = timer.sample(7, 4.0)
        torch.cuda.synchronize()
        return found, ""
    except Exception as error:
        if "illegal" in str(error):
            raise
        return None, f"{type(error).__name__}: {str(error)[:80]}"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=150.0, metavar="S", help="end after S seconds (default: 150)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each timing to this file as it comes")
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks whose names have this text")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated, or empty")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print what would be timed on an H200, time nothing")
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    wanted = [t for t in tasks() if given.only in t.name]
    if given.list:
        for task in wanted:
            for name, config in candidates(task, "cuda:90", 132).items():
                print(task.name, name, json.dumps(config))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("no GPU here; --list shows what would be timed", file=sys.stderr)
        return 2
    from kernels.ops.rms_norm import dispatch

    target, cores = dispatch.machine()
    jobs = [(t, name, c) for t in wanted for name, c in candidates(t, target, cores).items()]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        chunks = [[(t, c) for t, _, c in jobs[i :: 4 * given.workers]] for i in range(4 * given.workers)]
        for _ in pool.imap_unordered(_compile, [(c, target, cores) for c in chunks if c]):
            if time.monotonic() - begun > 0.5 * given.limit_s:
                break
    print(
        f"{len(jobs)} configurations of {len(wanted)} tasks, compiled at {time.monotonic() - begun:.0f} s", flush=True
    )
    found: dict[str, dict[str, float]] = {t.name: {} for t in wanted}
    refused: list[str] = []
    wrong = 0

    def note(task: Task, name: str, us: float | None, why: str) -> None:
        nonlocal wrong
        if us is None:
            refused.append(f"{task.name} {name}: {why}")
            wrong += "off by" in why
        else:
            found[task.name][name] = us
        if given.json:
            with given.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"task": task.name, "name": name, "us": us, "why": why}) + "\n")

    for task in wanted:
        if time.monotonic() - begun > PEER_TASKS * given.limit_s:
            break
        timer = made_timer(task)
        for name, config in candidates(task, target, cores).items():
            note(task, name, *measure(timer, choice_of(task, config, target, cores)))
        del timer
        torch.cuda.empty_cache()
    print(f"ours timed at {time.monotonic() - begun:.0f} s", flush=True)
    for name in [n for n in given.peers.split(",") if n]:
        for task in wanted:
            if time.monotonic() - begun < given.limit_s - 3.0 and found[task.name]:
                note(task, name, *peer(task, name))
                torch.cuda.empty_cache()
    _print(wanted, found, refused)
    print(f"{torch.cuda.get_device_name()}, {time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


def _print(wanted: list[Task], found: dict[str, dict[str, float]], refused: list[str]) -> None:
    for line in refused[:40]:
        print("refused:", line)
    print("us; the best peer's time over auto's, then over the fastest candidate's; then candidates, fastest first")
    for task in wanted:
        times = dict(found[task.name])
        if "auto" not in times:
            continue
        table, auto = times.pop("table", None), times.pop("auto")
        peers = {n: times.pop(n) for n in PEERS if n in times}
        best = min(peers.values(), default=None)
        least = min([auto, *times.values(), *([table] if table else [])])
        ratio = "   -     - " if best is None else f"{best / auto:5.2f} {best / least:5.2f}"
        others = ", ".join(f"{n} {us:.2f}" for n, us in sorted(times.items(), key=lambda nu: nu[1])[:7])
        beside = " ".join(f"{n} {us:.2f}" for n, us in peers.items())
        label = task.name.replace("fused_add_rms_norm", "fused").replace("bfloat16/", "").replace("rms_norm", "rms")
        print(f"{label:28} table {table or 0:8.2f} auto {auto:8.2f} {ratio} | {others} | {beside}")


if __name__ == "__main__":
    sys.exit(main())
