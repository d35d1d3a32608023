"""An author's loop through real processes: stop at the first finding, show the cell, resume, run what failed again."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from farm_command import FarmCommand

from farm.cli import main
from farm.store import Store

MATRIX = json.dumps(
    {
        "name": "loop",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(60)]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {
            "default": {"time_us": 10, "wall_s": 0.02},
            "rules": [{"when": {"hidden": 65}, "error": 0.1}, {"when": {"hidden": 123}, "signal": 11}],
        },
    }
)


def farm(folder: Path, *words: str, code: int) -> str:
    """What a command prints."""
    command = FarmCommand(folder, folder / "store", "r", *words, "--out", "store").start()
    try:
        assert command.wait() == code, command.said()
        return command.said()
    finally:
        command.end()


@pytest.mark.long
def test_the_loop(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    how = ("--backend", "sim", "--devices", "1", "--no-page")
    said = farm(tmp_path, "run", "m.yaml", *how, "--run-id", "r", "-x", "--write", "junit=a.xml", code=1)
    assert said.splitlines()[-1] == "stopped at the first finding (-x): exit 1"
    assert "[run-first-finding]" in said and "farm resume r --out store" in said
    store = Store(tmp_path / "store")
    counts = {s: sum(r["status"] == s for r in store.run("r").rows) for s in ("passed", "inaccurate", "lost")}
    assert counts["inaccurate"] == 1 and counts["lost"] > 10 and sum(counts.values()) == 60
    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    (failure,) = [c for c in root.iter("testcase") if c.find("failure") is not None]
    assert failure.findtext("system-out"), "its log is in the file"

    said = farm(tmp_path, "show", str(failure.get("name")), code=0)
    assert said.startswith("inaccurate: ") and "simulated" in said and "not complete" in said

    said = farm(tmp_path, "resume", "r", "--no-page", code=1)
    assert said.splitlines()[-1] == "findings in 2 cells: exit 1"
    assert store.run("r").complete and sum(r["status"] == "passed" for r in store.run("r").rows) == 58

    said = farm(tmp_path, "run", "--failed", "--no-page", "--run-id", "s", "--select", "status=crashed", code=1)
    assert [r["shape"] for r in store.run("s").rows] == ["2x123"]
    (tmp_path / "m.yaml").write_text(MATRIX.replace('"signal": 11', '"time_us": 9'))
    assert farm(tmp_path, "run", "--failed", "--no-page", "--run-id", "t", code=0).endswith("passed: exit 0\n")
    said = farm(tmp_path, "compare", "s", "t", code=0)
    assert "fixed: 1 cell" in said and "the matrices differ: loop" in said
    assert [line.split()[0] for line in farm(tmp_path, "ls", code=0).splitlines()] == ["t", "s", "r"]


@pytest.mark.long
def test_failed_cells_of_a_part_of_a_plan_run_again_as_a_run_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    assert main(["plan", str(tmp_path / "m.yaml"), "--backend", "sim", "--out", str(tmp_path / "PLAN")]) == 0
    (tmp_path / "m.yaml").unlink()
    how = ("--devices", "1", "--no-page")
    farm(tmp_path, "run", "--plan", "PLAN", "--target", "sim", *how, "--run-id", "r", code=1)
    (tmp_path / "PLAN").unlink()
    for run_id, of in (("s", "r"), ("t", "s")):
        said = farm(tmp_path, "run", "--failed", of, *how[2:], "--run-id", run_id, code=1)
        assert "findings in 2 cells: exit 1" in said
        made = Store(tmp_path / "store").run(run_id)
        assert sorted(row["shape"] for row in made.rows) == ["2x123", "2x65"] and "plan" not in made.head
    assert "[run-failed-with-plan]" in farm(tmp_path, "run", "--failed", "--plan", "PLAN", code=2)
