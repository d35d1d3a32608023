"""Two runs compared by the statuses of their cells: what broke, what was fixed, what is new.  Pure.

The runs are joined by (cell's key, named target), from both sides.  Times are compared by `time_changes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.report.format import FARM_FAULTS, HARM, cells, label
from farm.report.queries import Row, RunLike, as_shown, is_finding, is_subject, parse
from farm.store.results import place

#: Kinds of change, in the order in which they are shown.
CHANGES: Mapping[str, str] = {
    "broken": "passed in A, fails in B",
    "new": "has a result only in B",
    "lost": "has a result only in A",
    "fixed": "failed in A, passes in B",
    "failing": "fails in both",
    "unlike": "not compared: the two results prove different things",
    "same": "passes in both, or has no result in either",
}
GOOD = ("passed", "built")
MAX_SHOWN = 20  # cells of each kind
Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """A cell in both runs.  `before` and `after`: its rows, None where the run did not plan it; `counts`: whether its
    failure in B is one of code under test."""

    kind: str
    before: Row | None
    after: Row | None
    counts: bool

    @property
    def row(self) -> Row:
        found = self.after if self.after is not None else self.before
        assert found is not None
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "cell_id": self.row.get("cell_id"),
            "cell_key": self.row.get("cell_key"),
            "role": self.row.get("role"),
            "change": self.kind,
            "before": self.before.get("status") if self.before is not None else None,
            "after": self.after.get("status") if self.after is not None else None,
            "reason": self.row.get("reason") or "",
        }


@dataclass(frozen=True)
class Comparison:
    """Run B against run A.  `notes`: in what the runs are unlike, as sentences."""

    before: str
    after: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    verdict: str
    exit_code: int

    def of(self, kind: str) -> list[Change]:
        return [c for c in self.changes if c.kind == kind]

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "compares": "statuses",
            "notes": list(self.notes),
            "counts": {kind: len(self.of(kind)) for kind in CHANGES},
            "changes": [c.to_dict() for c in self.changes if c.kind != "same"],
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def compare(before: RunLike, after: RunLike) -> Comparison:
    """Compare two runs.  Each cell that one of them planned is in exactly one change."""
    a, b = as_shown(before), as_shown(after)
    left, right = _by_key(a), _by_key(b)
    changes = tuple(_change(b, left.get(key), right.get(key)) for key in {**left, **right})
    verdict, code = _verdict(changes)
    return Comparison(before.id, after.id, changes, tuple(_notes(a, b, changes)), verdict, code)


def _by_key(run: RunLike) -> dict[Key, Row]:
    return {(str(r.get("cell_key")), place(r).partition("@")[2]): r for r in run.rows}


def _change(run: RunLike, before: Row | None, after: Row | None) -> Change:
    return Change(change(before, after), before, after, after is not None and is_finding(run, after))


def change(before: Row | None, after: Row | None) -> str:
    """One of CHANGES, of two results of one cell, or None where there is none."""
    had, has = _outcome(before), _outcome(after)
    kind = {
        ("good", "bad"): "broken",
        ("bad", "good"): "fixed",
        ("bad", "bad"): "failing",
        ("good", "good"): "same",
        ("", ""): "same",
    }.get((had, has)) or ("new" if has else "lost")
    if had and has and before is not None and after is not None and before.get("evidence") != after.get("evidence"):
        return "unlike"
    return kind


def _outcome(row: Row | None) -> str:
    """`good`, `bad`, or "" for a cell without a result: unplanned, skipped, unsupported, lost, an infrastructure
    failure."""
    status = str(row.get("status")) if row is not None else ""
    return "good" if status in GOOD else "bad" if status in HARM else ""


def _verdict(changes: Sequence[Change]) -> tuple[str, int]:
    """(name, exit code): 3 where infrastructure failures hide a result that A had, 1 where a subject's cell is broken
    or newly fails, 4 where nothing is compared or a subject's cell that B planned has lost its result, 0."""
    lost = [c for c in changes if c.kind == "lost" and c.after is not None]
    if any(c.after is not None and c.after.get("status") in (*FARM_FAULTS, "pending") for c in lost):
        return "infrastructure failures", 3
    if any(c.counts and c.kind in ("broken", "new") for c in changes):
        return "worse", 1
    compared = [c for c in changes if c.kind in ("broken", "fixed", "failing", "same") and _outcome(c.after)]
    if not compared or any(is_subject(c.row) for c in lost):
        return "inconclusive", 4
    return "not worse", 0


def _notes(a: RunLike, b: RunLike, changes: Sequence[Change]) -> Iterator[str]:
    """In what the two runs are unlike."""
    mine, theirs = _matrices(a), _matrices(b)
    for name in sorted(mine.keys() ^ theirs.keys()):
        yield f"matrix {name} is only in {'A' if name in mine else 'B'}"
    if unlike := sorted(n for n in mine.keys() & theirs.keys() if mine[n] != theirs[n]):
        yield f"the matrices differ: {', '.join(unlike)}; cells with another key are new or lost"
    for name, alone in (("A", [c for c in changes if not c.after]), ("B", [c for c in changes if not c.before])):
        if alone and len(alone) < len(changes):
            verb = "is" if len(alone) == 1 else "are"
            yield f"{cells(len(alone))} {verb} planned only in {name}, first {alone[0].row.get('cell_id')}"
    for run, name in ((a, "A"), (b, "B")):
        if not run.complete:
            yield f"{name} is not complete"
    if not any(c.before is not None and c.after is not None for c in changes):
        yield "the runs have no cell in common"
    judges = [{str(r.get("judged_by")) for r in run.rows if r.get("judged_by")} for run in (a, b)]
    if all(judges) and judges[0] != judges[1]:
        yield "the runs were judged by different contracts or judges; farm judge judges a run again"
    providers = [run.head.get("providers") or {} for run in (a, b)]
    for name in sorted(providers[0].keys() & providers[1].keys()):
        if providers[0][name].get("sha256") != providers[1][name].get("sha256"):
            yield f"the files of provider {name} differ"
    if devices := _devices(a, b):
        yield devices
    bits = [c for c in changes if c.kind == "same" and _bits(c)]
    if bits:
        yield f"{cells(len(bits))} passed in both with different output bits, first {bits[0].row.get('cell_id')}"


def _bits(change: Change) -> bool:
    """Whether the same inputs gave other outputs."""
    a, b = change.before, change.after
    if a is None or b is None or not (a.get("output_hash") and b.get("output_hash")):
        return False
    return a.get("input_hash") == b.get("input_hash") and a["output_hash"] != b["output_hash"]


def _matrices(run: RunLike) -> dict[str, str]:
    return {str(m.get("name")): str(m.get("sha256")) for m in run.head.get("matrices") or []}


def _devices(a: RunLike, b: RunLike) -> str:
    """What stands in the way of comparing further: other targets or tool chains."""
    tools = ("torch", "triton", "driver")
    seen = [
        {(r.get("target"), *(parse(r.get("fingerprint")).get(n) for n in tools)) for r in run.rows if _outcome(r)}
        for run in (a, b)
    ]
    both = all(seen) and seen[0] != seen[1]
    return "the runs used different targets, drivers or versions of torch and triton" if both else ""


# as text


def lines(found: Comparison, limit: int = MAX_SHOWN) -> Iterator[str]:
    """Counts, notes, and the first `limit` cells of each kind that a reader has to look at.  Cells that one of the runs
    did not plan are one line."""
    yield f"A {found.before}"
    yield f"B {found.after}"
    yield from (f"note: {note}" for note in found.notes)
    for kind, what in CHANGES.items():
        of = found.of(kind)
        if of:
            yield f"{kind}: {cells(len(of))} ({what})"
        shown = [c for c in of if kind != "same" and ((c.before and c.after) or c.counts)]
        yield from (f"  {_line(change)}" for change in shown[:limit])
        if len(shown) > limit:
            yield f"  and {len(shown) - limit} more (--limit, or --json, shows them)"
        alone = [c for c in of if kind in ("new", "lost") and not c.counts and not (c.before and c.after)]
        if alone:
            other = "B" if kind == "lost" else "A"
            yield f"  {cells(len(alone))} not planned in {other}, first {alone[0].row.get('cell_id')}"


def ending(found: Comparison) -> str:
    """The last line: the verdict, which rests on statuses alone."""
    return f"{found.verdict}: exit {found.exit_code}"


def _line(change: Change) -> str:
    a, b = (label(str(r.get("status"))) if r is not None else "not planned" for r in (change.before, change.after))
    peer = "" if is_subject(change.row) else " (peer)"
    reason = str(change.row.get("reason") or "")
    return f"{change.row.get('cell_id')}{peer}: {a} -> {b}{': ' + reason if reason and a != b else ''}"[:400]
