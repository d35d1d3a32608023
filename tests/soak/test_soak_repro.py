"""Every planted fault, run and repeated by its script alone: the same count, first place and pattern."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import repro_faults
import repro_runs

pytestmark = pytest.mark.soak(seconds=120)


def test_every_planted_fault_is_named_and_repeated_by_its_script(tmp_path: Path) -> None:
    rows = repro_runs.run(tmp_path, repro_faults.FAULTS)
    assert sorted(rows) == sorted(repro_faults.FAULTS)
    for name, (*_, words) in repro_faults.FAULTS.items():
        row = rows[name]
        assert [part for part in words if part not in row["reason"]] == [], (name, row["reason"])
        kinds = {kind for place in json.loads(row["places"] or "{}").values() for kind in place["kinds"]}
        assert ("unwritten" in kinds) == ("never written" in row["reason"]), (name, kinds, row["reason"])
        assert ("nan" in kinds) == ("computed NaN" in row["reason"]), (name, kinds, row["reason"])
    files = {name: repro_runs.script(tmp_path, row) for name, row in rows.items()}
    said = repro_runs.alone(list(files.values()))
    for name, row in rows.items():
        repro_runs.compared(row, said[files[name]])
    assert len([n for n, row in rows.items() if row["status"] != "passed"]) >= 25
    shutil.rmtree(tmp_path)
