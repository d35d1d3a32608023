"""Tables of speeds as Markdown, CSV and JSON.  Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping

from farm.report.format import clip, percent, short_dtype, sig
from farm.report.markdown import code, plain
from farm.report.speed_table import Entry, Line, SpeedTables, Table

LISTED = 30  # losses, and reasons, that Markdown lists one by one
LEGEND = (
    "ʟ launch-bound, ~ noisy, ↓ throttled, ⊘ faster than the device can be (so no speed is shown); a timing method in "
    "brackets differs from the line's, and such a time is not compared; ≈ a roof outside the calibrated sizes"
)


def as_markdown(found: SpeedTables) -> str:
    """A table per target, with grad and without; nothing is bold.  The caption comes last."""
    out: list[str] = []
    for table in found.tables:
        out += [f"#### {plain(table.title)}, {table.unit}", "", *_table(table), "", *_sums(table, found.of), ""]
    if not out:
        out = ["no cells", ""]
    out += [f"- {name}: {plain(text)}" for name, text in found.caption.items() if name != "command"]
    out.append(f"- marks: {plain(LEGEND)}")
    if command := found.caption.get("command"):
        out += ["", "Made by:", *code(command)]
    return "\n".join(out) + "\n"


def _table(table: Table) -> Iterator[str]:
    parameters, roofs = any(li.parameters for li in table.lines), any(li.roof_us for li in table.lines)
    head = ["op", "operation", "shape", "dtype", *(["parameters"] if parameters else [])]
    numbers = [*table.columns, *(["roof"] if roofs else []), "best peer", "ratio", *(["of roof"] if roofs else [])]
    yield "| " + " | ".join(plain(name) for name in [*head, *numbers]) + " |"
    yield "|" + "---|" * len(head) + "".join("---|" if n == "best peer" else "--:|" for n in numbers)
    for line in table.lines:
        fields = [line.op, line.operation, line.shape, short_dtype(line.dtype), *([line.parameters] * parameters)]
        fields += [_entry(line.entries[c], table.unit) for c in table.columns]
        mark = "≈ " if line.beyond else ""
        fields += [mark + _number(line.roof(table.unit), table.unit)] * roofs
        fields += [line.best or "none", f"{line.ratio:.3f}" if line.ratio else ""]
        fields += [mark + percent(line.share) if line.share else ""] * roofs
        yield "| " + " | ".join(plain(f) for f in fields) + " |"


def _entry(entry: Entry, unit: str) -> str:
    if entry.word:
        return entry.word
    return " ".join(filter(None, [_number(entry.speed(unit), unit) or "no model of its work", entry.note]))


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if unit == "GB/s" and value >= 100 else sig(value, 4)


def _sums(table: Table, of: str) -> Iterator[str]:
    """Losses, means, and why cells have no number."""
    compared = [line for line in table.lines if line.ratio is not None]
    losses = table.losses
    if compared:
        worst = [f"{li.name} {li.ratio:.3f} ({li.best})" for li in losses[:LISTED]]
        more = f", and {len(losses) - LISTED} more" if len(losses) > LISTED else ""
        told = f": {', '.join(worst)}{more}" if losses else ""
        verb = "is" if len(losses) == 1 else "are"
        yield f"- {plain(of)} is compared with a peer in {len(compared)} of {len(table.lines)} lines"
        yield f"- {len(losses)} of them {verb} slower than the best peer{plain(told)}"
    else:
        yield f"- no line has both a time of {plain(of)} and one of a peer"
    for m in table.means:
        yield f"- {plain(m.what)}: geometric mean {m.mean:.3f}, lowest {m.lowest:.3f}, {m.lines} lines"
    words = [w for w in table.words if w[2] or w[1] != "not planned"]
    for column, word, reason, lines in words[:LISTED]:
        why = f": {clip(reason, 160)}" if reason else ""
        yield f"- {plain(f'{column}: {word}')} in {lines} line{'s'[: lines > 1]}{plain(why)}"
    if len(words) > LISTED:
        yield f"- and {len(words) - LISTED} more reasons: farm export table --as json lists all"


def as_csv(found: SpeedTables) -> str:
    """A record per line of the tables: numbers without marks, or the word in their place.  A table's columns that
    another one lacks are empty there."""
    columns = list(dict.fromkeys(c for table in found.tables for c in table.columns))
    head = [
        "backend",
        "target",
        "evidence",
        "grad",
        "op",
        "operation",
        "shape",
        "dtype",
        "parameters",
        "timing",
        "unit",
    ]
    ends = ["roof", "best_peer", "ratio", "share_of_roof", "run", "of", "command", "versions"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *columns, *ends])
    known = found.caption
    for table in found.tables:
        for li in table.lines:
            first = [table.place, table.target, table.evidence, int(table.grad), li.op, li.operation, li.shape]
            first += [li.dtype, li.parameters, li.timing, table.unit]
            own = [_plain_entry(li.entries.get(c), table.unit) for c in columns]
            last = [li.roof(table.unit), li.best, li.ratio, li.share, known.get("run"), found.of]
            last += [known.get("command"), known.get("providers")]
            writer.writerow("" if v is None else v for v in [*first, *own, *last])
    return out.getvalue()


def _plain_entry(entry: Entry | None, unit: str) -> float | str | None:
    return None if entry is None else entry.word or entry.speed(unit)


def as_json(found: SpeedTables) -> str:
    """{"of", "caption", "tables": [{"backend", "target", "grad", "unit", "columns", "lines", "means"}]}; a line's
    `providers` has for each column "value" in the table's unit and "us", or null, with "status" and "reason"."""
    tables = [
        {
            "backend": t.place,
            "target": t.target,
            "evidence": t.evidence,
            "grad": t.grad,
            "unit": t.unit,
            "columns": list(t.columns),
            "lines": [_line(line, t.unit) for line in t.lines],
            "means": [{"what": m.what, "mean": m.mean, "lowest": m.lowest, "lines": m.lines} for m in t.means],
            "losses": [line.name for line in t.losses],
        }
        for t in found.tables
    ]
    return json.dumps({"of": found.of, "caption": dict(found.caption), "tables": tables}, allow_nan=False) + "\n"


def _line(line: Line, unit: str) -> dict[str, object]:
    return {
        **{n: getattr(line, n) for n in ("op", "operation", "shape", "dtype", "parameters", "timing")},
        "providers": {
            name: {
                "value": e.speed(unit) if not e.word else None,
                "us": e.us,
                "status": e.word or "passed",
                "reason": e.reason,
                "note": e.note,
                "compared": e.compared and not e.word,
            }
            for name, e in line.entries.items()
        },
        "roof": line.roof(unit),
        "roof_extrapolated": line.beyond,
        "best_peer": line.best,
        "ratio": line.ratio,
        "share_of_roof": line.share,
    }


#: Name of a format -> how tables are written in it.
WRITERS: Mapping[str, Callable[[SpeedTables], str]] = {"markdown": as_markdown, "csv": as_csv, "json": as_json}
