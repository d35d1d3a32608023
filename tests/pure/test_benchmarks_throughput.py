"""What `benchmarks.throughput` counts: whose CPU time is whose, and how many cells it plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.throughput import PER_WIDTH, Process, Results, below, by_kind, kind, matrix
from farm.matrix import load_files, plan


@pytest.mark.parametrize(("asked", "planned"), [(1, PER_WIDTH), (5000, 23 * PER_WIDTH)])
def test_the_matrix_has_about_as_many_cells_as_were_asked_for(tmp_path: Path, asked: int, planned: int) -> None:
    (tmp_path / "m.yaml").write_text(matrix(asked), encoding="utf-8")
    assert len(plan(load_files([tmp_path / "m.yaml"]), ["sim"]).cells) == planned


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("/v/python -m farm run m.yaml", "coordinator"),
        ("/v/python -c from farm.child.__main__ import main; main() sim 0 {}", "child"),
        ("ray::_RayDevice.poll", "device's actor"),
        ("ray::Judge", "judge"),
        ("/v/ray/core/src/ray/gcs/gcs_server --log_dir=x", "Ray"),
        ("ray::DashboardAgent", "Ray"),
    ],
)
def test_a_process_is_known_by_its_words(words: str, what: str) -> None:
    assert kind(words) == what


def test_only_what_the_run_started_is_counted() -> None:
    """Other runs of the same host have children and judges too."""
    processes = {
        1: Process(0, "init", 9.0, 9.0),
        10: Process(1, "-m farm run", 1.0, 0.5, 80.0),
        11: Process(10, "farm.child", 2.0, 0.0, 30.0),
        12: Process(11, "farm.child", 3.0, 0.25, 20.0),
        20: Process(1, "farm.child", 50.0, 50.0),
    }
    mine = below(10, processes)
    assert mine == {10, 11, 12}
    assert by_kind(processes[p] for p in mine) == {"coordinator": (1, 1.0, 0.5, 80.0), "child": (2, 5.0, 0.25, 30.0)}


def test_results_are_counted_while_their_journal_grows(tmp_path: Path) -> None:
    results = Results(tmp_path / "journal.jsonl")
    assert results.look() == 0
    with (tmp_path / "journal.jsonl").open("w", encoding="utf-8") as file:
        file.write('{"event":"started","cell":1}\n{"event":"result","row":{}}\n{"event":"resu')
        file.flush()
        assert results.look() == 1
        file.write('lt","row":{}}\n')
        file.flush()
        assert results.look() == 2
