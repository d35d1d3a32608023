"""`farm profile` on a simulated NVIDIA device, with a stub in place of `ncu`: one cell, a real child, a real lock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from farm_command import FarmCommand
from test_simulated_vendors import node

sys.path.append(str(Path(__file__).resolve().parents[1] / "pure"))
import made_runs
from test_profile import CELL, ncu_log

STUB = """#!/bin/sh
echo "==PROF== the tool prints on its standard output"
while [ "$1" != --log-file ]; do shift; done
log="$2"
while [ "$1" != /bin/sh ]; do shift; done
"$@"
cp {table} "$log"
"""


@pytest.mark.long
def test_one_cell_runs_again_under_the_profiler(tmp_path: Path) -> None:
    table, tool = tmp_path / "table", tmp_path / "bin" / "ncu"
    table.write_text(ncu_log({}))
    tool.parent.mkdir()
    tool.write_text(STUB.format(table=table))
    tool.chmod(0o755)
    made_runs.make(tmp_path / "store", "a", backend="cuda")
    more = {**node(tmp_path / "node", "cuda"), "PATH": f"{tool.parent}:/usr/bin:/bin"}
    command = FarmCommand(tmp_path, tmp_path / "store", "a", "profile", CELL, "--out", "store", environment=more)
    try:
        assert command.start().wait(60) == 0, command.said()
    finally:
        command.end()
    said = command.said()
    assert f"{CELL}: 1 of the call's kernels, by ncu" in said and "limiter   device memory (DRAM): 92 % busy" in said
    assert "run a has no time" in said or "a has no time of this cell" in said
    assert len(command.store.runs()) == 1, "the run under the profiler is in no store"
    command.assert_nothing_left()
