"""Cells per second of finished runs, after start-up: `python -m benchmarks.throughput STORE [RUN..]`.

From the journal: cells that ended, over the time from the first attempt's start to the last cell's end.  With two runs
or more, the ratio of each to the first.
"""

from __future__ import annotations

import sys

from farm.store import Run, Store


def rate(run: Run) -> tuple[int, int, float]:
    """(devices, cells, seconds)."""
    begun, ended, cells, devices = None, 0.0, 0, set()
    for line in run.journal():
        if line["event"] == "started":
            begun = line["time"] if begun is None else begun
        elif line["event"] in ("judged", "ended"):
            ended, cells = line["time"], cells + 1
            devices.add(line["device"])
    return len(devices), cells, ended - (begun or ended)


def main(argv: list[str]) -> None:
    store = Store(argv[0])
    first = None
    for run in [store.run(name) for name in argv[1:]] or store.runs():
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
