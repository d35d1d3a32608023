"""What a comment says of cells that broke or whose time changed, grouped by what happened, worst first.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farm.pr import accuracy, known, untimed
from farm.pr import result as results
from farm.pr.result import FAILS, statuses
from farm.report.findings import where
from farm.report.format import cells, clip, count, label, sig
from farm.report.markdown import plain

ROWS, REASONS = 10, 5
SIDE_BY_SIDE = (
    "A ratio is of rounds in which base and head ran side by side; µs and GB/s are medians of each alone, and may "
    "differ from it a little."
)
Json = Mapping[str, Any]
Say = Callable[[str], str]


def changes(result: Json, accepted: Mapping[str, float], most: int) -> list[str]:
    """What got worse or better, grouped by what happened, worst first, and where it wins and loses."""
    pairs = result["pairs"]
    out = []
    for title, rows in groups(pairs, accepted)[:most]:
        had_time = rows[0]["status_b"] not in FAILS
        alike = [p for p in pairs if p["op"] == rows[0]["op"] and (p["speed"] != "none" or not had_time)]
        pattern = where([untimed.axes(p) for p in rows], [untimed.axes(p) for p in alike])
        at = f": seen at {plain('; '.join(pattern))}{_undecided(alike)}" if pattern else ""
        with_time = sum(p["speed"] != "none" and bool(p["ratio"]) for p in pairs)
        of = f"{count(with_time)} timed" if had_time else count(len(pairs))
        played = ", in the script of simulated devices" if all(p["evidence"] == "simulated" for p in rows) else ""
        out += [f"**{title}: {count(len(rows))} of {of} cells{played}**{at}", ""]
        what = "head's time over base's (99 % interval)" if had_time else "what is wrong in head"
        table = [("cell", what, "µs", "GB/s, base → head", "kernels launched, and how"), *map(_cell, rows[:ROWS])]
        kept = [n for n in range(5) if n < 2 or any(line[n] for line in table[1:])]
        made = [row(*(line[n] for n in kept)) for line in table]
        out += [made[0], row(*["---"] * len(kept)), *made[1:]]
        if len(rows) > ROWS:
            out.append(row(f"and {count(len(rows) - ROWS)} more, less harmful", *[""] * (len(kept) - 1)))
        out.append("")
    if any(p["speed"] != "none" and p["ratio"] and p["us_a"] for p in pairs):
        out += [SIDE_BY_SIDE, ""]
    return [*out, *_failing(pairs), *known.words(result), *_crossover(pairs)]


def _undecided(alike: Sequence[Json]) -> str:
    """Where else the pattern may be: the cells that are undecided."""
    open_ = [p for p in alike if p["speed"] in ("inconclusive", "unfit")]
    if not open_:
        return ""
    pattern = where([untimed.axes(p) for p in open_], [untimed.axes(p) for p in alike])
    at = f" ({plain('; '.join(pattern))})" if pattern else ""
    return f"; {cells(len(open_))} undecided{at}"


def undecided_why(p: Json) -> str:
    """Why nothing is decided of a cell's time."""
    if p["ratio"] and p["low"] and p["high"]:
        after = f" after {count(p['rounds'])} rounds" if p["rounds"] else ""
        return f"too noisy: interval {sig(p['low'], 4)} to {sig(p['high'], 4)}{after}"
    return plain(clip(p["reason"], 160)) or f"{count(p['rounds'])} rounds gave a time that can be judged"


def rate(p: Json) -> str:
    return f"{sig(p['gbps_a'], 4)} → {sig(p['gbps_b'], 4)}" if p["gbps_a"] and p["gbps_b"] else ""


def microseconds(p: Json) -> str:
    return f"{sig(p['us_a'], 4)} → {sig(p['us_b'], 4)}" if p["us_a"] and p["us_b"] else ""


def ratio(p: Json) -> str:
    """Head's time over base's; inside of the threshold only that it is about 1."""
    if not p["ratio"] or p["speed"] == "none":
        return ""
    return "≈ 1 (as fast)" if p["speed"] == "same" else sig(p["ratio"], 4)


def _failing(pairs: Sequence[Json]) -> list[str]:
    """What fails in both arms, by reason, most cells first."""
    by: dict[tuple[str, str], list[Json]] = {}
    for p in pairs:
        if statuses(p) == "failing":
            by.setdefault((p["status_b"], clip(p["place"] or p["reason"], 200)), []).append(p)
    if not by:
        return []
    found = sorted(by.items(), key=lambda item: -len(item[1]))
    out = ["**Failing in base too**, so not this pull request's:", ""]
    for (status, why), rows in found[:REASONS]:
        said = f"{label(status)}: {plain(why)}" if why else label(status)
        out.append(f"- {cells(len(rows))}, first {plain(rows[0]['cell'])}: {said}")
    if len(found) > REASONS:
        out.append(f"- and {cells(sum(len(rows) for _, rows in found[REASONS:]))} for other reasons")
    return [*out, ""]


def groups(pairs: Sequence[Json], accepted: Mapping[str, float]) -> list[tuple[str, list[Json]]]:
    """(title, pairs) by harm: what is wrong, then what is slow, accepted losses, and gains at last."""
    broken: dict[tuple[str, str], list[Json]] = {}
    slower: dict[str, list[Json]] = {}
    taken, faster, open_ = list[Json](), list[Json](), list[Json]()
    for p in pairs:
        kind = statuses(p)
        if kind == "broken" or (kind == "new" and p["status_b"] in FAILS):
            broken.setdefault((p["op"], p["status_b"]), []).append(p)
        elif p["speed"] == "regressed":
            (taken if results.accepted(p, accepted) else slower.setdefault(p["op"], [])).append(p)
        elif p["speed"] == "improved":
            faster.append(p)
        elif p["speed"] in ("inconclusive", "unfit") and p["ratio"]:
            open_.append(p)
    out = [
        (f"Broken, {plain(op)}: {label(status)}", sorted(rows, key=lambda p: -(p["worst_b"] or 0)))
        for (op, status), rows in sorted(broken.items(), key=lambda item: -len(item[1]))
    ]
    by_loss = sorted(slower.values(), key=lambda rows: -max(p["ratio"] or 0 for p in rows))
    out += [(f"Slower, {plain(rows[0]['op'])}", slowest(rows)) for rows in by_loss]
    if taken:
        out.append(("Slower, acknowledged", slowest(taken)))
    if open_:
        out.append(("Undecided (the interval is too wide, or the samples are not fit to judge)", slowest(open_)))
    if faster:
        out.append(("Faster", sorted(faster, key=lambda p: p["ratio"] or 1)))
    return out


def slowest(rows: Sequence[Json]) -> list[Json]:
    return sorted(rows, key=lambda p: -(p["ratio"] or 0))


def _cell(p: Json) -> tuple[str, str, str, str, str]:
    if p["status_b"] in FAILS:
        what = plain(clip(p["place"] or p["reason"] or label(p["status_b"]), 200))
        if p["worst_b"] and p["status_b"] == "inaccurate" and p["worst_b"] < accuracy.NO_RATIO:
            what += f"; {sig(p['worst_b'])}x the tolerance"
    else:
        interval = f" ({sig(p['low'], 4)} to {sig(p['high'], 4)})" if p["low"] and p["high"] else ""
        what = f"{sig(p['ratio'] or 1.0, 4)}{interval}, {count(p['rounds'])} rounds"
        what += f" on {plain(p['target'])}" if p["target"] else ""
        what += f"; {undecided_why(p)}" if p["speed"] == "unfit" else ""
    a, b = plain(clip(p["launch_a"], 120)), plain(clip(p["launch_b"], 120))
    had_time = p["status_b"] not in FAILS
    return plain(p["cell"]), what, microseconds(p) if had_time else "", rate(p), a if a == b else f"{a} → {b}"


def _crossover(pairs: Sequence[Json]) -> list[str]:
    """Where head wins and where it loses, if it does both."""
    slower = [p for p in pairs if p["speed"] == "regressed"]
    faster = [p for p in pairs if p["speed"] == "improved"]
    if not slower or not faster:
        return []
    timed = [untimed.axes(p) for p in pairs if p["speed"] != "none"]
    wins, loses = (where([untimed.axes(p) for p in rows], timed) for rows in (faster, slower))
    words = f"faster at {'; '.join(wins) or 'no single axis'}, slower at {'; '.join(loses) or 'no single axis'}"
    return [f"Crossover: head is {plain(words)}.", ""]


def speed_words(p: Json, say: Say) -> str:
    return f"{say(p['cell'])} takes {amount(p)}"


def amount(p: Json) -> str:
    """`1.18 times base's time (99 % interval 1.17 to 1.19), 32.0 → 37.8 µs, 4,211 → 3,573 GB/s`."""
    numbers = ((microseconds(p), "µs"), (rate(p), "GB/s"))
    interval = f" (99 % interval {sig(p['low'], 4)} to {sig(p['high'], 4)})" if p["low"] and p["high"] else ""
    return f"{sig(p['ratio'], 4)} times base's time{interval}{''.join(f', {of} {unit}' for of, unit in numbers if of)}"


def row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"
