"""Which mode is best for a cell in either arm, and what `auto` costs beside it: its regret.  Pure.

Modes are compared within one arm, by the medians over its rounds.  They ran on one device, in the processes of the same
rounds, but not as a pair: so a difference counts only beyond the larger threshold of the two cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

AUTO = "auto"


@dataclass(frozen=True)
class Timed:
    """A cell of one mode: microseconds by arm (a, b; absent where the arm has no time that counts).  `key`: what all
    modes of the cell share; `threshold`: relative, of the cell's own rounds."""

    cell: str
    key: str
    mode: str
    us: Mapping[str, float]
    threshold: float


@dataclass(frozen=True)
class Best:
    """The fastest mode that can be asked for by name, in one arm; `regret`: how much longer `auto` takes, relative to
    it (0.19 is 19 %), negative where `auto` is faster; `sure`: beyond the threshold of either cell."""

    mode: str
    us: float
    auto_us: float
    regret: float
    sure: bool


@dataclass(frozen=True)
class Choice:
    """What `auto` has to choose from, by arm.  `cell`: that of `auto`; `sure_change`: the best mode of b is another
    than that of a, and beats that one in b and loses to it in a, beyond the thresholds."""

    cell: str
    best: Mapping[str, Best]
    sure_change: bool

    @property
    def worse(self) -> bool:
        """Whether `auto` is beaten in b for sure, and was not in a."""
        return self._sure("b") and "a" in self.best and not self._sure("a")

    @property
    def mended(self) -> bool:
        """Whether `auto` was beaten in a for sure, and is not in b."""
        return self._sure("a") and "b" in self.best and not self._sure("b")

    def _sure(self, arm: str) -> bool:
        return arm in self.best and self.best[arm].sure


def choices(cells: Iterable[Timed]) -> list[Choice]:
    """Every cell that has a time of `auto` and of another mode in one arm, in the order of the cells."""
    groups: dict[str, dict[str, Timed]] = defaultdict(dict)
    for one in cells:
        groups[one.key][one.mode] = one
    out = []
    for modes in groups.values():
        auto = modes.pop(AUTO, None)
        if auto is None or not modes:
            continue
        best = {arm: found for arm in ("a", "b") if (found := _best(auto, modes, arm))}
        if best:
            out.append(Choice(auto.cell, best, _changed(modes, best)))
    return out


def _best(auto: Timed, modes: Mapping[str, Timed], arm: str) -> Best | None:
    timed = [one for one in modes.values() if arm in one.us]
    if not timed or arm not in auto.us:
        return None
    first = min(timed, key=lambda one: one.us[arm])
    regret = auto.us[arm] / first.us[arm] - 1.0
    return Best(first.mode, first.us[arm], auto.us[arm], regret, regret > max(auto.threshold, first.threshold))


def _changed(modes: Mapping[str, Timed], best: Mapping[str, Best]) -> bool:
    if len(best) < 2 or best["a"].mode == best["b"].mode:
        return False
    was, now = modes[best["a"].mode], modes[best["b"].mode]
    if not all(arm in one.us for one in (was, now) for arm in ("a", "b")):
        return False
    beyond = 1.0 + max(was.threshold, now.threshold)
    return now.us["a"] > beyond * was.us["a"] and was.us["b"] > beyond * now.us["b"]
