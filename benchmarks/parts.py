"""Runs matrices in which nothing is timed as many processes at once, several on each GPU, and adds up how cells ended.

    python -m benchmarks.parts matrices/no_false_accusation.yaml --out accused --seconds 240
    python -m benchmarks.parts matrices/rms_norm.yaml --untimed --select 'hidden=<32768' --out filled

A child of the farm compiles one kernel after another, on one core.  What is only judged may share its device, so the
cells are dealt by provider, dtype, op and operation to `farm run --address inline` processes, each with its locks in a
folder of its own.  With --untimed the timing of timed matrices is left out: afterwards their kernels are in the
compilers' caches.

Writes parts.json and parts.txt to --out while it runs.  Exit codes: 0 every planned cell has ended and none needs a
look, 1 one does or has not ended, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kernels import positive_seconds
from farm.cell import SHORT_DTYPES
from farm.deadline import Deadline
from farm.process.group import ProcessGroup
from farm.store import Store

#: A part that costs as much as more cells than this is divided further, where it can be.
MOST = 700
#: As how many cells one of a provider counts, by what its compiler takes (a guess by a factor of two).
COSTS = {"torch_compile": 8, "quack": 2}
#: What parts are divided by, one after the other.
KEYS = ("provider", "dtype", "op", "operation")
FARM = (sys.executable, "-m", "farm")
NOT_TIMED = ("--set", "timing.method=none")
#: What a run may take to end in order once it is told to; it is killed then.
END_S = 15.0
SAVE_EVERY_S = 5.0
GOOD, LOST = ("passed", "unsupported", "skipped"), "lost"
MOST_TOLD = 60


class Refused(Exception):
    """What was asked for cannot be run; the message is one sentence."""


@dataclass
class Part:
    """The cells of one process."""

    select: str
    cells: int
    number: int = 0
    gpu: str = ""
    process: ProcessGroup | None = field(default=None, repr=False)
    begun: float = 0.0
    seconds: float | None = None  # None: it has not ended

    @property
    def name(self) -> str:
        return f"part-{self.number:02d}"


def planned(matrices: Sequence[str], select: str, more: Sequence[str]) -> list[dict[str, Any]]:
    """The cells that are to be run on CUDA devices, skipped ones left out.  Refused with the farm's own sentence."""
    chosen = ["--select", select] if select else []
    command = [*FARM, "plan", *matrices, "--backend", "cuda", "--json", *chosen, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr.strip() or f"farm plan ended with {done.returncode}")
    return [cell for cell in json.loads(done.stdout)["cells"] if not cell["skip_reason"]]


def values(cell: Mapping[str, Any]) -> dict[str, str]:
    """What a cell is selected by."""
    dtypes = sorted(set(cell["dtypes"].values()))
    return {**{k: str(cell[k]) for k in KEYS if k != "dtype"}, "dtype": SHORT_DTYPES.get(dtypes[0], dtypes[0])}


def cost(cells: Sequence[Mapping[str, Any]]) -> int:
    """What a part costs, in cells."""
    return sum(COSTS.get(c["provider"], 1) for c in cells)


def parts(cells: Sequence[Mapping[str, Any]], most: int = MOST) -> list[Part]:
    """Parts that hold each cell once, the dearest first."""
    found: list[tuple[dict[str, str], list[Mapping[str, Any]]]] = [({}, list(cells))]
    for key in KEYS:
        divided = []
        for chosen, inside in found:
            if chosen and cost(inside) <= most and key in ("op", "operation"):
                divided.append((chosen, inside))
                continue
            for value in sorted({values(c)[key] for c in inside}):
                divided.append(({**chosen, key: value}, [c for c in inside if values(c)[key] == value]))
        found = divided
    found.sort(key=lambda part: -cost(part[1]))
    out = [Part(",".join(f"{k}={v}" for k, v in chosen.items()), len(inside)) for chosen, inside in found]
    for number, part in enumerate(out):
        part.number = number
    return out


def command_of(part: Part, matrices: Sequence[str], select: str, out: Path, more: Sequence[str]) -> list[str]:
    how = ["--backend", "cuda", "--address", "inline", "--devices", "1", "--strict-peers", "--no-page"]
    what = [
        "--select",
        ",".join(filter(None, (part.select, select))),
        "--run-id",
        part.name,
        "--out",
        str(out / part.name),
    ]
    return [*FARM, "run", *matrices, *how, *what, *more]


def start(part: Part, gpu: str, command: Sequence[str], out: Path) -> None:
    """Begin a part on a GPU; nobody else's lock is in its folder, so it waits for nobody.  Inductor compiles its one
    kernel in the process itself, and starts no pool of as many workers as there are cores for each part."""
    environ = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu,
        "FARM_LOCKS": str(out / "locks" / part.name),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    with (out / f"{part.name}.log").open("wb") as log:
        part.process = ProcessGroup(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
    part.gpu, part.begun = gpu, time.monotonic()


def ended(part: Part) -> bool:
    if part.process is not None and part.seconds is None and not part.process.alive:
        part.seconds = round(time.monotonic() - part.begun, 1)
    return part.seconds is not None


def end(running: Sequence[Part]) -> None:
    """Tell all to end, and kill those that do not."""
    for part in running:
        if part.process is not None and not ended(part):
            os.kill(part.process.pid, signal.SIGTERM)
    deadline = Deadline(END_S)
    while not all(ended(p) for p in running) and not deadline.expired:
        time.sleep(0.1)
    for part in running:
        if part.process is not None:
            part.process.close()


def rows(part: Part, out: Path) -> list[dict[str, Any]]:
    """What is known of a part's cells, those that the matrices skip left out."""
    try:
        found = Store(out / part.name).run(part.name).rows
    except Exception:  # not begun, or being written at this moment
        return []
    return [r for r in found if r["status"] != "skipped"]


def summed(all_parts: Sequence[Part], out: Path) -> dict[str, Any]:
    """How cells ended, by provider and status, and those that need a look."""
    counts: Counter[tuple[str, str]] = Counter()
    bad = []
    for part in all_parts:
        for row in rows(part, out):
            counts[row["provider"], row["status"]] += 1
            if row["status"] not in (*GOOD, LOST):
                bad.append({k: row[k] for k in ("cell_id", "status", "reason")})
    wanted = sum(p.cells for p in all_parts)
    return {
        "planned": wanted,
        "ended": sum(counts.values()) - sum(n for (_, s), n in counts.items() if s == LOST),
        "counts": {f"{p} {s}": n for (p, s), n in sorted(counts.items())},
        "bad": bad,
        "parts": [{"select": p.select, "cells": p.cells, "gpu": p.gpu, "seconds": p.seconds} for p in all_parts],
    }


def text(found: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = [f"{name:30} {n}" for name, n in found["counts"].items()]
    lines += [f"{b['status']}: {b['cell_id']}: {b['reason']}"[:240] for b in found["bad"][:MOST_TOLD]]
    done = [p["seconds"] for p in found["parts"] if p["seconds"] is not None]
    return "\n".join(
        [
            *lines,
            f"{found['ended']} of {found['planned']} cells ended, {len(found['bad'])} need a look; "
            f"{len(done)} of {len(found['parts'])} parts ended, the longest in {max(done, default=0):.0f} s",
            "",
        ]
    )


def save(found: Mapping[str, Any], out: Path) -> None:
    for name, content in (("json", json.dumps(found)), ("txt", text(found))):
        new = out / f".parts.{name}"
        new.write_text(content, encoding="utf-8")
        new.replace(out / f"parts.{name}")


def slots(gpus: Sequence[str], at_once: int) -> Iterator[str]:
    """A GPU for each place, in turn."""
    return (gpus[n % len(gpus)] for n in range(at_once * len(gpus)))


def go(all_parts: Sequence[Part], options: argparse.Namespace, more: Sequence[str]) -> dict[str, Any]:
    """Run them all, at most so many at once on each GPU."""
    deadline, saved = Deadline(options.seconds), Deadline(SAVE_EVERY_S)
    waiting, free, running = list(all_parts), list(slots(options.gpus, options.at_once)), list[Part]()
    try:
        while (waiting or running) and not deadline.expired:
            while waiting and free:
                part = waiting.pop(0)
                command = command_of(part, options.matrices, options.select, options.out, more)
                start(part, free.pop(0), command, options.out)
                running.append(part)
            for part in [p for p in running if ended(p)]:
                running.remove(part)
                free.append(part.gpu)
            if saved.expired:
                save(summed([p for p in all_parts if p.seconds is not None], options.out), options.out)
                saved = Deadline(SAVE_EVERY_S)
            time.sleep(0.1)
    finally:
        end(running)
    found = summed(all_parts, options.out)
    save(found, options.out)
    return found


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse exits with 2 and one sentence where it is wrong."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        "python -m benchmarks.parts",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where runs and the report go")
    parser.add_argument("--gpus", type=lambda t: t.split(","), default=None, metavar="N,..", help="(all)")
    parser.add_argument("--at-once", type=int, default=0, metavar="N", help="processes on each GPU (by the cores)")
    parser.add_argument("--seconds", type=positive_seconds, default=240.0, help="for everything (240)")
    parser.add_argument(
        "--select", default="", metavar="key=value,..", help="only the cells for which all of these hold"
    )
    parser.add_argument("--untimed", action="store_true", help="leave the matrices' timing out")
    options = parser.parse_args(argv)
    if options.gpus is None:
        from farm.backends import cuda

        options.gpus = [d.id for d in cuda.detect()]
    if not options.gpus:
        parser.error("argument --gpus: nvidia-smi lists no GPU on this host")
    options.at_once = options.at_once or max(1, min(12, 5 * (os.cpu_count() or 2) // (8 * len(options.gpus))))
    return options


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    more = NOT_TIMED if options.untimed else ()
    try:
        cells = planned(options.matrices, options.select, more)
    except Refused as error:
        print(f"benchmarks.parts: {error}", file=sys.stderr)
        return 2
    timed = next((c for c in cells if c["timing"]["method"] != "none"), None)
    if timed is not None:
        why = "is to be timed, and a time on a shared device is none; say --untimed"
        print(f"benchmarks.parts: {timed['cell_id']} {why}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    all_parts = parts(cells)
    at_once = f"{options.at_once} at once on each of {len(options.gpus)} GPUs"
    print(f"{len(cells)} cells in {len(all_parts)} parts, {at_once}", flush=True)
    found = go(all_parts, options, more)
    print(text(found), end="")
    return int(found["ended"] < found["planned"] or bool(found["bad"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
