"""The pairs of a comparison made anew from what runs have kept: after a run was judged again, and of the parts of one
plan that several sites ran.  Pure; rows are those of cells, pairs and rounds.parquet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from farm.cell import ARM
from farm.compare.decide import Outcome, Stage, Verdict
from farm.compare.kernel_changes import Change, Kernel
from farm.compare.reach import Reached
from farm.compare.summary import Summary
from farm.report.pair_rows import counts, pair_row, summed
from farm.report.status_changes import GOOD

Row = Mapping[str, Any]
_NUMBERS = ("ratio", "low", "high", "threshold", "sigma")
#: Columns of a pair that its rows and rounds do not determine.
_KEPT = ("kernels", "control", "verdict", "stage", "rounds", *_NUMBERS)
NOT_TIMED = "it failed when it ran, so its times were not compared"


def outcome_of(pair: Row) -> Outcome | None:
    """What the rounds said of a pair, as its row has it; None for one that was not timed."""
    if not pair["verdict"]:
        return None
    numbers = (math.nan if pair.get(n) is None else float(pair[n]) for n in _NUMBERS)
    ratio, low, high, threshold, sigma = numbers
    stage = Stage(pair["stage"])
    return Outcome(Verdict(pair["verdict"]), ratio, low, high, threshold, sigma, int(pair["rounds"] or 0), stage)


def _of(rounds: Iterable[Row]) -> list[tuple[Row, Row]]:
    """The rounds of one pair, in order: of arm a, of arm b."""
    by_arm = {(int(r["round"]), str(r["arm"])): r for r in rounds}
    numbers = sorted({number for number, _ in by_arm})
    return [(by_arm[n, "a"], by_arm[n, "b"]) for n in numbers if (n, "a") in by_arm and (n, "b") in by_arm]


def _by_id(rounds: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rounds:
        found[str(row["cell_id"])].append(row)
    return found


def _ids(pair: Row) -> list[str]:
    return [str(pair[f"cell_id_{arm}"] or "") for arm in ("a", "b")]


def rejudged(pairs: Sequence[Row], rounds: Iterable[Row], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The pairs with other verdicts on their results.  What fails now has no times that count, as in any comparison;
    what failed when it ran, and passes now, was never timed further."""
    by_id, of = {str(r["cell_id"]): r for r in rows}, _by_id(rounds)
    out = []
    for pair in pairs:
        ids = _ids(pair)
        a, b = (by_id.get(name) for name in ids)
        good = all(row is not None and row["status"] in GOOD for row in (a, b))
        both = _of([row for name in ids for row in of.get(name, ())])
        made = pair_row(a, b, both, outcome_of(pair) if good else None, control=bool(pair["control"]))
        was_good = all(pair[f"status_{arm}"] in GOOD for arm in ("a", "b"))
        if good and not was_good:
            made["note"] = "; ".join(text for text in (made["note"], NOT_TIMED) if text)
        out.append({**made, "kernels": pair["kernels"]})
    return out


def comparison(
    pairs: Sequence[dict[str, Any]],
    kernels: Sequence[Mapping[str, Any]],
    *,
    strict_peers: bool = False,
    identical: bool = False,
    known: Collection[str] = (),
) -> tuple[dict[str, Any], Summary]:
    """(`comparison` of a run's head, the verdict).  `kernels`: those that differ, as a head has them; `identical`: an
    arm was compared with itself; `known`: ids of cells whose failure is known."""
    reached = [_reached(k) for k in kernels]
    found = summed(pairs, reached, strict_peers=strict_peers, identical=identical, known=known)
    told = {"verdict": found.name, "exit_code": found.exit_code, "why": list(found.why), **counts(pairs)}
    told |= {"same": True} if identical else {}
    return {**told, **({"kernels": list(kernels)} if kernels else {})}, found


def _reached(plain: Mapping[str, Any]) -> Reached:
    kernel = Kernel(str(plain["path"]), str(plain["kernel"]), 0, {}, (), str(plain["language"]))
    change = Change(str(plain["kernel"]), None, kernel, str(plain["change"]), tuple(plain["why"]))
    cells = {str(name): tuple(map(str, found)) for name, found in plain["cells"].items()}
    return Reached(change, cells, tuple(plain["through"]), str(plain["state"]))


# parts of one plan


def merged(
    parts: Sequence[tuple[Sequence[Row], Sequence[Row]]],
    mates: Mapping[int, int],
    rows: Sequence[Row],
    origin: Sequence[int | None],
) -> tuple[list[dict[str, Any]], list[Row]]:
    """(pairs, rounds) of a merged run.  `parts`: those of each run; `mates`: of arm a -> of arm b, places in `rows`;
    `origin`: which run each row is of, None for none; both of a pair are of one."""
    known = [({tuple(_ids(p)): p for p in pairs}, _by_id(rounds)) for pairs, rounds in parts]
    seconds = set(mates.values())
    out: list[dict[str, Any]] = []
    kept: list[Row] = []
    for place, row in enumerate(rows):
        if place in seconds:
            continue
        a: Row | None = row
        b: Row | None = rows[mates[place]] if place in mates else None
        if b is None and str(row["cell_id"]).endswith(f"{ARM}b"):
            a, b = None, row
        ids = tuple(str(r["cell_id"]) if r is not None else "" for r in (a, b))
        number = origin[place]
        found = known[number][0].get(ids) if number is not None else None
        if found is None or number is None:
            out.append({**pair_row(a, b, [], None, control=False), "kernels": ""})
            continue
        out.append(dict(found))
        kept += [r for name in ids for r in known[number][1].get(name, ())]
    return out, kept


def merged_kernels(parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The kernels that differ, of all parts: what one site launched is reached."""
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for kernels in parts:
        for one in kernels:
            found = out.setdefault((one["path"], one["kernel"]), {**one, "cells": {}, "through": []})
            for name, cells in one["cells"].items():
                found["cells"][name] = list(dict.fromkeys([*found["cells"].get(name, ()), *cells]))
            found["through"] = list(dict.fromkeys([*found["through"], *one["through"]]))
            if "reached" in (one["state"], found["state"]):
                found["state"] = "reached"
    return list(out.values())


def damaged(pairs: Sequence[Row], rounds: Sequence[Row], told: Iterable[Row] | None, rows: Iterable[Row]) -> str:
    """How the tables of a comparison contradict its journal or each other; "" if they do not.  `told`: the rows of
    further rounds in the journal; None for a merged run, whose journal has none."""
    by_id, of = {str(r["cell_id"]): r for r in rows}, _by_id(rounds)
    if told is not None and (why := _unlike_journal(rounds, told)):
        return why
    seen = [name for pair in pairs for name in _ids(pair) if name]
    if sorted(seen) != sorted(by_id):
        return "pairs.parquet does not have each cell of the run once"
    for pair in pairs:
        a, b = (by_id.get(name) for name in _ids(pair))
        both = _of([row for name in _ids(pair) for row in of.get(name, ())])
        made = pair_row(a, b, both, outcome_of(pair), control=bool(pair["control"]))
        follows = [n for n in made if n in pair and n not in _KEPT]
        differs = next((n for n in follows if not _equal(pair[n], made[n])), "")
        if differs:
            return f"{pair['cell']}: {differs} in pairs.parquet does not follow from its cells and rounds"
    return ""


def _unlike_journal(rounds: Sequence[Row], told: Iterable[Row]) -> str:
    in_table = {(r["cell_id"], r["round"]): r for r in rounds if r["round"]}
    journal = {(r["cell_id"], r["round"]): r for r in told}
    if journal.keys() != in_table.keys():
        return f"rounds.parquet has {len(in_table)} results of further rounds, but the journal has {len(journal)}"
    for (cell, number), row in journal.items():
        differs = next((n for n in row if not _equal(in_table[cell, number].get(n), row[n])), "")
        if differs:
            return f"{cell}: {differs} of round {number} differs between rounds.parquet and the run's journal"
    return ""


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))
