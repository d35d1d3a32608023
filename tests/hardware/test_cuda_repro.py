"""On a real NVIDIA GPU: what `farm repro` writes of planted faults shows the same there, without the farm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))  # its helpers

import repro_faults
import repro_runs

pytestmark = pytest.mark.cuda

if not torch.cuda.is_available():
    pytest.skip("no GPU that torch sees on this host", allow_module_level=True)


#: A store past the end of the output is found by the interpreter; a device needs `farm run --sanitize` for it.
FAULTS = {name: fault for name, fault in repro_faults.FAULTS.items() if name != "triton_outside"}


def test_scripts_of_planted_faults_show_the_same(tmp_path: Path) -> None:
    rows = repro_runs.run(tmp_path, FAULTS, "cuda")
    assert sorted(rows) == sorted(FAULTS)
    files = {name: repro_runs.script(tmp_path, row) for name, row in rows.items()}
    said = repro_runs.alone(list(files.values()))
    unlike = []
    for name, row in rows.items():
        if "in timed launches" in row["reason"]:  # a script has none, and says so where nothing else shows the fault
            ends = ("(only a run has timed launches)", "the same as in run")
            assert any(end in line for line in said[files[name]] for end in ends), said[files[name]]
            continue
        try:
            repro_runs.compared(row, said[files[name]])
        except AssertionError as error:
            unlike.append((name, row["status"], row["reason"], str(error)[:600]))
    named = [n for n, (*_, words) in FAULTS.items() if all(w in rows[n]["reason"] for w in words)]
    print(f"{len(rows) - len(unlike)} of {len(rows)} scripts show the same; {len(named)} sentences name the place")
    assert not unlike, unlike
    assert sorted(named) == sorted(FAULTS), {n: rows[n]["reason"] for n in rows.keys() - set(named)}
