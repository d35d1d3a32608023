"""A few cases out of a large product, in which all values meet that should: greedy, seeded, the same on every host."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]
#: Values that meet: ((name, value), ...), names in the order of the factors.
Meeting = tuple[tuple[str, Any], ...]


def meetings_of(case: Mapping[str, Any], groups: Iterable[Sequence[str]]) -> list[Meeting]:
    """What of each group of names meets in a case."""
    return [tuple((name, case[name]) for name in group) for group in groups]


def all_meetings(factors: Mapping[str, Sequence[Any]], groups: Iterable[Sequence[str]]) -> list[Meeting]:
    """Every combination of values within each group of names, in a fixed order."""
    return [tuple(zip(g, values)) for g in groups for values in itertools.product(*(factors[n] for n in g))]


def cover(
    factors: Mapping[str, Sequence[Any]],
    groups: Sequence[Sequence[str]] = (),
    *,
    allowed: Callable[[Case], bool] = lambda case: True,
    seed: int = 0,
    draws: int = 40,
) -> tuple[list[Case], list[Meeting]]:
    """(cases in which every two values meet, and all values of each group of `groups`; meetings that were in no
    allowed case of ten times `draws`).  A group has two names or more.

    Each step takes the first meeting that is missing, and of `draws` random allowed cases with it the one in which most
    others meet too.
    """
    assert all(len({*group}) > 1 for group in groups)
    draw = random.Random(seed)
    together = [*(tuple(n for n in factors if n in g) for g in groups), *itertools.combinations(factors, 2)]
    missing = dict.fromkeys(all_meetings(factors, together))  # a set with an order
    read = [operator.itemgetter(*group) for group in together]  # `missing` again by group, in what is quick to ask
    left = {group: set(itertools.product(*(factors[n] for n in group))) for group in together}
    found, never = [], []
    while missing:
        wanted = next(iter(missing))
        candidates = []
        for _ in range(10 * draws):
            case = {name: draw.choice(values) for name, values in factors.items()} | dict(wanted)
            if allowed(case):
                candidates.append(case)
            if len(candidates) == draws:
                break
        if not candidates:
            del missing[wanted]
            left[tuple(name for name, _ in wanted)].discard(tuple(value for _, value in wanted))
            never.append(wanted)
            continue
        best = max(candidates, key=lambda case: sum(get(case) in left[g] for get, g in zip(read, together)))
        for meeting, get, group in zip(meetings_of(best, together), read, together):
            missing.pop(meeting, None)
            left[group].discard(get(best))
        found.append(best)
    return found, never
