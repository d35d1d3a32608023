"""Small runs in a real store, for the tests of the commands that read one.

Cells come from a matrix, so that their ids and keys are real; `how` decides the columns of each row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.cell import Cell, Status
from farm.matrix import load_files, plan
from farm.store import Run, Store, results

MATRIX = """\
name: m
op: rms_norm
axes:
  shape: [{rows: [4, 16], hidden: 64}]
  dtype: [float32, bfloat16]
  operation: [forward]
providers: [farm, torch]
"""
How = Callable[[Cell], Mapping[str, Any]]


def passes(cell: Cell) -> Mapping[str, Any]:
    return {"status": "passed"}


def make(
    store: Path,
    run_id: str,
    how: How = passes,
    *,
    matrix: str = MATRIX,
    backend: str = "cpu",
    select: str | None = None,
    complete: bool = True,
    options: tuple[str, ...] = (),
    logs: Mapping[str, str] | None = None,
    **head: Any,
) -> Run:
    """A run of `matrix` whose rows are those of `how`; a cell of which `how` gives no status has no result.  `logs`:
    id -> the text of its log."""
    file = store / "m.yaml"
    store.mkdir(exist_ok=True, parents=True)
    file.write_text(matrix)
    planned = plan(load_files([file]), [backend], select=select)
    argv = ["run", str(file), "--backend", backend, *options]
    first = {
        "created": "2026-11-20T10:00:00+00:00",
        "argv": argv,
        "command": "farm " + " ".join(argv),
        "matrices": [m.to_dict() for m in planned.matrices],
        "plan_hash": planned.plan_hash,
        "planned": len(planned.cells),
        "revision": {"commit": "1234567890abc"},
        "providers": {},
        **head,
    }
    writer = Store(store).create(run_id)
    writer.plan(first, planned.cells)
    rows, samples = [], []
    for cell in planned.cells:
        given = dict(how(cell))
        if not given.get("status"):
            rows.append(results.planned_row(cell))
            continue
        timed = given.pop("samples_us", None)
        log = {"log": writer.log(cell.cell_id, logs[cell.cell_id])} if cell.cell_id in (logs or {}) else {}
        row = results.finish_row(
            cell, status=Status(given.pop("status")), reason="", owner="", attempt=1, evidence="interpreted", origin={}
        )
        row |= {"target": f"{backend}:x", **given, **log}
        rows.append(row)
        if timed:
            samples.append({"cell_id": cell.cell_id, "cell_key": cell.cell_key, "attempt": 1, "method": "events"})
            samples[-1]["samples_us"] = json.dumps(timed)
        writer.append({"event": "result", "row": row})
    if complete:
        verdict, code = results.verdict(rows)
        counts = results.counts(rows)
        devices = [{"name": "cpu-0", "device": f"{backend}:0", "node": "n", "target": f"{backend}:x"}]
        used = {backend: {"devices": devices, "counts": counts}}
        foot = {"seconds": 1.5, "backends": used, "counts": counts, "verdict": verdict, "exit_code": code}
        writer.finish(rows, samples, {**first, **foot})
    writer.close()
    return Store(store).run(run_id)
