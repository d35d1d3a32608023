"""What a comment says of device memory: which cells need more or less of it than in base.  Pure.

More memory is no failure unless base's farm.yaml has `selection: {memory: counts}`: whether a faster kernel may take it
is for a reviewer to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.compare import memory
from farm.compare.memory import MIB
from farm.report.format import cells, count, sig
from farm.report.markdown import plain

ROWS = 10
Json = Mapping[str, Any]
Say = Callable[[str], str]
WHAT = (
    "Device memory is what one call allocates at most, with its outputs and what it saves for backward. Memory that a "
    "first call takes and keeps for all later ones is not in it. A difference is reported from "
    f"{memory.LEAST // MIB} MiB and {100 * memory.SHARE:g} % on, as an allocator's rounding makes smaller ones."
)


def known(pairs: Sequence[Json]) -> list[Json]:
    """The cells that are right in both arms and have a peak in both."""
    right = (p for p in pairs if p["status_a"] == p["status_b"] == "passed" and p["evidence"] == "executed")
    return [p for p in right if p["memory_a"] is not None and p["memory_b"] is not None]


def more(pairs: Sequence[Json]) -> list[Json]:
    """The cells that need more device memory in head, those that need most more first."""
    return sorted((p for p in known(pairs) if _differs(p) and _rise(p) > 0), key=_rise, reverse=True)


def less(pairs: Sequence[Json]) -> list[Json]:
    """The cells that need less in head, those that need most less first."""
    return sorted((p for p in known(pairs) if _differs(p) and _rise(p) < 0), key=_rise)


def counts(result: Json) -> bool:
    """Whether more memory is a finding here."""
    return bool(result.get("counts_memory"))


def findings(result: Json, say: Say = str) -> list[str]:
    """What fails the check of it."""
    found = more(result["pairs"]) if counts(result) else []
    if not found:
        return []
    need = "cell needs" if len(found) == 1 else "cells need"
    return [f"{len(found)} {need} more device memory: first {say(found[0]['cell'])}, {peaks(found[0])} MiB"]


def headline(pairs: Sequence[Json], say: Say) -> str:
    """`4 of 12 cells need more device memory, the most CELL: 32 → 64 MiB (32 MiB more)`; "" where none does."""
    found = more(pairs)
    if not found:
        return ""
    most = ", the most" if len(found) > 1 else ","
    return f"{_of(found, pairs)} more device memory{most} {say(found[0]['cell'])}: {amount(found[0])}"


def worse(pairs: Sequence[Json]) -> str:
    """The same, among the answers to what got worse."""
    found = more(pairs)
    return f"{_of(found, pairs)} more device memory; the most {in_cell(found[0])}" if found else ""


def in_cell(p: Json) -> str:
    """`in CELL: 32 → 64 MiB (32 MiB more)`."""
    return f"in {plain(p['cell'])}: {amount(p)}"


def amount(p: Json) -> str:
    """`32 → 64 MiB (32 MiB more)`."""
    which = "more" if _rise(p) > 0 else "less"
    return f"{peaks(p)} MiB ({_mib(abs(_rise(p)))} MiB {which})"


def peaks(p: Json) -> str:
    """`32 → 64`, in MiB; one number where they do not differ by enough to be reported; "" where one is not known."""
    if p["memory_a"] is None or p["memory_b"] is None:
        return ""
    return f"{_mib(p['memory_a'])} → {_mib(p['memory_b'])}" if _differs(p) else _mib(p["memory_b"])


def table(result: Json) -> list[str]:
    """The cells that need more, then those that need less, as tables."""
    pairs, out = result["pairs"], []
    for word, found in (("More", more(pairs)), ("Less", less(pairs))):
        if not found:
            continue
        out += [f"**{word} device memory: {count(len(found))} of {cells(len(known(pairs)))} whose peak is known**", ""]
        out += ["| cell | MiB, base → head | difference |", "|---|--:|--:|"]
        for p in found[:ROWS]:
            out.append(f"| {plain(p['cell'])} | {peaks(p)} | {_mib(abs(_rise(p)))} MiB {word.lower()} |")
        if len(found) > ROWS:
            out.append(f"| and {count(len(found) - ROWS)} more, whose difference is smaller | | |")
        out.append("")
    if not out:
        return []
    fails = "It fails the check, as base's farm.yaml says (selection: {memory: counts})."
    advice = "By itself it fails no check; `selection: {memory: counts}` in base's farm.yaml lets it."
    told = f" {fails if counts(result) else advice}" if more(pairs) else ""
    return [*out, f"{WHAT}{told}", ""]


def _of(found: Sequence[Json], pairs: Sequence[Json]) -> str:
    return f"{count(len(found))} of {cells(len(known(pairs)))} {'needs' if len(found) == 1 else 'need'}"


def _differs(p: Json) -> bool:
    return memory.differ(p["memory_a"], p["memory_b"])


def _rise(p: Json) -> int:
    return int(p["memory_b"] - p["memory_a"])


def _mib(nbytes: int) -> str:
    mib = nbytes / MIB
    return count(round(mib)) if mib >= 100 else sig(mib, 3)
