"""What `make soak` starts: within the budget, the same for the same seed, nothing forgotten."""

from __future__ import annotations

import ast
import random
import re
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[1] / "soak"))
from selection import Check, Selection

worlds = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 300), max_size=30).map(
    lambda found: [Check(name, seconds) for name, seconds in found.items()]
)
seeds = st.text(max_size=4)


def play(selection: Selection, pace: float = 1.0, skipped: frozenset[str] = frozenset()) -> float:
    """What the plugin does with it, every check taking `pace` times its estimate: when it ended."""
    elapsed = 0.0
    for check in selection.order:
        if check.name in skipped:
            selection.skipped[check.name] = "cannot run here"
        elif selection.starts(check, elapsed):
            selection.ran[check.name] = check.seconds * pace
            elapsed += check.seconds * pace
    return elapsed


@settings(max_examples=40)
@given(worlds, seeds, st.integers(0, 2700), st.floats(0.2, 1.0))
def test_the_budget_is_never_overrun(checks: list[Check], seed: str, budget: int, pace: float) -> None:
    assert play(Selection.seeded(checks, seed, budget), pace) <= budget


@settings(max_examples=40)
@given(worlds, seeds, st.integers(0, 2700), st.floats(1.0, 3.0))
def test_on_a_slow_host_only_the_first_check_can_overrun_it(
    checks: list[Check], seed: str, budget: int, pace: float
) -> None:
    selection = Selection.seeded(checks, seed, budget)
    ended = play(selection, pace)
    assert ended <= budget + 1e-6 or list(selection.ran) == list(selection.ran)[:1]
    assert all(check.seconds * pace < selection.deadline(check) for check in checks)


@settings(max_examples=40)
@given(worlds, seeds, st.integers(0, 2700), st.data())
def test_every_check_is_run_skipped_or_listed(checks: list[Check], seed: str, budget: int, data: st.DataObject) -> None:
    skipped = frozenset(data.draw(st.sets(st.sampled_from(checks).map(lambda c: c.name))) if checks else ())
    selection = Selection.seeded(checks, seed, budget)
    play(selection, skipped=skipped)
    ends = [*selection.ran, *selection.skipped, *(check.name for check in selection.not_reached)]
    assert sorted(ends) == sorted(check.name for check in checks)


@settings(max_examples=40)
@given(worlds, seeds, st.integers(0, 2700), st.randoms())
def test_a_seed_gives_one_selection_however_checks_were_collected(
    checks: list[Check], seed: str, budget: int, dice: random.Random
) -> None:
    one = Selection.seeded(checks, seed, budget)
    other = Selection.seeded(dice.sample(checks, len(checks)), seed, budget)
    play(one)
    play(other)
    assert one == other


@settings(max_examples=8)
@given(worlds)
def test_seeds_together_reach_every_check_that_fits_alone(checks: list[Check]) -> None:
    reached: set[str] = set()
    for seed in range(600):
        selection = Selection.seeded(checks, str(seed), 200)
        play(selection)
        reached |= set(selection.ran)
    assert reached == {check.name for check in checks if check.seconds <= 200}


def test_what_fits_is_not_held_up_by_what_does_not() -> None:
    checks = [Check("long", 100), Check("short", 10)]
    selection = Selection(checks, budget=50)
    play(selection)
    assert (list(selection.ran), selection.not_reached) == (["short"], checks[:1])


def test_everything_fits_a_budget_of_its_sum() -> None:
    checks = [Check(str(n), n) for n in range(1, 40)]
    selection = Selection.seeded(checks, "7", sum(range(1, 40)))
    play(selection)
    assert not selection.not_reached and len(selection.ran) == 39


def test_every_file_with_long_tests_is_a_check() -> None:
    """`make test` leaves them out, so nobody else would run them."""
    tests = Path(__file__).resolve().parents[1]
    marked = {
        str(file.relative_to(tests))
        for file in tests.glob("*/test_*.py")
        if ".long" in (text := file.read_text("utf-8"))
        and any(isinstance(n, ast.Attribute) and n.attr == "long" for n in ast.walk(ast.parse(text)))
    }
    checks = (tests / "soak" / "test_soak_long.py").read_text("utf-8")
    assert marked and set(re.findall(r'"(\w+/test_\w+\.py)": \d+,', checks)) == marked


def test_a_slow_host_starts_less() -> None:
    checks = [Check(str(n), 10) for n in range(10)]
    selection = Selection.seeded(checks, "7", 100)
    play(selection, pace=2.0)
    assert len(selection.ran) == 5
