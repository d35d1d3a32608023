"""Which rounds a comparison still needs, from what the rounds so far say.  Pure.

The course is replayed from what is known, so a run that is resumed goes on where it was: with the same rounds, it asks
for the same next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.compare.decide import Batch, Comparison, Outcome, Stage, Verdict
from farm.compare.noise import Known


@dataclass(frozen=True)
class Due:
    """A round to be run: of these pairs, in both arms."""

    number: int
    pairs: tuple[int, ...]
    stage: Stage


@dataclass(frozen=True)
class Shown:
    """A pair's own noise: standard deviation of a round's log ratio (None below two rounds) with its freedom; rounds
    that gave a time; what the rule calls the pair, whatever is known of its code."""

    sd: float | None
    freedom: float
    rounds: int
    called: Verdict


def log_ratio(a: float | None, b: float | None) -> float:
    """ln(time of b / time of a); NaN where an arm gave no time."""
    return math.log(b / a) if a and b and a > 0 and b > 0 else math.nan


class Course:
    """`pairs`: a number of each pair that is timed; `controls`: those of them that are the same code in both arms;
    `known`: what records say of their noise, in the order of `pairs`."""

    def __init__(self, pairs: Sequence[int], controls: Sequence[int] = (), known: Known | None = None):
        self._pairs = tuple(pairs)
        places = {pair: i for i, pair in enumerate(self._pairs)}
        self._comparison = Comparison(len(self._pairs), [places[c] for c in controls], known)
        self._known: dict[tuple[int, int], float] = {}
        self._stages: dict[int, Stage] = {}

    def told(self, pair: int, number: int, x: float) -> None:
        """The log ratio of a pair in a round, NaN for none."""
        self._known[number, pair] = x

    def due(self) -> Due | None:
        """The next round that is not known of all its pairs; None once all is decided."""
        while batch := self._comparison.next():
            for number in range(batch.first, batch.first + batch.rounds):
                self._stages[number] = batch.stage
                left = tuple(p for p in self._in(batch) if (number, p) not in self._known)
                if left:
                    return Due(number, left, batch.stage)
            rounds = range(batch.first, batch.first + batch.rounds)
            self._comparison.told(np.array([[self._known[n, p] for n in rounds] for p in self._in(batch)]))
        return None

    def stage(self, number: int) -> str:
        """What a round was run for; "" for one that was not asked for."""
        found = self._stages.get(number)
        return found.value if found else ""

    def outcomes(self) -> dict[int, Outcome]:
        """Pair -> what its rounds say, so far."""
        return dict(zip(self._pairs, self._comparison.outcomes()))

    def shown(self) -> dict[int, Shown]:
        """Pair -> what its rounds show of noise, and what the rule makes of it; controls too."""
        sd, freedom, rounds = self._comparison.spread()
        return {
            pair: Shown(
                None if math.isnan(sd[i]) else float(sd[i]),
                float(freedom[i]),
                int(rounds[i]),
                self._comparison.called[i],
            )
            for i, pair in enumerate(self._pairs)
        }

    def _in(self, batch: Batch) -> list[int]:
        return [self._pairs[i] for i in batch.cells]
