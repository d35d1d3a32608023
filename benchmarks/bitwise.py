"""Are our kernels' results the same bits on every run?  Twice in one process, once more in another.

    python -m benchmarks.bitwise                          on the GPU of this host
    TRITON_INTERPRET=1 python -m benchmarks.bitwise --shapes 3x40 --modes auto      in the interpreter, on the CPU

Every mode of both norms, forward and backward, in three dtypes; hashes of y (and sum), of dx and dw.  Before each call
freed memory is filled with NaN, so that a result that depends on what was there shows.  A mode that refuses a shape is
told and is no difference.

Exit codes: 0 all the same, 1 a difference, a crash, or nothing to compare, 2 wrong usage or no device.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import MODES, available_ops, parse_shape
from benchmarks.kernels import positive_seconds
from farm.cell import DTYPE_ALIASES, SHORT_DTYPES
from farm.deadline import Deadline

DIRECTIONS = ("forward", "backward")
#: Narrow and wide rows, even and odd, fewer and more rows than programs; of 32,768 columns as many rows as `auto` wants
#: for what was measured with 8,192: a kernel of gpu/ring.py, where the table has one.
SHAPES = ((2048, 128), (333, 1000), (512, 4096), (520, 32768), (70, 16385), (5, 100000))
#: With these, of which `auto` alone is run, since they take long: as many rows as it wants for what was measured with
#: 8,192, a kernel of gpu/split.py, where the table has one.
AUTO_SHAPES = ((520, 131072),)
#: Runs of each cell in the first and in the second process.
RUNS = (2, 1)

Hashes = dict[str, dict[str, Any]]  # cell id -> direction -> [hash of each run], or a text: why there is none


@dataclass(frozen=True)
class Cell:
    """One kernel strategy on one shape."""

    op: str
    mode: str
    dtype: str
    rows: int
    hidden: int

    @property
    def id(self) -> str:
        return f"{self.op}/{self.mode}/{SHORT_DTYPES[self.dtype]}/{self.rows}x{self.hidden}"


def cells(
    ops: Iterable[str], modes: Iterable[str], dtypes: Iterable[str], shapes: Sequence[tuple[int, int]]
) -> list[Cell]:
    """The product; the shapes of one (op, mode, dtype) stand together."""
    return [Cell(op, m, d, *s) for op in ops for m in modes for d in dtypes for s in shapes]


def digest(tensors: Iterable[Any]) -> str:
    """A hash over dtypes, shapes and bits of tensors."""
    import torch

    found = hashlib.sha256()
    for t in tensors:
        found.update(f"{t.dtype}{list(t.shape)}".encode())
        found.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def run(cell: Cell, function: Callable[..., Any], device: Any, times: int) -> dict[str, Any]:
    """direction -> the hash of each of `times` runs, or why there is none: a refusal in words, `crashed: ...`."""
    found: dict[str, Any] = {}
    for _ in range(times):
        try:
            once = _once(cell, function, device)
        except NotImplementedError as error:
            once = dict.fromkeys(DIRECTIONS, f"unsupported: {error}")
        except Exception as error:
            once = dict.fromkeys(DIRECTIONS, f"crashed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        for direction, value in once.items():
            if value.startswith(("unsupported", "crashed")):
                found[direction] = value
            elif isinstance(found.setdefault(direction, []), list):
                found[direction].append(value)
    return found


def _once(cell: Cell, function: Callable[..., Any], device: Any) -> dict[str, str]:
    import torch

    from farm.child import poison
    from farm.child.tensor_files import DTYPES

    dtype = DTYPES[cell.dtype]
    generator = torch.Generator().manual_seed(zlib.crc32(f"{cell.op} {cell.dtype} {cell.rows} {cell.hidden}".encode()))

    def values(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    fused = cell.op == "fused_add_rms_norm"
    inputs = [values(cell.rows, cell.hidden).requires_grad_() for _ in range(1 + fused)]
    weight = (values(cell.hidden) * 0.25 + 1.0).requires_grad_()
    upstream = [values(cell.rows, cell.hidden) for _ in range(1 + fused)]
    size = upstream[0].nbytes
    poison.poison_freed(torch.device(device), [size] * 4)
    out = function(*inputs, weight, 1e-6, mode=cell.mode)
    outputs = out if isinstance(out, tuple) else (out,)
    found = {"forward": digest(outputs)}
    poison.poison_freed(torch.device(device), [size] * 4)
    try:
        found["backward"] = digest(torch.autograd.grad(outputs, (inputs[0], weight), upstream))
    except NotImplementedError as error:
        found["backward"] = f"unsupported: {error}"
    return found


def verdict(first: Any, second: Any) -> tuple[str, str]:
    """("same" | "differs" | "unsupported" | "crashed" | "lost", what a reader must know) of one direction of a cell."""
    for value in (first, second):
        if value is None:
            return "lost", "a process ended before it"
        if isinstance(value, str) and value.startswith("crashed"):
            return "crashed", value.removeprefix("crashed: ")
    if isinstance(first, str) and isinstance(second, str):
        return "unsupported", first.removeprefix("unsupported: ")
    if isinstance(first, str) or isinstance(second, str):
        return "differs", "one process is refused, the other is not"
    if len(set(first)) > 1:
        return "differs", f"within one process: {', '.join(first)}"
    if set(first) != set(second):
        return "differs", f"between processes: {first[0]}, {second[0]}"
    return "same", first[0]


def compare(planned: Sequence[Cell], first: Hashes, second: Hashes) -> list[dict[str, Any]]:
    """One row per cell and direction."""
    rows = []
    for cell in planned:
        for direction in DIRECTIONS:
            both = [h.get(cell.id, {}).get(direction) for h in (first, second)]
            state, told = verdict(*both)
            rows.append({"cell": cell, "direction": direction, "state": state, "told": told})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per op, mode, dtype and direction with its counts; then each one that is not the same, with the reason."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for r in rows:
        cell = r["cell"]
        groups.setdefault((cell.op, cell.mode, SHORT_DTYPES[cell.dtype], r["direction"]), []).append(r["state"])
    lines = [f"{'op':20} {'mode':18} {'dtype':5} {'direction':9}  same bits  unsupported  other"]
    for key, states in groups.items():
        same, refused = states.count("same"), states.count("unsupported")
        other = len(states) - same - refused
        lines.append(f"{key[0]:20} {key[1]:18} {key[2]:5} {key[3]:9}  {same:9}  {refused:11}  {other:5}")
    for r in rows:
        if r["state"] not in ("same", "unsupported"):
            lines.append(f"{r['state']}: {r['cell'].id} {r['direction']}: {r['told']}")
    reasons = dict.fromkeys(f"{r['cell'].mode}: {r['told']}" for r in rows if r["state"] == "unsupported")
    lines += [f"unsupported: {reason}" for reason in reasons]
    count = sum(r["state"] == "same" for r in rows)
    return "\n".join([*lines, f"{count} of {len(rows)} (cell, direction) are the same bits in three runs"])


def exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    """1 for anything but the same bits or a refusal, and where nothing was compared."""
    good = all(r["state"] in ("same", "unsupported") for r in rows)
    return int(not (good and any(r["state"] == "same" for r in rows)))


def child(path: Path) -> int:
    """In a process of its own: run the plan at `path`, a line per cell behind it; 2 where there is no device."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted:
        from farm.child import interpreter

        interpreter.install()
    import torch

    if not interpreted and not torch.cuda.is_available():
        message = f"torch {torch.__version__} sees no GPU; set TRITON_INTERPRET=1 to run in the interpreter on the CPU"
        path.with_suffix(".error").write_text(message, encoding="utf-8")
        return 2
    import kernels

    device = "cpu" if interpreted else "cuda"
    with path.with_suffix(".hashes").open("w", encoding="utf-8") as out:
        for data in plan["cells"]:
            cell = Cell(**data)
            found = run(cell, getattr(kernels, cell.op), device, plan["times"])
            out.write(json.dumps([cell.id, found]) + "\n")
            out.flush()
    return 0


def in_processes(planned: Sequence[Cell], times: int, seconds: float, jobs: int) -> Hashes:
    """The hashes of fresh processes, each with its share of the cells, as far as they came within the time.

    Several at once, since most of it is compiling.  RuntimeError where there is no device."""
    deadline = Deadline(seconds)
    with tempfile.TemporaryDirectory(prefix="bitwise-") as folder:
        paths = [Path(folder, f"plan{n}") for n in range(min(jobs, len(planned)))]
        running = []
        try:
            for n, path in enumerate(paths):
                share = [asdict(c) for c in planned[n :: len(paths)]]
                path.write_text(json.dumps({"cells": share, "times": times}), encoding="utf-8")
                running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.bitwise", "--child", str(path)]))
            for process in running:
                try:
                    process.wait(timeout=max(1.0, deadline.remaining))
                except subprocess.TimeoutExpired:
                    print(f"a process was ended after {seconds:.0f} s", file=sys.stderr)
        finally:
            for process in running:
                process.kill()
                process.wait()
        found: Hashes = {}
        for path in paths:
            error, hashes = path.with_suffix(".error"), path.with_suffix(".hashes")
            if error.exists():
                raise RuntimeError(error.read_text(encoding="utf-8"))
            if hashes.exists():
                found.update(json.loads(line) for line in hashes.read_text(encoding="utf-8").split("\n")[:-1])
        return found


def _shape(text: str) -> tuple[int, int]:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count_above_0(text: str) -> int:
    if not (text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"needs a number of processes, 1 or more; got {text!r}")
    return int(text)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = __doc__.partition("\n")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.bitwise", description=first, epilog=rest, formatter_class=raw
    )
    ops, modes, dtypes = available_ops(), ("auto", *MODES), ("fp32", "fp16", "bf16")
    parser.add_argument("--ops", nargs="+", choices=ops, default=list(ops), metavar="OP", help=", ".join(ops))
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes), metavar="MODE", help=", ".join(modes))
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=list(dtypes))
    parser.add_argument("--shapes", nargs="+", type=_shape, default=list(SHAPES), metavar="ROWSxHIDDEN")
    parser.add_argument(
        "--budget", type=positive_seconds, default=300.0, metavar="SECONDS", help="for everything (300)"
    )
    jobs = min(8, max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--jobs", type=count_above_0, default=jobs, metavar="N", help=f"processes at once ({jobs})")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    if options.child:
        return child(options.child)
    dtypes = [DTYPE_ALIASES[d] for d in options.dtypes]
    planned = cells(options.ops, options.modes, dtypes, options.shapes)
    if options.shapes == list(SHAPES) and "auto" in options.modes:
        planned += cells(options.ops, ["auto"], dtypes, AUTO_SHAPES)
    budget = Deadline(options.budget)
    try:
        first = in_processes(planned, RUNS[0], 0.7 * budget.remaining, options.jobs)
        second = in_processes(planned, RUNS[1], budget.remaining, options.jobs)
    except RuntimeError as error:
        print(f"benchmarks.bitwise: {error}", file=sys.stderr)
        return 2
    rows = compare(planned, first, second)
    print(table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
