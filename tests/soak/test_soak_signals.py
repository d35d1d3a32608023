"""SIGINT, SIGTERM and SIGHUP at random moments of a run, from its first import to its last line; then it is resumed."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from farm_fixture import Farm
from killing import LINGERING, assert_right, ended, matrix, resumed

HEARD = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # nohup around the checks is inherited


def rounds(farm: Farm, dice: random.Random, address: str, count: int, seconds: float) -> None:
    for _ in range(count):
        number = dice.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        run = farm(matrix(30), address=address, popen=HEARD)
        with ended(run) as later:
            time.sleep(dice.uniform(0.0, seconds))
            assert run.process is not None
            if run.process.poll() is None:
                if number == signal.SIGINT:
                    run.ctrl_c()
                else:
                    os.kill(run.process.pid, number)
            code, at = run.wait(60), f"{number.name}: {run.said()}"
            run.assert_nothing_left(60, but=LINGERING)
            assert not run.spool.exists() or code == -number, at  # what had no time to is swept by the next run
            if not run.journal("planned"):
                assert code not in (0, 1), (
                    at
                )  # while Ray starts its handlers are there: 15, and once a crash of its own
                continue
            left = [row for row in run.rows() if row["status"] == "lost"]  # planned = accounted for
            if run.journal("device_up"):  # it listens, until every cell has its result
                assert code in ((3,) if left else (1, 3, -number)) and "Traceback" not in run.said(), at
            if not run.run.complete:
                later.append(resumed(run))
                assert later[0].wait(90) == 1, later[0].said()
            assert_right(run, 0)


@pytest.mark.soak(seconds=35)
def test_signals_without_ray(farm: Farm, dice: random.Random) -> None:
    rounds(farm, dice, "inline", 8, 4.0)


@pytest.mark.ray
@pytest.mark.soak(seconds=40)
def test_signals_on_ray(farm: Farm, dice: random.Random) -> None:
    rounds(farm, dice, "local", 4, 10.0)
