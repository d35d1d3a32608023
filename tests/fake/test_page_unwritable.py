"""A run whose page cannot be written: every result is stored, and the exit code tells of them alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from farm_command import FarmCommand
from farm_process import FarmRun

Farm = Callable[..., FarmRun]


def matrix(**sim: Any) -> str:
    return json.dumps(
        {
            "name": "page",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64, 65]}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {"default": {"time_us": 10, **sim}},
        }
    )


@pytest.mark.parametrize(("sim", "code"), [({}, 0), ({"error": 0.1}, 1)])
def test_the_exit_code_is_that_of_the_cells(tmp_path: Path, sim: dict[str, Any], code: int) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "pages").write_text("a file where the folder should be")
    (tmp_path / "m.yaml").write_text(matrix(**sim))
    words = ("run", "m.yaml", "--backend", "sim", "--address", "inline", "--run-id", "r", "--out", "store", "--json")
    run = FarmCommand(tmp_path, store, "r", *words).start()
    try:
        assert run.wait() == code, run.said()
        assert run.run.complete and len(run.rows()) == 2
        said = run.said()
        assert "farm run: store/pages: " in said and "(File exists)" in said and "[page-unwritable]" in said
        assert "page: " not in said and '"verdict"' in said  # --json comes nevertheless
        (store / "pages").unlink()
        (command,) = re.findall(r"farm (dashboard build .*) \[page-unwritable\]", said)
        words = command.split()
        later = FarmCommand(tmp_path, store, "r", *words).start()
        assert later.wait() == 0, later.said()
        assert Path(tmp_path, later.said().strip()).is_file()
    finally:
        run.end()


FULL_DISK = """
import errno, sys, types
import farm.dashboards.build as build
def write(path, text):
    raise OSError(errno.ENOSPC, "No space left on device")
build.atomic_files = types.SimpleNamespace(write=write)
from farm.cli.main import main
sys.exit(main())
"""


def test_a_disk_that_is_full_by_then_costs_the_page_alone(farm: Farm, tmp_path: Path) -> None:
    program = tmp_path / "full.py"
    program.write_text(FULL_DISK)
    run = farm(matrix(), python=(str(program),))
    assert run.wait() == 0, run.said()
    assert "(No space left on device)" in run.said() and "[page-unwritable]" in run.said()
    assert run.run.complete
