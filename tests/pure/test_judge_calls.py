"""Several calls of one cell: what is stored is of the worse, so a verdict from it is of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from farm.accuracy import tolerances
from farm.judge.judge import _both

GATES = {"y": {"max_ulp": 2.0, "rel_l2": 1e-3}}


def said(max_ulp: float, rel_l2: float, row: int = 0) -> dict[str, Any]:
    metrics = {"y": {"max_ulp": max_ulp, "rel_l2": rel_l2, "worst_row": row}}
    found = tolerances.verdict(metrics, GATES)
    return {
        "status": "passed" if found.ok else "inaccurate",
        "owner": None if found.ok else "kernel",
        "reason": "" if found.ok else "y: too far",
        "metrics": metrics,
        "gates": GATES,
        "output_hash": f"{row}",
        "worst_output": found.worst_output,
        "worst_metric": found.worst_metric,
        "worst_ratio": found.worst_ratio,
    }


def test_both_right_gives_the_worse_numbers() -> None:
    found = _both(said(1.0, 9e-4, 3), said(1.5, 1e-4, 5), "in a timed launch")
    assert (found["status"], found["reason"], found["output_hash"]) == ("passed", "", "3")
    assert found["metrics"] == {"y": {"max_ulp": 1.5, "rel_l2": 9e-4, "worst_row": 5}}
    assert found["worst_metric"] == "rel_l2" and found["worst_ratio"] == pytest.approx(0.9)


def test_a_wrong_second_call_decides_and_stored_numbers_say_so_again() -> None:
    found = _both(said(1.0, 9e-4), said(5.0, 1e-4, 7), "in a timed launch")
    assert (found["status"], found["owner"]) == ("inaccurate", "kernel")
    assert found["reason"] == "in a timed launch: y: too far" and found["worst_ratio"] == 2.5
    assert not tolerances.verdict(found["metrics"], found["gates"]).ok


def test_a_second_call_without_numbers_decides_too() -> None:
    layout = {"status": "inaccurate", "owner": "kernel", "reason": "output y has shape [1]"}
    found = _both(said(1.0, 9e-4), layout, "in a timed launch")
    assert found == {**layout, "reason": "in a timed launch: output y has shape [1]"}
