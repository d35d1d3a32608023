"""Cells per second of finished runs, after start-up: `python -m benchmarks.throughput STORE [RUN..]`.

From the journal.  With two runs or more, the ratio of each to the first.
"""

from __future__ import annotations

import sys

from farm.store import Run, Store


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
