"""From rounds to verdicts: noise, stages, what is lost, and that the rule neither invents nor overlooks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import compare_simulation as simulation
from farm.compare import noise
from farm.compare.decide import Batch, Comparison, Outcome, Rule, Stage, Verdict, order, shift

Array = noise.Array
Answer = Callable[[Batch], Array]


def course(cells: int, answer: Answer, **more: object) -> tuple[Comparison, list[Batch]]:
    """A comparison played to its end, and its batches."""
    made = Comparison(cells, **more)  # type: ignore[arg-type]
    batches = []
    while batch := made.next():
        batches.append(batch)
        assert len(batches) < 20, "it does not end"
        made.told(answer(batch))
    return made, batches


def steady(
    effects: Array, sd: float = 0.004, seed: int = 1, slow: dict[tuple[Stage, int, int], float] | None = None
) -> Answer:
    """Normal noise about each cell's effect; `slow` adds to one round (stage, cell, column)."""
    rng = np.random.default_rng(seed)

    def answer(batch: Batch) -> Array:
        x = effects[list(batch.cells)][:, None] + rng.normal(0, sd, (len(batch.cells), batch.rounds))
        for (stage, cell, column), more in (slow or {}).items():
            if batch.stage is stage and cell in batch.cells and column < batch.rounds:
                x[batch.cells.index(cell), column] += more
        return x

    return answer


def verdicts(made: Comparison) -> list[Verdict]:
    return [o.verdict for o in made.outcomes()]


def test_each_side_of_a_change_is_found_and_the_others_are_the_same() -> None:
    effects = np.zeros(40)
    effects[3], effects[7] = math.log(1.05), math.log(0.9)
    made, batches = course(40, steady(effects))
    want = [Verdict.SAME] * 40
    want[3], want[7] = Verdict.REGRESSED, Verdict.IMPROVED
    assert verdicts(made) == want
    screen, decide = [(Stage.SCREEN, 2), (Stage.SCREEN, 1)], [(Stage.DECIDE, 4), (Stage.DECIDE, 3)]
    assert [(b.stage, b.rounds) for b in batches] == [*screen, *decide, (Stage.CONFIRM, 5)]
    assert batches[0].cells == tuple(range(40)) and {3, 7} <= set(batches[1].cells) < set(range(40))
    assert batches[-1].cells == (3, 7)
    found = made.outcomes()[3]
    assert found.low < 1.05 < found.high and found.ratio == pytest.approx(1.05, abs=0.01)
    assert (found.rounds, found.stage) == (12, Stage.CONFIRM) and found.threshold >= 0.02


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([Stage.SCREEN, Stage.DECIDE]), st.floats(0.002, 0.03))
def test_a_cell_that_gets_no_more_rounds_has_its_median_within_the_bound_whatever_they_say(
    seed: int, stage: Stage, sd: float
) -> None:
    rng, rule = np.random.default_rng(seed), Rule()
    full, most = rule.rounds(stage), rule.most(stage)
    bound = math.log1p(rule.floor) / (2 if stage is Stage.SCREEN else 1)
    x = rng.normal(0, sd, (50, full))
    settled = rule.settled(x[:, :most], stage)
    x[:, most:] = rng.normal(0, 1, (50, full - most))  # what is not asked for
    x[rng.random(x.shape) < 0.2 * (np.arange(full) >= most)] = np.nan
    assert (np.abs(noise.median(x))[settled] <= bound).all()
    assert not rule.settled(x[:, : most - 1], stage).any()
    assert not rule.settled(x, Stage.CONFIRM).any(), "a change is confirmed by all of its rounds"


def test_most_cells_of_the_same_code_are_screened_by_two_rounds() -> None:
    made, batches = course(300, steady(np.zeros(300)))
    assert set(verdicts(made)) == {Verdict.SAME}
    assert sum(b.rounds * len(b.cells) for b in batches) < 2.2 * 300


def test_rounds_are_numbered_through_so_that_arms_alternate() -> None:
    _, batches = course(5, steady(np.array([0.0, 0.0, 0.3, 0.0, 0.0])))
    assert [b.first for b in batches] == [0, 2, 3, 7, 10]
    assert [order(n) for n in range(3)] == [("a", "b"), ("b", "a"), ("a", "b")]


def test_a_change_that_does_not_come_again_is_inconclusive() -> None:
    effects = np.zeros(20)

    def answer(batch: Batch) -> Array:
        x = steady(effects, seed=batch.first)(batch)
        if batch.stage is not Stage.CONFIRM and 4 in batch.cells:
            x[batch.cells.index(4)] += 0.08
        return x

    assert verdicts(course(20, answer)[0])[4] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("more", [0.2, -0.15])
def test_outlier_processes_neither_hide_a_change_nor_make_one(more: float) -> None:
    effects = np.zeros(30)
    effects[5] = math.log(1.1)
    slow = {(stage, cell, 1): more for stage in (Stage.SCREEN, Stage.DECIDE) for cell in (5, 6)}
    made, batches = course(30, steady(effects, slow=slow))
    assert verdicts(made)[5:7] == [Verdict.REGRESSED, Verdict.SAME]
    assert [b.cells for b in batches if b.stage is Stage.REDO] == [(5,)]


def test_a_round_without_a_time_is_asked_for_again_and_not_for_ever() -> None:
    effects = np.full(10, math.log(1.2))
    begun: set[Stage] = set()

    def answer(batch: Batch) -> Array:
        x = steady(effects)(batch)
        x[[c in (0, 1) for c in batch.cells]] = np.nan  # never a time
        if batch.stage not in begun:
            x[[c == 2 for c in batch.cells], :2] = np.nan  # two lost of each stage
        begun.add(batch.stage)
        return x

    made, batches = course(10, answer)
    assert verdicts(made) == [Verdict.UNFIT] * 2 + [Verdict.REGRESSED] * 8
    assert [(b.stage, b.rounds, b.cells) for b in batches if len(b.cells) <= 3] == [
        (Stage.SCREEN, 2, (0, 1, 2)),
        (Stage.DECIDE, 2, (2,)),
        (Stage.CONFIRM, 2, (2,)),
    ]
    assert math.isnan(made.outcomes()[0].ratio) and made.outcomes()[0].rounds == 0


def test_what_controls_share_is_the_environments() -> None:
    effects = np.full(60, math.log(1.03))  # a warmer node, or another driver
    effects[40] += math.log(1.08)
    made, batches = course(60, steady(effects), controls=range(8))
    found = verdicts(made)
    assert [i for i, v in enumerate(found) if v is not Verdict.SAME] == [40]
    assert all(set(range(8)) <= set(b.cells) for b in batches)
    without, _ = course(60, steady(effects))
    assert verdicts(without)[1] is Verdict.REGRESSED  # so they are needed


def test_a_control_is_never_accused_however_it_varies() -> None:
    effects = np.zeros(20)
    effects[2] = 0.4
    assert verdicts(course(20, steady(effects), controls=range(6))[0])[2] is Verdict.SAME


def test_fewer_than_five_controls_correct_nothing() -> None:
    x = np.array([[0.05, np.nan], [0.05, 0.02], [0.05, 0.02], [0.05, 0.02], [0.05, 0.02]])
    assert list(shift(x)) == [pytest.approx(0.05), 0.0]


def test_noisy_cells_have_a_threshold_of_their_own() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.005, (200, 10))
    x[0] = rng.normal(0, 0.05, 10)
    sigma, freedom = noise.sigma(x, noise.typical(*noise.squares(x)))
    threshold = Rule().threshold(sigma)
    assert threshold[0] > 0.06 and np.median(threshold) == pytest.approx(math.log1p(0.02))
    assert (freedom == 13).sum() > 180


def test_a_cell_that_varies_wildly_is_not_called_the_same() -> None:
    def answer(batch: Batch) -> Array:
        x = steady(np.zeros(20))(batch)
        at = [c == 3 for c in batch.cells]
        x[at] = np.random.default_rng(batch.first).normal(0, 0.2, x[at].shape)
        return x

    assert verdicts(course(20, answer)[0])[3] is Verdict.INCONCLUSIVE


def test_records_of_the_same_code_raise_the_threshold_of_a_noisy_cell() -> None:
    x = np.zeros((20, 3))
    known = noise.Known(np.full(20, 0.03), np.full(20, 8.0))
    sigma, freedom = noise.sigma(x, 1e-5, known)
    assert sigma[0] > 0.02 and freedom[0] == 14


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.floats(0, 0.9), st.integers(0, 7))
def test_whatever_is_told_it_ends_and_every_cell_has_a_verdict(
    seed: int, cells: int, gone: float, controls: int
) -> None:
    rng = np.random.default_rng(seed)
    controls = min(controls, cells)

    def answer(batch: Batch) -> Array:
        x = rng.normal(0, 10 ** rng.uniform(-4, 1), (len(batch.cells), batch.rounds))
        return np.where(rng.random(x.shape) < gone, np.nan, x)

    made, batches = course(cells, answer, controls=range(controls))
    found: list[Outcome] = made.outcomes()
    assert len(found) == cells and all(isinstance(o.verdict, Verdict) for o in found)
    for o in found[:controls]:
        assert o.verdict in (Verdict.SAME, Verdict.UNFIT)
    for o in found:
        if o.verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
            assert o.stage is Stage.CONFIRM and (o.ratio > 1) == (o.verdict is Verdict.REGRESSED)
        assert math.isnan(o.ratio) or o.low <= o.ratio <= o.high
    asked = {stage: sum(b.rounds for b in batches if b.stage is stage) for stage in Stage}
    assert (
        asked[Stage.SCREEN] <= 5 and asked[Stage.DECIDE] <= 9 and asked[Stage.CONFIRM] <= 7 and asked[Stage.REDO] <= 1
    )


def test_what_is_told_must_be_what_was_asked_for() -> None:
    made = Comparison(3)
    with pytest.raises(ValueError, match="told"):
        made.told(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="controls are among the 3 cells"):
        Comparison(3, controls=[3])
    with pytest.raises(ValueError, match="at least two rounds"):
        Rule(screen=1)


def test_the_simulation_keeps_its_bounds_and_says_so_where_they_break() -> None:
    found = [simulation.curve(effect, runs, 11) for effect, runs in ((0.0, 60), (0.03, 6), (0.05, 6), (0.10, 6))]
    assert simulation.broken(found) == []
    assert found[2].found > 0.95 > found[1].found > 0.8
    loud = simulation.Noise(median=0.02, most=0.2, outliers=0.1, shift=0.05)  # nothing that the rule is meant for
    assert simulation.broken([simulation.curve(0.05, 6, 11, loud)]) != []


def test_an_environment_that_is_off_invents_nothing_where_there_are_controls() -> None:
    off = simulation.Noise(environment=0.03)
    assert simulation.curve(0.0, 10, 11, off, controls=8).invented == 0
    assert simulation.curve(0.0, 2, 11, off).invented > 1000
