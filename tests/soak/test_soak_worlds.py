"""Random worlds and random damage, many more of them than `make test` has."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import test_child_messages
import test_scheduler
import test_scheduler_health
import test_scheduler_pools
import test_scheduler_rounds
from farm_process import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import compare_simulation
from farm.cli.main import main

MANY = settings(max_examples=4000, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.soak(seconds=30)
@MANY
@given(shape=test_scheduler.worlds, dice=st.randoms(use_true_random=False))
def test_the_scheduler_in_many_worlds(shape: dict[str, float], dice: random.Random) -> None:
    test_scheduler.play(shape, dice)


@pytest.mark.soak(seconds=50)
@MANY
@given(
    world=test_scheduler_pools.worlds(),
    seconds=st.sampled_from([0.001, 0.1, 3.0]),
    dice=st.randoms(use_true_random=False),
)
def test_the_scheduler_in_many_worlds_of_targets(
    world: test_scheduler_pools.Plan, seconds: float, dice: random.Random
) -> None:
    test_scheduler_pools.play(world, seconds, dice)


@pytest.mark.soak(seconds=30)
@settings(MANY, max_examples=1500)
@given(shape=test_scheduler_rounds.worlds, dice=st.randoms(use_true_random=False))
def test_the_scheduler_in_many_worlds_of_two_arms(shape: dict[str, Any], dice: random.Random) -> None:
    test_scheduler_rounds.play(shape, dice)


@pytest.mark.soak(seconds=15)
def test_one_bad_part_in_many_farms(dice: random.Random) -> None:
    for _ in range(2000):
        test_scheduler_health.play(dice)


@pytest.mark.soak(seconds=30)
def test_many_malformed_lines_at_the_door(dice: random.Random, tmp_path: Path) -> None:
    test_child_messages.hammer(tmp_path, dice, 10_000)


MATRICES = sorted((ROOT / "matrices").glob("*.yaml"))


@pytest.mark.soak(seconds=25)
def test_damaged_matrices_plan_or_are_refused(
    dice: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pieces of the shipped matrices lost, doubled, exchanged with each other's, or replaced."""
    monkeypatch.chdir(tmp_path)
    texts = [text for path in MATRICES if len(text := path.read_text(encoding="utf-8")) < 5000]
    planned = 0
    for _ in range(1000):
        text, other = dice.choice(texts), dice.choice(texts)
        for _ in range(dice.randint(1, 3)):
            at, cut, long = dice.randrange(len(text)), dice.randrange(20), dice.randrange(1, 20)
            there = dice.randrange(len(other))
            put = dice.choice(
                ["", other[there : there + long], text[at : at + long], dice.choice(":,[]{}-#&*!\"'|>%@\\0 \n\t")]
            )
            text = text[:at] + put + text[at + cut :]
        Path("bad.yaml").write_text(text, encoding="utf-8")
        code, said = main(["plan", "bad.yaml"]), capsys.readouterr()
        planned += code == 0
        if code:
            assert code == 2 and said.out == "", text
            sentence = said.err.removesuffix("\n")
            assert sentence.startswith("farm plan: bad.yaml") and sentence.endswith("]"), (sentence, text)
            assert sentence.isprintable(), (sentence, text)
    assert 0 < planned < 1000


@pytest.mark.soak(seconds=15)
def test_what_two_arms_invent_and_overlook_in_simulation(dice: random.Random) -> None:
    """Fewer runs than the benchmark's 20,000; of 1,500 unchanged ones at most two may invent a change."""
    seed = dice.randrange(2**31)
    unchanged = compare_simulation.curve(0.0, 1500, seed)
    assert unchanged.invented * 1.5 <= 2, (seed, unchanged)
    curves = [compare_simulation.curve(effect, 200, seed) for effect in compare_simulation.FOUND]
    assert not compare_simulation.broken(curves), (seed, curves)
    dice_of = {"controls": 20, "records": dice.choice((5, 9, 17)), "then": dice.choice((0.5, 0.7, 1.0, 2.0))}
    unchanged = compare_simulation.curve(0.0, 500, seed, **dice_of)
    assert unchanged.invented * 0.5 <= 2, (seed, dice_of, unchanged)
