"""The verdict over all pairs: what is worse, what is not b's, and how much may be undecided."""

from __future__ import annotations

import random

import pytest

from farm.compare.decide import Verdict
from farm.compare.summary import Pair, Summary, summary

SAME, SLOW, FAST, OPEN, UNFIT = (Verdict.SAME, Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.UNFIT)


def pairs(*times: Verdict | None, **more: object) -> list[Pair]:
    return [Pair(f"cell-{i}", "norm", time=t, **more) for i, t in enumerate(times)]  # type: ignore[arg-type]


BROKEN = Pair("b", "norm", status="broken", fails=True)


@pytest.mark.parametrize(
    "given, code, why",
    [
        (pairs(SAME, SAME), 0, ""),
        (pairs(SAME, FAST), 0, "1 cell improved"),
        (pairs(SAME, SLOW), 1, "1 cell regressed: first cell-1"),
        ([*pairs(SAME), BROKEN], 1, "1 cell broken: first b"),
        ([*pairs(SAME), Pair("n", "norm", status="new", fails=True)], 1, "1 cell broken: first n"),
        ([*pairs(SAME), Pair("n", "norm", status="new")], 0, ""),
        ([*pairs(SAME), Pair("f", "norm", status="failing", fails=True)], 0, "1 cell failing in both arms"),
        ([*pairs(SAME), Pair("p", "norm", status="broken")], 0, ""),  # of a peer
        ([*pairs(SLOW), Pair("w", "norm", withheld=True)], 3, "infrastructure failure: first w"),
        ([Pair("n", "norm", status="new")], 4, "no cell has a result in both arms"),
        ([], 4, "no cell has a result in both arms"),
        (pairs(OPEN, UNFIT), 4, "op norm: all of its 2 cells undecided"),
        (pairs(*[SAME] * 19, OPEN, kernels=("k",)), 0, "1 of 20 cells undecided"),
        (pairs(*[SAME] * 18, OPEN, OPEN, kernels=("k",)), 4, "kernel k: 2 of 20 cells undecided"),
        (pairs(*[SAME] * 18, OPEN, OPEN), 0, "2 of 20 cells undecided"),  # no affected kernel
        (pairs(None, None), 0, ""),  # nothing was timed
    ],
)
def test_what_pairs_add_up_to(given: list[Pair], code: int, why: str) -> None:
    found = summary(given)
    assert found.exit_code == code and (why in " ".join(found.why) if why else not found.why)


def test_a_changed_kernel_that_no_cell_launched_is_a_finding() -> None:
    found = summary(pairs(SAME), unreached=["rows.py:tiled"])
    assert found.exit_code == 1 and found.why == ("the changed kernel rows.py:tiled was launched by no cell",)


def test_worse_never_hides_and_order_means_nothing() -> None:
    dice = random.Random(3)
    kinds = ("same", "broken", "fixed", "failing", "new", "lost", "unlike")
    for _ in range(400):
        made = [
            Pair(
                str(i),
                dice.choice("ab"),
                dice.choice(kinds),
                dice.random() < 0.05,
                dice.random() < 0.3,
                dice.choice([None, *Verdict]),
                tuple(dice.sample("xyz", dice.randrange(3))),
            )
            for i in range(dice.randrange(12))
        ]
        found = summary(made)
        worse = any(p.time is SLOW or (p.fails and p.status in ("broken", "new")) for p in made)
        assert (found.exit_code in (1, 3)) if worse else found.exit_code != 1
        assert (found.exit_code == 3) == any(p.withheld for p in made)
        dice.shuffle(made)
        assert summary(made).exit_code == found.exit_code


def test_bisect_blames_no_commit_for_a_kernel_that_no_cell_launches() -> None:
    codes = {"worse": 1, "not covered": 0, "not worse": 0, "inconclusive": 125, "infrastructure failures": 125}
    assert {name: Summary(name, 9, ()).for_bisect for name in codes} == codes
    assert summary([Pair("x", "op")], ["_kernel"]).name == "not covered"
