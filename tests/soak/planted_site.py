"""A store of three vendors and thirty nights in which everything that a reviewer looks for is planted, on disk.

Beyond `night_store` (a regression, failures, a fix, a sick device, a change of the driver, a night without a run and an
interrupted one):

    from the first night   rocm    farm/auto fp32 forward, hidden 1024: row_packed is 20 % faster
    night 8 on             rocm    torch bf16 forward 0.4 % slower each night: a drift of a peer
    night 17 to 19         cuda:2  quarantined: its cells are infrastructure failures
    night 29 (last)        ascend  did not report

`python tests/soak/planted_site.py FOLDER` writes it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "pure")]
import night_store  # noqa: E402

from farm.store.run_writer import SAMPLE_COLUMNS  # noqa: E402
from farm.store.tables import write_table  # noqa: E402

LAST = night_store.NIGHTS - 1
SLOW_AUTO = 1.2


def rows(number: int) -> list[dict[str, Any]]:
    """The rows of a night."""
    backends = ("cuda", "rocm", "ascend") if number < LAST else ("cuda", "rocm")
    out = night_store.night(number, backends)
    for r in out:
        by = 1.0
        if r["backend"] == "rocm":  # else one device would run all cells of the peer that drifts, and look sick
            r["device"] = f"rocm:{(r['index'] + r['index'] // 4) % night_store.DEVICES}"
        drifts = r["provider"] == "torch" and r["operation"] == "forward" and r["dtype"] == "bfloat16"
        if r["backend"] == "rocm" and drifts and number >= 8:
            by = 1.004 ** (number - 7)
        auto = r["provider"] == "farm" and r["mode"] == "auto" and r["operation"] == "forward"
        if auto and r["backend"] == "rocm" and r["dtype"] == "float32" and r["shape"].endswith("x1024"):
            by = SLOW_AUTO
        if r["time_us_p50"] and by != 1.0:
            for name in ("time_us_p20", "time_us_p50", "time_us_p80"):
                r[name] *= by
            for name in ("bandwidth_gbps", "tflops", "share_of_roof"):
                r[name] /= by
        if r["device"] == "cuda:2" and 17 <= number <= 19:
            r |= dict.fromkeys(("time_us_p20", "time_us_p50", "time_us_p80", "share_of_roof", "bandwidth_gbps"))
            r |= {"status": "infra_error", "reason": "the device is quarantined (Xid 79)", "fault_owner": "device"}
            r |= {"timing_quality": "none", "evidence": "", "worst_ratio": None, "tflops": None}
    return out


def write(store: Path, nights: int = night_store.NIGHTS) -> None:
    """The whole store."""
    for number in range(nights):
        if number == night_store.SKIPPED:
            continue
        folder = night_store.write_run(store, number, rows(number), plan_hash="3c" * 32)
        if number == LAST:
            _samples(folder, rows(number))
        if number == night_store.INTERRUPTED:
            for name in ("run.json", "cells.parquet"):
                (folder / name).unlink()
            first = {"event": "run", "schema": 6, "created": night_store.created(number).isoformat(), "matrices": []}
            (folder / "journal.jsonl").write_text(json.dumps({**first, "schema": 4}) + '\n{"event": "planned"}\n')


def _samples(folder: Path, of: list[dict[str, Any]]) -> None:
    """Twenty raw samples for each timed cell."""
    out = []
    for r in of:
        if r["time_us_p50"]:
            values = [r["time_us_p50"] * (1 + 0.004 * ((i * 7) % 11 - 5) / 5) for i in range(20)]
            known = {name: r.get(name) for name in ("cell_id", "cell_key", "attempt")}
            method = {"method": r["timing_method"], "samples_us": json.dumps(values), "host_us": "[]", "sets": 1}
            out.append({**known, **method, "launches": 20, "floor_us": 1.2, "telemetry": "[]"})
    (folder / "samples.parquet").unlink()
    write_table(folder / "samples.parquet", out, SAMPLE_COLUMNS)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shutil.rmtree(folder / "runs", ignore_errors=True)
    write(folder)
