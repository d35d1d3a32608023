"""A child whose messages have the right form and are not true: its cell is `crashed`, every other cell is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_process import FarmRun
from lying_child import LIES

LIAR = Path(__file__).with_name("lying_child.py")
#: An honest cell comes first, and behind every third lie: the first of three is told in a process that has served, the
#: others in one of their own.
HIDDEN = {lie: 65 + i + i // 3 for i, lie in enumerate(LIES)}
HONEST = [64, *(h + 1 for h in list(HIDDEN.values())[2::3])]
#: What the reason of some says.
WORDS = {
    "late": "it says",
    "gone": "it says",
    "status_passed": "status is 'passed'",
    "deep": "not a protocol line",
    "endless": "does not follow",
    "elsewhere": "the path of y",
    "fifo": "not a regular file",
    "folder_link": "the folder of its outputs",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    """A run on one device."""
    matrix = {
        "name": "lies",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 3, "hidden": sorted([*HIDDEN.values(), *HONEST])}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {
            "default": {"time_us": 10},
            "rules": [{"when": {"hidden": hidden}, "reason": lie} for lie, hidden in HIDDEN.items()],
        },
    }
    folder = tmp_path_factory.mktemp("lies")
    node = folder / "node.yaml"
    command = ["{python}", str(LIAR), "{child}"]
    node.write_text(json.dumps({"environments": {"default": {"command": command}}}))
    run = FarmRun(folder, json.dumps(matrix), ("--devices", "1"), environment={"FARM_NODE": str(node)})
    try:
        run.start().wait(240)
        yield run
    finally:
        run.end()


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_its_cell(done: FarmRun, lie: str) -> None:
    row = done.row_of(HIDDEN[lie])
    assert (row["status"], row["fault_owner"], row["attempt"]) == ("crashed", "kernel", 1), row
    assert WORDS.get(lie, "") in row["reason"]
    assert row["time_us_p50"] is None


def test_a_lie_costs_no_other_cell_and_ends_no_run(done: FarmRun) -> None:
    assert {(r["status"], r["fault_owner"]) for h in HONEST if (r := done.row_of(h))} == {("passed", "")}
    assert len(done.rows()) == len(LIES) + len(HONEST) and len(LIES) >= 20
    assert done.process is not None
    assert done.process.returncode == 1, done.said()
    done.assert_nothing_left()
    assert not done.spool.exists()
