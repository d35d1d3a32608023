"""Which runs of a store may go, and why each other one stays.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Old:
    """A run: `row`, what it is a night of (its kind and matrices); `uses`: (run, why) that its own data refer to."""

    id: str
    created: str
    row: tuple[str, ...]
    uses: tuple[tuple[str, str], ...] = ()


def reasons(runs: Sequence[Old], nights: int, fixed: Mapping[str, str], baselines: Mapping[str, str]) -> dict[str, str]:
    """Run -> why it is kept; what is not in it may go.

    nights: so many of the newest runs of each row are kept; fixed: runs that are kept whatever their age, with the
    reason; baselines: run -> the one that it is compared with.  What a kept run's data refer to is kept as well, and
    what that refers to.  Of what only a baseline keeps, no further baseline is kept: else a row would never end.
    """
    out = dict(fixed)
    rows: dict[tuple[str, ...], list[Old]] = {}
    for run in sorted(runs, key=lambda r: (r.created, r.id), reverse=True):
        rows.setdefault(run.row, []).append(run)
    for those in rows.values():
        for place, run in enumerate(those[:nights]):
            out.setdefault(run.id, "the newest of its row" if not place else f"one of the newest {nights} of its row")
    for name in list(out):
        if (before := baselines.get(name)) and before not in out:
            out[before] = f"the baseline of {name}"
    known = {run.id: run for run in runs}
    waiting = list(out)
    while waiting:
        name = waiting.pop()
        for used, why in known[name].uses if name in known else ():
            if used not in out:
                out[used] = f"{why} {name}"
                waiting.append(used)
    return out
