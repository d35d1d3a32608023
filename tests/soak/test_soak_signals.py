"""SIGINT, SIGTERM and SIGHUP at random moments of a run, from its first import to its last line; then it is resumed."""

from __future__ import annotations

import random

import pytest
from farm_fixture import Farm
from killing import HEARD, SIGNALS, assert_interrupted, assert_nothing_left, assert_right, ended, matrix, pause, resumed
from killing import signal_it as signal_run


def rounds(farm: Farm, dice: random.Random, address: str, count: int, seconds: float) -> None:
    for _ in range(count):
        number, to = dice.choice(SIGNALS), dice.choice(["one", "group", "group", "all"])
        run = farm(matrix(30), address=address, popen=HEARD)
        with ended(run) as later:
            pause(dice, seconds)
            signal_run(run, number, to=to)
            assert_interrupted(run, f"{number.name} to {to}")
            if not run.journal("planned"):
                continue  # the plan may not be whole: there is nothing to resume
            if not run.run.complete:
                later.append(resumed(run))
                assert later[0].wait(90) == 1, later[0].said()
                assert_nothing_left(later[0])
            assert_right(run)


@pytest.mark.soak(seconds=45)
@pytest.mark.parametrize("part", range(2))
def test_signals_without_ray(farm: Farm, dice: random.Random, part: int) -> None:
    rounds(farm, dice, "inline", 8, 4.0)


@pytest.mark.ray
@pytest.mark.soak(seconds=45)
def test_signals_on_ray(farm: Farm, dice: random.Random) -> None:
    rounds(farm, dice, "local", 4, 10.0)
