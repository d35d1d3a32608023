"""Providers whose capture ends, stops, is refused or is worth nothing, on a real device; a matrix over them, and what
has to become of each where captures have a trial.  `torch.cuda` is ROCm's too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.cli import main
from farm.store import Store

SOURCE = """
import os, signal, time, torch

def right(x, weight, eps):
    y = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (y * weight.float()).to(x.dtype)

def dies(x, weight, eps):
    if torch.cuda.is_current_stream_capturing():
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(x, weight, eps)

def stops(x, weight, eps):
    if torch.cuda.is_current_stream_capturing():
        time.sleep(1e6)
    return right(x, weight, eps)

def waits(x, weight, eps):
    torch.cuda.synchronize()
    return right(x, weight, eps)

def nothing(x, weight, eps):
    return torch.empty_like(x) if torch.cuda.is_current_stream_capturing() else right(x, weight, eps)
"""
MATRIX = """
name: captures
op: rms_norm
axes: {shape: [{rows: 4096, hidden: [1024, 4096]}], dtype: [bfloat16]}
providers: [farm, torch]
deadlines: {timing: 15}
"""
#: provider -> words of its reason; "": it is timed by a graph
WORDS = {
    "farm": "",
    "torch": "",
    "right": "",
    "dies": "capture ended the trial process (signal 11 (SIGSEGV)",
    "stops": "capture did not end within 15 s in the trial",
    "waits": "capture failed in the trial (",
    "nothing": "capture's replays gave different outputs than the call (in the trial)",
}


def run(backend: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and journal of a run of MATRIX over all of them, on one device."""
    (folder / "capture_faults_here.py").write_text(SOURCE)
    (folder / "m.yaml").write_text(MATRIX)
    patch.syspath_prepend(str(folder))
    patch.chdir(folder)
    mine = [w for n in WORDS if n not in ("farm", "torch") for w in ("--provider", f"{n}=capture_faults_here:{n}")]
    main(
        [
            "run",
            str(folder / "m.yaml"),
            "--out",
            str(folder / "store"),
            "--backend",
            backend,
            "--no-page",
            "--address",
            "inline",
            "--devices",
            "1",
            *mine,
        ]
    )
    done = Store(folder / "store").run("last")
    return done.rows, list(done.journal())


def assert_each_is_timed_as_its_trial_says(rows: list[dict[str, Any]], journal: list[dict[str, Any]]) -> None:
    """Every cell passes, is timed by a graph or by events, and says why; the device had no fault."""
    assert len(rows) == 2 * len(WORDS)
    for row in rows:
        words = WORDS[row["provider"]]
        assert row["status"] == "passed", (row["cell_id"], row["reason"])
        assert row["timing_method"] == ("events" if words else "rotating_graph"), (row["cell_id"], row["flags"])
        assert (f"timed by events: {words}" in row["flags"]) if words else ("timed by" not in row["flags"])
        assert row["timing_quality"] in ("ok", "launch_bound", "noisy"), (row["cell_id"], row["flags"])
    assert not [e for e in journal if e["event"] in ("device_down", "replaced", "retired")]
