"""Searches, on the GPU of this machine, the launch configurations that `kernels/ops/rms_norm/gpu/tuned.py` holds.

    python -m benchmarks.tune --out report.json [--only forward,backward] [--shapes 4096x4096,...] [--seconds 500]

A coordinate search per (op, operation, dtype, rows, hidden): a few seeds for each kernel, then the neighbours of the
best ones, which differ in one key.  All that is to be timed in a round is compiled first, in parallel processes that
share Triton's cache folder; then each configuration is checked against a float32 reference and timed by the policy
`rotating_graph`, and the best few are timed again.  Nothing here runs at a user's first call: the outcome is a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]

#: rows x hidden, which operations: those of the published tables, and what lies between them.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "forward": (
        (32768, 128), (32768, 256), (32768, 512), (4096, 1024), (32768, 1024), (2048, 2048), (4096, 4096), (8192, 4096),
        (32768, 4096), (8192, 8192), (32768, 8192), (4096, 16384), (16384, 32768), (8192, 65536), (8192, 131072),
        (32768, 1000), (16384, 3584), (8192, 4095), (8192, 5120), (8192, 7168),
    ),
    "backward": (
        (32768, 128), (32768, 256), (2048, 1024), (32768, 1024), (2048, 2048), (4096, 4096), (8192, 4096), (8192, 8192),
        (4096, 16384), (8192, 32768), (4096, 65536), (16384, 1000), (8192, 3584), (8192, 4095), (8192, 5120),
    ),
}  # fmt: skip
OPS = ("rms_norm", "fused_add_rms_norm")
_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What a block may have in shared memory on sm_90, and threads in a block.
SHARED, THREADS = 232448, 1024


@dataclass(frozen=True)
class Task:
    """One thing to tune."""

    op: str
    operation: str
    dtype: str
    rows: int
    hidden: int

    @property
    def block(self) -> int:
        return 1 << max(self.hidden - 1, 0).bit_length()

    @property
    def name(self) -> str:
        return f"{self.op}/{self.operation}/{self.dtype}/{self.rows}x{self.hidden}"

    @property
    def matrices(self) -> int:
        """How many rows x hidden tensors the operation reads and writes."""
        return (
            (2 if self.operation == "forward" else 3)
            + (2 if self.op.startswith("fused") else 0)
            - (1 if self.op.startswith("fused") and self.operation == "backward" else 0)
        )

    @property
    def bytes(self) -> int:
        return self.matrices * self.rows * self.hidden * _SIZE[self.dtype]


#: What a key may be; a neighbour takes the value before or after, or any where the order means nothing.
DOMAIN: dict[str, tuple[Any, ...]] = {
    "rows": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16, 32),
    "per_core": (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "num_stages": (1, 2, 3, 4, 5),
    "span": ("row", "warp"),
    "spread": (False, True),
    "weight": ("first", "last"),
    "load": ("", "evict_first", "evict_last"),
    "store": ("", "evict_first"),
    "tail": (False, True),
    "block": (512, 1024, 2048, 4096, 8192, 16384, 32768),
    "keep": (0, 8192, 16384, 32768, 65536),
    "chunk": (2048, 4096, 8192, 16384),
    "unroll": (False, True),
    "hold": (False, True),
    "fold": (False, True),
    "ahead": (0, 1, 2, 4),
}


def seeds(task: Task) -> list[Config]:
    """Where the search starts: each kernel with a few tiles, and further options as defaults."""
    found: list[Config] = []
    tiles = tuple(r for r in DOMAIN["rows"] if r * task.block >= 512)[:5]
    spans = ("row", "warp") if task.block <= 4096 else ("row",)

    def add(kernel: str, **keys: tuple[Any, ...]) -> None:
        for values in itertools.product(*keys.values()):
            config = {**_options(kernel), "kernel": kernel, **dict(zip(keys, values, strict=True))}
            if config.get("span") == "warp":
                config["spread"] = True
            if config.get("per_core", 0) < 0:  # threads of a core
                config["per_core"] = max(1, -config["per_core"] // config["num_warps"])
            if sensible(task, config):
                found.append(config)

    if task.operation == "forward":
        if task.block <= 65536:
            add("forward_rows", rows=tiles, num_warps=(1, 2, 4, 8, 16, 32), span=spans)
            add("forward_persistent", rows=tiles[:3], num_warps=(4, 8, 16), num_stages=(1, 3), per_core=(-32,),
                span=spans)  # fmt: skip
        if task.block >= 8192:
            add("forward_chunks", rows=(1,), block=(2048, 4096, 8192, 16384), num_warps=(8, 16, 32), num_stages=(1,),
                per_core=(0, -32, -64), keep=(0,), load=("", "evict_last"))  # fmt: skip
        if task.block >= 32768:
            add("forward_chunks", rows=(1,), block=(2048, 4096, 8192, 16384), num_warps=(4, 8, 16, 32), num_stages=(1,),
                per_core=(0, 1, 2, 3, 4), keep=(0,), unroll=(False, True), load=("", "evict_last"))  # fmt: skip
        if task.block >= 65536:
            add("forward_chunks", rows=(1,), block=(8192, 16384, 32768), num_warps=(16, 32), num_stages=(1,),
                per_core=(0, 1, 2), keep=(16384, 32768), unroll=(False, True))  # fmt: skip
    else:
        if task.block <= 32768:
            add("backward_rows", rows=tiles[:4], num_warps=(4, 8, 16, 32), num_stages=(1, 3), per_core=(-16, -32),
                span=spans, fold=(True, False) if task.block <= 1024 else (True,))  # fmt: skip
            if task.block >= 8192:
                add("backward_twice", rows=(1,), num_warps=(8, 16, 32), num_stages=(1, 3), per_core=(-16, -32),
                    chunk=(4096, 8192, 16384), unroll=(False, True))  # fmt: skip
        if task.block >= 16384 or task.hidden % 8:
            add("backward_columns", rows=(1, 4), block=(1024, 2048), num_warps=(4, 8), num_stages=(1, 3), per_core=(8,))
    return found


def _options(kernel: str) -> Config:
    from kernels.ops.rms_norm.gpu.choose import DEFAULTS

    return {k: v for k, v in DEFAULTS[kernel].items() if k != "pdl"}


def sensible(task: Task, config: Config) -> bool:
    """Whether a configuration can be launched at all, and is not far from what can be good."""
    block = min(config.get("block", task.block), task.block)
    tile, warps = config.get("rows", 1) * block, config["num_warps"]
    per_thread = tile / (32 * warps)
    kernel, stages = config["kernel"], config.get("num_stages", 1)
    if config.get("rows", 1) > task.rows or warps > 32 or not 2 <= per_thread <= 128:
        return False
    if kernel in ("forward_rows", "forward_persistent") and per_thread > 64:
        return False
    if kernel == "forward_chunks" and per_thread > 64:
        return False
    if kernel == "backward_twice" and config["rows"] > 1:
        return False
    span = 512 // _SIZE[task.dtype]
    if config.get("span") == "warp" and (config["rows"] < warps or block < span):
        return False
    if config.get("spread") and config["rows"] == 1:
        return False
    loads = (2 if task.operation == "backward" else 1) + (1 if task.op.startswith("fused") else 0)
    shared = config.get("chunk", tile) * _SIZE[task.dtype] * loads * (stages - 1)
    if stages > 1 and shared * max(1, config.get("per_core", 1)) > SHARED:
        return False
    if kernel == "backward_rows":
        if not config["fold"] and config["rows"] * block > 8192:
            return False
        # x and dy in float32, the weight and dw: more registers than a thread has
        live = per_thread * 2 + block / (32 * warps) * (2 if config["hold"] else 1)
        if live > 160 or per_thread < 4:
            return False
    if "keep" in config and (config["keep"] > task.hidden or config["keep"] / (32 * warps) > 64):
        return False
    per_core = config.get("per_core", 0)
    return not per_core or per_core * warps <= 64


def neighbours(task: Task, config: Config) -> list[Config]:
    """Every sensible configuration that differs in one key."""
    found = []
    for key, value in config.items():
        if key in ("kernel", "mode"):
            continue
        values = DOMAIN[key]
        at = values.index(value)
        near = values if isinstance(value, str) else values[max(0, at - 1) : at + 2]
        for other in near:
            if other != value:
                changed = {**config, key: other}
                if key == "num_warps" and config.get("per_core"):  # keep the threads of a core
                    changed["per_core"] = max(1, config["per_core"] * value // other)
                    if changed["per_core"] not in DOMAIN["per_core"]:
                        continue
                if sensible(task, changed):
                    found.append(changed)
    return found


def key_of(config: Config) -> str:
    return json.dumps(config, sort_keys=True)


def mode_of(config: Config, hidden: int) -> str:
    """The public mode that a configuration belongs to."""
    kernel = config["kernel"]
    if kernel == "forward_chunks":
        if config["keep"] >= hidden:  # nothing is left to be read again
            return "row_packed" if config["rows"] > 1 else "multi_wave_cached"
        return "column_tiled" if config["rows"] > 1 else "multi_wave_reload"
    if kernel == "backward_columns":
        return "column_tiled" if config["rows"] > 1 else "multi_wave_reload"
    if kernel == "forward_rows":
        return "row_packed" if config["rows"] > 1 else "multi_wave_cached"
    return "row_packed" if config["rows"] > 1 and kernel == "backward_rows" else "static_persistent"


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
        task.operation, {**config, "mode": mode_of(config, task.hidden)}, rows or task.rows, task.hidden,
        _SIZE[task.dtype], _cores(), _target(),
    )  # fmt: skip


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
        rows = 64 if task.rows % 64 == 0 else 65
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

        from farm.timing import policies

        self.policies, self.task = policies, task
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = min(64, max(2, -(-4 * cache // task.bytes)))
        self.sets: list[Any] = [Buffers(task, task.rows, i) for i in range(count)] if buffers else []
        self.bench = policies.Bench(
            function=None, make=lambda: self.sets[0], device=torch.device("cuda", 0), cache_bytes=cache,
            bytes_moved=task.bytes, policy={},
        )  # type: ignore[arg-type, return-value]  # fmt: skip

    def time(self, config: Config, replays: int = 5, warm_ms: float = 6.0) -> tuple[float | None, str]:
        """(microseconds a call, "") or (None, why).  The first milliseconds after an idle time are slower: they are
        spent before the samples."""
        import torch

        try:
            self.bench.function = choice_of(self.task, config)
            self.sets[0].run(self.bench.function)
            torch.cuda.synchronize()
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
        graph, _, launches = self.policies._capture(self.bench, self.sets)
        spent = 0.0
        while spent < warm_ms * 1e3:
            spent += sum(self.policies._replay(self.bench, graph, 5))
        return statistics.median(self.policies._replay(self.bench, graph, replays)) / launches


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


def search(tasks: list[Task], seconds: float, workers: int, keep: int = 4) -> dict[str, list[tuple[float, Config]]]:
    """For each task's name the configurations by time, best first."""
    import torch

    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    known: dict[str, dict[str, tuple[float, Config]]] = {t.name: {} for t in tasks}
    tried: dict[str, set[str]] = {t.name: set() for t in tasks}
    with context.Pool(workers) as pool:
        for round_number in range(4):
            jobs: list[tuple[Task, Config]] = []
            for task in tasks:
                best = sorted(known[task.name].values(), key=lambda tc: tc[0])[: keep if round_number < 2 else 2]
                candidates: Iterable[Config] = (
                    seeds(task) if round_number == 0 else itertools.chain(*(neighbours(task, c) for _, c in best))
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
                timer = Timer(task)
                for config in mine:
                    us, why = timer.time(config)
                    if us is None:
                        failures[why] = failures.get(why, 0) + 1
                    else:
                        known[task.name][key_of(config)] = (us, config)
                for _, config in sorted(known[task.name].values(), key=lambda tc: tc[0])[:6]:
                    again, _ = timer.time(config, 15, 30.0)
                    if again is not None:
                        known[task.name][key_of(config)] = (again, config)
                del timer
                torch.cuda.empty_cache()
            for why, count in sorted(failures.items(), key=lambda wc: -wc[1])[:8]:
                print(f"  {count} x {why}", flush=True)
    return {name: sorted(found.values(), key=lambda tc: tc[0]) for name, found in known.items()}


HEADER = '''"""What `benchmarks/tune.py` found on the chips that were measured.  Pure; made by it, not edited.

    python -m benchmarks.tune --table REPORT.json... > kernels/ops/rms_norm/gpu/tuned.py

{measured}
"""

from __future__ import annotations

import math
from typing import Any

#: (op, operation, dtype) -> (rows, hidden, configuration): what `choose.build` takes, but for the kernel's defaults.
# fmt: off
_TEXT: dict[tuple[str, str, str], tuple[tuple[int, int, str], ...]] = {{
{entries}}}
# fmt: on


def _value(text: str) -> int | bool | str:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text


def _parsed(text: str) -> dict[str, Any]:
    """ "mode kernel key=value ..." as a dict."""
    mode, kernel, *pairs = text.split()
    return {{"mode": mode, "kernel": kernel, **{{k: _value(v) for k, v in (p.split("=") for p in pairs)}}}}


#: The same with each configuration parsed.
TABLE: dict[tuple[str, str, str], tuple[tuple[int, int, dict[str, Any]], ...]] = {{
    key: tuple((rows, hidden, _parsed(text)) for rows, hidden, text in entries) for key, entries in _TEXT.items()
}}

#: How many times more or fewer rows than the measured shape a configuration is still trusted with (reasoned).
_FAR = 16


def find(target: str, op: str, operation: str, dtype: str, rows: int, hidden: int) -> dict[str, Any] | None:
    """The configuration for a shape: of the shapes measured in the same tile the nearest one; None where there is none.

    Measured on sm_90; sm_100 takes the same (reasoned: the same registers and threads a multiprocessor).
    """
    if target not in ("cuda:90", "cuda:100"):
        return None
    block = 1 << max(hidden - 1, 0).bit_length()
    entries = TABLE.get((op, operation, dtype), ())
    if dtype == "float16":  # as large as bfloat16, which stands in where it was not measured itself
        entries += TABLE.get((op, operation, "bfloat16"), ())
    near = []
    for place, (measured_rows, measured_hidden, config) in enumerate(entries):
        ratio = math.log2(measured_rows / rows)
        same_tile = 1 << max(measured_hidden - 1, 0).bit_length() == block
        same_loads = (measured_hidden % 8 == 0) == (hidden % 8 == 0)  # as wide, or an element at a time
        if same_tile and same_loads and abs(ratio) <= math.log2(_FAR):
            far = abs(ratio) + 4 * abs(math.log2(measured_hidden / hidden))
            near.append((far, place, config))
    return min(near, key=lambda n: n[:2])[2] if near else None
'''


def _text(config: Config) -> str:
    from kernels.ops.rms_norm.gpu.choose import DEFAULTS

    usual = {"rows": 1, "num_stages": 1, "per_core": 0, **DEFAULTS[config["kernel"]]}
    pairs = [f"{k}={v}" for k, v in sorted(config.items()) if k not in ("mode", "kernel") and usual.get(k) != v]
    return " ".join([config["mode"], config["kernel"], *pairs])


def table(reports: list[str], measured: str) -> str:
    """The text of tuned.py: the best configuration of each task of all reports, a later report before an earlier."""
    best: dict[str, Config] = {}
    for path in reports:
        with open(path) as file:
            best.update({name: found["tried"][0][1] for name, found in json.load(file).items()})
    groups: dict[tuple[str, str, str], list[tuple[int, int, Config]]] = {}
    for name, config in best.items():
        op, operation, dtype, shape = name.split("/")
        rows, hidden = (int(n) for n in shape.split("x"))
        groups.setdefault((op, operation, dtype), []).append(
            (rows, hidden, {"mode": mode_of(config, hidden), **config})
        )
    lines = []
    for key in sorted(groups):
        lines.append(f"    {key!r}: (")
        for rows, hidden, config in sorted(groups[key], key=lambda e: (e[1], e[0])):
            lines.append(f'        ({rows}, {hidden}, "{_text(config)}"),')
        lines.append("    ),")
    return HEADER.format(measured=measured, entries="\n".join(lines) + "\n")


def _write(path: str, report: dict[str, Any]) -> None:
    with open(path, "w") as file:
        json.dump(report, file)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", help="a JSON file for everything that was timed")
    parser.add_argument("--table", nargs="+", metavar="REPORT", help="print tuned.py for these reports, time nothing")
    parser.add_argument("--measured", default="", help="with --table: on what and when, for the docstring")
    parser.add_argument("--only", default="forward,backward", help="which operations")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--shapes", default="", help="rows x hidden, e.g. 4096x4096,32768x128; default: all")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.table:
        try:
            text = table(options.table, options.measured)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"--table: no report that --out wrote ({type(error).__name__}: {error})")
        print(text, end="")
        return 0
    if not options.out:
        parser.error("--out REPORT.json is needed")
    known = {"--ops": OPS, "--only": tuple(SHAPES), "--dtypes": tuple(_SIZE)}
    for flag, given in (("--ops", options.ops), ("--only", options.only), ("--dtypes", options.dtypes)):
        for name in given.split(","):
            if name not in known[flag]:
                parser.error(f"{flag}: there is no {name!r}, but {', '.join(known[flag])}")
    if not re.fullmatch(r"([1-9]\d*x[1-9]\d*(,[1-9]\d*x[1-9]\d*)*)?", options.shapes):
        parser.error(f"--shapes: {options.shapes!r} is not like 4096x4096,32768x128")
    import torch

    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no GPU; a search needs one")
    wanted = tuple(tuple(int(n) for n in s.split("x")) for s in options.shapes.split(",") if s)
    tasks = [
        Task(op, operation, dtype, *shape)
        for op in options.ops.split(",")
        for operation in options.only.split(",")
        for dtype in options.dtypes.split(",")
        for shape in (wanted or SHAPES[operation])
    ]
    found = search(tasks, options.seconds, options.workers)
    report: dict[str, Any] = {name: {"tried": [[round(us, 3), c] for us, c in best]} for name, best in found.items()}
    _write(options.out, report)  # before the roofs: they take a while
    for task in tasks:
        if not found[task.name]:
            print(f"{task.name:60} nothing ran")
            continue
        roof_us, roof_name = copy_roof(task)
        best_us, best = found[task.name][0]
        by_kernel = {}
        for us, config in found[task.name]:
            by_kernel.setdefault(config["kernel"], us)
        others = " ".join(f"{k.split('_', 1)[1]} {us:.1f}" for k, us in by_kernel.items())
        print(
            f"{task.name.replace('rms_norm', 'rn'):44} {best_us:8.2f} us {task.bytes / best_us / 1e3:6.0f} GB/s "
            f"{roof_us / best_us:.3f} of roof [{others}] {key_of(best)}", flush=True,
        )  # fmt: skip
        report[task.name].update(roof_us=roof_us, roof=roof_name, bytes=task.bytes)
    _write(options.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
