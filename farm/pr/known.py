"""Base's known failures in a pull request: what they excuse of head, what became of them, and the words.  Pure.

A known failure changes the verdict and the exit code, never a status.  It counts apart while it fails and its day has
not passed.  What head fixes is a finding until its entry is removed, which head may do itself: an entry less excuses
nothing.  What head adds or changes does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farm.cell import Cell
from farm.matrix.known import KnownFailure
from farm.matrix.rules import lookup
from farm.report.format import cells, clip, count
from farm.report.markdown import plain

Json = Mapping[str, Any]
#: What becomes of an entry, the first of several sites' that counts.
STATES = ("expired", "covers", "fixed", "removed", "idle")
SHOWN = 5


def key(entry: KnownFailure) -> tuple[str, tuple[str, ...]]:
    """What makes an entry the same in base and in head."""
    return str(entry.rule), tuple(sorted(entry.statuses))


class Known:
    """The entries of base.  `removed`: the keys of those that head removes; `today`: ISO."""

    def __init__(self, entries: Sequence[KnownFailure], removed: Iterable[Any], today: str):
        self._entries, self._removed, self._today = entries, frozenset(removed), today

    def excuse(self, cell: Cell, status: str) -> str:
        """The file and line of the entry that explains a failure today; "" for none."""
        get = lookup(cell)
        found = (e for e in self._entries if status in e.statuses and e.until >= self._today and e.rule.holds(get))
        return next((e.where[:300] for e in found), "")

    def told(self, rows: Iterable[tuple[Cell, str, str]], whole: bool) -> list[dict[str, Any]]:
        """What became of each entry, as result.json has it.  `rows`: each cell with its status in base and in head;
        `whole`: whether all cells of the matrices ran, so that an entry none of whose cells fails is fixed."""
        found = list(rows)
        return [self._one(entry, found, whole) for entry in self._entries]

    def _one(self, entry: KnownFailure, rows: Iterable[tuple[Cell, str, str]], whole: bool) -> dict[str, Any]:
        mine = [(a, b) for cell, a, b in rows if entry.rule.holds(lookup(cell))]
        failing = sum(b in entry.statuses for _, b in mine)
        solved = sum(a in entry.statuses and b == "passed" for a, b in mine)
        state = "idle"
        if failing:
            state = "expired" if entry.until < self._today else "covers"
        elif solved and whole:
            state = "removed" if key(entry) in self._removed else "fixed"
        return {
            "match": str(entry.rule)[:300],
            "reason": entry.reason[:1000],
            "owner": entry.owner[:300],
            "until": entry.until,
            "where": entry.where[:300],
            "state": state,
            "cells": failing or solved,
        }


def merged(a: Sequence[Json], b: Sequence[Json]) -> list[Json]:
    """The entries of two sites."""
    out = {entry["where"]: entry for entry in a}
    for entry in b:
        mine = out.setdefault(entry["where"], entry)
        if STATES.index(entry["state"]) < STATES.index(mine["state"]):
            out[entry["where"]] = entry
    return list(out.values())


def fixed(result: Json) -> list[Json]:
    """The entries that head makes out of date, and leaves."""
    return [entry for entry in result.get("known") or () if entry["state"] == "fixed"]


def findings(result: Json, say: Callable[[str], str] = str) -> list[str]:
    """What fails the check of them; `say` makes foreign words harmless where they will be read."""
    stale = fixed(result)
    if not stale:
        return []
    first = f"first {say(stale[0]['where'])}" if len(stale) > 1 else say(stale[0]["where"])
    what = (
        "1 known failure that head fixes is" if len(stale) == 1 else f"{len(stale)} known failures that head fixes are"
    )
    return [f"{what} still listed: remove {first} (owner: {say(stale[0]['owner'])})"]


def words(result: Json) -> list[str]:
    """A paragraph of a comment: what failed as base's known failures say, and which of these are out of date."""
    entries = result.get("known") or ()
    excused: dict[str, list[Json]] = {}
    for p in result["pairs"]:
        if p.get("known"):
            excused.setdefault(p["known"], []).append(p)
    compiled = [f for t in (result["static"] or {"targets": ()})["targets"] for f in t["failed"] if f.get("known")]
    out = []
    for entry in entries:
        rows = excused.get(entry["where"], [])
        alike = sum(f["known"] == entry["where"] for f in compiled)
        of = f" ({plain(clip(entry['reason'], 200))}; owner {plain(entry['owner'])}, until {plain(entry['until'])})"
        what = [f"{cells(len(rows))}, first {plain(rows[0]['cell'])}"] if rows else []
        what += [f"{cells(alike)} compiled without a device"] if alike else []
        if what:
            out.append(f"- {plain(entry['where'])}: {' and '.join(what)}{of}")
        elif entry["state"] == "expired":
            out.append(f"- {plain(entry['where'])}: expired, so that it excuses nothing{of}")
        elif entry["state"] in ("fixed", "removed"):
            told = "head fixes it and removes the entry" if entry["state"] == "removed" else "head fixes it: remove it"
            out.append(f"- {plain(entry['where'])}: {told}{of}")
    if len(out) > SHOWN:
        out[SHOWN:] = [f"- and {count(len(out) - SHOWN)} more"]
    title = "**Known failures**, which base lists; they change no status, and those that cover a cell fail no check:"
    return [title, "", *out, ""] if out else []
