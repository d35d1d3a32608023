"""Cells per second of runs, and what the farm itself costs.

    python -m benchmarks.throughput STORE [RUN..]
        of finished runs, after start-up, from their journals; with two or more, the ratio of each to the first
    python -m benchmarks.throughput --cells 20000 [--devices 8] [--address local]
                                    [--interrupt-after SECONDS | --interrupt-at CELLS [--resume]]
        runs so many tiny cells on simulated devices in a folder that is removed afterwards, and tells cells/s, CPU time
        per cell and peak memory by kind of process, start-up included, and how long the run took to end after SIGTERM
        where it was sent one, after so many seconds or results; with --resume the same of `farm resume`

On a host that does other work only the CPU times say something.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from farm.store import Run, Store

#: How often the processes are looked at; what one does between the last look and its end is not counted.
LOOK_S = 0.25
#: Cells of one width: 3 dtypes, 4 operations, 3 castings, 6 modes; they share 6 sets of inputs.
PER_WIDTH = 3 * 4 * 3 * 6
KINDS = {
    "farm.child": "child",
    "ray::_RayDevice": "device's actor",
    "ray::Judge": "judge",
    "gcs_server": "Ray",
    "raylet": "Ray",
    "ray::": "Ray",
    "ray/": "Ray",
}


def rate(run: Run) -> tuple[int, int, float]:
    """(devices, cells, seconds) after start-up: from when every device has been through its first cell of every
    provider (imports, first compilations), to the last cell's end."""
    provider = {cell.index: cell.provider for cell in run.cells()}
    first: dict[tuple[str, str], float] = {}
    ends: list[float] = []
    for line in run.journal():
        if line["event"] in ("measured", "ended"):
            first.setdefault((line["device"], provider[line["cell"]]), line["time"])
        if line["event"] in ("judged", "ended"):
            ends.append(line["time"])
    ready = max(first.values())
    return len({device for device, _ in first}), sum(t > ready for t in ends), max(ends) - ready


# ---- what a run costs ----


class Process(NamedTuple):
    """One process at one look: its parent, the words that it was started by, CPU seconds so far (user and system), and
    the most memory so far, MB."""

    parent: int
    words: str
    user: float
    system: float
    peak: float = 0.0


def matrix(cells: int) -> str:
    """A matrix of about `cells` cells (a multiple of PER_WIDTH, at least one), each of a few rows, on fake devices that
    take no time."""
    widths = ", ".join(str(8 + i) for i in range(max(1, round(cells / PER_WIDTH))))
    return f"""name: scale
op: rms_norm
axes:
  shape:
    - {{rows: 4, hidden: [{widths}]}}
  dtype: [float32, float16, bfloat16]
  operation: [forward, no-grad-forward, backward, full]
  casting: [llama, gemma, none]
providers:
  farm: {{mode: [auto, static_persistent, multi_wave_reload, multi_wave_cached, row_packed, column_tiled]}}
sim: {{default: {{time_us: 20, noise: 0.01, wall_s: 0}}}}
timing: {{method: host, min_samples: 20}}
"""


def kind(words: str) -> str:
    """What a process of a run is, by its command line."""
    return next((name for mark, name in KINDS.items() if mark in words), "coordinator")


def below(root: int, processes: Mapping[int, Process]) -> set[int]:
    """`root` and every process that descends from it."""
    found, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, p in processes.items() if p.parent in fresh} - found
        found |= fresh
    return found


def by_kind(processes: Iterable[Process]) -> dict[str, tuple[int, float, float, float]]:
    """Kind -> (processes, user seconds, system seconds, the most memory of one, MB)."""
    out: dict[str, tuple[int, float, float, float]] = {}
    for p in processes:
        count, user, system, peak = out.get(kind(p.words), (0, 0.0, 0.0, 0.0))
        out[kind(p.words)] = (count + 1, user + p.user, system + p.system, max(peak, p.peak))
    return out


def _look() -> dict[int, Process]:
    tick = os.sysconf("SC_CLK_TCK")
    out = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            out[int(entry.name)] = Process(int(stat[1]), words, int(stat[11]) / tick, int(stat[12]) / tick)
    return out


def _peak(pid: int) -> float:
    """The most memory of a process so far, MB; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1.024e-3 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


class Results:
    """Counts the results in a journal that grows."""

    def __init__(self, journal: Path):
        self._journal, self._at, self.count = journal, 0, 0

    def look(self) -> int:
        """How many there are now."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._at)
                for line in file:
                    if line.endswith(b"\n"):  # else it is being written
                        self._at += len(line)
                        self.count += line.startswith(b'{"event":"result"')
        return self.count


class Watched(NamedTuple):
    """A command and its processes, as they were last seen; `ending`: seconds after it was sent SIGTERM, if it was."""

    processes: Iterable[Process]
    seconds: float
    ending: float | None


def watch(command: list[str], folder: str, due: Callable[[float], bool]) -> Watched:
    """Run a command in `folder`, and send it SIGTERM once `due` (given the seconds since it began)."""
    paths = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "FARM_CACHE": f"{folder}/cache"}
    begun = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    seen: dict[int, Process] = {}
    told: float | None = None
    try:
        while process.poll() is None:
            now = _look()
            mine = {pid: now[pid] for pid in below(process.pid, now) if pid in now and now[pid].words}
            seen |= {
                pid: p._replace(peak=max(_peak(pid), seen[pid].peak if pid in seen else 0.0)) for pid, p in mine.items()
            }
            if told is None and due(time.monotonic() - begun):
                told = time.monotonic()
                process.send_signal(signal.SIGTERM)
            time.sleep(LOOK_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)
    ended = time.monotonic()
    return Watched(seen.values(), ended - begun, None if told is None else ended - told)


def measure(
    cells: int, devices: int, address: str, interrupt_after: float | None, interrupt_at: int | None, resume: bool
) -> None:
    """Run it and print what it cost."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        (Path(folder) / "scale.yaml").write_text(matrix(cells), encoding="utf-8")
        farm = [sys.executable, "-m", "farm"]
        how = ["--backend", "sim", "--devices", str(devices), "--address", address]
        results = Results(Path(folder) / "store" / "runs" / "scale" / "journal.jsonl")

        def due(seconds: float) -> bool:
            late = interrupt_after is not None and seconds >= interrupt_after
            return late or (interrupt_at is not None and results.look() >= interrupt_at)

        first = [*farm, "run", "scale.yaml", *how, "--out", "store", "--run-id", "scale"]
        watched = watch(first, folder, due)
        run = Store(Path(folder) / "store").run("scale")
        _print(run, watched, 0)
        if resume:
            before = results.look()
            watched = watch([*farm, "resume", "scale", "--out", "store"], folder, lambda seconds: False)
            print("farm resume:")
            _print(Store(Path(folder) / "store").run("scale"), watched, before)


def _print(run: Run, watched: Watched, before: int) -> None:
    done = sum(line["event"] == "result" for line in run.journal()) - before
    _, counted, took = rate(run)
    print(f"{done} cells in {watched.seconds:.1f} s", end="")
    if not before:
        print(f", of them {counted} in {took:.1f} s after start-up = {counted / took if took else 0.0:.1f}/s", end="")
    print(f"; journal {(run.dir / 'journal.jsonl').stat().st_size >> 20} MiB")
    if watched.ending is not None:
        print(f"ended {watched.ending:.1f} s after SIGTERM")
    kinds = sorted(by_kind(watched.processes).items())
    print(
        f"CPU s: {sum(user + system for _, (_, user, system, _) in kinds):.1f}; ms per cell (user + system), peak MB:"
    )
    for name, (count, user, system, peak) in kinds:
        print(f"    {name:16} x{count:<4} {1e3 * user / done:7.2f} + {1e3 * system / done:6.2f} {peak:7.0f}")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("runs", nargs="*", metavar="STORE [RUN..]")
    parser.add_argument("--cells", type=int)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--address", default="local")
    parser.add_argument("--interrupt-after", type=float, metavar="SECONDS")
    parser.add_argument("--interrupt-at", type=int, metavar="CELLS")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)
    if args.cells is not None:
        measure(args.cells, args.devices, args.address, args.interrupt_after, args.interrupt_at, args.resume)
        return
    if not args.runs:
        parser.error("name a store, or say how many --cells to run")
    store = Store(args.runs[0])
    first = None
    for run in [store.run(name) for name in args.runs[1:]] or store.runs():
        devices, cells, seconds = rate(run)
        speed = cells / seconds if seconds else 0.0
        first = first or speed
        names = {r["device"] for r in run.rows if r["device"]}
        print(f"{run.id}: {devices} devices, {cells} cells in {seconds:.1f} s", end="")
        print(f" = {speed:.2f}/s, {speed / first:.2f}x of the first")
        for name in sorted(names):
            print(f"    {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
