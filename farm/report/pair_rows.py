"""What two arms say of each cell, from both results and all rounds: the rows of pairs.parquet, one verdict.  Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from farm.cell import FARM_FAULTS, FINDINGS
from farm.compare import summary
from farm.compare.course import Due
from farm.compare.decide import Outcome, Verdict
from farm.compare.kernel_changes import Change
from farm.compare.noise import median
from farm.compare.reach import Launch, Reached, reach
from farm.report import built, two_arms
from farm.report.status_changes import CHANGES, GOOD, change
from farm.store.pairs import PER_ARM, comparable, time_of, without_arm

Row = Mapping[str, Any]
_NAMES = ("backend", "target", "evidence", "op", "role", "operation", "dtype", "shape", "dims")
_FROM = {"host_us": "host_us_p50"}
_FAULTS = tuple(s.value for s in FARM_FAULTS)
#: A cell that ran in neither arm: unsupported or skipped in both.
NEITHER = "neither"


def pair_row(
    a: Row | None, b: Row | None, rounds: Sequence[tuple[Row, Row]], outcome: Outcome | None, *, control: bool
) -> dict[str, Any]:
    """The row of one pair.  `a`, `b`: its rows of cells.parquet, None where an arm has no such cell; `rounds`: of a and
    b, the first among them; `outcome`: of its times, None where it was not timed."""
    either = b if b is not None else a
    assert either is not None
    told: dict[str, Any] = {name: either.get(name) for name in _NAMES}
    for arm, row in (("a", a), ("b", b)):
        for name in PER_ARM:
            told[f"{name}_{arm}"] = row.get(_FROM.get(name, name)) if row is not None else None
        if row is not None and built_before(row):
            told[f"compile_s_{arm}"] = None  # the first call did not compile all that it launched
    for place, (arm, row) in enumerate((("a", a), ("b", b))):
        told[f"time_us_{arm}"] = time_of(row) if row is not None else None
        told[f"bandwidth_gbps_{arm}"] = told[f"bandwidth_gbps_{arm}"] if told[f"time_us_{arm}"] else None
        hosts = [float(both[place]["host_us_p50"]) for both in rounds if both[place].get("host_us_p50")]
        if hosts:
            told[f"host_us_{arm}"] = _median(hosts)
        times = [time for both in rounds if (time := time_of(both[place]))]
        if times and outcome is not None:
            told[f"time_us_{arm}"] = _median(times)
            moved = either.get("bytes_moved")
            told[f"bandwidth_gbps_{arm}"] = moved / (told[f"time_us_{arm}"] * 1e3) if moved else None
    if outcome is not None:
        told |= {"verdict": outcome.verdict.value, "stage": outcome.stage.value, "rounds": outcome.rounds}
        numbers = {n: getattr(outcome, n) for n in ("ratio", "low", "high", "threshold", "sigma")}
        told |= {n: value if math.isfinite(value) else None for n, value in numbers.items()}
    names = [without_arm(str(row["cell_id"])) for row in (a, b) if row is not None]
    cell = names[0] if len(set(names)) == 1 else f"{names[0]} | {names[1]}"
    kind = change(a, b)
    if kind == "same" and not any(row is not None and row.get("status") in GOOD for row in (a, b)):
        kind = NEITHER
    if kind == "same" and _failed_later(rounds, 1) and not _failed_later(rounds, 0):
        kind = "broken"
    told |= {"cell": cell, "change": kind, "bits": _bits(a, b), "control": int(control), "note": _note(rounds)}
    return {"verdict": "", "stage": "", **told}


def built_before(row: Row) -> int:
    """How many of the kernels that a cell's first call needed were compiled before it, as far as that is known."""
    found = built.of_row(row)
    return found.loaded if found else 0


def _failed_later(rounds: Sequence[tuple[Row, Row]], place: int) -> bool:
    """Whether the code of an arm failed in a round after the first."""
    return any(both[place]["status"] not in (*GOOD, *_FAULTS) for both in rounds[1:])


def _median(times: Sequence[float]) -> float:
    import numpy as np

    return float(median(np.array([times]))[0])


def _bits(a: Row | None, b: Row | None) -> int | None:
    """1 where both arms gave the same bits, 0 where not, None where they cannot be compared."""
    if a is None or b is None or not (a.get("output_hash") and b.get("output_hash")) or not comparable(a, b):
        return None
    return int(a["output_hash"] == b["output_hash"]) if a.get("input_hash") == b.get("input_hash") else None


def _note(rounds: Sequence[tuple[Row, Row]]) -> str:
    """What happened in a later round that did not in the first: a failure, other bits."""
    out: dict[str, str] = {}
    for place, arm in enumerate(("a", "b")):
        first = rounds[0][place].get("output_hash") if rounds else ""
        for both in rounds[1:]:
            row = both[place]
            if row["status"] not in GOOD:
                told = f"arm {arm} was {row['status']} in round {row['round']}: {row.get('reason') or ''}"
                out.setdefault(told, told)
            elif first and row.get("output_hash") and row["output_hash"] != first:
                told = f"arm {arm} gave other output bits in round {row['round']} than in round 0"
                out.setdefault(f"bits of {arm}", f"{told}; they were judged in full")
    return "; ".join(out.values())[:1000]


def reached(rows: Sequence[Row], changes: Sequence[Change]) -> list[Reached]:
    """The kernels that differ, with the pairs that launched them.  Simulated devices launch none and say nothing."""
    ran = [row for row in rows if row["evidence"] not in ("", "simulated", None)]
    if not ran:
        return []
    before, after = ({str(row["cell"]): _launches(row[f"launch_{arm}"]) for row in ran} for arm in ("a", "b"))
    return reach(changes, before, after)


def _launches(text: str | None) -> list[Launch]:
    """What a cell launched, as its row has it."""
    told = json.loads(text or "{}")
    variants = told.get("variants") or [{"kernel": name} for name in told.get("seen") or ()]
    constants = ({str(k): v for k, v in (one.get("constants") or {}).items()} for one in variants)
    return [
        Launch(str(one["kernel"]), str(one.get("module", "")), tuple(found.items()))
        for one, found in zip(variants, constants)
    ]


def name_kernels(rows: Sequence[dict[str, Any]], found: Sequence[Reached]) -> None:
    """Say of each pair which kernels it launches that differ between the arms."""
    of: dict[str, list[str]] = {}
    for one in found:
        for cell in one.all_cells:
            of.setdefault(cell, []).append(one.change.name)
    for row in rows:
        row["kernels"] = ",".join(of.get(row["cell"], ()))


def summed(
    rows: Sequence[Row],
    found: Sequence[Reached] = (),
    *,
    strict_peers: bool = False,
    identical: bool = False,
    named: bool = False,
    known: Collection[str] = (),
) -> summary.Summary:
    """The verdict of all pairs.  That nothing is worse takes no changed kernel whose launches cannot be seen.
    `identical`: an arm was compared with itself; `named`: somebody named these cells, so that what they do not reach is
    no finding; `known`: ids of cells, arm included, whose failure is known: they break nothing."""
    pairs = [_pair(row, strict_peers, known) for row in rows]
    if identical:
        return summary.of_identical(pairs)
    unreached = [one.change.name for one in found if one.finding and not named]
    out = summary.summary(pairs, unreached)
    unseen = [one for one in found if one.state == "unseen"]
    if out.exit_code or not unseen:
        return out
    why = [
        f"the changed kernel {one.change.name}: launches of a {one.kernel.language} kernel are not seen"
        for one in unseen
    ]
    return summary.Summary("inconclusive", 4, tuple(why))


def _pair(row: Mapping[str, Any], strict_peers: bool, known: Collection[str] = ()) -> summary.Pair:
    lost = row["change"] == "lost" and row["status_b"] in _FAULTS
    new = row["change"] == "new" and row["status_a"] in _FAULTS
    neither = row["status_a"] in _FAULTS or row["status_b"] in _FAULTS
    bad = row["change"] == "broken" or row["status_b"] in FINDINGS
    fails = bad and (strict_peers or row["role"] == "subject") and row["cell_id_b"] not in known
    time = Verdict(row["verdict"]) if row["verdict"] and not row["control"] else None
    kernels = tuple(k for k in row.get("kernels", "").split(",") if k)
    return summary.Pair(row["cell"], row["op"], row["change"], lost or new or neither, fails, time, kernels)


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a reader is told of all pairs: how many of each change and verdict, and of how many the bits are equal."""
    changes = Counter(row["change"] for row in rows)
    verdicts = Counter(row["verdict"] for row in rows if row["verdict"] and not row["control"])
    compared = [row["bits"] for row in rows if row["bits"] is not None]
    return {
        "pairs": len(rows),
        "changes": {kind: changes[kind] for kind in (*CHANGES, NEITHER) if changes[kind]},
        "verdicts": {v.value: verdicts[v.value] for v in Verdict if verdicts[v.value]},
        "bits_equal": sum(compared),
        "bits_compared": len(compared),
        "controls": sum(row["control"] for row in rows),
        **two_arms.described(rows),
    }


def describe(due: Due, cells: int) -> str:
    """What is about to be run, for people."""
    return f"round {due.number}: {cells} {'cell' if cells == 1 else 'cells'} in both arms ({due.stage.value})"
