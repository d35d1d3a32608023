"""The tables of the kernel benchmarks: text for a terminal, Markdown for docs/facts.md.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bars import MIB, better_modes, short_of_reach, summary
from benchmarks.cases import OURS, Case, case_of
from farm.cell import SHORT_DTYPES

Row = Mapping[str, Any]
#: How a number is marked that is worth less than it looks.
MARKS = {"ok": "", "noisy": "?", "launch_bound": "~", "impossible": "!"}
#: What stands in the place of a number.
WORDS = {
    "wrong": "WRONG",
    "unsupported": "-",
    "crashed": "crashed",
    "timed_out": "hung",
    "capture_failed": "no graph",
    "out_of_memory": "memory",
    "impossible": "too fast",
}
LEGEND = "? noisy, ~ launch-bound, - not supported, . not reached"


def title(row: Row) -> str:
    return f"{row['case']['op']} {row['case']['operation']}"


def where(row: Row) -> str:
    case = case_of(row["case"])
    return f"{case.shape} {SHORT_DTYPES[case.dtype]}"


def columns(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The subjects that have anything to tell in these rows: who is nowhere supported is a line below, no column."""
    found = []
    for name in names:
        states = [r["status"].get(name) for r in rows]
        if name == OURS or any(s not in (None, "unsupported") for s in states):
            found.append(name)
    return found


def number(row: Row, name: str) -> str:
    """GB/s of a subject, marked where it is worth less, or a word in its place."""
    speed = row["gbps"].get(name)
    if speed is not None:
        return f"{speed:.0f}{MARKS.get(row['quality'].get(name, 'ok'), '')}"
    status = row["status"].get(name)
    if status == "ok":
        status = row["quality"].get(name, "")
    return WORDS.get(status or "", ".") if status else "."


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """One line: shape, dtype, MiB moved, roof, each subject, share of the roof, ratio, the peer it is to."""
    case: Case = case_of(row["case"])
    roof, share, ratio = row["roof_gbps"], row["share"], row["ratio"]
    return [
        case.shape,
        SHORT_DTYPES[case.dtype],
        f"{row['bytes'] / MIB:.0f}",
        f"{roof:.0f}" if roof else ".",
        *(number(row, n) for n in names),
        f"{share:.3f}" if share else "",
        f"{ratio:.3f}" if ratio else "",
        row["best_peer"] or "",
    ]


def head(names: Sequence[str]) -> list[str]:
    return ["shape", "dtype", "MiB", "roof", *names, "of roof", "of peer", "best peer"]


def text(rows: Sequence[Row], names: Sequence[str]) -> str:
    """One operation's table, its means, what it misses."""
    shown = columns(rows, names)
    lines = [head(shown), *(cells(r, shown) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = [f"{title(rows[0])}: 1e9 B/s of model bytes ({LEGEND})"]
    for n, line in enumerate(lines):
        padded = [
            c.ljust(w) if i in (0, 1, len(line) - 1) else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))
        ]
        missed = "  <- " + "; ".join(rows[n - 1]["missed"]) if n and rows[n - 1]["missed"] else ""
        out.append(("  ".join(padded) + missed).rstrip())
    return "\n".join([*out, *verdict(rows), *notes(rows, names)])


def verdict(rows: Sequence[Row]) -> list[str]:
    """The means of one operation and how many cells miss a bar, a line each."""
    found = summary(rows[0]["case"]["operation"], rows)
    lines = [f"geometric mean of ours over the best peer: {_mean(found['geomean'])} over {found['compared']} cells"]
    if found["slack_cells"]:
        lines.append(
            f"where that peer is under 0.96 of the roof: {_mean(found['slack_geomean'])} over {found['slack_cells']}"
        )
    short = [r for r in rows if r["missed"]]
    lines.append(f"cells that miss a bar: {len(short)} of {len(rows)}")
    lines += [f"misses: {m}" for m in found["missed"]]
    return lines


def notes(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """What else a reader must know: who was not there, what was wrong or crashed, which mode beats auto."""
    lines = []
    shown = columns(rows, names)
    for name in names:
        reasons = list(dict.fromkeys(r["reason"][name] for r in rows if r["reason"].get(name)))
        if name not in shown and reasons:
            lines.append(f"{name}: {reasons[0]}")
    for r in rows:
        for name in shown:
            status = r["status"].get(name)
            if status not in (None, "ok", "unsupported") or (status == "unsupported" and name == OURS):
                lines.append(f"{where(r)} {name}: {status}: {r['reason'].get(name)}")
    for r in rows:
        for name, factor in better_modes(r)[:1]:
            lines.append(f"{where(r)}: {name} beats auto by {100 * (factor - 1):.1f} %")
    reach = short_of_reach(rows)
    if reach:
        told = ", ".join(f"{case_of(r['case']).shape} {r['share']:.2f}" for r in reach)
        lines.append(f"no bar, but reached for 0.95 of the roof from 512 MiB: {told}")
    return lines


def markdown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """One operation as a Markdown table with its means; what misses a bar is bold in its own column."""
    shown = columns(rows, names)
    out = [f"**{title(rows[0])}**, GB/s of model bytes", "", "| " + " | ".join(head(shown)) + " |"]
    out.append("|" + "|".join("---" if i in (0, 1, len(shown) + 6) else "--:" for i in range(len(shown) + 7)) + "|")
    for r in rows:
        line = cells(r, shown)
        misses = " ".join(r["missed"])
        share, ratio = len(line) - 3, len(line) - 2
        if "of the roof" in misses:
            line[share] = f"**{line[share]}**"
        if r["best_peer"] and f"of {r['best_peer']}," in misses:
            line[ratio] = f"**{line[ratio]}**"
        out.append("| " + " | ".join(line) + " |")
    return "\n".join([*out, "", *(f"- {line}" for line in [*verdict(rows), *notes(rows, names)])])


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
