"""What a kernel's author waits for: the cells of an own Triton kernel, by a plain script, `farm run` and `--watch`.

    python -m benchmarks.author_loop [--rounds 5] [--backend cuda] [--limit-s 600]

The three take turns on this host: wall and CPU seconds (of a process and all that it started), the load beside each.
Each number is printed as it comes; what is not done within the limit is left out, and the exit code is 1 then.
The plain script is what an author writes without a farm: it imports torch and Triton, makes inputs, calls the kernel
and compares with torch.  Of `--watch`: seconds from a save to the verdict.  On the CPU six cells in Triton's
interpreter; on a GPU twenty, timed, of a kernel that was edited before each command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES, DTYPES = ((16, 1000), (32, 512)), ("float32", "float16", "bfloat16")
KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def _norm(X, W, Y, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(X + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + columns, mask=inside, other=0.0).to(tl.float32)
    y = (x / tl.sqrt(tl.sum(x * x) / hidden + eps)).to(Y.dtype.element_ty).to(tl.float32) * w
    tl.store(Y + row * hidden + columns, y.to(Y.dtype.element_ty), mask=inside)


def rms_norm(x, weight, eps):
    y = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""
PLAIN = """import os
if "DEVICE" == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
import torch
import mine

torch.set_default_device("DEVICE")
for rows, hidden in SHAPES:
    for name in DTYPES:
        dtype = getattr(torch, name)
        x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
        expected = torch.nn.functional.rms_norm(x.double(), (hidden,), weight.double(), 1e-6)
        found = mine.rms_norm(x, weight, 1e-6).double()
        print(name, rows, hidden, bool(torch.allclose(found, expected, atol=0.05, rtol=0.05)))
"""
ON_GPU = tuple((rows, hidden) for rows in (1024, 4096) for hidden in (1000, 2048, 4096, 5120, 8192))


def matrix(shapes: tuple[tuple[int, int], ...], dtypes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": "own",
        "op": "rms_norm",
        "axes": {
            "shape": [{"rows": rows, "hidden": hidden} for rows, hidden in shapes],
            "dtype": list(dtypes),
            "operation": "no-grad-forward",
        },
        "providers": ["mine"],
    }


def command(backend: str) -> tuple[str, ...]:
    words = ("run", "m.yaml", "--backend", backend, "--address", "inline", "--provider", "mine=mine:rms_norm")
    return (sys.executable, "-m", "farm", *words, *(() if backend == "cpu" else ("--devices", "1")))


def environment() -> dict[str, str]:
    """With bytecode that is kept, as an installed farm has it: the script's own torch has it wherever this runs."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


def edited(number: int) -> str:
    """The kernel with another number in it that changes no result: compiled code of before is not its code."""
    return KERNEL.replace("other=0.0).to(tl.float32)\n    w", f"other=0.0).to(tl.float32) + {number} * 0.0\n    w")


class TimeIsUp(Exception):
    """The limit of this command has come."""


class Limit:
    """Seconds that this command may still take."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """TimeIsUp if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeIsUp
        return left


def told(name: str, found: dict[str, float]) -> dict[str, float]:
    """Print a number when it comes: whoever ends this command early has those that there are."""
    print(json.dumps({name: _rounded(found)}), flush=True)
    return found


def once(words: tuple[str, ...], folder: Path, limit: Limit) -> dict[str, float]:
    """Wall and CPU seconds of a command.  TimeIsUp, and the command and all that it started are ended, at the limit."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            process.wait(limit.left)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeIsUp from None
            raise
        wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(words)}: exit {process.returncode}\n{errors.read()}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "load": os.getloadavg()[0]}


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """In order, so that it ends what it started; else at once."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return


class Watch:
    """`farm run --watch` over the kernel in a folder."""

    def __init__(self, folder: Path, words: tuple[str, ...], limit: Limit) -> None:
        self.file, self.limit = folder / "mine.py", limit
        self.process = subprocess.Popen(
            (*words, "--watch", "--no-page"), cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.until("exit 0")
            self.until("watching")
        except BaseException:
            self.end()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)
        self.lines.put("")

    def until(self, text: str) -> None:
        """TimeIsUp if the limit comes first."""
        seen: list[str] = []
        while True:
            try:
                line = self.lines.get(timeout=self.limit.left)
            except queue.Empty:
                raise TimeIsUp from None
            if not line:
                raise SystemExit(f"farm run --watch ended before it printed {text!r}\n{''.join(seen[-20:])}")
            if text in line:
                return
            seen.append(line)

    def save(self, number: int, pause_s: float) -> dict[str, float]:
        time.sleep(min(pause_s, self.limit.left))  # an author types meanwhile, and the waiting children import
        load, begun = os.getloadavg()[0], time.monotonic()
        self.file.write_text(edited(number))
        self.until("exit 0")
        wall = time.monotonic() - begun
        self.until("watching")
        return {"wall_s": wall, "load": load}

    def end(self) -> None:
        _end(self.process)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.author_loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between a verdict and the next save")
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds that all of it may take")
    args = parser.parse_args(argv)
    found: dict[str, list[dict[str, float]]] = {"plain script": [], "farm run": [], "save to verdict": []}
    limit, in_time = Limit(args.limit_s), True
    try:
        measure(args, limit, found)
    except TimeIsUp:
        in_time = False
        print(f"the {args.limit_s:g} seconds were over; what follows is of what was done until then", flush=True)
    for name, values in found.items():
        if values:
            medians = (f"{key} {median(v[key] for v in values):.2f}" for key in values[0])
            print(f"{name:16} " + "   ".join(medians), flush=True)
    for key in ("wall_s", "cpu_s"):
        ratios = [f[key] / p[key] for f, p in zip(found["farm run"], found["plain script"])]
        if ratios:
            print(f"farm run / plain script, {key}: median {median(ratios):.2f} of {len(ratios)} rounds", flush=True)
    return 0 if in_time else 1


def measure(args: argparse.Namespace, limit: Limit, found: dict[str, list[dict[str, float]]]) -> None:
    """Put each number into `found` as it comes.  TimeIsUp at the limit."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mine.py").write_text(KERNEL)
        shapes, dtypes = (SHAPES, DTYPES) if args.backend == "cpu" else (ON_GPU, DTYPES[1:])
        plain = PLAIN.replace("DEVICE", args.backend).replace("SHAPES", repr(shapes)).replace("DTYPES", repr(dtypes))
        (folder / "plain.py").write_text(plain)
        (folder / "m.yaml").write_text(json.dumps(matrix(shapes, dtypes)))
        words = command(args.backend)
        for number in range(args.rounds):
            (folder / "mine.py").write_text(edited(2 * number))
            found["plain script"].append(told("plain script", once((sys.executable, "plain.py"), folder, limit)))
            (folder / "mine.py").write_text(edited(2 * number + 1))
            found["farm run"].append(told("farm run", once((*words, "--no-page"), folder, limit)))
        watch = Watch(folder, words, limit)
        try:
            for number in range(args.rounds):
                saved = watch.save(2 * args.rounds + number, args.pause)
                found["save to verdict"].append(told("save to verdict", saved))
        finally:
            watch.end()


def _rounded(values: dict[str, float]) -> dict[str, Any]:
    return {key: round(value, 2) for key, value in values.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
