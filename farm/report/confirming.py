"""Which step of the nights is measured again, in which arms, and what the rounds say of it.  Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from farm.report.format import cells as counted
from farm.report.nights import News
from farm.report.pairs import change
from farm.store.confirmations import CONFIRMED, NOT_CONFIRMED, UNDECIDED

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_VERSION = re.compile(r"(\S+) (\d\S*)")


def chosen(news: Sequence[News], cell: str | None) -> News | None:
    """The step of a cell; without one, of the newest steps a regression before a suspicion, then the most cells."""
    if cell is not None:
        return next((n for n in news if any(r.get("cell_id") == cell for r in n.rows)), None)
    open_ = [n for n in news if n.before is not None and not n.confirmed]
    return max(open_, key=lambda n: (n.sure, n.since.created, len(n.rows)), default=None)


def arms_of(step: News) -> tuple[str, str] | str:
    """`--a` and `--b` of the last good and the first bad revision; else why there are none."""
    assert step.before is not None
    return arms_between(step.before.revision, step.since.revision, step.cause)


def arms_between(a: str, b: str, cause: str = "") -> tuple[str, str] | str:
    """`--a` and `--b` of two nights' revisions; else why there are none.  `cause`: what else may be it."""
    if a == b:
        return f"both nights measured revision {a or '(unknown)'}, so no commit lies between: {cause or 'host'}"
    out = []
    for revision in (a, b):
        if _COMMIT.fullmatch(revision):
            out.append(f"revision={revision}")
        elif found := _VERSION.fullmatch(revision):
            out.append(f"version={found[1]}=={found[2]}")
        else:
            return (
                f'"{revision}" is no commit that can be checked out (a + stands for changes that were not committed); '
                "name both arms with --a and --b"
            )
    return out[0], out[1]


def revision_of(head: Mapping[str, Any]) -> str:
    """The revision that a run measured, as the index names it; of somebody's kernels, theirs."""
    revision, subject = head.get("revision") or {}, head.get("subject") or {}
    own = str(revision.get("commit") or revision.get("version") or "") + ("+" if revision.get("dirty") else "")
    return str(subject.get("revision") or "") or own


def in_turn(command: str, a: str, b: str) -> str:
    """The command that measures cells in two revisions in turn.  `command`: the one that repeats the cells in one; ""
    where the revisions are not two that can be checked out, or the run took its kernels from elsewhere."""
    arms, words = arms_between(a, b), shlex.split(command)
    if isinstance(arms, str) or words[:2] != ["farm", "run"] or {"--wheel", "--release"} & set(words):
        return ""
    return shlex.join(["farm", "ab", *words[2:], "--a", arms[0], "--b", arms[1]])


def verdicts(rows: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]], *, slower: bool) -> dict[str, Any]:
    """{"verdict", "cells"} of a record (farm.store.confirmations).

    A cell is confirmed if its rounds show what its nights did, not confirmed if they show that it is the same or the
    opposite, else undecided.  One confirmed cell confirms the step; it is not confirmed if most cells say so and none
    says otherwise.
    """
    known = {str(p["cell"]): p for p in pairs}
    wanted = "regressed" if slower else "improved"
    out = []
    for row in rows:
        pair = known.get(str(row["cell_id"]), {})
        word = str(pair.get("verdict") or "")
        decided = NOT_CONFIRMED if word in ("same", "regressed", "improved") else UNDECIDED
        found = CONFIRMED if word == wanted else decided
        told = {name: pair.get(name) for name in ("ratio", "low", "high")}
        names = {name: str(row[name]) for name in ("cell_id", "cell_key", "named")}
        out.append({**names, "verdict": found, **told})
    count = Counter(c["verdict"] for c in out)
    verdict = CONFIRMED if count[CONFIRMED] else UNDECIDED
    if not count[CONFIRMED] and count[NOT_CONFIRMED] > count[UNDECIDED]:
        verdict = NOT_CONFIRMED
    return {"verdict": verdict, "cells": out}


def lines(record: Mapping[str, Any]) -> list[str]:
    """A record for people."""
    arms = " .. ".join(str(a) for a in record["arms"])
    count = Counter(c["verdict"] for c in record["cells"])
    told = ", ".join(f"{counted(n)} {word}" for word, n in count.most_common())
    out = [f"{record['kind']}, {record['verdict']}: {arms}: {told}"]
    for cell in record["cells"]:
        by = f" {change(cell['ratio'])}" if cell["ratio"] else ""
        interval = f" ({change(cell['low'])} to {change(cell['high'])})" if cell["low"] and cell["high"] else ""
        out.append(f"  {cell['verdict']}:{by}{interval} {cell['cell_id']}")
    return out
