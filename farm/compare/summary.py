"""One verdict and exit code of all pairs of a comparison: head against base, b against a.  Pure.

Exit codes, the first that applies: 3 where the farm or its devices kept results back, 1 for what b made worse, 4 where
too much is undecided, 0.  What fails in both arms is not b's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from farm.compare.decide import Verdict

#: Of the cells of one affected kernel, the share that may be undecided.
UNDECIDED = 0.05
_OPEN = (Verdict.INCONCLUSIVE, Verdict.UNFIT)


@dataclass(frozen=True)
class Pair:
    """A cell of both arms.

    status: broken, fixed, failing (in both), new, lost, unlike, neither (run in either arm) or same, as the statuses of
    both arms compare; withheld: an arm has no result for the farm's or the device's sake; time: what the rounds say,
    None where it was not timed; kernels: those that it launches and that differ between the arms (unknown ones count).
    """

    cell: str
    op: str
    status: str = "same"
    withheld: bool = False
    fails: bool = False  # in b, as a subject
    time: Verdict | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """Of all pairs: name (worse, not covered, not worse, inconclusive, infrastructure failures; of identical code false
    alarms or no false alarm), exit code, and one sentence each for what led to it.  Not covered: no cell launched a
    changed kernel."""

    name: str
    exit_code: int
    why: tuple[str, ...]

    @property
    def for_bisect(self) -> int:
        """The exit code that git bisect understands: 0 good, 1 bad, 125 to skip.  A commit is not bad because it
        changed a kernel that no cell launches."""
        return {"worse": 1, "not covered": 0, "not worse": 0}.get(self.name, 125)


def summary(pairs: Sequence[Pair], unreached: Sequence[str] = ()) -> Summary:
    """The verdict.  `unreached`: changed kernels that no cell launched, about which nothing is known."""
    worse, uncovered = _worse(pairs), _uncovered(unreached)
    withheld = [p.cell for p in pairs if p.withheld]
    if withheld:
        why = f"{_cells(len(withheld))} without a result, an infrastructure failure: first {withheld[0]}"
        return Summary("infrastructure failures", 3, (why, *worse, *uncovered))
    if worse or uncovered:
        return Summary("worse" if worse else "not covered", 1, (*worse, *uncovered))
    undecided = _undecided(pairs)
    if undecided:
        return Summary("inconclusive", 4, tuple(undecided))
    return Summary("not worse", 0, tuple(_remaining(pairs)))


def of_identical(pairs: Sequence[Pair]) -> Summary:
    """The verdict where both arms are the same code: any difference is one of the environment, or of the rule."""
    first = summary(pairs)
    if first.exit_code == 3:
        return first
    apart = [p.cell for p in pairs if p.status not in ("same", "failing", "neither", "unlike")]
    changed = [p.cell for p in pairs if p.time in (Verdict.REGRESSED, Verdict.IMPROVED)]
    why = [f"{_cells(len(apart))} passed in one arm only: first {apart[0]}"] if apart else []
    why += [f"{_cells(len(changed))} called changed: first {changed[0]}"] if changed else []
    if why:
        return Summary("false alarms", 1, tuple(why))
    return first if first.exit_code else Summary("no false alarm", 0, first.why)


def _worse(pairs: Sequence[Pair]) -> list[str]:
    out = []
    broken = [p.cell for p in pairs if p.fails and p.status in ("broken", "new")]
    slower = [p.cell for p in pairs if p.time is Verdict.REGRESSED]
    if broken:
        out.append(f"{_cells(len(broken))} broken: first {broken[0]}")
    if slower:
        out.append(f"{_cells(len(slower))} regressed: first {slower[0]}")
    return out


def _uncovered(unreached: Sequence[str]) -> list[str]:
    if len(unreached) > 1:
        return [f"{len(unreached)} changed kernels were launched by no cell: first {unreached[0]}"]
    return [f"the changed kernel {name} was launched by no cell" for name in unreached]


def _undecided(pairs: Sequence[Pair]) -> list[str]:
    """Where too much of a kernel's or an op's cells is undecided, or nothing was compared at all."""
    compared = [p for p in pairs if p.status in ("same", "fixed", "failing", "broken") and not p.withheld]
    if not compared:
        return ["no cell has a result in both arms"]
    out = []
    timed = [p for p in pairs if p.time is not None]
    groups = {("kernel", name): [p for p in timed if name in p.kernels] for p in timed for name in p.kernels}
    for (what, name), members in groups.items():
        open_ = sum(p.time in _OPEN for p in members)
        if open_ > UNDECIDED * len(members):
            out.append(f"{what} {name}: {open_} of {_cells(len(members))} undecided")
    for op in dict.fromkeys(p.op for p in timed):
        members = [p for p in timed if p.op == op]
        if all(p.time in _OPEN for p in members):
            out.append(f"op {op}: all of its {_cells(len(members))} undecided")
    return out


def _remaining(pairs: Sequence[Pair]) -> list[str]:
    counts = Counter(p.time for p in pairs if p.time is not None)
    out = []
    if counts[Verdict.IMPROVED]:
        out.append(f"{_cells(counts[Verdict.IMPROVED])} improved")
    if fixed := sum(p.status == "fixed" for p in pairs):
        out.append(f"{_cells(fixed)} fixed")
    if failing := sum(p.status == "failing" for p in pairs):
        out.append(f"{_cells(failing)} failing in both arms")
    if open_ := sum(counts[v] for v in _OPEN):
        out.append(f"{open_} of {_cells(sum(counts.values()))} undecided")
    return out


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"
