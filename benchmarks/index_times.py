"""How long the index of a large store takes: `python -m benchmarks.index_times [--runs 1000] [--cells 1000] FOLDER`.

Writes a store of made-up runs to FOLDER (once: a store that is there is used), then measures what pages do: build the
index, add a night, one cell over all runs, the last 30 runs, two runs side by side, a device's columns.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from farm.dashboards import night_pages, views
from farm.dashboards.pages import Links
from farm.store import Store, index
from farm.store.results import COLUMNS, SCHEMA
from farm.store.tables import write_table

LINKS = Links("/", lambda run_id: None, lambda name: None)
BACKENDS = {"cuda": "cuda:NVIDIA-H200:700W", "rocm": "rocm:AMD-Instinct-MI300X:750W", "ascend": "ascend:Ascend910B3"}


def cells(count: int) -> list[dict[str, Any]]:
    """Planned cells of three vendors."""
    out = []
    for i in range(count):
        backend = list(BACKENDS)[i % 3]
        shape = f"{4096 << (i // 3) % 4}x{1024 << (i // 12) % 6}"
        mode, dtype = ("auto", "cached", "reload", "packed")[(i // 72) % 4], ("bfloat16", "float32")[(i // 288) % 2]
        row: dict[str, Any] = {name: "" if kind == "text" else None for name, kind in COLUMNS.items()}
        row |= {"index": i, "backend": backend, "target": BACKENDS[backend], "op": f"op{i // 576}", "provider": "farm"}
        row |= {"mode": mode, "dtype": dtype, "shape": shape, "role": "subject", "operation": "forward"}
        row |= {
            "cell_id": f"{backend}/op{i // 576}/farm/{mode}/forward/{dtype}/{shape}/{i}",
            "cell_key": f"{i * 7919:064x}",
        }
        row |= {"status": "passed", "evidence": "executed", "timing_method": "events", "timing_quality": "ok"}
        row |= {"device": f"{backend}:{i % 8}", "node": f"node-{backend}", "fingerprint": json.dumps({"driver": "580"})}
        out.append(row | {"dims": json.dumps({"rows": 1, "hidden": 2}), "params": "{}", "flags": "[]"})
    return out


def write_run(store: Path, number: int, planned: list[dict[str, Any]]) -> None:
    """A complete run of the planned cells."""
    rng, created = random.Random(number), datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(days=number)
    folder = store / "runs" / created.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    rows = []
    for row in planned:
        us = 50.0 * rng.lognormvariate(0, 0.004)
        times = {"time_us_p20": us * 0.99, "time_us_p50": us, "time_us_p80": us * 1.01, "share_of_roof": 40 / us}
        rows.append({**row, **times, "bandwidth_gbps": 1e5 / us, "sm_clock_mhz": 1755.0, "temperature_c": 50.0})
    write_table(folder / "cells.parquet", rows, COLUMNS)
    head = {"schema": SCHEMA, "created": created.isoformat(), "plan_hash": "p", "verdict": "passed", "backends": {}}
    (folder / "journal.jsonl").write_text("")
    (folder / "run.json").write_text(
        json.dumps({**head, "planned": len(rows), "revision": {"commit": f"{number:040x}"}})
    )


def timed(what: str, act: Callable[[], Any], repeats: int = 1) -> Any:
    """Print the best wall and CPU time of some calls, and return the last result."""
    wall = cpu = float("inf")
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        result = act()
        wall, cpu = min(wall, time.perf_counter() - start), min(cpu, time.process_time() - used)
    print(f"{what:52} {wall * 1e3:10.1f} ms {cpu * 1e3:10.1f} ms CPU")
    return result


def main() -> None:
    """Measure."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--runs", type=int, default=1000)
    p.add_argument("--cells", type=int, default=1000)
    args = p.parse_args()
    planned, store = cells(args.cells), Store(args.folder)
    have = len(store.runs())
    for number in range(have, args.runs):
        write_run(args.folder, number, planned)
    index.remove(store)
    made = timed("index made", lambda: index.opened(store))
    size = sum(f.stat().st_size for f in (args.folder / "index").iterdir())
    print(f"{len(made.runs):,} runs, {made.cells:,} results, {made.parts} parts, {size / 1e6:.1f} MB")
    timed("index opened, nothing new", lambda: index.opened(store), 5)
    for night in range(30):
        write_run(args.folder, args.runs + night, planned)
        made = timed(f"night {night} added", lambda: index.opened(store))
    print(f"{made.parts} parts")
    key = str(planned[0]["cell_key"])
    timed("one cell over all runs, five columns", lambda: made.series(key, ["time_us_p50", "status", "node"]), 5)
    slim = ["cell_key", "run", "time_us_p50", "status", "target"]
    timed("the last 30 runs, five columns", lambda: made.table(slim, made.last(30)), 5)
    timed("two runs side by side", lambda: made.compare(*made.last(2), slim), 5)
    timed("all runs, one backend, four columns", lambda: made.table(slim[1:], where={"backend": "cuda"}), 3)
    night = timed("the newest night, with 29 before it", lambda: views.newest(index.opened(store)), 3)
    timed("its front page", lambda: night_pages.night(night, LINKS, lambda rows: "farm run"), 3)
    timed(
        "a backend's page", lambda: night_pages.backend_page(night, night.targets[0], LINKS, lambda rows: "farm run"), 3
    )
    timed("check", lambda: index.check(store))
    for run in store.runs()[args.runs :]:
        shutil.rmtree(run.dir)


if __name__ == "__main__":
    main()
