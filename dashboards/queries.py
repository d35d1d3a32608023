"""From the rows of a run to what a page says.  Pure.

A *row* is one planned cell with the columns of `cells.parquet`; nothing here knows HTML.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from dashboards.words import FARM_FAULTS, HARM, STATUSES, cells, clip, count, number, ratio
from farm.compile.targets import TARGETS
from farm.results import place

Row = Mapping[str, Any]
#: Operations per byte above which cells are told in TFLOP/s: norms do about 1, matrix products hundreds.
FLOP_BOUND = 50.0
PLACE = ("backend", "op", "provider", "mode")
MEASURED = 1e8  # a worst ratio from here on stands for what no metric measures: not finite, another layout
SCHEMA = 4  # the newest run.json that these pages understand


class RunLike(Protocol):
    """A run as the store gives it."""

    @property
    def id(self) -> str: ...
    @property
    def head(self) -> dict[str, Any]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def rows(self) -> list[dict[str, Any]]: ...
    @property
    def dir(self) -> Path: ...


@dataclass(frozen=True)
class Verdict:
    kind: str  # passed, nothing, findings, farm_fault, interrupted, going_on
    text: str


@dataclass(frozen=True)
class Part:
    """One line of a card: one provider's cells of one op, skipped ones aside."""

    op: str
    provider: str
    role: str
    cells: int  # planned, with evidence or without
    passed: int
    missing: dict[str, int]  # those without evidence
    failed: dict[str, int]  # those with evidence that did not pass
    worst_ratio: float | None
    speed: float | None  # median over the timed cells of mode `auto`
    unit: str  # of `speed`: GB/s, or TFLOP/s where operations bind
    share: float | None  # of the roof, median over the same cells


@dataclass(frozen=True)
class Card:
    """One backend, one target, one kind of evidence; counts are never summed over cards."""

    backend: str
    target: str
    evidence: str
    counts: dict[str, int]
    not_run: dict[str, int]  # cells of this backend without evidence, told on its first card only, never in `counts`
    devices: tuple[str, ...]
    parts: tuple[Part, ...]
    place: str = ""  # the backend, or `cuda@GB200`
    rows: tuple[Row, ...] = ()  # those that are counted in `counts`

    @property
    def name(self) -> str:
        """`cuda`, `cuda GB200` where a device was named, or `sm_90` where nothing ran."""
        if self.evidence == "compiled":
            return self.target.rpartition(":")[2]
        return " ".join(w for w in (self.place or self.backend).split("@") if w)

    @property
    def timed(self) -> bool:
        return any(p.speed is not None for p in self.parts)

    @property
    def no_speed(self) -> str:
        """Why the card has no speed at all; "" where a cell has one, and of what was compiled."""
        if not self.counts or self.evidence == "compiled" or any(speed_counts(r) for r in self.rows):
            return ""
        if self.evidence == "interpreted":
            return "no speeds: an interpreter's time is no kernel's time"
        return "no speeds: no cell that passed was timed"

    @property
    def roof(self) -> bool:
        return any(p.share is not None for p in self.parts)

    @property
    def missing(self) -> dict[str, int]:
        """Cells that were asked for and have no evidence: the part of the bar that proves nothing."""
        return {s: n for s, n in self.not_run.items() if s != "skipped"}


@dataclass(frozen=True)
class Strip:
    """Errors over their gates of one provider and mode at one dtype."""

    name: str
    values: tuple[float, ...]
    outliers: tuple[tuple[float, str], ...]  # (ratio, which cell)


@lru_cache(maxsize=65536)
def parse(text: str | None) -> Any:
    """JSON text of a column, or {} where it is empty or broken (a log of a sick run must not take the page down)."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {}


def is_build(row: Row) -> bool:
    """Whether the row was planned for compilation alone: its id names a compile target, not a device's."""
    named = place(row).partition("@")[2]
    evidence = row.get("evidence")
    return bool(named) and (evidence == "compiled" or (not evidence and named in TARGETS))


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Status -> cells, in the order of `STATUSES`; a status outside the closed set comes last, under its own name."""
    return in_order(Counter(str(r.get("status") or "") for r in rows))


def in_order(found: Mapping[str, int]) -> dict[str, int]:
    known = {s: found[s] for s in STATUSES if found.get(s)}
    return known | {s: n for s, n in sorted(found.items()) if s not in STATUSES and n}


def planned(run: RunLike) -> int:
    return int(run.head.get("planned") or len(run.rows))


def is_subject(row: Row) -> bool:
    return row.get("role") != "peer"


def writer(run: RunLike) -> str:
    """Who writes the run at this moment; "" of a complete run, and of one that was interrupted."""
    return "" if run.complete else str(getattr(run, "writer", ""))


def strict_peers(run: RunLike) -> bool:
    return "--strict-peers" in f"{run.head.get('command')} {run.head.get('argv')}"


def is_finding(run: RunLike, row: Row) -> bool:
    """Whether this cell accuses code that the run was meant to judge."""
    return row.get("status") in HARM and (is_subject(row) or strict_peers(run))


def verdict(run: RunLike) -> Verdict:
    """What the rows say, whatever run.json says; `warnings` tells where the two differ."""
    have, strict = counts(run.rows), strict_peers(run)
    bad = [r for r in run.rows if r.get("status") in HARM and (strict or is_subject(r))]
    groups = len({tuple(r.get(n) for n in ("status", *PLACE)) for r in bad})
    whose = "" if strict else " of subjects"
    findings = f"{cells(len(bad))}{whose} failed, in {groups} group{'' if groups == 1 else 's'}."
    besides = f"; besides, {findings}" if bad else "."
    if not run.complete:
        lost = have.get("lost", 0) + max(0, planned(run) - len(run.rows))
        if writer(run):
            told = f"{count(planned(run) - lost)} of {cells(planned(run))} have their result, the others stand as lost"
            return Verdict("going_on", f"Going on ({writer(run)}): {told}{besides}")
        return Verdict("interrupted", f"Interrupted: {cells(lost)} of {count(planned(run))} lost{besides}")
    if faults := [r for r in run.rows if r.get("status") in FARM_FAULTS]:
        causes = {str(r.get("reason") or "") for r in faults}
        cause = f": {clip(causes.pop(), 160).rstrip('.')}" if len(causes) == 1 and causes != {""} else ""
        return Verdict("farm_fault", f"The farm failed on {cells(len(faults))}{cause}{besides}")
    if bad:
        return Verdict("findings", f"Findings: {findings}")
    done = [r for r in run.rows if r.get("status") in ("passed", "built")]
    ours = [r for r in done if is_subject(r)]
    if not done or (not ours and any(is_subject(r) for r in run.rows)):
        return Verdict("nothing", "Nothing is proven: no cell of a subject ran.")
    silent = _silent_subjects(run.rows)
    if silent:
        return Verdict("nothing", f"Inconclusive: everything is unsupported for {', '.join(silent)}.")
    idle = sorted({place(r) for r in run.rows} - {place(r) for r in done})
    but = f"; nothing ran on {', '.join(idle)}" if idle else ""
    lies = sum(r.get("timing_quality") == "impossible" for r in run.rows)
    but += f"; {count(lies)} timing{'s are' if lies > 1 else ' is'} impossible" if lies else ""
    how = "built, and run nowhere" if all(r.get("evidence") == "compiled" for r in done) else "passed"
    if all(r.get("evidence") == "simulated" and r.get("backend") != "sim" for r in done):
        how = "passed, played by fakes alone"
    kinds = Counter(str(r.get("evidence")) for r in ours or done)
    if len(kinds) > 1:  # counts are never summed over different evidence
        told = ", ".join(f"{count(n)} {kind}" for kind, n in kinds.items())
        whose = "subjects" if ours else "peers"
        return Verdict("passed", f"No findings. Cells of {whose} that passed: {told}{but}.")
    return Verdict(
        "passed", f"No findings: {cells(len(ours or done))} of {'subjects' if ours else 'peers'} {how}{but}."
    )


def said_of(run: RunLike, rows: Sequence[Row]) -> str:
    """The verdict of some of a run's rows, by the word that a tag shows: passed, findings, farm_fault, interrupted,
    going_on, nothing."""
    have = counts(rows)
    if have.get("lost") and not run.complete:
        return "going_on" if writer(run) else "interrupted"
    if any(have.get(s) for s in FARM_FAULTS):
        return "farm_fault"
    if any(is_finding(run, r) for r in rows):
        return "findings"
    return "passed" if have.get("passed") or have.get("built") else "nothing"


def _silent_subjects(rows: Iterable[Row]) -> list[str]:
    """Subjects that were asked for something on a backend where all of it was unsupported: `farm on cuda`."""
    seen: dict[str, bool] = {}
    for r in rows:
        if is_subject(r) and r.get("status") != "skipped":
            name = f"{r.get('provider')} on {place(r)}"
            seen[name] = seen.get(name, False) or r.get("status") != "unsupported"
    return sorted(name for name, spoke in seen.items() if not spoke)


def warnings(run: RunLike) -> list[str]:
    """Sentences about a run whose parts do not fit together; each is shown loudly."""
    out, have = [], counts(run.rows)
    total = sum(have.values())
    if total != planned(run):
        out.append(f"The statuses add up to {count(total)}, but {count(planned(run))} cells were planned.")
    ids = Counter((r.get("cell_id"), r.get("cell_key")) for r in run.rows)
    if twice := [str(i[0]) for i, n in ids.items() if n > 1]:
        out.append(f"{cells(len(twice))} stand twice in the run, the first is {twice[0]}.")
    if unknown := [s for s in have if s not in STATUSES]:
        out.append(f"{cells(sum(have[s] for s in unknown))} have a status that is not in the closed set: {unknown}.")
    if run.complete:
        said = {s: n for s, n in (run.head.get("counts") or {}).items() if n}
        if said and said != have:
            out.append("run.json counts other statuses than cells.parquet holds; this page counts the cells.")
        kind, told = verdict(run).kind.replace("nothing", "inconclusive"), run.head.get("verdict")
        if told and told != kind:
            out.append(f"run.json says `{told}`; the cells say `{kind}`.")
        if int(run.head.get("schema") or SCHEMA) > SCHEMA:
            out.append(f"The run was written with schema {run.head['schema']}; this page understands {SCHEMA}.")
        out += [f"{str(s)[:1].upper()}{str(s)[1:]}." for s in run.head.get("warnings") or ()]  # of a merged run
    return out


# ---- small helpers ----


def worst_row(rows: Iterable[Row]) -> Row | None:
    judged = [r for r in rows if number(r.get("worst_ratio")) is not None]
    return max(judged, key=lambda r: float(r["worst_ratio"]), default=None)


def said_worst(row: Row | None) -> str:
    """`dw.rel_l2 5.3 × its gate`; the reason where no metric is why the cell is inaccurate."""
    if row is None:
        return ""
    over = number(row.get("worst_ratio")) or 0.0
    if row.get("status") == "inaccurate" and row.get("reason") and not 1 < over < MEASURED:
        return clip(str(row["reason"]))
    what = ".".join(p for p in (row.get("worst_output"), row.get("worst_metric")) if p) or "error"
    return f"{what} {ratio(number(row['worst_ratio']))} × its gate"


def by(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    out: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for r in rows:
        out[tuple(str(r.get(n) or "") for n in names)].append(r)
    return out


# ---- cards ----


def cards(run: RunLike) -> list[Card]:
    """One per backend (or target that was named), target and evidence."""
    out = []
    places: dict[str, list[Row]] = defaultdict(list)
    for r in run.rows:
        places[place(r)].append(r)
    for where, rows in places.items():
        backend = where.partition("@")[0]
        bare = [r for r in rows if not r.get("evidence")]
        proven = by((r for r in rows if r.get("evidence")), "target", "evidence")
        for (target, evidence), members in proven.items() or {("", ""): []}.items():
            parts = tuple(_parts([*members, *bare]))
            target = target or str(bare[0].get("target") or "") if bare else target
            seen = _devices(members)
            done = (counts(members), counts(bare), seen, parts, where, tuple(members))
            out.append(Card(backend, target, evidence, *done))
            bare = []
    return out


def _devices(rows: Sequence[Row]) -> tuple[str, ...]:
    """`2 devices on node-a`; from the cells themselves, so it says what really ran."""
    if rows and all(r.get("evidence") == "compiled" for r in rows):
        return ("compiled, run on no device",)
    seen = {(str(r.get("node") or ""), str(r.get("device") or "")) for r in rows}
    found = Counter(node for node, _ in seen)
    return tuple(
        f"{n} device{'s' if n > 1 else ''} on {node or 'an unnamed node'}" for node, n in sorted(found.items())
    )


def _parts(rows: Sequence[Row]) -> Iterable[Part]:
    asked = sorted(  # subjects first, whatever the matrix lists first: peers are what they are held against
        (r for r in rows if r.get("status") != "skipped"), key=lambda r: (not is_subject(r), r.get("index") or 0)
    )
    for (op, provider), members in by(asked, "op", "provider").items():
        timed = [r for r in members if r.get("mode") in ("auto", "", None) and speed_counts(r)]
        flops = flop_bound(members)
        yield Part(
            op=op,
            provider=provider,
            role=str(members[0].get("role") or "subject"),
            cells=len(members),
            passed=sum(r.get("status") in ("passed", "built") for r in members),
            missing=counts(r for r in members if not r.get("evidence")),
            failed=counts(r for r in members if r.get("evidence") and r.get("status") not in ("passed", "built")),
            worst_ratio=number((worst_row(members) or {}).get("worst_ratio")),
            speed=_median(r.get("tflops" if flops else "bandwidth_gbps") for r in timed),
            unit="TFLOP/s" if flops else "GB/s",
            share=_median(r.get("share_of_roof") for r in timed),
        )


def _median(values: Iterable[Any]) -> float | None:
    known = [v for v in map(number, values) if v is not None]
    return median(known) if known else None


def flop_bound(rows: Iterable[Row]) -> bool:
    """Whether operations, not bytes, say how fast these cells are."""
    pairs = [(number(r.get("operations")), number(r.get("bytes_moved"))) for r in rows]
    known = [o / b for o, b in pairs if o is not None and b]
    return bool(known) and median(known) > FLOP_BOUND


def speed_counts(row: Row) -> bool:
    """Whether a time of this row may be shown as a speed."""
    shown = row.get("timing_quality") not in ("impossible", "none", "", None)
    return shown and row.get("status") == "passed" and number(row.get("time_us_p50")) is not None


# ---- accuracy ----


def strips(run: RunLike) -> dict[tuple[str, str], dict[str, list[Strip]]]:
    """(backend or named target, op) -> dtype -> one strip per provider and mode that was judged; a fake's errors stand
    apart, behind ` simulated` in the name, where a real device's are beside them."""
    out: dict[tuple[str, str], dict[str, list[Strip]]] = defaultdict(lambda: defaultdict(list))
    judged = [r for r in run.rows if number(r.get("worst_ratio")) is not None]
    real = {place(r) for r in judged if r.get("evidence") != "simulated"}
    apart: dict[str, list[Row]] = defaultdict(list)
    for r in judged:
        apart[place(r) + (" simulated" if r.get("evidence") == "simulated" and place(r) in real else "")].append(r)
    groups = [(where, *rest) for where, mine in apart.items()
              for rest in by(mine, "op", "dtype", "provider", "mode").items()]  # fmt: skip
    for where, (op, dtype, provider, mode), rows in groups:
        over = sorted((r for r in rows if float(r["worst_ratio"]) > 1), key=lambda r: -float(r["worst_ratio"]))
        told = tuple((float(r["worst_ratio"]), f"{r['cell_id']}: {said_worst(r)}") for r in over[:30])
        strip = Strip(f"{provider}/{mode}", tuple(float(r["worst_ratio"]) for r in rows), told)
        out[where, op][dtype].append(strip)
    return out
