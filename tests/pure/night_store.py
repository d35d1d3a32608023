"""A store of three vendors and thirty nights on disk, with planted changes, for the tests of the index and its pages.

    night 10 to 28  cuda  farm/row_packed fp32 forward 4096x1024     inaccurate, fixed in the last night
    night 11                                                         no run
    night 12                                                         interrupted: no tables
    night 15        cuda                                             driver 575 -> 580
    night 20 on     cuda:3                                           3.4 % slower than its siblings, hot, throttled
    night 22 on     cuda  farm/auto backward hidden 16384, 32768     16 % slower
    night 25 on     ascend farm/auto hidden 32768                    compile error
    night 29 (last) rocm  farm/row_packed bf16 backward 32768        inaccurate: new

Nights count from 0.  The numbers are made up; evidence is `executed`, so that pages show them as a device's.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from farm.store import journal
from farm.store.results import COLUMNS, SCHEMA, counts, verdict
from farm.store.run_writer import SAMPLE_COLUMNS
from farm.store.tables import write_table

NIGHTS, SKIPPED, INTERRUPTED = 30, 11, 12
TARGETS = {"cuda": "cuda:NVIDIA-H200:700W", "rocm": "rocm:AMD-Instinct-MI300X:750W", "ascend": "ascend:Ascend910B3"}
ROOFS = {"cuda": 4300.0, "rocm": 3900.0, "ascend": 1250.0}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
PROVIDERS = (("farm", "auto", 0.85), ("farm", "row_packed", 0.80), ("torch", "auto", 0.40), ("liger", "auto", 0.76))
HIDDEN = (1024, 4096, 16384, 32768)
DEVICES = 4


def plan(backends: tuple[str, ...] = tuple(TARGETS)) -> Iterator[dict[str, Any]]:
    """The planned cells, the same every night."""
    index = 0
    for backend in backends:
        for operation in ("forward", "backward"):
            for dtype in SHORT:
                for rows in (4096, 32768):
                    for hidden in HIDDEN:
                        for provider, mode, level in PROVIDERS:
                            shape = f"{rows}x{hidden}"
                            name = f"{backend}/rms_norm/{provider}/{mode}/{operation}/{SHORT[dtype]}/{shape}/llama"
                            yield {
                                **{c: "" if kind == "text" else None for c, kind in COLUMNS.items()},
                                "index": index,
                                "cell_id": name,
                                "cell_key": hashlib.sha256(name.encode()).hexdigest(),
                                "matrix": "rms_norm",
                                "backend": backend,
                                "target": TARGETS[backend],
                                "op": "rms_norm",
                                "provider": provider,
                                "role": "subject" if provider == "farm" else "peer",
                                "mode": mode,
                                "operation": operation,
                                "dtype": dtype,
                                "shape": shape,
                                "dims": json.dumps({"rows": rows, "hidden": hidden}),
                                "params": json.dumps({"casting": "llama"}),
                                "hidden": hidden,
                                "level": level,
                                **dict.fromkeys(("metrics", "gates", "launch"), "{}"),
                                "flags": "[]",
                                "resources": "[]",
                            }
                            index += 1


def night(number: int, backends: tuple[str, ...] = tuple(TARGETS)) -> list[dict[str, Any]]:
    """The rows of a night."""
    rng, out = random.Random(number), []
    for cell in plan(backends):
        backend, hidden, level = cell["backend"], cell.pop("hidden"), cell.pop("level")
        device, rows = cell["index"] % DEVICES, int(cell["shape"].split("x")[0])
        moved = 2 * rows * hidden * (4 if cell["dtype"] == "float32" else 2)
        us = moved / (ROOFS[backend] * level) / 1e3 * rng.lognormvariate(0, 0.004)
        ours, backward = cell["provider"] == "farm", cell["operation"] == "backward"
        sick = backend == "cuda" and device == 3 and number >= 20
        us *= 1.034 if sick else 1.0
        if backend == "cuda" and ours and cell["mode"] == "auto" and backward and hidden >= 16384 and number >= 22:
            us *= 1.16
        driver = {"cuda": "580.159" if number >= 15 else "575.57", "rocm": "6.10", "ascend": "24.1"}[backend]
        times = {"time_us_p20": us * 0.995, "time_us_p50": us, "time_us_p80": us * 1.005}
        row = {
            **cell,
            **times,
            "status": "passed",
            "evidence": "executed",
            "attempt": 1,
            "mode_resolved": ("multi_wave_cached" if cell["mode"] == "auto" else cell["mode"]) if ours else "",
            "bandwidth_gbps": moved / us / 1e3,
            "tflops": moved / us / 1e6,
            "share_of_roof": moved / us / 1e3 / ROOFS[backend],
            "bytes_moved": moved,
            "operations": moved,
            "worst_ratio": min(0.95, rng.lognormvariate(-1.2, 0.4)),
            "worst_output": "y",
            "worst_metric": "rel_l2",
            "timing_method": "rotating_graph",
            "timing_quality": "throttled" if sick and rng.random() < 0.2 else "ok",
            "sm_clock_mhz": 1610.0 if sick else 1755.0,
            "temperature_c": 83.0 if sick else 52.0,
            "power_w": 640.0 if sick else 480.0,
            "device": f"{backend}:{device}",
            "node": f"node-{backend}",
            "fingerprint": json.dumps({"torch": "2.11.0", "triton": "3.6.0", "driver": driver}),
            "revision": revision(number),
            "started": created(number).timestamp() + cell["index"],
            "seconds": 0.4,
        }
        if failed := _failure(number, row, hidden):
            row |= dict.fromkeys((*times, "bandwidth_gbps", "tflops", "share_of_roof")) | failed
            row |= {"timing_quality": "none", "fault_owner": "kernel"}
        out.append(row)
    return out


def _failure(number: int, row: dict[str, Any], hidden: int) -> dict[str, Any]:
    name = row["cell_id"]
    if 10 <= number < NIGHTS - 1 and name == "cuda/rms_norm/farm/row_packed/forward/fp32/4096x1024/llama":
        return _inaccurate("y", 0.01)
    if number >= 25 and row["backend"] == "ascend" and name.split("/")[2:4] == ["farm", "auto"] and hidden == 32768:
        return {"status": "compile_error", "reason": "the Unified Buffer overflows", "worst_ratio": None}
    if number == NIGHTS - 1 and name.startswith("rocm/rms_norm/farm/row_packed/backward/bf16/") and hidden == 32768:
        return _inaccurate("dw", 0.021)
    return {}


def _inaccurate(output: str, error: float) -> dict[str, Any]:
    metrics, gates = ({output: {"rel_l2": value}} for value in (error, 0.004))
    return {
        "status": "inaccurate",
        "reason": f"{output}.rel_l2 is {error:g}, tolerance 0.004",
        "metrics": json.dumps(metrics),
        "gates": json.dumps(gates),
        "worst_ratio": error / 0.004,
        "worst_output": output,
        "worst_metric": "rel_l2",
    }


def revision(number: int) -> str:
    """A commit lasts two nights."""
    return hashlib.sha1(str(number // 2).encode()).hexdigest()


def created(number: int) -> datetime:
    return datetime(2026, 9, 18, 2, tzinfo=timezone.utc) + timedelta(days=number)


def run_id(number: int) -> str:
    return created(number).strftime("%Y%m%d-%H%M%S-night")


def write_run(store: Path, number: int, rows: list[dict[str, Any]] | None = None, **head: Any) -> Path:
    """A complete run on disk; returns its folder."""
    rows = night(number) if rows is None else rows
    folder = store / "runs" / run_id(number)
    folder.mkdir(parents=True)
    write_table(folder / "cells.parquet", rows, COLUMNS)
    write_table(folder / "samples.parquet", [], SAMPLE_COLUMNS)
    (folder / "journal.jsonl").write_text("")
    backends = {}
    for backend in dict.fromkeys(r["backend"] for r in rows):
        mine = [r for r in rows if r["backend"] == backend]
        names = dict.fromkeys((r["device"], r["node"], r["target"], r["fingerprint"]) for r in mine)
        devices = [
            {"name": d, "device": d, "node": n, "target": t, "evidence": "executed", "fingerprint": json.loads(f)}
            for d, n, t, f in names
        ]
        backends[backend] = {"counts": counts(mine), "devices": devices}
    name, code = verdict(rows)
    made = {
        "schema": SCHEMA,
        "run_id": folder.name,
        "created": created(number).isoformat(),
        "finished": (created(number) + timedelta(minutes=26)).isoformat(),
        "seconds": 1560.0,
        "argv": ["run", "matrices/rms_norm.yaml"],
        "command": "farm run matrices/rms_norm.yaml",
        "matrices": [{"name": "rms_norm", "path": "matrices/rms_norm.yaml", "sha256": "9f" * 32}],
        "plan_hash": "3c" * 32,
        "revision": {"commit": revision(number), "dirty": False, "version": "0.1.0"},
        "backends": backends,
        "counts": counts(rows),
        "planned": len(rows),
        "verdict": name,
        "exit_code": code,
    }
    (folder / "run.json").write_text(json.dumps({**made, **head}))
    return folder


def write_outages(store: Path, nights: int = NIGHTS) -> None:
    """The store with what fails that is no kernel's: three nights without a run, a device that did not start (night
    14), one that is quarantined from night 26 on, another of which cells are lost, a node that did not answer, and
    ascend silent from night 28 on."""
    for number in range(nights):
        if number in (SKIPPED, 17, 18):
            continue
        rows, health = night(number), []
        for row in rows:
            if number >= 26 and row["device"] == "rocm:1":
                row["device"] = "rocm:2"
        if number >= 26:
            health = [("suspect", "3 cells in a row crashed"), ("quarantined", QUARANTINED)]
        if number == 14:
            _lose(rows, "cuda:1", "infra_error", NOT_READY)
        if number == NIGHTS - 1:
            _lose([r for r in rows if r["index"] % 12 == 2], "cuda:2", "infra_error", FELL)
            _lose([r for r in rows if r["index"] % 24 == 3], "rocm:3", "lost", "the node did not answer for 300 s")
        rows = [r for r in rows if number < 28 or r["backend"] != "ascend"]
        noted = [{"device": "rocm:1", "time": 1.0, "state": s, "reason": reason} for s, reason in health]
        write_run(store, number, rows, **({"health": noted} if noted else {}))


QUARANTINED = "its probe failed: rms_norm torch fp32 64x64 is inaccurate"
NOT_READY = "the device's actor was not ready within 120 s"
FELL = "Xid 79: the GPU has fallen off the bus"


def _lose(rows: list[dict[str, Any]], device: str, status: str, reason: str) -> None:
    """The device's cells have no result for the infrastructure's fault."""
    without = ("time_us_p20", "time_us_p50", "time_us_p80", "bandwidth_gbps", "tflops", "share_of_roof", "worst_ratio")
    for row in rows:
        if row["device"] == device:
            row |= dict.fromkeys(without) | {"status": status, "reason": reason}
            row |= {"timing_quality": "none", "fault_owner": "infra"}


def write_nights(store: Path, nights: int = NIGHTS) -> None:
    """The whole store: one night without a run, one interrupted."""
    for number in range(nights):
        if number == SKIPPED:
            continue
        folder = write_run(store, number)
        if number == INTERRUPTED:
            (folder / "run.json").unlink()
            (folder / "cells.parquet").unlink()
            first = {"event": "run", "schema": SCHEMA, "created": created(number).isoformat(), "matrices": []}
            (folder / "journal.jsonl").write_text(journal.encoded(first) + journal.encoded({"event": "planned"}))
