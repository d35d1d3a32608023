"""Past verdicts measured again: which are drawn, which were overturned, and how often that happens at most.  Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.compare.decide import Verdict
from farm.compare.intervals import upper_bound

LEVEL = 0.95
#: What says something about a cell's time; `inconclusive` and `unfit` are no verdicts.
DECIDED = (Verdict.REGRESSED.value, Verdict.IMPROVED.value, Verdict.SAME.value)
MEASURED = ("executed", "simulated")
#: Of statuses, only what a comparison would block for.
BROKEN = "broken"


@dataclass(frozen=True)
class Past:
    """A verdict of a run on a cell.  said: broken, or one of DECIDED; ratio: time of b over that of a."""

    run: str
    cell: str
    target: str
    said: str
    ratio: float | None = None


@dataclass(frozen=True)
class Again:
    """The same, measured again.  said: as there, or "" where nothing was decided, and `why` not."""

    past: Past
    said: str
    ratio: float | None = None
    why: str = ""

    @property
    def overturned(self) -> bool:
        return bool(self.said) and self.said != self.past.said


def said_of(pair: Mapping[str, Any]) -> str:
    """The verdict of a row of pairs.parquet; "" for none that could be overturned: a peer's, a control's, one that
    was not decided, or was computed by the interpreter."""
    if pair.get("role") == "peer" or pair.get("control") or pair.get("evidence") not in MEASURED:
        return ""
    if pair.get("change") == BROKEN:
        return BROKEN
    verdict = str(pair.get("verdict") or "")
    return verdict if verdict in DECIDED else ""


def past(run: str, pairs: Iterable[Mapping[str, Any]]) -> list[Past]:
    """The verdicts of a run."""
    return [
        Past(run, str(p["cell"]), str(p.get("target") or ""), said, p.get("ratio"))
        for p in pairs
        if (said := said_of(p))
    ]


def drawn(every: Sequence[Past], share: float, seed: int) -> list[Past]:
    """A share of all verdicts, at least one; the same ones for the same seed and store."""
    ordered = sorted(every, key=lambda v: (v.run, v.cell, v.target))
    count = min(len(ordered), max(1, round(share * len(ordered))))
    chosen = random.Random(seed).sample(range(len(ordered)), count)
    return [ordered[i] for i in sorted(chosen)]


def answers(asked: Sequence[Past], pairs: Iterable[Mapping[str, Any]]) -> list[Again]:
    """What a second run of the same arms says of these verdicts."""
    known = {str(p["cell"]): p for p in pairs}
    out = []
    for one in asked:
        found = known.get(one.cell)
        said, why = said_of(found) if found else "", ""
        if found is None:
            why = "the cell has no result"
        elif str(found.get("target") or "") != one.target:
            said, why = "", f"it ran on {found.get('target') or 'nothing'}, not on {one.target or 'the same'}"
        elif one.said == BROKEN and not said and found.get("change") in ("same", "fixed"):
            said = Verdict.SAME.value  # both arms pass, whatever their times are
        elif not said:
            why = f"it is {found.get('verdict') or found.get('change') or 'not decided'} now"
        elif one.said == BROKEN and said != BROKEN:
            said = Verdict.SAME.value
        out.append(Again(one, said, found.get("ratio") if found else None, why))
    return out


def at_most(overturned: int, of: int, level: float = LEVEL) -> float:
    """The largest share of overturned verdicts that is compatible with this count; 1 where nothing was measured."""
    found = upper_bound(overturned, of, level)
    return 1.0 if found is None else found
