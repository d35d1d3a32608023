"""An axis of time for charts over nights: where a night stands, where nights are missing, which dates stand below."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from statistics import median

DAY = 86400.0
#: More than so many times the usual distance between two nights is a gap; nothing less than so many days is.
GAP = 1.6
STEPS = (1, 2, 4, 7, 14, 28, 56, 91, 182, 365, 730, 1825)
#: Dates of longer spans have their year.
WITH_YEAR = 300 * DAY


class TimeAxis:
    """Nights from `left` to `right`, in pixels, each where its time is.  Nights of whose times one cannot be read
    stand side by side, without gaps and dates."""

    def __init__(self, created: Sequence[str], left: float, right: float):
        times = [_unix(text) for text in created]
        self._dated = [t for t in times if t is not None]
        self.dated = len(self._dated) == len(times)
        self._at = self._dated if self.dated else [i * DAY for i in range(len(times))]
        self._left, self._right = left, right
        self._first = min(self._at, default=0.0)
        self._span = max(self._at, default=0.0) - self._first
        apart = [b - a for a, b in pairwise(self._at) if b > a]
        self.usual = max(DAY, median(apart)) if apart else DAY
        self._least = min(apart, default=DAY)

    def of(self, time: float) -> float:
        """Where a time (Unix, seconds) stands."""
        if not self._span:
            return (self._left + self._right) / 2
        return self._left + (self._right - self._left) * (time - self._first) / self._span

    def x(self, night: int) -> float:
        return self.of(self._at[night])

    @property
    def step(self) -> float:
        """The usual distance of two nights."""
        width = self._right - self._left
        return width * min(1.0, self.usual / self._span) if self._span else width

    def bar(self, most: float = 12.0) -> float:
        """The width of a bar at a night, such that two do not overlap, unless they would be thinner than a line."""
        width = self._right - self._left
        near = width * self._least / self._span if self._span else most
        return max(1.5, min(most, 0.8 * near))

    def gap_before(self, night: int) -> bool:
        """Whether nights are missing between a night and the one before it."""
        return night > 0 and self._at[night] - self._at[night - 1] > GAP * self.usual

    @property
    def gaps(self) -> list[int]:
        """The nights before which nights are missing."""
        return [i for i in range(len(self._at)) if self.gap_before(i)]

    def line(self, ys: Sequence[float | None]) -> list[tuple[float, float] | None]:
        """Points of a line that is interrupted where a night has no value, and where nights are missing."""
        out: list[tuple[float, float] | None] = []
        for i, y in enumerate(ys):
            if self.gap_before(i):
                out.append(None)
            out.append(None if y is None else (self.x(i), y))
        return out

    def ticks(self, most: int = 7) -> list[tuple[float, str]]:
        """(where, date) of at most so many dates; the newest night is one of them."""
        if not self.dated or not self._at:
            return []
        last = self._first + self._span
        if not self._span:
            return [(self.of(last), _text(last, "%m-%d"))]
        if self._span < DAY:
            return [(self.of(t), _text(t, "%H:%M")) for t in (self._first, last)]
        form = "%y-%m-%d" if self._span > WITH_YEAR else "%m-%d"
        days = next((d for d in STEPS if self._span / (d * DAY) < most), self._span / DAY / max(1, most - 1))
        times = [last - i * days * DAY for i in range(most) if last - i * days * DAY >= self._first - 0.02 * self._span]
        return [(self.of(t), _text(t, form)) for t in reversed(times)]


def _unix(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _text(seconds: float, form: str) -> str:
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)).strftime(form)
