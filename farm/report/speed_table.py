"""One run as a table of speeds: a line per op, operation, shape and dtype, and a column per provider.  Pure.

Only the rows of the run count.  A provider's cell of a line has a number if the judge passed it and its time is a
speed; any other cell has a word for its status, so that no line is shorter where something failed.  Lines with grad
(training) and without (inference) are in tables of their own, as are unlike targets, which are never compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from farm.cell import ARM
from farm.errors import UsageError
from farm.report.findings import whole
from farm.report.format import IMPOSSIBLE, QUALITY_MARKS, label, number, short_dtype
from farm.report.provenance import flat
from farm.report.queries import (
    Row,
    RunLike,
    as_shown,
    counts,
    extrapolated,
    flop_bound,
    is_subject,
    own_rest,
    parse,
    speed_counts,
)
from farm.report.queries import planned as planned_of
from farm.report.run_lines import commit
from farm.store.results import place

UNITS = ("gbps", "us")
#: Operations that keep nothing for a backward.
WITHOUT_GRAD = ("no-grad-forward",)
NOT_PLANNED, NOT_TIMED, ELSEWHERE = "not planned", "not timed", "other target"
#: Facts of a fingerprint that say which one of several devices ran, and nothing of speed.
_NAMES_ONE = ("uuid", "node", "pid", "pci", "hostname")
_AUTO = ("auto", "", None)


@dataclass(frozen=True)
class Entry:
    """What one provider has in a line.  `us`: its median time, None where it has no speed; `word`: what is said then,
    and `reason`, why; `note`: what a reader must know of the number ("" for nothing)."""

    us: float | None
    word: str = ""
    reason: str = ""
    note: str = ""
    compared: bool = True  # False: timed by another method than the provider that peers are compared with
    gbps: float | None = None
    tflops: float | None = None

    def speed(self, unit: str) -> float | None:
        return {"us": self.us, "GB/s": self.gbps, "TFLOP/s": self.tflops}[unit]


@dataclass(frozen=True)
class Line:
    """One line.  `ratio`: the best peer's time divided by that of the provider that peers are compared with, so above
    1 where this one is faster; `share`: of the roof, of that provider; `roof_us`: the least time by the calibration."""

    op: str
    operation: str
    shape: str
    dtype: str
    parameters: str
    timing: str
    entries: Mapping[str, Entry]
    best: str
    ratio: float | None
    share: float | None
    roof_us: float | None
    beyond: bool  # the roof is extrapolated
    bytes_moved: float | None
    operations: float | None

    @property
    def name(self) -> str:
        """`rms_norm forward 4096x1024 bf16 llama`."""
        return " ".join(w for w in (self.op, self.operation, self.shape, short_dtype(self.dtype), self.parameters) if w)

    def roof(self, unit: str) -> float | None:
        """The roof in the table's unit."""
        if not self.roof_us:
            return None
        work = {"us": None, "GB/s": self.bytes_moved, "TFLOP/s": self.operations}[unit]
        return (
            self.roof_us if unit == "us" else work / self.roof_us / (1e3 if unit == "GB/s" else 1e6) if work else None
        )


@dataclass(frozen=True)
class Mean:
    """The ratios of one op and operation: their geometric mean, the lowest, and how many lines have one."""

    what: str
    mean: float
    lowest: float
    lines: int


@dataclass(frozen=True)
class Table:
    """The lines of one target, with grad or without.  `columns`: subjects first, each provider's `auto` first."""

    place: str
    target: str
    evidence: str
    grad: bool
    unit: str  # us, GB/s, TFLOP/s
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        where = self.target or self.place
        ran = f", {self.evidence}" if self.evidence not in ("executed", "") else ""
        return f"{where}{ran}, {'with grad (training)' if self.grad else 'without grad (inference)'}"

    @property
    def losses(self) -> tuple[Line, ...]:
        """The lines in which the best peer is faster, worst first."""
        found = [line for line in self.lines if line.ratio is not None and line.ratio < 1]
        return tuple(sorted(found, key=lambda line: line.ratio or 0.0))

    @property
    def means(self) -> tuple[Mean, ...]:
        found: dict[str, list[float]] = {}
        for line in self.lines:
            if line.ratio:
                found.setdefault(f"{line.op} {line.operation}", []).append(line.ratio)
        return tuple(Mean(what, geometric_mean(r), min(r), len(r)) for what, r in found.items())

    @property
    def words(self) -> list[tuple[str, str, str, int]]:
        """(column, word, reason, lines) of cells without a number, as often as they occur."""
        seen = Counter((c, e.word, e.reason) for line in self.lines for c, e in line.entries.items() if e.word)
        return [(*what, n) for what, n in seen.items()]


@dataclass(frozen=True)
class SpeedTables:
    """All tables of a run; `of`: the column that peers are compared with; `caption`: name -> text."""

    of: str
    caption: Mapping[str, str]
    tables: tuple[Table, ...]


def speed_tables(run: RunLike, unit: str = "gbps", losses_first: bool = False, of: str = "") -> SpeedTables:
    """The tables of a run.  `unit`: of UNITS; GB/s are TFLOP/s for ops that operations limit.  `losses_first`: lines in
    which `of` has no number come first, then those in which it is slowest against the best peer.  `of`: a provider or
    provider/mode; "" takes the first subject's own choice of mode.  UsageError for a run of two arms, and for an
    unknown `of`."""
    run = as_shown(run)
    if any(_arm(r) for r in run.rows):
        raise UsageError(
            f"run {run.id} compares two arms, but a table of speeds has one; its page shows both", id="table-two-arms"
        )
    columns = _columns(run.rows)
    of = of or next((c for c, role in columns.items() if role != "peer"), next(iter(columns), ""))
    if columns and of not in columns:
        raise UsageError(f'--of "{of}": run {run.id} has only {", ".join(columns)}', id="table-of-unknown")
    tables = []
    for (where, target, evidence, grad), rows in _sections(run.rows).items():
        limited = {op for op in {r.get("op") for r in rows} if flop_bound(r for r in rows if r.get("op") == op)}
        for flops in (False, True):
            groups = [g for g in _groups(rows) if (g[0].get("op") in limited) == flops]
            lines = [_line(g, columns, of, target) for g in groups]
            if losses_first:
                lines.sort(key=lambda line: _harm(line, of))
            shown = tuple(c for c in columns if any(line.entries[c].word != NOT_PLANNED for line in lines))
            lines = [_only(line, shown) for line in lines]
            name = "us" if unit == "us" else "TFLOP/s" if flops else "GB/s"
            if lines:
                tables.append(Table(where, target, evidence, grad, name, shown, tuple(lines)))
    return SpeedTables(of, _caption(run, of), tuple(tables))


def _arm(row: Row) -> bool:
    """Whether the row is of one of two arms: its id ends in `~a` or `~b`."""
    return str(row.get("cell_id") or "")[-2:] in (f"{ARM}a", f"{ARM}b")


def column_of(row: Row) -> str:
    """`liger`, or `quack/tuned` for a mode that is not the provider's own choice."""
    provider, mode = str(row.get("provider") or ""), row.get("mode")
    return provider if mode in _AUTO else f"{provider}/{mode}"


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """Column -> role: subjects first, `auto` before a provider's other modes, else in the plan's order."""
    first: dict[str, int] = {}
    for r in rows:
        first.setdefault(str(r.get("provider")), len(first))
    order: dict[str, tuple[tuple[Any, ...], str]] = {}
    for at, r in enumerate(rows):
        key = (not is_subject(r), first[str(r.get("provider"))], r.get("mode") not in _AUTO, at)
        order.setdefault(column_of(r), (key, str(r.get("role") or "subject")))
    return {name: role for name, (_, role) in sorted(order.items(), key=lambda item: item[1][0])}


def _sections(rows: Sequence[Row]) -> dict[tuple[str, str, str, bool], list[Row]]:
    """(place, target, evidence, with grad) -> rows.  A cell that ran nowhere is in the tables of all targets of its
    place, since it might have run on any; one that ran on another target is there without its number."""
    there: dict[tuple[str, bool], dict[tuple[str, str], None]] = {}
    for r in rows:
        known = there.setdefault((place(r), _grad(r)), {})
        if r.get("evidence"):
            known[str(r.get("target") or ""), str(r["evidence"])] = None
    out: dict[tuple[str, str, str, bool], list[Row]] = {}
    for (where, grad), known in there.items():
        for target, evidence in known or {("", ""): None}:
            mine = [r for r in rows if (place(r), _grad(r)) == (where, grad)]
            here = {_same(r) for r in mine if _here(r, target, evidence) or not r.get("evidence")}
            out[where, target, evidence, grad] = [
                r if _here(r, target, evidence) or not r.get("evidence") else {**r, "_elsewhere": True}
                for r in mine
                if _same(r) in here
            ]
    return out


def _here(row: Row, target: str, evidence: str) -> bool:
    return (str(row.get("target") or ""), str(row.get("evidence") or "")) == (target, evidence)


def _grad(row: Row) -> bool:
    return row.get("operation") not in WITHOUT_GRAD


def _same(row: Row) -> tuple[str, ...]:
    """What the cells of a line share."""
    return (*(str(row.get(n) or "") for n in ("op", "operation", "shape", "dtype", "dims")), own_rest(row))


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        found.setdefault(_same(r), []).append(r)
    return list(found.values())


def _line(rows: Sequence[Row], columns: Mapping[str, str], of: str, target: str) -> Line:
    mine: dict[str, Row] = {}
    for r in rows:  # a damaged run may have a cell twice: what is here, and has a speed, counts
        name = column_of(r)
        if name not in mine or (not mine[name].get("_elsewhere") and speed_counts(mine[name])) < _counts(r):
            mine[name] = r
    lead = mine.get(of)
    timed = [r for r in mine.values() if _counts(r)]
    method = str((lead if lead is not None and _counts(lead) else (timed or rows)[0]).get("timing_method") or "")
    entries = {name: _entry(mine.get(name), method) for name in columns}
    peers = {n: e.us for n, e in entries.items() if columns[n] == "peer" and n != of and e.us and e.compared}
    best = min(peers, key=lambda n: peers[n]) if peers else ""
    us = entries[of].us
    roofed = [r for r in timed if number(r.get("share_of_roof")) and str(r.get("timing_method") or "") == method]
    roof = next((r for r in roofed if r is lead), roofed[0] if roofed else None)
    roof_us = float(roof["share_of_roof"]) * float(roof["time_us_p50"]) if roof else None
    first = rows[0]
    return Line(
        op=str(first.get("op") or ""),
        operation=str(first.get("operation") or ""),
        shape=str(first.get("shape") or ""),
        dtype=str(first.get("dtype") or ""),
        parameters=own_rest(first),
        timing=method,
        entries=entries,
        best=best,
        ratio=peers[best] / us if best and us else None,
        share=roof_us / us if roof_us and us else None,
        roof_us=roof_us,
        beyond=bool(roof and extrapolated(roof)),
        bytes_moved=next((v for r in timed if (v := number(r.get("bytes_moved")))), None),
        operations=next((v for r in timed if (v := number(r.get("operations")))), None),
    )


def _counts(row: Row) -> bool:
    """Whether the row has a speed in this table."""
    return not row.get("_elsewhere") and speed_counts(row) and float(row["time_us_p50"]) > 0


def _entry(row: Row | None, method: str) -> Entry:
    if row is None:
        return Entry(None, NOT_PLANNED)
    reason = " ".join(str(row.get("reason") or "").split())
    if row.get("_elsewhere"):
        return Entry(None, ELSEWHERE, f"ran on {row.get('target') or 'a device without a target'}")
    if not _counts(row):
        status = str(row.get("status") or "")
        if status != "passed":
            return Entry(None, label(status), reason)
        impossible = row.get("timing_quality") == "impossible"
        return Entry(None, f"{IMPOSSIBLE} impossible" if impossible else NOT_TIMED, reason)
    by = str(row.get("timing_method") or "")
    notes = [QUALITY_MARKS.get(str(row.get("timing_quality")), ""), f"({by})" if by != method else ""]
    return Entry(
        float(row["time_us_p50"]),
        note=" ".join(filter(None, notes)),
        compared=by == method,
        gbps=number(row.get("bandwidth_gbps")),
        tflops=number(row.get("tflops")),
    )


def _only(line: Line, shown: Sequence[str]) -> Line:
    return replace(line, entries={name: line.entries[name] for name in shown})


def _harm(line: Line, of: str) -> tuple[int, float]:
    """Worst first: no number of ours, then the ratios upwards, then lines without a peer's number."""
    if line.entries[of].us is None:
        return (0, 0.0)
    return (1, line.ratio) if line.ratio is not None else (2, 0.0)


def _caption(run: RunLike, of: str) -> dict[str, str]:
    """What a reader needs to repeat the run and to judge it."""
    rows = run.rows
    have = counts(rows)
    sign = "=" if planned_of(run) == len(rows) else "≠"
    used = list(run.head.get("calibrations") or {})
    roofs = any(number(r.get("share_of_roof")) for r in rows)
    named = [str(m.get("name")) for m in run.head.get("matrices") or []]
    parts = {
        "run": f"{run.id}, {run.head.get('created') or ''}{'' if run.complete else ', not complete'}",
        "revision": commit(run.head),
        "matrices": ", ".join(named),
        "command": whole(run.head) or str(run.head.get("command") or ""),
        "cells": f"{planned_of(run):,} planned {sign} {', '.join(f'{n:,} {label(s)}' for s, n in have.items())}",
        "devices": "; ".join(_devices(rows)),
        "tool chain": "; ".join(_tool_chains(rows)),
        "providers": "; ".join(_providers(rows)),
        "timing": ", ".join(_distinct(r.get("timing_method") for r in rows if speed_counts(r))),
        "roof": (", ".join(map(str, used)) or "of the run's calibration")
        if roofs
        else "none: no calibration applies (farm calibrate measures one)",
        "ratio": f"the best peer's time divided by that of {of}: above 1, {of} is faster. All modes of "
        "a peer in this run count",
    }
    return {name: text.strip(", ") for name, text in parts.items() if text.strip(", ")}


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(v) for v in values if v))


def _devices(rows: Sequence[Row]) -> Iterator[str]:
    """`3 x cuda:0 ... (cuda:NVIDIA-H200:700W)`: how many devices of each target ran cells."""
    seen: dict[str, dict[tuple[str, str], None]] = {}
    for r in rows:
        if r.get("evidence"):
            known = seen.setdefault(f"{r.get('target') or r.get('backend')}, {r['evidence']}", {})
            known[str(r.get("node") or ""), str(r.get("device") or "")] = None
    for what, which in seen.items():
        nodes = len({node for node, _ in which})
        yield f"{what}: {len(which)} device{'s'[: len(which) > 1]} on {nodes} host{'s'[: nodes > 1]}"


def _tool_chains(rows: Sequence[Row]) -> list[str]:
    """The facts of each distinct fingerprint but for what names one device."""
    texts = []
    for print_ in dict.fromkeys(str(r.get("fingerprint") or "") for r in rows if r.get("evidence")):
        facts = {n: v for n, v in flat(parse(print_)).items() if n.rpartition(".")[2] not in _NAMES_ONE}
        texts.append(", ".join(f"{n} {v}" for n, v in facts.items()))
    return list(dict.fromkeys(t for t in texts if t))


def _providers(rows: Sequence[Row]) -> Iterator[str]:
    """`quack/tuned 0.6.5 (rmsnorm_fwd_tuned ...)`: version and settings of each column."""
    found: dict[str, dict[str, None]] = {}
    for r in rows:
        version = r.get("provider_version") or (r.get("revision") if r.get("provider") == "farm" else "")
        settings = f"({r['provider_settings']})" if r.get("provider_settings") else ""
        known = found.setdefault(column_of(r), {})
        if told := " ".join(str(t) for t in (version, settings) if t):
            known[told] = None
    for name, texts in found.items():
        full = [
            t for t in texts if not any(other != t and t in other for other in texts)
        ]  # where not all cells know both
        yield f"{name} {' and '.join(full)}" if full else f"{name} (version unknown)"
