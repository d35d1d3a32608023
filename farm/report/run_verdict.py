"""The verdict that follows from the rows of a run, and what contradicts itself in it.  Pure.  `wording` turns a verdict
into a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farm.errors import Message
from farm.report.format import FARM_FAULTS, PENDING, STATUSES, cells, count
from farm.report.queries import (
    PLACE,
    SCHEMA,
    Row,
    RunLike,
    as_shown,
    counts,
    is_finding,
    is_known,
    is_subject,
    journal_damage,
    later_schema,
    planned,
    proven,
    strict_peers,
    writer,
)
from farm.store import known
from farm.store.results import Doubt, doubts, place


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
