"""What two arms say beyond the verdict of each pair: where b wins and where it loses, which mode is best and what
`auto` costs, memory, host time and first calls, how kernels are launched.  Pure; rows are those of pairs.parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.compare import crossover, memory, modes
from farm.compare.crossover import Line, Parted
from farm.compare.decide import DEFAULT, Verdict
from farm.compare.modes import Choice
from farm.report.format import cells, number, short_dtype, sig
from farm.report.queries import parse

Row = Mapping[str, Any]
MAX_SHOWN = 20  # of each kind, in JSON
#: Column -> (what it is, its unit, the smallest difference that is worth a word: relative, in the unit).
COSTS: Mapping[str, tuple[str, str, float, float]] = {
    "peak_memory_mib": ("peak memory", "MiB", 0.0, 0.0),
    "host_us": ("host time", "us", 0.20, 50.0),
    "compile_s": ("first call", "s", 0.20, 1.0),
    "tuning_s": ("tuning", "s", 0.20, 1.0),
}


def digits(value: float | None) -> str:
    return "?" if value is None else sig(value, 4)


# where b wins and where it loses


def crossovers(rows: Sequence[Row]) -> list[Line | Parted]:
    """Of the timed cells of each target, op, provider and mode."""
    found = []
    for row in rows:
        if not row["verdict"] or row["control"]:
            continue
        dims = {str(k): int(v) for k, v in parse(row.get("dims")).items() if isinstance(v, int)}
        names = tuple((what, str(value)) for what, value in _names(row))
        ratio = number(row.get("ratio"))
        found.append(crossover.Cell(row["cell"], names, dims, Verdict(row["verdict"]), 1.0 if ratio is None else ratio))
    return crossover.lines(found, 4)


def _names(row: Row) -> Iterator[tuple[str, Any]]:
    yield "target", row.get("target") or row["backend"]
    yield "op", row["op"]
    for what in ("provider", "mode"):
        yield what, either(row[f"{what}_a"], row[f"{what}_b"])
    yield "operation", row["operation"]
    yield "dtype", short_dtype(row["dtype"] or "")
    yield "variant", _without(row, 6, "shape")


def either(a: str | None, b: str | None) -> str:
    """Of a name in both arms: that name, or `a -> b`."""
    return " -> ".join(dict.fromkeys(x for x in (a, b) if x))


def _without(row: Row, place: int, name: str) -> str:
    """The cell without one part of its id, or all of it where the id is of another form."""
    out = []
    for one in str(row["cell"]).split(" | "):
        parts = one.split("/")
        if len(parts) > place and parts[place] in (row.get(name), row.get(f"{name}_a"), row.get(f"{name}_b")):
            del parts[place]
        out.append("/".join(parts))
    return " | ".join(out)


def crossover_text(line: Line | Parted, rows: Mapping[str, Row], b: str = "b") -> str:
    """`cuda:H200 rms_norm farm/auto: b is faster at hidden 128 to 512 (...), slower at hidden 4096 to 8192 (...)`.
    `rows`: by cell; `b`: what the arm is called."""
    names = dict(line.names)
    whose = f"{names['target']} {names['op']} {names['provider']}" + (f"/{names['mode']}" if names["mode"] else "")
    more = [value for what, value in line.names[4:] if what != "variant"]
    whose = " ".join([whose, *more, *(["of one variant"] if "variant" in names else [])])
    if isinstance(line, Parted):
        faster, slower = (cells(n) for n in line.cells)
        if line.by:
            sides = [", ".join(side[:4]) for side in (line.faster, line.slower)]
            return f"{whose}: {b} is faster for {line.by} {sides[0]} ({faster}), slower for {sides[1]} ({slower})"
        return f"{whose}: {b} is faster in {faster} and slower in {slower}, and no axis parts them"
    told = [
        f"{side} at {line.axis} {_range(zone)} ({zone.cells} of {cells(zone.of)}, most at {_cell(zone.extreme, rows)})"
        for side, zone in (("faster", line.faster), ("slower", line.slower))
    ]
    rest = [f"between them {cells(line.between)} the same"] if line.between else []
    rest += [f"{cells(line.undecided)} undecided"] if line.undecided else []
    return "; ".join([f"{whose}: {b} is {', '.join(told)}", *rest])


def _range(zone: crossover.Zone) -> str:
    return str(zone.first) if zone.first == zone.last else f"{zone.first} to {zone.last}"


def _cell(cell: crossover.Cell, rows: Mapping[str, Row]) -> str:
    row = rows.get(cell.cell, {})
    a, b = (number(row.get(f"bandwidth_gbps_{arm}")) for arm in ("a", "b"))
    speeds = f", {digits(a)} -> {digits(b)} GB/s" if a and b else ""
    names = dict(cell.names)
    what = " ".join(filter(None, (row.get("shape") or cell.cell, names.get("dtype"), names.get("operation"))))
    return f"{what}: {cell.ratio:.3f}{speeds}"


# the best mode, and what auto costs


def choices(rows: Sequence[Row]) -> list[Choice]:
    """What `auto` has to choose from, where both arms run the same modes."""
    found = []
    for row in rows:
        if row["control"] or (row["mode_a"] and row["mode_b"] and row["mode_a"] != row["mode_b"]):
            continue
        times = {arm: us for arm in ("a", "b") if (us := number(row.get(f"time_us_{arm}")))}
        mode = row["mode_b"] or row["mode_a"]
        if times and mode:
            threshold = number(row.get("threshold"))
            key = _without(row, 3, "mode")
            found.append(modes.Timed(row["cell"], key, mode, times, DEFAULT.widest if threshold is None else threshold))
    return modes.choices(found)


def mode_lines(found: Sequence[Choice], most: int = 3, arms: tuple[str, str] = ("a", "b")) -> Iterator[list[str]]:
    """Sentences, each followed by up to `most` of the cells that it is about; nothing where no cell has a choice.
    `arms`: what they are called."""
    if not found:
        return
    changed = [c for c in found if c.sure_change]
    text = f"best mode: another one in {arms[1]} in {len(changed)} of {cells(len(found))}"
    shown = [f"{c.cell}: {c.best['a'].mode} -> {c.best['b'].mode}" for c in changed[:most]]
    yield [text, *shown, *and_more(changed, most)]
    sure = [sum(arm in c.best and c.best[arm].sure for c in found) for arm in ("a", "b")]
    text = f"auto: slower than the best mode in {sure[0]} of {cells(len(found))} in {arms[0]}"
    text += f", in {sure[1]} in {arms[1]}"
    worse = sorted((c for c in found if c.worse), key=lambda c: -c.best["b"].regret)
    mended = sum(c.mended for c in found)
    text += f", newly in {len(worse)}" if worse else ""
    text += f", no longer in {mended}" if mended else ""
    yield [text, *(regret_text(c) for c in worse[:most]), *and_more(worse, most)]


def regret_text(choice: Choice) -> str:
    """`CELL: 1 % -> 19 % (auto 60.1 us, multi_wave_reload 50.5 us)`, of b."""
    best = choice.best["b"]
    was = f"{choice.best['a'].regret:.0%} -> " if "a" in choice.best else ""
    return f"{choice.cell}: {was}{best.regret:.0%} (auto {digits(best.auto_us)} us, {best.mode} {digits(best.us)} us)"


def and_more(of: Sequence[Any], most: int) -> list[str]:
    """`and 3 more`, where a list is longer than what is shown of it."""
    return [f"and {len(of) - most} more"] if len(of) > most else []


# memory, host time, first calls


@dataclass(frozen=True)
class Cost:
    """What b takes more or less of than a, by cell: (cell, a, b), the largest change first; `of`: cells that have both
    numbers."""

    what: str
    unit: str
    more: tuple[tuple[str, float, float], ...]
    less: tuple[tuple[str, float, float], ...]
    of: int

    @property
    def text(self) -> str:
        """`peak memory: more in 3 of 40 cells, at most 12 -> 24 MiB (CELL); less in 1 cell, ...`"""
        told = []
        for word, found in (("more", self.more), ("less", self.less)):
            if found:
                cell, a, b = found[0]
                told.append(
                    f"{word} in {len(found)} of {cells(self.of)}, at most {digits(a)} -> {digits(b)} "
                    f"{self.unit} ({cell})"
                )
        return f"{self.what}: {'; '.join(told)}"


def costs(rows: Sequence[Row]) -> list[Cost]:
    """What differs by enough to be worth a word.  Peers count only where no subject has a pair."""
    own = [row for row in rows if row["role"] == "subject"] or rows
    out = []
    for column, (what, unit, share, least) in COSTS.items():
        both = []
        for row in own:
            a, b = (number(row.get(f"{column}_{arm}")) for arm in ("a", "b"))
            # machine code that is the same in both arms may be given other memory by the code that launches it
            if a is not None and b is not None and (not row["control"] or column == "peak_memory_mib"):
                both.append((str(row["cell"]), a, b))
        beyond = [one for one in both if abs(one[2] - one[1]) > max(least, share * one[1])]
        beyond.sort(key=lambda one: -abs(one[2] - one[1]) / max(one[1], 1e-9))
        more, less = (tuple(o for o in beyond if (o[2] > o[1]) is up) for up in (True, False))
        if beyond:
            out.append(Cost(what, unit, more, less, len(both)))
    return out


def peaks(row: Row) -> str:
    """`device memory 32 -> 64 MiB`; "" where the peaks of both arms differ by less than an allocator may explain, or
    one is not known."""
    a, b = (number(row.get(f"peak_memory_mib_{arm}")) for arm in ("a", "b"))
    if a is None or b is None or not memory.differ(a * memory.MIB, b * memory.MIB):
        return ""
    return f"device memory {digits(a)} -> {digits(b)} MiB"


def memory_lines(rows: Sequence[Row], most: int) -> list[str]:
    """The cells that need more device memory in b, those that need most more first.  Peers count only where no subject
    has a pair."""
    grown = []
    for row in [row for row in rows if row["role"] == "subject"] or rows:
        a, b = (number(row.get(f"peak_memory_mib_{arm}")) for arm in ("a", "b"))
        if peaks(row) and a is not None and b is not None and b > a:
            grown.append((b - a, f"{row['cell']}: {digits(b - a)} MiB more ({peaks(row)})"))
    lines = [text for _, text in sorted(grown, key=lambda one: -one[0])]
    return [*lines[:most], *and_more(lines, most)]


# how kernels are launched


def launches(row: Row) -> Iterator[str]:
    """What differs in the launch of both arms: `mode a -> b`, `kernel.warps 4 -> 8`, which kernels ran."""
    for what in ("mode", "mode_resolved"):
        a, b = row.get(f"{what}_a"), row.get(f"{what}_b")
        if a and b and a != b:
            yield f"{'auto chose' if what == 'mode_resolved' else 'mode'} {a} -> {b}"
    (a, ran_a), (b, ran_b) = (_launch(row.get(f"launch_{arm}")) for arm in ("a", "b"))
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield f"{name} {a.get(name, 'none')} -> {b.get(name, 'none')}"
    if ran_a != ran_b and ran_a and ran_b:
        yield f"launches {_counted(ran_a)} -> {_counted(ran_b)}"


def _launch(text: str | None) -> tuple[dict[str, Any], dict[str, int]]:
    """(kernel and setting -> value, of our kernels that ran; kernel -> how often Triton launched it)."""
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}, {}
    if not isinstance(told, dict):
        return {}, {}
    out: dict[str, Any] = {}
    kernels, seen = told.get("kernels"), told.get("seen")
    for place, kernel in enumerate(kernels if isinstance(kernels, list) else ()):
        if isinstance(kernel, dict):
            name = str(kernel.get("kernel") or kernel.get("name") or place)
            out |= {f"{name}.{key}": value for key, value in kernel.items() if key not in ("kernel", "name")}
    return out, {str(k): v for k, v in seen.items() if isinstance(v, int)} if isinstance(seen, dict) else {}


def _counted(ran: Mapping[str, int]) -> str:
    names = [name if count == 1 else f"{count} x {name}" for name, count in ran.items()]
    return ", ".join([*names[:3], *and_more(names, 3)])


# all of it


def described(rows: Sequence[Row]) -> dict[str, Any]:
    """As run.json has it; what there is nothing of is left out."""
    by_cell = {str(row["cell"]): row for row in rows}
    chosen = choices(rows)
    lines = [crossover_text(line, by_cell) for line in crossovers(rows)]
    taken = {
        cost.what: {
            "unit": cost.unit,
            "of": cost.of,
            **{
                name: {"cells": len(of), "first": [dict(zip(("cell", "a", "b"), one)) for one in of[:MAX_SHOWN]]}
                for name, of in (("more", cost.more), ("less", cost.less))
                if of
            },
        }
        for cost in costs(rows)
    }
    auto = {
        "cells": len(chosen),
        "best_changed": _first([c for c in chosen if c.sure_change]),
        "slower_than_best": {a: sum(a in c.best and c.best[a].sure for c in chosen) for a in ("a", "b")},
        "newly_slower": _first([c for c in chosen if c.worse]),
        "no_longer_slower": _first([c for c in chosen if c.mended]),
    }
    found = {"crossovers": lines[:MAX_SHOWN], "auto": auto if chosen else {}, "costs": taken}
    return {name: value for name, value in found.items() if value}


def _first(of: Sequence[Choice]) -> dict[str, Any]:
    shown = [{"cell": c.cell, **{arm: vars(best) for arm, best in c.best.items()}} for c in of[:MAX_SHOWN]]
    return {"count": len(of), "first": shown}


def lines(rows: Sequence[Row], most: int = 10) -> Iterator[str]:
    """As the terminal shows it."""
    by_cell = {str(row["cell"]): row for row in rows}
    found = crossovers(rows)
    if found:
        yield "faster and slower:"
        yield from (f"  {crossover_text(line, by_cell)}" for line in found[:most])
        yield from (f"  {more}" for more in and_more(found, most))
    yield from ("; ".join(parts) for parts in mode_lines(choices(rows)))
    yield from (cost.text for cost in costs(rows))
