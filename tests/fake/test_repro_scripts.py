"""A cell of a real run, repeated by its script where no farm can be imported.  tests/soak has every planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import repro_faults
import repro_runs

#: A contract outside the farm, with an input that is overwritten; a kernel in Triton.
NAMES = ("fourfold_in_place", "triton_tail")


@pytest.mark.long
def test_the_script_shows_what_the_run_has_shown(tmp_path: Path) -> None:
    rows = repro_runs.run(tmp_path, NAMES)
    for name in NAMES:
        assert all(part in rows[name]["reason"] for part in repro_faults.FAULTS[name][-1]), rows[name]["reason"]
    files = {name: repro_runs.script(tmp_path, rows[name]) for name in NAMES}
    said = repro_runs.alone(list(files.values()))
    for name in NAMES:
        repro_runs.compared(rows[name], said[files[name]])
