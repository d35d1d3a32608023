"""What stage 0 says of two arms: decided from kernels, rows and launches, as data and as text.  Pure.

A backend is *not touched* where every planned cell was built in both arms, launches the same kernels over the same
grids, and all of them are the same machine code.  What could not be built or read is *unknown*, never *not touched*.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.cell import FARM_FAULTS, FINDINGS, Status
from farm.compare.built_files import BuiltChange
from farm.compare.kernel_changes import Change
from farm.compare.reach import Launch, Reached, reach
from farm.compare.summary import Pair, Summary, summary
from farm.compile.diff import Difference, compare
from farm.report.status_changes import change

Row = Mapping[str, Any]
CPU = "cpu"
_SHOWN, _FILES, _STATUSES = 3, 8, 12
Told = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Side:
    """One arm as stage 0 saw it.  `built` and `interpreted`: rows of cells, whose ids are alike in both arms; None for
    what was not asked for."""

    called: str
    revision: str
    digest: str
    built: Sequence[Row] | None = None
    interpreted: Sequence[Row] | None = None
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.called} (revision {self.revision or 'none'}, digest {self.digest})"

    def rows(self) -> list[Row]:
        return [*(self.built or ()), *(self.interpreted or ())]


@dataclass(frozen=True)
class TargetAnswer:
    """Machine code for one target.  `state`: not touched, touched or unknown.  `chain`: what it was compiled with."""

    target: str
    state: str
    cells: int
    same: int
    unread: Mapping[str, int]  # reason -> cells
    difference: Difference
    chain: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """One sentence."""
        unread = sum(self.unread.values())
        if self.state == "not touched":
            return f"not touched: the same kernels and machine code in all {_cells(self.cells)} of this comparison"
        differ = self.cells - self.same - unread
        told = [f"{differ} of {_cells(self.cells)} differ"] if differ else []
        told += [f"{self.same} with the same machine code"] if self.same else []
        told += [f"{unread} could not be read"] if unread else []
        return f"{self.state}: {', '.join(told) or 'no cell was planned'}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with every change and every cell."""
        told = {"state": self.state, "cells": self.cells, "same": self.same, "unread": dict(self.unread)}
        return {**told, "chain": dict(self.chain), "notes": list(self.notes), "difference": self.difference.to_dict()}


@dataclass(frozen=True)
class Moved:
    """A cell whose interpreted results differ: `what` (bits, bytes or error) with its value in a and in b."""

    cell: str
    what: str
    before: Any
    after: Any


@dataclass(frozen=True)
class CpuAnswer:
    """The interpreted cells that have a result in both arms: how many, with equal bits, and what moved."""

    compared: int
    equal: int
    unknown: int  # cells with outputs in both arms that cannot be held side by side
    bytes_same: int
    bytes_known: int
    moved: tuple[Moved, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {"compared": self.compared, "equal_bits": self.equal, "unknown": self.unknown}
        own |= {"bytes_same": self.bytes_same, "bytes_known": self.bytes_known}
        moved = [{"cell": m.cell, "what": m.what, "a": m.before, "b": m.after} for m in self.moved]
        return {**own, "moved": moved}


@dataclass(frozen=True)
class Answer:
    """All of it.  `counts`: kernels by state; `host`, `other`: Python and other files that differ beside kernels."""

    sides: tuple[Side, Side]
    counts: Mapping[str, int]
    kernels: tuple[Reached, ...]
    host: tuple[str, ...]
    other: tuple[str, ...]
    targets: tuple[TargetAnswer, ...]
    cpu: CpuAnswer | None
    statuses: tuple[Told, ...]  # (kind, cell, status in a, in b, reason)
    summary: Summary
    built: tuple[BuiltChange, ...] = ()  # files of machine code that differ

    @property
    def exit_code(self) -> int:
        return self.summary.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Plain data, complete."""
        arms = {n: {"called": s.called, "revision": s.revision, "digest": s.digest} for n, s in zip("ab", self.sides)}
        names = ("change", "cell", "a", "b", "reason")
        return {
            "arms": arms,
            "notes": list(self.notes()),
            "kernels": {"counts": dict(self.counts), "not_same": [r.to_dict() for r in self.kernels]},
            "host_files": list(self.host),
            "other_files": list(self.other),
            "built_files": [vars(one) for one in self.built],
            "targets": {t.target: t.to_dict() for t in self.targets},
            "cpu": self.cpu.to_dict() if self.cpu else None,
            "statuses": [dict(zip(names, s)) for s in self.statuses],
            "verdict": self.summary.name,
            "why": list(self.summary.why),
            "exit_code": self.exit_code,
        }

    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for s in self.sides for n in s.notes))

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.summary.name}: exit {self.exit_code}"
        yield from (f"  {why}" for why in self.summary.why[:_FILES])
        if len(self.summary.why) > _FILES:
            yield f"  and {len(self.summary.why) - _FILES} more reasons (--json)"
        for name, side in zip("ab", self.sides):
            yield f"{name}: {side.line}"
        yield from (f"note: {note}" for note in self.notes())
        yield ""
        yield from self._kernel_lines()
        for target in self.targets:
            yield ""
            chain = ", ".join(f"{name} {version}" for name, version in target.chain.items())
            yield f"{target.target} {target.statement}{f' (compiled by {chain})' if chain else ''}"
            yield from (f"  note: {note}" for note in target.notes)
            yield from (f"  {_cells(count)} not read: {why}" for why, count in _most(target.unread))
            yield from (f"  {line}" if line else "" for line in target.difference.change_lines())
        if self.cpu:
            yield ""
            yield from _cpu_lines(self.cpu)
        yield from self._status_lines()

    def _kernel_lines(self) -> Iterator[str]:
        told = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        yield f"kernels: {told or 'none were found'}"
        apart: dict[str, list[Reached]] = {}
        for one in self.kernels:
            if not one.cells and not one.through:
                apart.setdefault(_reached(one), []).append(one)
                continue
            why = f": {', '.join(one.change.why[:_SHOWN])}" if one.change.why else ""
            yield f"  {one.change.state} {_named(one)}{why}"
            yield f"    {_reached(one)}"
        for said, kernels in apart.items():
            yield f"  {said}:"
            yield from (f"    {one.change.state} {_named(one)}" for one in kernels[:_FILES])
            if len(kernels) > _FILES:
                yield f"    and {len(kernels) - _FILES} more (--json)"
        for title, verb, names in (("host code", "differs", self.host), ("other files", "differ", self.other)):
            if names:
                more = f" and {len(names) - _FILES} more" if len(names) > _FILES else ""
                yield f"{title} {verb} in {', '.join(_place(n) for n in names[:_FILES])}{more}"
        if self.built:
            yield "built files differ, by function (a host function at another address has other bytes, too):"
        yield from (f"  {_place(one.text)}"[:500] for one in self.built[:_FILES])
        if len(self.built) > _FILES:
            yield f"  and {len(self.built) - _FILES} more (--json)"

    def _status_lines(self) -> Iterator[str]:
        alike: dict[Told, list[str]] = {}
        for kind, cell, a, b, reason in self.statuses:
            alike.setdefault((kind, a, b, reason, ""), []).append(cell)
        for (kind, a, b, reason, _), cells in list(alike.items())[:_STATUSES]:
            more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
            yield f"{kind}: {a} -> {b} in {cells[0]}{more}{f': {reason}' if reason else ''}"[:400]
        if len(alike) > _STATUSES:
            yield f"and {len(alike) - _STATUSES} more groups of cells with another status, or failing in both (--json)"


# deciding


def answer(
    a: Side,
    b: Side,
    changes: Sequence[Change],
    host: Sequence[str],
    other: Sequence[str],
    targets: Sequence[str] = (),
    chains: Mapping[str, Mapping[str, str]] | None = None,
    unlike: Mapping[str, tuple[str, ...]] | None = None,
    named: bool = False,
    built: Sequence[BuiltChange] = (),
) -> Answer:
    """All of it.  `targets`: names, as cells' ids end (`@sm_90`).  `chains`: of a target its tool chain; `unlike`: of a
    target what a reader has to know of it.  `named`: somebody named the cells, so that what they do not launch is no
    finding."""
    reached = tuple(reach(changes, launches(a.rows()), launches(b.rows())))
    pairs, statuses = _paired(a, b, reached)
    code = [_target(name, a, b, dict((chains or {}).get(name, {})), (unlike or {}).get(name, ())) for name in targets]
    cpu = _cpu(a.interpreted, b.interpreted) if a.interpreted is not None and b.interpreted is not None else None
    verdict = _verdict(pairs, reached, named)
    counts = dict(Counter(c.state for c in changes).most_common())
    return Answer((a, b), counts, reached, tuple(host), tuple(other), tuple(code), cpu, statuses, verdict, tuple(built))


def _verdict(pairs: Sequence[Pair], reached: Sequence[Reached], named: bool) -> Summary:
    """As of any comparison; but that nothing is worse takes a cell that has a result, and no changed kernel whose
    launches cannot be seen."""
    unreached = [f"{r.change.name} ({_place(r.kernel.path)})" for r in reached if r.finding and not named]
    found = summary(pairs, unreached)
    if found.exit_code:
        return found
    open_ = [f"the changed kernel {r.change.name}: {_reached(r)}" for r in reached if r.state == "unseen"]
    if all(p.status == "failing" for p in pairs):
        open_.insert(0, f"all {_cells(len(pairs))} fail in both arms")
    return Summary("inconclusive", 4, tuple(open_)) if open_ else found


def launches(rows: Sequence[Row]) -> dict[str, list[Launch]]:
    """Cell -> what it launched: of a compiled cell what was built for it, of an interpreted one what ran."""
    out: dict[str, list[Launch]] = {}
    for row in rows:
        told = [*json.loads(row.get("resources") or "[]"), *_variants(row)]
        found = [Launch(str(t["kernel"]), str(t.get("module", "")), _constants(t.get("constants"))) for t in told]
        if found:
            out[str(row["cell_id"])] = list(dict.fromkeys(found))
    return out


def _variants(row: Row) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = json.loads(row.get("launch") or "{}").get("variants", ())
    return found


def _constants(given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((str(k), v) for k, v in (given or {}).items())


def _paired(a: Side, b: Side, reached: Sequence[Reached]) -> tuple[list[Pair], tuple[Told, ...]]:
    """Every cell that has a result in one of the arms, and those whose status a reader has to look at."""
    differing: dict[str, list[str]] = {}
    for one in reached:
        for cell in one.all_cells:
            differing.setdefault(cell, []).append(one.change.name)
    before, after = ({str(r["cell_id"]): r for r in side.rows()} for side in (a, b))
    pairs: list[Pair] = []
    statuses: list[Told] = []
    for cell in {**before, **after}:
        x, y = before.get(cell), after.get(cell)
        row: Row = (y or x) or {}
        kind = change(x, y)
        withheld = any(r is not None and Status(r["status"]) in FARM_FAULTS for r in (x, y))
        if kind == "same" and not withheld and not _proves(row):
            continue  # unsupported or skipped in both: nothing to compare
        fails = y is not None and Status(y["status"]) in FINDINGS and y.get("role") != "peer"
        pairs.append(Pair(cell, str(row["op"]), kind, withheld, fails, kernels=tuple(differing.get(cell, ()))))
        if kind != "same" or withheld:
            told = (str(r["status"]) if r else "not planned" for r in (x, y))
            why = row.get("reason") or (x or {}).get("reason") or ""
            statuses.append((kind, cell, *told, str(why)))  # type: ignore[arg-type]
    return pairs, tuple(statuses)


def _proves(row: Row) -> bool:
    return Status(row["status"]) in (Status.PASSED, Status.BUILT)


def _target(name: str, a: Side, b: Side, chain: Mapping[str, str], notes: tuple[str, ...]) -> TargetAnswer:
    skipped = Status.SKIPPED.value
    sides = [
        [r for r in side.built or () if str(r["cell_id"]).endswith(f"@{name}") and r["status"] != skipped]
        for side in (a, b)
    ]
    found = compare((a.called, b.called), *sides)
    unread: Counter[str] = Counter()
    rows = [{str(r["cell_id"]): r for r in side} for side in sides]
    for cell, state in found.cell_states.items():
        if state == "unread":
            unread[_unread(rows[0][cell], rows[1][cell])] += 1
    alone = rows[0].keys() ^ rows[1].keys()
    if alone:
        unread["planned in one arm only"] += len(alone)
    cells = len(rows[0].keys() | rows[1].keys())
    touched = any(state in ("differs", "rewritten") for state in found.cell_states.values())
    state = "touched" if touched else "unknown" if unread or not cells else "not touched"
    return TargetAnswer(name, state, cells, found.same, dict(unread), found, chain, notes)


def _unread(a: Row, b: Row) -> str:
    """Why a cell's code was not read."""
    row = a if a["status"] != Status.BUILT.value else b
    return f"{row['status']}{': ' + str(row['reason']) if row['reason'] else ''}"[:200]


def _cpu(a: Sequence[Row], b: Sequence[Row]) -> CpuAnswer:
    before, after = ({str(r["cell_id"]): r for r in rows} for rows in (a, b))
    both = [
        (before[c], after[c])
        for c in before
        if c in after and after[c].get("output_hash") and before[c].get("output_hash")
    ]
    comparable = [(x, y) for x, y in both if x.get("input_hash") == y.get("input_hash")]
    moved: list[Moved] = []
    for x, y in comparable:
        if x["output_hash"] != y["output_hash"]:
            moved.append(Moved(str(x["cell_id"]), "bits", x["output_hash"], y["output_hash"]))
            moved.append(Moved(str(x["cell_id"]), "error", x.get("worst_ratio"), y.get("worst_ratio")))
    counted = [(x, y) for x, y in comparable if None not in (x.get("bytes_counted"), y.get("bytes_counted"))]
    moved += [
        Moved(str(x["cell_id"]), "bytes", x["bytes_counted"], y["bytes_counted"])
        for x, y in counted
        if x["bytes_counted"] != y["bytes_counted"]
    ]
    differ = sum(m.what == "bits" for m in moved)
    bytes_same = len(counted) - sum(m.what == "bytes" for m in moved)
    unknown = len(both) - len(comparable)
    return CpuAnswer(len(comparable), len(comparable) - differ, unknown, bytes_same, len(counted), tuple(moved))


# as text


def _named(one: Reached) -> str:
    return f"{one.change.name} ({_place(one.kernel.path)}:{one.kernel.line})"


def _reached(one: Reached) -> str:
    if one.state == "unseen":
        return f"unknown, since launches of {one.kernel.language} kernels are not seen without a device"
    if one.change.state == "gone":
        return f"was launched by {_cells(len(one.all_cells))} of arm a" if one.all_cells else "launched by no cell of a"
    if one.state == "unreached":
        return "launched by no cell, so nothing is known about it"
    if one.through:
        return f"used by {', '.join(one.through[:_SHOWN])}, which cells launched"
    told = [f"{name} ({_cells(len(cells))})" for name, cells in _distinct(one.cells).items()]
    more = f", and {len(told) - _SHOWN} more specialisations" if len(told) > _SHOWN else ""
    return f"launched by {_cells(len(one.all_cells))}: {'; '.join(told[:_SHOWN])}{more}"


def _distinct(cells: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Specialisations by the constants in which they differ; of one alone by all of them."""
    split = {name: name.split(", ") for name in cells}
    alike = set.intersection(*(set(parts) for parts in split.values())) if len(split) > 1 else set()
    return {", ".join(p for p in split[name] if p not in alike) or "as ever": found for name, found in cells.items()}


def _cpu_lines(cpu: CpuAnswer) -> Iterator[str]:
    told = f"cpu: bits are equal in {cpu.equal} of {_cells(cpu.compared)}"
    counted = f", bytes moved are equal in {cpu.bytes_same} of {cpu.bytes_known}" if cpu.bytes_known else ""
    yield f"{told}{counted}{f', {cpu.unknown} had other inputs' if cpu.unknown else ''} (interpreted)"
    for what, words in (("bytes", "bytes moved"), ("error", "worst error, in tolerances")):
        found = [m for m in cpu.moved if m.what == what and m.before != m.after]
        found.sort(key=lambda m: -_change(m.before, m.after))
        for one in found[:_SHOWN]:
            yield f"  {words}: {_number(one.before)} -> {_number(one.after)} in {one.cell}"
        if len(found) > _SHOWN:
            yield f"  and in {len(found) - _SHOWN} more"


def _change(a: Any, b: Any) -> float:
    if a is None or b is None:
        return float("inf")
    return abs(float(b) - float(a)) / max(abs(float(a)), abs(float(b)), 1e-30)


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _place(path: str) -> str:
    return path.removeprefix("overlay/")


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return Counter(counts).most_common(_SHOWN)


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"
