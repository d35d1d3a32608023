"""From the rows of a run to the facts that a page shows.  Pure.

A *row* is one planned cell with the columns of `cells.parquet`.  Nothing here knows HTML, and `wording` turns a verdict
into a sentence.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple, Protocol

from farm.compile.targets import TARGETS
from farm.errors import Message
from farm.report.format import FARM_FAULTS, HARM, PENDING, STATUSES, cells, clip, count, number, ratio, short_dtype
from farm.store import known
from farm.store.results import NO_RESULT, Doubt, doubts, place
from farm.timing.roof import EXTRAPOLATED

Row = Mapping[str, Any]
#: Operations per byte above which speeds are shown in TFLOP/s: norms do about 1, matrix products hundreds.
FLOP_BOUND = 50.0
PLACE = ("backend", "op", "provider", "mode")
MEASURED = 1e8  # a worst ratio from here on stands for what no metric measures: not finite, another layout
SCHEMA = 6  # the newest run.json that these pages understand


class RunLike(Protocol):
    """A run as the store gives it."""

    @property
    def id(self) -> str: ...
    @property
    def head(self) -> dict[str, Any]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def dir(self) -> Path: ...


@dataclass(frozen=True)
class RunVerdict:
    """What the rows of a run amount to: a decision (`id`) with the facts behind it.  `wording.sentence` words it."""

    id: str  # one of KINDS
    failed: int = 0  # cells that are findings
    groups: int = 0  # distinct failures among them
    strict: bool = False  # whether peers' failures are among them
    planned: int = 0
    pending: int = 0  # of an unfinished run: cells without a result
    writer: str = ""  # of a running run: the process that writes it
    faults: int = 0  # infrastructure failures
    cause: str = ""  # their reason, where all have the same one
    unsupported: tuple[str, ...] = ()  # subjects that support nothing on a backend: `farm on cuda`
    role: str = "subject"  # whose cells `passed` and `rest` count: the peers' where no subject is planned
    passed: Mapping[str, int] = field(default_factory=dict)  # evidence -> cells; kinds are never added up
    rest: Mapping[str, int] = field(default_factory=dict)  # status -> cells: those that did not pass
    idle: tuple[str, ...] = ()  # backends and targets on which nothing passed
    impossible: int = 0  # impossible timings
    doubted: int = 0  # cells that subjects pass although every peer is inaccurate
    peers: tuple[str, ...] = ()  # of these cells
    known: int = 0  # cells whose failure is known, which count apart
    stale: tuple[str, ...] = ()  # known failures that are fixed or have expired, and what to do

    @property
    def kind(self) -> str:
        """The word for tags and colours; what passed elsewhere than on a device is no `passed`."""
        return (KINDS[self.id] == "passed" and proven(self.passed)) or KINDS[self.id]


#: A verdict's id -> its kind.
KINDS: Mapping[str, str] = {
    "running": "running",
    "interrupted": "interrupted",
    "infrastructure-failures": "farm_fault",
    "in-doubt": "farm_fault",
    "findings": "findings",
    "nothing-ran": "nothing",
    "nothing-supported": "nothing",
    "all-compiled": "built",
    "all-simulated": "simulated",
    "all-imported": "nothing",
    "all-passed": "passed",
    "passed-by-evidence": "passed",
}


#: Kind of a verdict -> its name in run.json, where that is another.
STORED: Mapping[str, str] = {"nothing": "inconclusive", "built": "passed", "simulated": "passed"}


class Paired(NamedTuple):
    """A subject's time divided by a peer's: the geometric mean over the cells that both have a time for."""

    subject: str
    ratio: float
    cells: int


@dataclass(frozen=True)
class Part:
    """One line of a card: one provider's cells of one op, without skipped ones."""

    op: str
    provider: str
    role: str
    cells: int  # planned, with evidence or without
    passed: int
    missing: dict[str, int]  # those without evidence
    failed: dict[str, int]  # those with evidence that did not pass
    worst_ratio: float | None
    timed: int  # of a subject: timed cells of mode `auto`, which every other timed subject of the op has too
    speed: float | None  # median over these cells
    unit: str  # of `speed`: GB/s, or TFLOP/s where operations are the limit
    share: float | None  # of the roof, median over the same cells without extrapolated ones
    beyond: int  # the cells that are left out of `share`
    against: tuple[Paired, ...]  # of a peer: each subject's time relative to its own


@dataclass(frozen=True)
class Card:
    """One backend, one target, one kind of evidence; counts are never summed over cards."""

    backend: str
    target: str
    evidence: str
    counts: dict[str, int]
    not_run: dict[str, int]  # cells of this backend without evidence: on its first card only, never in `counts`
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
        return any(p.speed is not None or p.against for p in self.parts)

    @property
    def no_speed(self) -> str:
        """Why the card has no speed; "" where a cell has one, and for compiled cells."""
        if not self.counts or self.evidence == "compiled" or any(speed_counts(r) for r in self.rows):
            return ""
        if self.evidence == "interpreted":
            return Message(
                "no speeds: times in the interpreter say nothing about the speed of a kernel",
                id="report-no-speed-interpreted",
            )
        return Message("no speeds: no cell that passed was timed", id="report-no-speed-untimed")

    @property
    def roof(self) -> bool:
        return any(p.share is not None for p in self.parts)

    @property
    def notes(self) -> tuple[Message, ...]:
        """What a reader of the shares must know."""
        out = []
        if beyond := sum(p.beyond for p in self.parts):
            text = f"of roof: without {cells(beyond)} outside the calibrated sizes, whose roof is extrapolated"
            out.append(Message(text, id="report-share-extrapolated"))
        if any(p.share is not None and round(100 * p.share) > 100 for p in self.parts):
            text = "of roof: above 100 %, a kernel is faster than the best copy that moves as many bytes"
            out.append(Message(text, id="report-share-above"))
        return tuple(out)

    @property
    def missing(self) -> dict[str, int]:
        """Cells that were requested and have no evidence: the part of the bar that proves nothing."""
        return {s: n for s, n in self.not_run.items() if s != "skipped"}


@dataclass(frozen=True)
class Strip:
    """Errors relative to their tolerance, of one provider and mode at one dtype."""

    name: str
    values: tuple[float, ...]
    outliers: tuple[tuple[float, str], ...]  # (ratio, which cell)


@lru_cache(maxsize=65536)
def parse(text: str | None) -> Any:
    """JSON text of a column, or {} where it is empty or broken (a damaged run must not break the page)."""
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
    """Status -> cells, in the order of `STATUSES`; an unknown status comes last, under its own name."""
    return in_order(Counter(str(r.get("status") or "") for r in rows))


def in_order(found: Mapping[str, int]) -> dict[str, int]:
    known = {s: found[s] for s in STATUSES if found.get(s)}
    return known | {s: n for s, n in sorted(found.items()) if s not in STATUSES and n}


def planned(run: RunLike) -> int:
    return int(run.head.get("planned") or len(run.rows))


def is_subject(row: Row) -> bool:
    return row.get("role") != "peer"


def writer(run: RunLike) -> str:
    """The process that is writing the run; "" for a complete run and for an interrupted one."""
    return "" if run.complete else str(getattr(run, "writer", ""))


def journal_damage(run: RunLike) -> str:
    """That, and where, the journal of an unfinished run is damaged, in two sentences; "" if it is not."""
    found = getattr(run, "damage", None)
    if run.complete or not found:
        return ""
    lines = "1 line" if found.lines == 1 else f"{count(found.lines)} lines"
    results = f"{count(found.results)} result{'' if found.results == 1 else 's'}"
    return (
        f"The journal of this run is damaged: {lines}, the first is line {found.first}. Results in damaged lines are "
        f"lost; the {count(found.behind)} whole lines behind that line, with {results}, count."
    )


def proven(evidence: Iterable[str]) -> str:
    """What passing by these kinds of evidence alone amounts to: `built` or `simulated`; "" if anything ran for real."""
    seen = set(evidence)
    return "" if not seen or seen - {"compiled", "simulated"} else "simulated" if "simulated" in seen else "built"


@dataclass(frozen=True)
class _Running:
    """A run that is still being written, as it is shown."""

    id: str
    head: dict[str, Any]
    rows: Sequence[Row]
    dir: Path
    writer: str
    damage: Any = None
    complete: bool = False


def as_shown(run: RunLike) -> RunLike:
    """The run; while a process writes it, cells that have no result yet are pending, not lost."""
    if not (name := writer(run)):
        return run
    waits = {"status": PENDING, "reason": "no result yet"}
    rows = [{**r, **waits} if (r.get("status"), r.get("reason")) == ("lost", NO_RESULT) else r for r in run.rows]
    return _Running(run.id, run.head, rows, run.dir, name, getattr(run, "damage", None))


@dataclass(frozen=True)
class _Part:
    """Some rows of a run."""

    id: str
    head: dict[str, Any]
    complete: bool
    rows: Sequence[Row]
    dir: Path
    writer: str


def part(run: RunLike, rows: Sequence[Row]) -> RunLike:
    """A run of which only these rows are shown."""
    return _Part(run.id, run.head, run.complete, rows, run.dir, writer(run))


def by_place(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """(backend or named target, op) -> rows."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[place(row), str(row.get("op"))].append(row)
    return dict(found)


def strict_peers(run: RunLike) -> bool:
    return "--strict-peers" in f"{run.head.get('command')} {run.head.get('argv')}"


def is_finding(run: RunLike, row: Row) -> bool:
    """Whether this cell is a failure of code that the run tests."""
    return row.get("status") in HARM and (is_subject(row) or strict_peers(run)) and not is_known(run, row)


#: The known failures that were asked for last, and the cells that they cover: a page asks once a cell.
_COVERED: list[tuple[Any, frozenset[str]]] = []


def is_known(run: RunLike, row: Row) -> bool:
    """Whether the run has this cell's failure as a known one."""
    entries = run.head.get("known")
    if not entries:
        return False
    if not _COVERED or _COVERED[-1][0] is not entries:
        _COVERED[:] = [(entries, known.covered(entries))]
    return row.get("cell_id") in _COVERED[-1][1]


def verdict(run: RunLike) -> RunVerdict:
    """The verdict that follows from the rows, whatever run.json says; `warnings` reports where the two differ."""
    run = as_shown(run)
    bad = [r for r in run.rows if is_finding(run, r)]
    groups = {tuple(r.get(n) for n in ("status", *PLACE)) for r in bad}
    entries = run.head.get("known") or ()
    stale = tuple(filter(None, (known.note(e) for e in entries if e.get("state")))) if run.complete else ()
    covered = sum(is_known(run, r) for r in run.rows) if entries else 0
    made = RunVerdict("findings", len(bad), len(groups), strict_peers(run), planned(run), known=covered, stale=stale)
    if not run.complete:
        name = "running" if writer(run) else "interrupted"
        waits = counts(run.rows).get(PENDING if writer(run) else "lost", 0) + max(0, planned(run) - len(run.rows))
        return replace(made, id=name, pending=waits, writer=writer(run))
    if faults := [r for r in run.rows if r.get("status") in FARM_FAULTS]:
        causes = {str(r.get("reason") or "") for r in faults}
        cause = causes.pop() if len(causes) == 1 else ""
        return replace(made, id="infrastructure-failures", faults=len(faults), cause=cause)
    if doubted := doubts(run.rows):
        peers = tuple(sorted({name for d in doubted for name in d.peers}))
        return replace(made, id="in-doubt", doubted=len(doubted), peers=peers)
    return made if bad or (stale and known.fixed(entries)) else _without_findings(run, made)


def _without_findings(run: RunLike, made: RunVerdict) -> RunVerdict:
    """The verdict of a complete run without findings and infrastructure failures."""
    role = "subject" if any(map(is_subject, run.rows)) else "peer"
    own = [r for r in run.rows if is_subject(r) == (role == "subject")]
    done = [r for r in run.rows if r.get("status") in ("passed", "built")]
    ours = [r for r in own if r.get("status") in ("passed", "built")]
    if not ours:
        return replace(made, id="nothing-ran", role=role)
    if unsupported := _unsupported_subjects(run.rows):
        return replace(made, id="nothing-supported", unsupported=tuple(unsupported))
    idle = sorted({place(r) for r in run.rows} - {place(r) for r in done})
    impossible = sum(r.get("timing_quality") == "impossible" for r in run.rows)
    passed = Counter(str(r.get("evidence")) for r in ours)
    name = "passed-by-evidence" if len(passed) > 1 else "all-passed"
    if all(r.get("evidence") == "compiled" for r in done):
        name = "all-compiled"
    elif all(r.get("evidence") == "simulated" for r in done):
        name = "all-simulated"
    elif all(r.get("evidence") == "imported" for r in done):
        name = "all-imported"
    rest = counts(r for r in own if r.get("status") not in ("passed", "built"))
    made = replace(made, id=name, role=role, passed=passed, rest=rest)
    return replace(made, idle=tuple(idle), impossible=impossible)


def kind_of(run: RunLike, rows: Sequence[Row]) -> str:
    """The kind of verdict on some of a run's rows."""
    have = counts(rows)
    if have.get(PENDING) or (have.get("lost") and not run.complete):
        return "running" if writer(run) else "interrupted"
    if any(have.get(s) for s in FARM_FAULTS) or doubts(rows):
        return "farm_fault"
    if any(is_finding(run, r) for r in rows):
        return "findings"
    done = {str(r.get("evidence")) for r in rows if r.get("status") in ("passed", "built")}
    return (proven(done) or "passed") if done else "nothing"


def _unsupported_subjects(rows: Iterable[Row]) -> list[str]:
    """Subjects of which every cell on a backend was unsupported: `farm on cuda`."""
    seen: dict[str, bool] = {}
    for r in rows:
        if is_subject(r) and r.get("status") != "skipped":
            name = f"{r.get('provider')} on {place(r)}"
            seen[name] = seen.get(name, False) or r.get("status") != "unsupported"
    return sorted(name for name, supported in seen.items() if not supported)


def doubt(found: Sequence[Doubt]) -> Message:
    """What cells in doubt mean, and what to do; `found` is not empty."""
    peers, subjects = sorted({n for d in found for n in d.peers}), sorted({n for d in found for n in d.subjects})
    text = (
        f"The verdict of {cells(len(found))} is in doubt, first {found[0].cell_id}: every peer ({', '.join(peers)}) is "
        f"inaccurate where {', '.join(subjects)} passed. Run again; if the doubt remains, check the contract's "
        "reference and the tolerances before you trust this run."
    )
    return Message(text, id="report-in-doubt")


def warnings(run: RunLike) -> list[Message]:
    """Contradictions within a run; the page shows each prominently."""
    out: list[Message] = []

    def warn(id: str, text: str) -> None:
        out.append(Message(text, id=id))

    have = counts(run.rows)
    total = sum(have.values())
    if damaged := journal_damage(run):
        warn("report-journal-damaged", damaged)
    if doubted := doubts(run.rows):
        out.append(doubt(doubted))
    if total != planned(run):
        sums = f"The statuses add up to {count(total)} cells, but {count(planned(run))} cells were planned."
        warn("report-sum-differs", sums)
    ids = Counter((r.get("cell_id"), r.get("cell_key")) for r in run.rows)
    if twice := [str(i[0]) for i, n in ids.items() if n > 1]:
        verb = "appears" if len(twice) == 1 else "appear"
        warn("report-duplicate-cell", f"{cells(len(twice))} {verb} more than once in the run, first {twice[0]}.")
    if unknown := [s for s in have if s not in STATUSES]:
        number_of = sum(have[s] for s in unknown)
        verb = "has" if number_of == 1 else "have"
        names = ", ".join(f"`{s}`" for s in unknown)
        warn("report-unknown-status", f"{cells(number_of)} {verb} a status that this farm does not know: {names}.")
    if run.complete:
        stored = {s: n for s, n in (run.head.get("counts") or {}).items() if n}
        if stored and stored != have:
            differ = (
                "The status counts in run.json and cells.parquet differ; this page uses the counts from cells.parquet."
            )
            warn("report-counts-differ", differ)
        found, written = STORED.get(kind := verdict(run).kind, kind), run.head.get("verdict")
        if written and written != found:
            warn(
                "report-verdict-differs",
                f"run.json has the verdict `{written}`, but the cells of the run give `{found}`.",
            )
        if later_schema(run.head):
            written = run.head["schema"]
            newer = f"The run was written with schema {written!r}; this page supports schemas up to {SCHEMA}."
            warn("report-newer-schema", newer)
        for text in map(str, run.head.get("warnings") or ()):  # of a merged run
            warn("report-merge-warning", f"{text[:1].upper()}{text[1:]}.")
    return out


# ---- small helpers ----


def later_schema(head: Mapping[str, Any]) -> str:
    """Why nothing of a run can be relied on that a later farm wrote, as a clause; "" for any other run."""
    written = head.get("schema")
    if written is None or (isinstance(written, int) and written <= SCHEMA):
        return ""
    return f"it has schema {written!r}, and this farm knows schemas up to {SCHEMA}"


def worst_row(rows: Iterable[Row]) -> Row | None:
    judged = [r for r in rows if number(r.get("worst_ratio")) is not None]
    return max(judged, key=lambda r: float(r["worst_ratio"]), default=None)


def worst_error(row: Row | None) -> str:
    """`dw.rel_l2 5.3x the tolerance`; the reason where the cell is inaccurate for something that no metric measures."""
    if row is None:
        return ""
    over = number(row.get("worst_ratio")) or 0.0
    if row.get("status") == "inaccurate" and row.get("reason") and not 1 < over < MEASURED:
        return clip(str(row["reason"]))
    what = ".".join(p for p in (row.get("worst_output"), row.get("worst_metric")) if p) or "error"
    return f"{what} {ratio(number(row['worst_ratio']))}x the tolerance"


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
    """`2 devices on node-a`; counted from the cells, so it states what really ran."""
    if rows and all(r.get("evidence") == "compiled" for r in rows):
        return (Message("compiled, not run on a device", id="report-compiled-only"),)
    seen = {(str(r.get("node") or ""), str(r.get("device") or "")) for r in rows}
    found = Counter(node for node, _ in seen)
    return tuple(
        f"{n} device{'s' if n > 1 else ''} on {node or 'an unnamed node'}" for node, n in sorted(found.items())
    )


def _parts(rows: Sequence[Row]) -> Iterable[Part]:
    asked = sorted(  # subjects first, whatever the matrix lists first
        (r for r in rows if r.get("status") != "skipped"), key=lambda r: (not is_subject(r), r.get("index") or 0)
    )
    groups = by(asked, "op", "provider")
    times = {key: {same_cell(r): r for r in members if races(r)} for key, members in groups.items()}
    for (op, provider), members in groups.items():
        subjects = {p: t for (o, p), t in times.items() if o == op and t and is_subject(groups[o, p][0])}
        mine, leads = times[op, provider], subjects or {p: t for (o, p), t in times.items() if o == op and t}
        common = set(mine).intersection(*leads.values()) if provider in leads else set()
        timed = [r for cell, r in mine.items() if cell in common]
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
            timed=len(timed),
            speed=_median(r.get("tflops" if flops else "bandwidth_gbps") for r in timed),
            unit="TFLOP/s" if flops else "GB/s",
            share=_median(r.get("share_of_roof") for r in timed if not extrapolated(r)),
            beyond=sum(map(extrapolated, timed)),
            against=() if provider in leads else tuple(_paired(leads, mine)),
        )


def _paired(subjects: Mapping[str, Mapping[Any, Row]], peer: Mapping[Any, Row]) -> Iterable[Paired]:
    for name, mine in subjects.items():
        if both := mine.keys() & peer.keys():
            ratios = [float(mine[c]["time_us_p50"]) / float(peer[c]["time_us_p50"]) for c in both]
            yield Paired(name, geometric_mean(ratios), len(both))


def _median(values: Iterable[Any]) -> float | None:
    known = [v for v in map(number, values) if v is not None]
    return median(known) if known else None


def flop_bound(rows: Iterable[Row]) -> bool:
    """Whether operations, not bytes, limit the speed of these cells."""
    pairs = [(number(r.get("operations")), number(r.get("bytes_moved"))) for r in rows]
    known = [o / b for o, b in pairs if o is not None and b]
    return bool(known) and median(known) > FLOP_BOUND


def speed_counts(row: Row) -> bool:
    """Whether a time of this row may be shown as a speed."""
    shown = row.get("timing_quality") not in ("impossible", "none", "", None)
    return shown and row.get("status") == "passed" and number(row.get("time_us_p50")) is not None


def races(row: Row) -> bool:
    """Whether a row's time stands for its provider: its own choice of mode, or its only one."""
    return speed_counts(row) and float(row["time_us_p50"]) > 0 and row.get("mode") in ("auto", "", None)


def same_cell(row: Row) -> tuple[str, ...]:
    """What two rows must share so that their times may be compared: place, op, dtype, shape, operation, target, timing
    method, casting and other parameters."""
    names = ("op", "dtype", "shape", "operation", "target", "timing_method")
    return (place(row), *(str(row.get(n)) for n in names), own_rest(row))


def own_rest(row: Row) -> str:
    """The part of a cell's id after its shape, without the target: casting, and parameters that are not the default."""
    parts = (row.get(n) for n in ("backend", "op", "provider", "mode", "operation"))
    head = "/".join([*map(str, parts), short_dtype(row.get("dtype") or ""), str(row.get("shape"))])
    name = str(row.get("cell_id") or "")
    name = name[: name.rfind("@")] if "@" in name else name
    return name[len(head) :].strip("/").replace("/", " ").strip() if name.startswith(head) else name


def extrapolated(row: Row) -> bool:
    """Whether the row's bytes are outside the calibrated sizes; its flag says so."""
    return EXTRAPOLATED in str(row.get("flags") or "")


# ---- accuracy ----


def strips(run: RunLike) -> dict[tuple[str, str], dict[str, list[Strip]]]:
    """(backend or named target, op) -> dtype -> one strip per provider and mode that was judged.  Where a place has
    both, errors of simulated devices are separate from a real device's, under `<place> simulated`."""
    out: dict[tuple[str, str], dict[str, list[Strip]]] = defaultdict(lambda: defaultdict(list))
    judged = [r for r in run.rows if number(r.get("worst_ratio")) is not None]
    real = {place(r) for r in judged if r.get("evidence") != "simulated"}
    apart: dict[str, list[Row]] = defaultdict(list)
    for r in judged:
        apart[place(r) + (" simulated" if r.get("evidence") == "simulated" and place(r) in real else "")].append(r)
    groups = [
        (where, *rest) for where, mine in apart.items() for rest in by(mine, "op", "dtype", "provider", "mode").items()
    ]
    for where, (op, dtype, provider, mode), rows in groups:
        over = sorted((r for r in rows if float(r["worst_ratio"]) > 1), key=lambda r: -float(r["worst_ratio"]))
        outliers = tuple((float(r["worst_ratio"]), f"{r['cell_id']}: {worst_error(r)}") for r in over[:30])
        strip = Strip(f"{provider}/{mode}", tuple(float(r["worst_ratio"]) for r in rows), outliers)
        out[where, op][dtype].append(strip)
    return out
