"""A judge that is killed again and again is replaced, and no cell is lost by it."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from farm_fixture import Farm
from farm_process import wait_for
from killing import LINGERING, of_kind
from test_kills import matrix

KILLS = 4  # one more than Ray would restart it


@pytest.mark.ray
@pytest.mark.soak(seconds=90)
def test_a_judge_that_is_killed_four_times_costs_no_cell(farm: Farm) -> None:
    run = farm(matrix(400), address="local")
    killed: list[int] = []
    for _ in range(KILLS):
        run.wait_for("result", len(run.journal("result")) + 5)
        fresh = wait_for("a judge", lambda: [p for p in of_kind(run.mark, "judge") if p not in killed], 60)
        killed.append(fresh[0])
        os.kill(fresh[0], signal.SIGKILL)
        wait_for("its death is known", lambda: len(run.journal("judge_down")) >= len(killed), 60)
    assert run.wait(300) == 0, run.said()
    assert Counter(r["status"] for r in run.rows()) == {"passed": 400}
    assert len(run.journal("judge_down")) == KILLS
    run.assert_nothing_left(60, but=LINGERING)
    assert not run.spool.exists()
