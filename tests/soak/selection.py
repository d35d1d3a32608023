"""Which soak check runs next, and which no longer fits: pure, without a clock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Check:
    """A soak check and its estimated duration in seconds on two quiet cores."""

    name: str
    seconds: float


@dataclass
class Selection:
    """Checks in an order that the seed alone decides, and what became of each.

    Every check is exactly one of `ran`, `skipped` (it cannot run here) and `not_reached` (it did not fit)."""

    order: list[Check]
    budget: float  # seconds
    ran: dict[str, float] = field(default_factory=dict)  # name -> seconds that it took
    skipped: dict[str, str] = field(default_factory=dict)  # name -> reason
    not_reached: list[Check] = field(default_factory=list)

    @classmethod
    def seeded(cls, checks: Iterable[Check], seed: str, budget: float) -> Selection:
        order = sorted(checks, key=lambda check: check.name)  # the order of collection does not matter
        random.Random(seed).shuffle(order)
        return cls(order, budget)

    @property
    def pace(self) -> float:
        """How much longer than estimated checks take here; never below 1."""
        estimated = sum(check.seconds for check in self.order if check.name in self.ran)
        return max(1.0, sum(self.ran.values()) / estimated) if estimated else 1.0

    def deadline(self, check: Check) -> float:
        """Seconds after which the check has failed; more where all have taken longer than estimated."""
        return 60 + 3 * check.seconds * self.pace

    def starts(self, check: Check, elapsed: float) -> bool:
        """Whether the check fits in what is left of the budget; where it does not, it is listed as not reached."""
        fits = elapsed + check.seconds * self.pace <= self.budget
        if not fits:
            self.not_reached.append(check)
        return fits
